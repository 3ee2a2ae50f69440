"""The pages of periodic jobs: the list, and a job with its last runs."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from ..inspection.live import Snapshot
from ..models import JOB_STATES, PeriodicJob
from ..periodic.registry import discover, jobs
from . import cells, tables
from .pages import Count, FieldFilter, LiveAdmin

logger = logging.getLogger("django_redislock")


class JobStateFilter(FieldFilter):
    title = _("state")
    parameter_name = "state"
    names = JOB_STATES


@admin.display(description=_("name"), ordering="name")
def name(job: PeriodicJob) -> str:
    return cells.broken(job.name)


@admin.display(description=_("state"), ordering="state")
def state(job: PeriodicJob) -> str:
    return cells.badge(job.state, JOB_STATES)


@admin.display(description=_("last run"), ordering="started")
def started(job: PeriodicJob) -> str:
    return cells.moment(job.started)


@admin.display(description=_("outcome"), ordering="took")
def outcome(job: PeriodicJob) -> str:
    return cells.NOTHING if job.info.last is None else tables.outcome(job.info.last)


@admin.display(description=_("next"), ordering="next")
def upcoming(job: PeriodicJob) -> str:
    return cells.moment(job.next)


@admin.display(description=_("last done"))
def done(job: PeriodicJob) -> str:
    return cells.moment(job.info.done)


@admin.display(description=_("paused"))
def pause(job: PeriodicJob) -> str:
    paused = job.info.paused
    if paused is None:
        return cells.NOTHING
    return cells.with_quiet(f"{cells.moment(paused.at)}, {paused.by}", paused.why)


class PeriodicJobAdmin(LiveAdmin):
    list_display = (name, state, "plan", started, outcome, upcoming)
    list_filter = (JobStateFilter,)
    search_fields = ("name", "plan")

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Hide the page from projects without periodic jobs."""
        try:
            discover()
            found = bool(jobs())
        except Exception:  # each page of the admin asks for this; none may fail for it
            logger.exception("The periodic jobs can't be listed")
            found = True
        return super().get_model_perms(request) if found else {}

    def summary(self, snapshot: Snapshot) -> dict[str, Any]:
        states = Counter(row.state for row in snapshot.rows)
        return {
            "counts": [
                Count(states[value], name, f"?state={value}", value)
                for value, name in JOB_STATES
                if states[value]
            ]
        }

    def get_fieldsets(self, request: HttpRequest, obj: PeriodicJob | None = None) -> Any:
        about: list[Any] = [(name, state), ("plan", "where"), (done, upcoming), (pause, "using")]
        return [(None, {"fields": about})]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        context["tables"] = [tables.runs(kwargs["obj"].info.runs)]
        return super().render_change_form(request, context, *args, **kwargs)
