"""How facts look on a page: sentences, the values of columns, and tables.

Names, times and other values read from left to right in every language.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..inspection import Ending, LockInfo, PastHolder
from ..inspection.facts import SHARED
from ..inspection.sheet import Column, Judged, Lease, Owner, Seconds
from ..inspection.story import holding
from ..inspection.tasks import Stage
from ..inspection.words import Sentence, clean, duration, local, translated
from ..models import JOB_STATES, KINDS, STATES
from ..primitives.ledger import RunInfo, RunOutcome

T = TypeVar("T")

NOTHING = "–"
LTR = '<bdi dir="ltr">{}</bdi>'
"""What reads from left to right in every language."""
HOSTS = 3
"""The most hosts of one lock that its row names."""
SHOWN = 100
"""The most rows of a table."""

NAMES: dict[str, Any] = {
    **dict([*STATES, *JOB_STATES]),
    RunOutcome.DONE: _("done"),
    RunOutcome.FAILED: _("failed"),
    RunOutcome.LOST: _("lost"),
    RunOutcome.SKIPPED: _("skipped"),
    RunOutcome.UNREADABLE: _("unreadable"),
    **{one: _(one.value) for one in (*Ending, *Stage)},
}
"""The names of states, of the ends of leases, of the outcomes of runs, and of the stages of
tasks."""


def broken(text: str) -> str:
    """Allow line breaks after punctuation, and make foreign names safe to show."""
    parts = ((part,) for part in re.split("(?<=[-:/._])", clean(text)))
    return format_html_join(mark_safe("<wbr>"), "{}", parts)


def value(text: str) -> SafeString:
    """A name, a host or a place in the code."""
    return format_html(LTR, broken(text))


def link(url: str, name: str) -> SafeString:
    return format_html('<a href="{}">{}</a>', url, value(name))


def sentence(text: object) -> SafeString:
    """Translate a sentence, and mark its values. What is no sentence is a value."""
    if isinstance(text, datetime):
        return instant(text)
    if isinstance(text, int):
        return SafeString(text)
    if not isinstance(text, Sentence):
        return value(str(text))
    values = {name: sentence(its) for name, its in text.values.items()}
    return mark_safe(escape(gettext(text.template)) % values)


def paragraph(texts: Iterable[str]) -> SafeString:
    return format_html_join(" ", "{}", ((sentence(text),) for text in texts))


def with_quiet(text: str, *more: str) -> str:
    """A text, and below it others in small letters, each on its own line."""
    lines = ((format_html('<div class="redislock-quiet">{}</div>', one),) for one in more if one)
    return format_html("{}{}", text, format_html_join("", "{}", lines))


def moment(time: datetime | None) -> str:
    """A time in the time zone of the page, in the format of logs."""
    return NOTHING if time is None else local(time)


def time_of(at: datetime, text: str, *, ltr: bool = True) -> SafeString:
    """A text about a time; as a tooltip, the time. A sentence reads as its language does."""
    how = SafeString(' dir="ltr"' if ltr else "")
    iso = at.isoformat(timespec="seconds")
    return format_html('<time{} datetime="{}" title="{}">{}</time>', how, iso, moment(at), text)


def instant(at: datetime) -> SafeString:
    return time_of(at, moment(at))


def badge(state: str, why: str = "") -> str:
    return format_html(
        '<span class="redislock-state redislock-{}" title="{}">{}</span>',
        state,
        translated(why),
        NAMES[state],
    )


# The values of columns.


def html(its: Any) -> str:
    """Return how a page shows a value of a column."""
    if its in (None, "", Seconds(None)):
        return NOTHING
    return next(look(its) for kind, look in _LOOKS if isinstance(its, kind))


def _run(run: RunInfo) -> str:
    attempt = f" ({run.attempt})" if run.attempt > 1 else ""
    return format_html("{}{}", badge(run.outcome), attempt)


def _seconds(its: Seconds) -> str:
    text = duration(its.number)
    return format_html(LTR, text) if its.since is None else time_of(its.since, text)


def shown(column: Column[Any], ordering: str | None = None) -> Callable[[Any], str]:
    """Return a column of a list, or a fact of a lock's or a job's page, for Django's admin."""

    def show(row: Any) -> str:
        return html(column.value(row.info)) if row.info else NOTHING

    show.__name__ = column.title.replace(" ", "_")
    return admin.display(description=_(column.title), ordering=ordering)(show)


def _host_and_process(owner: str) -> str:
    return " · ".join(owner.split(":", 2)[:2])


def _holders(lock: LockInfo) -> str:
    """The holder in short, and where in the code; of several, their number and their hosts."""
    owner, label = lock.holder.owner or "", lock.holder.label
    where = value(label) if label and {one.holder.label for one in lock.holders} == {label} else ""
    if lock.kind in SHARED:
        return with_quiet(sentence(holding(lock)), _hosts(lock), where)
    if not owner:
        return str(dict(KINDS)[lock.kind])
    return with_quiet(value(_host_and_process(owner)), where)


def _hosts(lock: LockInfo) -> str:
    """The first hosts; of a single holder, also its process."""
    if len(lock.holders) == 1:
        return value(_host_and_process(lock.holder.owner or ""))
    more = len(lock.hosts) - HOSTS
    text = ", ".join(lock.hosts[:HOSTS])
    return format_html(LTR, clean(f"{text} + {more}" if more > 0 else text))


def _lease(lease: Lease) -> str:
    """The rest of the lease in words; also as a bar if its holder lives."""
    if lease.left is None:
        return gettext("no TTL")
    left = format_html(LTR, duration(lease.left))
    if lease.ttl is None or not lease.renewed:
        return left
    # A renewal is due when a third of the TTL has passed: with less than a third left, it failed.
    return format_html(
        '<meter max="{}" low="{}" optimum="{}" value="{}" aria-label="{}"></meter>{}',
        f"{lease.ttl:.3f}",
        f"{lease.ttl / 3:.3f}",
        f"{lease.ttl:.3f}",
        f"{lease.left:.3f}",
        gettext("What remains of the lease"),
        left,
    )


_LOOKS: Sequence[tuple[type, Callable[[Any], str]]] = (
    (SafeString, str),
    (Stage, lambda its: str(NAMES[its])),
    (Judged, lambda its: with_quiet(badge(*its), its.why and sentence(its.why))),
    (Owner, lambda its: value(_host_and_process(its))),
    (PastHolder, lambda its: with_quiet(str(NAMES[its.ending]), its.why and value(its.why))),
    (RunInfo, _run),
    (LockInfo, _holders),
    (Lease, _lease),
    (Seconds, _seconds),
    (object, sentence),
)
"""How a page shows each type of value of a column. The first one that fits counts."""


# Tables.


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


def table(title: str, columns: Sequence[Column[T]], rows: Iterable[T], **more: Any) -> Table:
    """Return a table of the first rows."""
    headings = [capfirst(gettext(column.title)) for column in columns if not column.below]
    return Table(title, headings, [_row(columns, one) for one in islice(rows, SHOWN)], **more)


def _row(columns: Sequence[Column[T]], thing: T) -> Sequence[str]:
    cells = {one.title: html(one.value(thing)) for one in columns if not one.below}
    for one in columns:
        if one.below:
            texts = one.value(thing)
            texts = texts if isinstance(texts, tuple) else (texts,)
            cells[one.below] = with_quiet(cells[one.below], *map(sentence, filter(None, texts)))
    return [*cells.values()]


def history(
    title: str,
    entries: Iterable[LogEntry],
    empty: str,
    link: Callable[[LogEntry], str] | None = None,
) -> Table:
    """Entries of the admin's log; with `link`, each with a link to what it is about."""
    rows = [
        (
            instant(entry.action_time),
            value(str(entry.user.get_username())),
            format_html(
                "{}<div>{}</div>", link(entry) if link else "", entry.get_change_message()
            ),
        )
        for entry in entries
    ]
    headings = [gettext("Time"), gettext("User"), gettext("Action")]
    return Table(title, headings, rows, empty=empty)
