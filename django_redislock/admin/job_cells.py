"""The columns and facts of a periodic job."""

from __future__ import annotations

from datetime import datetime

from django.contrib import admin
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..inspection.words import clean, rounded
from ..models import JOB_STATES, PeriodicJob
from . import cells, tables
from .strip import strip


def relative(time: datetime | None, words: str, seconds: float) -> str:
    """A time as so many seconds from now, with the instant as a tooltip. `words` has a place for
    `{time}`."""
    if time is None:
        return cells.NOTHING
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        time.isoformat(),
        cells.moment(time),
        format_html(words, time=format_html(cells.LTR, rounded(max(0.0, seconds)))),
    )


def since(time: datetime | None, now: datetime) -> str:
    passed = 0.0 if time is None else (now - time).total_seconds()
    return relative(time, gettext("{time} ago"), passed)


@admin.display(description=_("name"), ordering="name")
def name(job: PeriodicJob) -> str:
    return cells.value(job.name)


@admin.display(description=_("name"), ordering="name")
def name_and_plan(job: PeriodicJob) -> str:
    return cells.with_quiet(cells.value(job.name), cells.value(job.plan))


@admin.display(description=_("when"))
def plan(job: PeriodicJob) -> str:
    return cells.value(job.plan)


@admin.display(description=_("where"))
def where(job: PeriodicJob) -> str:
    return cells.value(job.where)


@admin.display(description=_("state"), ordering="trouble")
def state(job: PeriodicJob) -> str:
    """The state, and what an operator wants to know of it."""
    info = job.info
    said = [cells.badge(job.state, JOB_STATES)]
    if info.error:
        said.append(format_html('<div class="redislock-error">{}</div>', cells.value(info.error)))
    if info.paused is not None:
        at, by, why = info.paused
        words = {"time": since(at, info.read_at), "who": by, "why": clean(why)}
        said.append(cells.quiet(format_html(gettext("{time} by {who}: {why}"), **words)))
    if info.request is not None:
        words = {"time": since(info.request.at, info.read_at), "who": info.request.by}
        said.append(cells.quiet(format_html(gettext("Run requested {time} by {who}"), **words)))
    return format_html("{}" * len(said), *said)


@admin.display(description=_("last runs"), ordering="started")
def last_runs(job: PeriodicJob) -> str:
    """The strip; below it, when the last run began, and what became of it."""
    runs, now = job.info.runs, job.info.read_at
    last = job.info.last
    if last is None:
        return strip(runs, now)
    words = (strip(runs, now), since(last.started, now), tables.outcome_text(last))
    return format_html('{}<div class="redislock-quiet">{}: {}</div>', *words)


@admin.display(description=_("next"), ordering="next")
def upcoming(job: PeriodicJob) -> str:
    time = job.info.next
    if time is None:
        return cells.NOTHING
    left = (time - job.info.read_at).total_seconds()
    words = gettext("in {time}") if left >= 0 else gettext("due for {time}")
    return relative(time, words, abs(left))


@admin.display(description=_("last done"))
def done(job: PeriodicJob) -> str:
    return since(job.info.done, job.info.read_at)
