"""The pages of periodic jobs: the list, and a job with its last runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..inspection.live import Snapshot
from ..inspection.lock_id import LockId
from ..inspection.sentences import translated
from ..inspection.words import clean, unattended
from ..models import JOB_STATES, LockStatus, PeriodicJob
from ..periodic.job import LOCK_PREFIX
from ..periodic.registry import discover, jobs
from ..periodic.report import JobInfo, silent_for
from . import audit, cells, job_cells, tables
from .job_actions import ACTS, JobActions
from .pages import Count, FieldFilter, or_away

logger = logging.getLogger("django_redislock")


class JobStateFilter(FieldFilter):
    title = _("state")
    parameter_name = "state"
    names = JOB_STATES


class PeriodicJobAdmin(JobActions):
    list_display = (
        job_cells.name_and_plan,
        job_cells.state,
        job_cells.last_runs,
        job_cells.upcoming,
    )
    list_filter = (JobStateFilter,)
    search_fields = ("name", "plan", "error")

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
            ],
            "alarm": _alarm(row.info for row in snapshot.rows),
        }

    def get_fieldsets(self, request: HttpRequest, obj: PeriodicJob | None = None) -> Any:
        about: list[Any] = [
            (job_cells.name, job_cells.state),
            (job_cells.plan, job_cells.upcoming),
            (job_cells.last_runs, job_cells.done),
            (job_cells.where, "lock"),
        ]
        return [(None, {"fields": about})]

    @admin.display(description=_("lock"))
    def lock(self, job: PeriodicJob) -> str:
        """The job's lock, with a link if this site has a page of it."""
        name = f"{LOCK_PREFIX}{job.name}"
        if not self.admin_site.is_registered(LockStatus):
            return cells.value(name)
        pages: Any = self.admin_site.get_model_admin(LockStatus)
        url = pages.url("change", str(LockId(job.using, False, name)))
        return format_html('<a href="{}">{}</a>', url, cells.value(name))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        job: PeriodicJob = kwargs["obj"]
        empty = gettext("Nobody has paused, resumed or run it here.")
        context["tables"] = [
            tables.runs(job.info.runs),
            tables.history(gettext("History"), audit.history(PeriodicJob, job.name)[:10], empty),
        ]
        context["alarm"] = _alarm([job.info])
        wanted = ("run", "pause" if job.info.paused is None else "resume")
        context["acts"] = {
            what: self.url(what, job.name)
            for what in wanted
            if self.may(request, ACTS[what].permission)
        }
        return super().render_change_form(request, context, *args, **kwargs)

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, _opts: Any, object_id: str
    ) -> HttpResponse:
        """Lead to the list, where Django leads to the start of the admin."""
        message = gettext("There is no job “%(name)s”.") % {"name": clean(unquote(object_id))}
        self.message_user(request, message, messages.WARNING)
        return HttpResponseRedirect(self.url("changelist"))

    @or_away
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().history_view(request, object_id, extra_context)


def _alarm(found: Iterable[JobInfo]) -> str:
    """The sentence that no scheduler looks after these jobs; "": one does."""
    silence = silent_for(found)
    return "" if silence is None else translated(unattended(silence))
