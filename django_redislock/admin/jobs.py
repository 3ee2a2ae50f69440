"""The pages of periodic jobs: the list, and a job with its last runs."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from ..models import JOB_STATES, PeriodicJob
from ..periodic.registry import discover, jobs
from ..primitives.ledger import RunInfo
from . import cells
from .filters import FieldFilter
from .pages import LiveAdmin

logger = logging.getLogger("django_redislock")


class JobStateFilter(FieldFilter):
    title = _("state")
    parameter_name = "state"
    names = JOB_STATES


class PeriodicJobAdmin(LiveAdmin):
    list_display = ("its_name", "its_state", "its_plan", "its_run", "its_outcome", "its_next")
    list_filter = (JobStateFilter,)
    search_fields = ("name", "plan")

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """A project without such jobs is not offered an empty page."""
        try:
            discover()
            found = bool(jobs())
        except Exception:  # each page of the admin asks for this, and has other things to show
            logger.exception("The periodic jobs can't be told")
            found = True
        return super().get_model_perms(request) if found else {}

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> PeriodicJob | None:
        found: PeriodicJob | None = self.get_queryset(request).filter(pk=object_id).first()
        return found

    def summary(self, request: HttpRequest, rows: list[dict[str, Any]]) -> dict[str, Any]:
        states = Counter(row["state"] for row in rows)
        found = [(value, name, states[value]) for value, name in JOB_STATES if states[value]]
        return {"states": found}

    @admin.display(description=_("name"), ordering="name")
    def its_name(self, job: PeriodicJob) -> str:
        return cells.broken(job.name)

    @admin.display(description=_("state"), ordering="state")
    def its_state(self, job: PeriodicJob) -> str:
        return cells.badge(job.state, JOB_STATES)

    @admin.display(description=_("when"), ordering="plan")
    def its_plan(self, job: PeriodicJob) -> str:
        return str(job.plan)

    @admin.display(description=_("last run"), ordering="started")
    def its_run(self, job: PeriodicJob) -> str:
        return cells.moment(job.started)

    @admin.display(description=_("outcome"), ordering="took")
    def its_outcome(self, job: PeriodicJob) -> str:
        return cells.NOTHING if job.info.last is None else cells.outcome(job.info.last)

    @admin.display(description=_("next"), ordering="next")
    def its_next(self, job: PeriodicJob) -> str:
        return cells.moment(job.next)

    @admin.display(description=_("where"))
    def its_where(self, job: PeriodicJob) -> str:
        return str(job.where)

    @admin.display(description=_("last done"))
    def its_done(self, job: PeriodicJob) -> str:
        return cells.moment(job.info.done)

    @admin.display(description=_("paused"))
    def its_pause(self, job: PeriodicJob) -> str:
        paused = job.info.paused
        if paused is None:
            return cells.NOTHING
        return cells.with_quiet(f"{cells.moment(paused.at)}, {paused.by}", paused.why)

    def get_fieldsets(self, request: HttpRequest, obj: PeriodicJob | None = None) -> Any:
        about = [("its_name", "its_state"), ("its_plan", "its_where"), ("its_done", "its_next")]
        return [(None, {"fields": [*about, ("its_pause", "using")]})]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        context["runs"] = [_run(run) for run in kwargs["obj"].info.runs]
        return super().render_change_form(request, context, *args, **kwargs)


def _run(run: RunInfo) -> dict[str, str]:
    return {
        "planned": str(_("by hand")) if run.planned is None else cells.moment(run.planned),
        "started": cells.moment(run.started),
        "outcome": cells.outcome(run),
        "holder": cells.person(run.owner, run.why),
        "fencing_token": cells.number(run.fencing_token),
    }
