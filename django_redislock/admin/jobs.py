"""The pages of periodic jobs: the list, and a job with its last runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..base import people
from ..base.exceptions import LockError
from ..inspection.sheet import RUNS, Column
from ..inspection.words import clean, duration, since, translated, unattended, until
from ..models import JOB_STATES, LockId, LockStatus, PeriodicJob, Snapshot
from ..periodic.job import LOCK_PREFIX, discover, jobs
from ..periodic.report import JobInfo, Ledger, silent_for
from ..periodic.runner import LOOK_EVERY
from ..primitives.ledger import RunInfo, RunOutcome
from . import cells
from .pages import UNWRITTEN, Count, Deed, FieldFilter, LiveAdmin, log_entries, or_away, write_down

logger = logging.getLogger("django_redislock")


# The last runs as a strip of bars, for `strip.html`: an SVG without styles of its own.
#
# The height of a bar is how long the run took. Each outcome has its own shape, so the strip can be
# read without colours, and each bar has a `<title>` with the facts.

RUNS_SHOWN = 20
"""The most runs of a strip."""

_STEP = 7
_BASE = 25
_HIGHEST = 16
_LOWEST = 2

_CROSS = "l5 5m0 -5l-5 5"
_ABOVE = {
    RunOutcome.FAILED: _CROSS,
    RunOutcome.LOST: _CROSS,
    RunOutcome.RUNNING: "l5 2.5l-5 2.5z",
    RunOutcome.UNREADABLE: _CROSS,
}
"""What stands above the bar of a run. The style sheet fills the bar of a run that has come to its
end, and leaves the others hollow."""


def strip(runs: Sequence[RunInfo], now: datetime) -> str:
    """The last runs, the newest at the right end."""
    shown = list(reversed(runs[:RUNS_SHOWN]))
    if not shown:
        return cells.NOTHING
    took = [_took(run, now) for run in shown]
    longest = max(took) or 1.0
    bars = []
    for place, (run, seconds) in enumerate(zip(shown, took, strict=True), RUNS_SHOWN - len(shown)):
        height = _LOWEST + round(seconds / longest * (_HIGHEST - _LOWEST))
        ran = run.outcome not in (RunOutcome.SKIPPED, RunOutcome.UNREADABLE)
        paths = [f"M0 {_BASE}v-{height}h5v{height}z" if ran else f"M0 {_BASE}h5"]
        if run.outcome in _ABOVE:
            paths.append(f"M0 {_BASE - height - 7}{_ABOVE[run.outcome]}")
        at = {"x": place * _STEP + 1, "paths": paths}
        bars.append({"outcome": run.outcome, "text": _said(run), **at})
    # For those who can't see the strip.
    names = Counter(str(cells.NAMES[run.outcome]) for run in shown)
    counted = ", ".join(f"{name}: {number}" for name, number in names.items())
    summary = gettext("Last runs: %(counts)s") % {"counts": counted}
    context = {"summary": summary, "bars": bars, "width": RUNS_SHOWN * _STEP}
    return render_to_string("admin/django_redislock/strip.html", context)


def _took(run: RunInfo, now: datetime) -> float:
    if run.outcome == RunOutcome.RUNNING and run.started is not None:
        return max(0.0, (now - run.started).total_seconds())
    return run.duration or 0.0


def _said(run: RunInfo) -> str:
    """The facts of a run, on one line."""
    at = cells.moment(run.started or run.planned or run.ended)
    return ", ".join(filter(None, (at, *_became(run), clean(run.why))))


def _became(run: RunInfo) -> Sequence[str]:
    """The outcome of a run with the number of the attempt, and how long it took."""
    attempt = f" ({run.attempt})" if run.attempt > 1 else ""
    took = [] if run.duration is None else [duration(run.duration)]
    return [f"{cells.NAMES[run.outcome]}{attempt}", *took]


# The columns and facts of a job.


def relative(time: datetime | None, now: datetime, say: Callable[..., str] = since) -> str:
    """Say how long ago a time was, or in how long it comes. The time is a tooltip."""
    if time is None:
        return cells.NOTHING
    return cells.time_of(time, cells.sentence(say(time, now)), ltr=False)


name, plan, where = (
    cells.shown(Column(title, attrgetter(field)))
    for field, title in (("name", "name"), ("plan", "when"), ("where", "where"))
)


@admin.display(description=_("name"), ordering="name")
def name_and_plan(job: PeriodicJob) -> str:
    return cells.with_quiet(cells.value(job.name), cells.value(job.plan))


@admin.display(description=_("state"), ordering="trouble")
def state(job: PeriodicJob) -> str:
    """The state, and what an operator wants to know of it."""
    info, said, error = job.info, [], ""
    if info.error:
        error = format_html('<div class="redislock-error">{}</div>', cells.value(info.error))
    if info.paused is not None:
        at, by, why = info.paused
        words = {"time": relative(at, info.read_at), "who": by, "why": clean(why)}
        said.append(format_html(gettext("{time} by {who}: {why}"), **words))
    if info.request is not None:
        words = {"time": relative(info.request.at, info.read_at), "who": info.request.by}
        said.append(format_html(gettext("Run requested {time} by {who}"), **words))
    return cells.with_quiet(format_html("{}{}", cells.badge(job.state), error), *said)


@admin.display(description=_("last runs"), ordering="started")
def last_runs(job: PeriodicJob) -> str:
    """The strip; below it, when the last run began, and what became of it."""
    runs, now = job.info.runs, job.info.read_at
    last = job.info.last
    if last is None:
        return strip(runs, now)
    became = format_html("{}: {}", relative(last.started, now), ", ".join(_became(last)))
    return cells.with_quiet(strip(runs, now), became)


@admin.display(description=_("next"), ordering="next")
def upcoming(job: PeriodicJob) -> str:
    return relative(job.info.next, job.info.read_at, until)


@admin.display(description=_("last done"))
def done(job: PeriodicJob) -> str:
    return relative(job.info.done, job.info.read_at)


# What operators do with jobs: pause, resume, and request a run.


MAX_REASON = 200


class JobActionForm(ActionForm):
    """The action, and the reason for it."""

    reason = forms.CharField(label=_("Reason for a pause:"), max_length=MAX_REASON, required=False)


class Act(NamedTuple):
    """Something that is done to a job."""

    permission: str
    do: Callable[[Ledger, str, str, str], bool]
    """Do it to the job of a name, by whom and why. False: there was nothing to do."""
    done: Any
    nothing: Any
    written: Any
    """What the history says."""


def _run(ledger: Ledger, name: str, by: str, _reason: str) -> bool:
    request = ledger.request_run(name, by=by)
    return request is not None and request.by == by


ACTS = {
    "run": Act(
        "run_periodicjob",
        _run,
        _("Asked for a run of %(names)s. Schedulers look every %(seconds)s seconds."),
        _("%(names)s: not asked for. It is disabled, or somebody else has asked for a run."),
        _("Asked for a run."),
    ),
    "pause": Act(
        "pause_periodicjob",
        lambda ledger, name, by, reason: ledger.pause(name, by=by, reason=reason),
        _("Paused %(names)s."),
        _("There is no job %(names)s."),
        _("Paused: %(reason)s."),
    ),
    "resume": Act(
        "pause_periodicjob",
        lambda ledger, name, _by, _reason: ledger.resume(name),
        _("Resumed %(names)s, from the next tick."),
        _("%(names)s: not paused."),
        _("Resumed."),
    ),
}


class PeriodicJobAdmin(LiveAdmin):
    list_display = (name_and_plan, state, last_runs, upcoming)
    list_filter = (FieldFilter.of(_("state"), "state", JOB_STATES),)
    search_fields = ("name", "plan", "error")

    # Buttons on the page of a job, and actions of the list.

    actions = ("run_jobs", "pause_jobs", "resume_jobs")
    action_form = JobActionForm

    def has_run_permission(self, request: HttpRequest) -> bool:
        return self.may(request, ACTS["run"].permission)

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self.may(request, ACTS["pause"].permission)

    def get_urls(self) -> list[Any]:
        route = "<path:object_id>/{}/"
        acts = [self.page(what, route.format(what), self.act_view, what=what) for what in ACTS]
        return [*acts, *super().get_urls()]

    @admin.action(description=_("Run selected jobs now"), permissions=["run"])
    def run_jobs(self, request: HttpRequest, queryset: Any) -> None:
        self._act(request, "run", [job.name for job in queryset])

    @admin.action(description=_("Pause selected jobs"), permissions=["pause"])
    def pause_jobs(self, request: HttpRequest, queryset: Any) -> None:
        self._act(request, "pause", [job.name for job in queryset])

    @admin.action(description=_("Resume selected jobs"), permissions=["pause"])
    def resume_jobs(self, request: HttpRequest, queryset: Any) -> None:
        self._act(request, "resume", [job.name for job in queryset])

    def act_view(self, request: HttpRequest, object_id: str, what: str) -> HttpResponse:
        """Do it to one job, and show its page again."""
        if not self.may(request, ACTS[what].permission):
            raise PermissionDenied
        name = unquote(object_id)
        if request.method == "POST":
            self._act(request, what, [name])
        return HttpResponseRedirect(self.url("change", name))

    def _act(self, request: Any, what: str, names: Sequence[str]) -> None:
        act, who = ACTS[what], str(request.user.get_username())
        reason = people.clean(request.POST.get("reason", "").strip(), MAX_REASON)
        if what == "pause" and not reason:
            message = gettext("Nothing was paused: write the reason.")
            self.message_user(request, message, messages.ERROR)
            return
        ledger, by = Ledger(), people.clean(who).replace("|", "/")
        written = str(act.written) % {"reason": reason.rstrip(".")}
        done: list[str] = []
        nothing: list[str] = []
        unknown: list[str] = []  # one at most: the last that was tried
        try:
            for name in names:
                unknown.append(name)
                its = done if act.do(ledger, name, by, reason) else nothing
                its.append(unknown.pop())
        except LockError as error:
            text = gettext("It is not known whether this was done to “%(name)s”: %(error)s")
            words = {"name": clean(unknown[0]), "error": clean(str(error))}
            self.message_user(request, text % words, messages.ERROR)
        finally:
            perhaps = gettext("Perhaps: %(what)s") % {"what": written}
            deeds = [Deed(name, name, written) for name in done]
            deeds += [Deed(name, name, perhaps) for name in unknown]
            kept = not deeds or write_down(request.user, self.model, deeds)
        for text, level, its in (
            (act.done, messages.SUCCESS, done),
            (act.nothing, messages.WARNING, nothing),
        ):
            if its:
                listed = ", ".join(f"“{clean(name)}”" for name in its)
                words = {"names": listed, "seconds": f"{LOOK_EVERY:.0f}"}
                self.message_user(request, text % words, level)
        if not kept:
            self.message_user(request, UNWRITTEN, messages.ERROR)

    # The list, and a job.

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
        about: list[Any] = [(name, state), (plan, upcoming), (last_runs, done), (where, "lock")]
        return [(None, {"fields": about})]

    @admin.display(description=_("lock"))
    def lock(self, job: PeriodicJob) -> str:
        """The job's lock, with a link if this site has a page of it."""
        name = f"{LOCK_PREFIX}{job.name}"
        if not self.admin_site.is_registered(LockStatus):
            return cells.value(name)
        pages: Any = self.admin_site.get_model_admin(LockStatus)
        return cells.link(pages.url("change", str(LockId(job.using, False, name))), name)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        job: PeriodicJob = kwargs["obj"]
        empty = gettext("Nobody has paused, resumed or run it here.")
        context["tables"] = [
            cells.table(
                gettext("Last runs"), RUNS, job.info.runs, empty=gettext("It has not run yet.")
            ),
            cells.history(gettext("History"), log_entries(PeriodicJob, job.name)[:10], empty),
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

    history_view = or_away(admin.ModelAdmin.history_view)


def _alarm(found: Iterable[JobInfo]) -> str:
    """The sentence that no scheduler looks after these jobs; "": one does."""
    silence = silent_for(found)
    return "" if silence is None else translated(unattended(silence))
