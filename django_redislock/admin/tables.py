"""The tables on the pages of a lock, of a job, and of a confirmation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.contrib.admin.models import LogEntry
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..inspection import UNREADABLE, Ending, HolderInfo, Kind, LockInfo, Past, WaiterInfo
from ..inspection.sentences import translated
from ..inspection.words import place_text, value_text
from ..models import Lock
from ..primitives.ledger import RunInfo, RunOutcome
from ..settings import conf
from . import cells

SHOWN = 100
"""The most rows of a table."""

_ENDINGS = {
    Ending.RELEASED: gettext_lazy("released"),
    Ending.EXPIRED: gettext_lazy("expired"),
    Ending.CLEARED: gettext_lazy("cleared"),
}
_OUTCOMES = [
    (RunOutcome.RUNNING.value, gettext_lazy("running")),
    (RunOutcome.DONE.value, gettext_lazy("done")),
    (RunOutcome.FAILED.value, gettext_lazy("failed")),
    (RunOutcome.LOST.value, gettext_lazy("lost")),
    (RunOutcome.SKIPPED.value, gettext_lazy("skipped")),
    (RunOutcome.UNREADABLE.value, gettext_lazy("unreadable")),
]


class Table(NamedTuple):
    """A table, for `table.html`."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]
    more: int = 0
    """The number of rows that are not shown."""
    empty: str = ""
    """The text for a table without rows."""
    note: str = ""


def locks(to_clear: Sequence[Lock]) -> Table:
    """The locks to clear."""
    rows = [
        (
            cells.name(lock),
            cells.state_and_why(lock),
            cells.holder(lock),
            cells.held(lock),
            lock.waiters,
        )
        for lock in to_clear[:SHOWN]
    ]
    headings = [_("Name"), _("State"), _("Holder"), _("Held for"), _("Waiters")]
    return Table("", headings, rows, more=len(to_clear) - SHOWN)


def holders(lock: LockInfo) -> Table:
    """The holders of a lock that several may hold."""
    headings = [_("Holder"), _("State"), _("Since"), _("Held for"), _("Remaining")]
    return Table(
        _("Holders"),
        [*headings, _("Fencing token")],
        [_holder(one) for one in lock.holders[:SHOWN]],
        more=lock.holding - SHOWN,
    )


def _holder(info: HolderInfo) -> Sequence[str]:
    of = info.holder
    return (
        cells.person(of.owner or "", of.label),
        cells.state_of(info),
        cells.moment(of.acquired_at),
        cells.seconds(of.held),
        cells.seconds(of.remaining),
        cells.number(of.fencing_token),
    )


def waiters(first: Iterable[WaiterInfo], of: int) -> Table:
    """The first waiters, of so many."""
    rows = [
        (
            waiter.position + 1,
            cells.person(waiter.owner, _wants(waiter)),
            cells.seconds(waiter.waited),
        )
        for waiter in first
    ]
    headings = [_("Place"), _("Waiter"), _("Waits for")]
    empty = _("Nobody waits.")
    return Table(_("Waiters"), headings, rows, more=of - len(rows), empty=empty)


def _wants(waiter: WaiterInfo) -> str:
    """The place in the code; for a read-write lock also the purpose."""
    wants = {Kind.READ: _("to read"), Kind.WRITE: _("to write")}.get(waiter.kind)
    return f"{wants}, {waiter.label}" if wants else translated(waiter.label)


def past(known: Past) -> Table:
    """The past holders."""
    rows = [
        (
            cells.person(one.owner, one.label),
            cells.moment(one.acquired_at),
            cells.seconds(one.lasted),
            format_html("{}{}", _ENDINGS[one.ending], cells.quiet(one.why)),
            cells.number(one.fencing_token),
        )
        for one in known.holders
    ]
    unreadable = translated(UNREADABLE) if known.unreadable else ""
    return Table(
        _("Last holders"),
        [_("Holder"), _("Since"), _("Held for"), _("Ending"), _("Fencing token")],
        rows,
        empty=unreadable
        or _("None are known: they are kept for a minute, or for three times the TTL."),
        note=unreadable,
    )


def history(entries: Iterable[LogEntry]) -> Table:
    rows = [
        (entry.action_time, entry.user.get_username(), entry.get_change_message())
        for entry in entries
    ]
    headings = [_("Time"), _("User"), _("Action")]
    return Table(_("History"), headings, rows, empty=_("Nobody has cleared this lock here."))


def settings(name: str) -> Table:
    """The settings of a lock, and where each is written."""
    rows = [
        (term.upper(), value_text(setting.value), translated(place_text(term.upper(), setting)))
        for term, setting in conf.origins(name).items()
    ]
    note = _("Arguments in the code override these settings.")
    return Table(_("Settings"), [_("Setting"), _("Value"), _("From")], rows, note=note)


def runs(last: Iterable[RunInfo]) -> Table:
    """The last runs of a job."""
    rows = [
        (
            _("by hand") if run.planned is None else cells.moment(run.planned),
            cells.moment(run.started),
            outcome(run),
            cells.person(run.owner, run.why),
            cells.number(run.fencing_token),
        )
        for run in last
    ]
    headings = [_("Planned"), _("Started"), _("Outcome"), _("By"), _("Fencing token")]
    return Table(_("Last runs"), headings, rows, empty=_("It has not run yet."))


def outcome(run: RunInfo) -> str:
    """The outcome of a run, and how long it took."""
    return format_html(
        '<span class="redislock-whole">{} {}</span>',
        cells.badge(run.outcome, _OUTCOMES),
        _attempt_and_time(run),
    )


def outcome_text(run: RunInfo) -> str:
    """The same without colours."""
    return ", ".join(filter(None, (outcome_name(run), _attempt_and_time(run))))


def outcome_name(run: RunInfo) -> str:
    return str(dict(_OUTCOMES)[run.outcome])


def _attempt_and_time(run: RunInfo) -> str:
    attempt = f"({run.attempt}) " if run.attempt > 1 else ""
    return attempt + ("" if run.duration is None else cells.seconds(run.duration))
