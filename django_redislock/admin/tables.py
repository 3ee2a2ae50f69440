"""The tables on the pages of a lock, of a job, and of a confirmation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from django.contrib.admin.models import LogEntry
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..inspection import UNREADABLE, Ending, HolderInfo, Kind, LockInfo, Past, WaiterInfo
from ..inspection.facts import Group
from ..inspection.sentences import translated
from ..inspection.story import silent
from ..inspection.words import duration, place_text, value_text
from ..models import LockStatus
from ..primitives.ledger import RunInfo, RunOutcome
from ..settings import conf
from ..settings.policy import DEFAULTS
from . import cells, texts

SHOWN = 100
"""The most rows of a table."""

ENDINGS = {
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
    rest: Table | None = None
    """More of it, folded."""


def locks(to_clear: Sequence[LockStatus]) -> Table:
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
    headings = [_("Holder"), _("State"), _("Held for"), _("Remaining")]
    return Table(
        _("Holders"),
        [*headings, _("Fencing token")],
        [_holder(one) for one in lock.holders[:SHOWN]],
        more=lock.holding - SHOWN,
    )


def _holder(info: HolderInfo) -> Sequence[str]:
    of = info.holder
    return (
        cells.person(of.owner, of.label) if of.owner else cells.NOTHING,
        cells.state_of(info),
        cells.lasted(of.held, of.acquired_at),
        cells.seconds(of.remaining),
        cells.number(of.fencing_token),
    )


def waiters(first: Sequence[WaiterInfo], groups: Sequence[Group], of: int) -> Table:
    """The waiters by host and place in the code, and one by one; the first ones, of so many."""
    rows = [
        (
            waiter.position + 1,
            _with_silence(cells.person(waiter.owner, _wants(waiter)), waiter),
            cells.seconds(waiter.waited),
        )
        for waiter in first[:SHOWN]
    ]
    headings = [_("Place"), _("Waiter"), _("Waits for")]
    title, more, empty = _("Waiters"), of - len(rows), _("Nobody waits.")
    if len(groups) == len(first):
        return Table(title, headings, rows, more=more, empty=empty)
    single = Table(_("One by one"), headings, rows, more=more)
    grouped = [
        (
            group.number,
            _with_silence(
                cells.with_quiet(cells.value(group.host), _text(group.label, group.kind)),
                group.waiters[0],
            ),
            cells.seconds(group.oldest),
        )
        for group in groups[:SHOWN]
    ]
    note = ""
    if len(first) < of:
        note = _("The first %(number)s waiters, by host and place.") % {"number": len(first)}
    headings = [_("Number"), _("Host"), _("Longest wait")]
    return Table(title, headings, grouped, note=note, rest=single)


def _with_silence(text: str, waiter: WaiterInfo) -> str:
    return cells.with_quiet(text, translated(silent(waiter)))


def _wants(waiter: WaiterInfo) -> str:
    return _text(waiter.label, waiter.kind)


def _text(label: str, kind: Kind) -> str:
    """The place in the code; for a read-write lock also the purpose."""
    wants = {Kind.READ: _("to read"), Kind.WRITE: _("to write")}.get(kind)
    return f"{wants}, {label}" if wants else translated(label)


def past(known: Past) -> Table:
    """The past holders."""
    rows = [
        (
            cells.person(one.owner, one.label),
            texts.moment(one.acquired_at),
            cells.seconds(one.lasted),
            format_html("{}{}", ENDINGS[one.ending], cells.quiet(one.why)),
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


def history(
    title: str,
    entries: Iterable[LogEntry],
    empty: str,
    link: Callable[[LogEntry], str] | None = None,
) -> Table:
    """Entries of the admin's log; with `link`, each with a link to what it is about."""
    rows = [
        (
            texts.moment(entry.action_time),
            cells.value(str(entry.user.get_username())),
            format_html(
                "{}<div>{}</div>", link(entry) if link else "", entry.get_change_message()
            ),
        )
        for entry in entries
    ]
    headings = [_("Time"), _("User"), _("Action")]
    return Table(title, headings, rows, empty=empty)


def settings(name: str) -> Table:
    """The settings of a lock that are not defaults, and where each is written; then the others."""
    given: list[Sequence[Any]] = []
    defaults: list[Sequence[Any]] = []
    for term, setting in conf.origins(conf.written(name)).items():
        row = (
            term.upper(),
            cells.value(value_text(setting.value)),
            texts.sentence(place_text(term.upper(), setting)),
        )
        (defaults if setting.value == DEFAULTS[term] else given).append(row)
    headings = [_("Setting"), _("Value"), _("From")]
    rest = Table(_("Defaults"), headings, defaults)
    return Table(
        _("Settings"),
        headings,
        given,
        empty=_("All settings are defaults."),
        note=_("Arguments in the code override these settings."),
        rest=rest,
    )


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
    return attempt + ("" if run.duration is None else duration(run.duration))
