"""The tables on the pages of a lock and a job, and of those that are to be cleared."""

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
from . import cells, columns

SHOWN = 100
"""Rows at most."""

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
    """`table.html` shows one, `tables.html` those below the fields of a page."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]
    more: int = 0
    """How many rows there are besides."""
    empty: str = ""
    """What is said when there are none."""
    note: str = ""


def locks(them: Sequence[Lock]) -> Table:
    """Those that are to be cleared."""
    rows = [
        (
            columns.name(lock),
            columns.state_and_why(lock),
            columns.holder(lock),
            columns.held(lock),
            lock.waiters,
        )
        for lock in them[:SHOWN]
    ]
    headings = [_("Name"), _("State"), _("Holder"), _("Held for"), _("Waiters")]
    return Table("", headings, rows, more=len(them) - SHOWN)


def holders(lock: LockInfo) -> Table:
    """Those of a lock that several may hold."""
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
        cells.state(info),
        cells.moment(of.acquired_at),
        cells.seconds(of.held),
        cells.seconds(of.remaining),
        cells.number(of.fencing_token),
    )


def waiters(first: Iterable[WaiterInfo], of: int) -> Table:
    """The first ones, of so many."""
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
    """Where it waits, and of a read-write lock what for."""
    wants = {Kind.READ: _("to read"), Kind.WRITE: _("to write")}.get(waiter.kind)
    return f"{wants}, {waiter.label}" if wants else translated(waiter.label)


def past(known: Past) -> Table:
    """Who held the lock before."""
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
        or _("None are remembered: that ends a minute, or three times the TTL, after them."),
        note=unreadable,
    )


def history(entries: Iterable[LogEntry]) -> Table:
    rows = [
        (entry.action_time, entry.user.get_username(), entry.get_change_message())
        for entry in entries
    ]
    headings = [_("Time"), _("User"), _("Action")]
    return Table(_("History"), headings, rows, empty=_("Nobody has cleared it here."))


def settings(name: str) -> Table:
    """Those of a lock, and where each comes from."""
    rows = [
        (term.upper(), value_text(setting.value), translated(place_text(term.upper(), setting)))
        for term, setting in conf.origins(name).items()
    ]
    note = _("What the code says where it takes the lock beats these.")
    return Table(_("Settings"), [_("Setting"), _("Value"), _("From")], rows, note=note)


def runs(those: Iterable[RunInfo]) -> Table:
    """The last ones of a job."""
    rows = [
        (
            _("by hand") if run.planned is None else cells.moment(run.planned),
            cells.moment(run.started),
            outcome(run),
            cells.person(run.owner, run.why),
            cells.number(run.fencing_token),
        )
        for run in those
    ]
    headings = [_("Planned"), _("Started"), _("Outcome"), _("By"), _("Fencing token")]
    return Table(_("Last runs"), headings, rows, empty=_("It has not run yet."))


def outcome(run: RunInfo) -> str:
    """What became of a run, and how long it took."""
    took = "" if run.duration is None else cells.seconds(run.duration)
    attempt = f" ({run.attempt})" if run.attempt > 1 else ""
    return format_html("{}{} {}", cells.badge(run.outcome, _OUTCOMES), attempt, took)
