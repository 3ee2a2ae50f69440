"""The columns of locks, holders, waiters, past holders, settings and runs, said for all screens.

A column has a title, and for each row a value: a state, an owner, seconds, a time, a text. The
terminal (`management/output.py`) and the page (`admin/cells.py`) each say how a type of value
looks. Programs get the facts as JSON, under the names of their fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from django.utils.translation import gettext_noop as _

from ..base.callables import of_function
from ..base.people import Holder
from ..primitives.ledger import RunInfo
from ..settings import conf
from ..settings.conf import Setting
from .facts import SHARED, Group, HolderInfo, Kind, LockInfo, PastHolder, State, WaiterInfo
from .story import holding, kind, silent
from .words import Sentence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table, or one of several facts."""

    title: str
    """In small letters, as it would stand in a sentence."""
    value: Callable[[T], Any]
    """Return the value of a row. None or "": nothing is known."""
    below: str = ""
    """The title of another column. A page shows this one below that, in small letters."""
    right: bool = False
    """A terminal aligns it to the right, as numbers."""
    shrinks: bool = False
    """A terminal may shorten it."""
    drops: int = 0
    """Where a table does not fit a terminal, columns are left out, those with the largest number
    first."""
    wide: bool = False
    """A terminal shows it only on request."""
    sparse: bool = False
    """A terminal leaves it out if nothing is known in any row."""


# Types of values, besides texts, numbers, times and states. A `LockInfo` stands for its holders,
# a `PastHolder` for how its lease ended, and a `RunInfo` for its outcome.


class Owner(str):
    """Host, process, and thread or task, with colons between them."""

    __slots__ = ()


class Unusual(str):
    """A text that differs from what is usual."""

    __slots__ = ()


class Judged(NamedTuple):
    """A state, and the reason for it. A terminal has the reason elsewhere."""

    state: StrEnum
    why: str


class Seconds(NamedTuple):
    """A time that something takes, and when it began."""

    number: float | None
    since: datetime | None = None


class Lease(NamedTuple):
    """The rest of a lease. None: it has no end."""

    left: float | None
    ttl: float | None
    renewed: bool


def wants(waiting: WaiterInfo | Group) -> str:
    """Return the place in the code; for a read-write lock also the purpose."""
    wanted = {Kind.READ: _("to read, %(label)s"), Kind.WRITE: _("to write, %(label)s")}
    template = wanted.get(waiting.kind)
    return Sentence(template, label=waiting.label) if template else waiting.label


def _lease(lock: LockInfo) -> Lease:
    return Lease(lock.holder.remaining, lock.ttl, lock.state == State.HELD)


def _progress(lock: LockInfo) -> str:
    return str(lock.progress or "")


def _held(of: Holder) -> Seconds | None:
    return None if of.held is None else Seconds(of.held, of.acquired_at)


LOCKS: Sequence[Column[LockInfo]] = (
    Column(_("name"), lambda lock: lock.name, shrinks=True),
    Column(_("kind"), kind, drops=2),
    Column(_("state"), lambda lock: Judged(lock.state, lock.why)),
    Column(_("holder"), lambda lock: lock, shrinks=True),
    Column(_("waiters"), lambda lock: lock.waiters, right=True),
    Column(_("held for"), lambda lock: _held(lock.holder), right=True, drops=1),
    Column(_("remaining"), _lease, right=True, drops=3),
    Column(_("progress"), _progress, sparse=True, drops=4),
    Column(_("fencing token"), lambda lock: lock.holder.fencing_token, right=True, wide=True),
    Column(_("label"), lambda lock: lock.holder.label, wide=True),
)
_KEY: Column[LockInfo] = Column(_("key"), lambda lock: lock.keys.lock)
FACTS: Sequence[Column[LockInfo]] = (
    Column(_("holder"), lambda lock: lock.holder.owner),
    Column(_("label"), lambda lock: lock.holder.label),
    Column(_("since"), lambda lock: lock.holder.acquired_at),
    Column(_("held for"), lambda lock: _held(lock.holder)),
    Column(_("remaining"), _lease),
    Column(_("TTL"), lambda lock: lock.ttl and Seconds(lock.ttl)),
    Column(_("progress"), _progress),
    Column(_("fencing token"), lambda lock: lock.holder.fencing_token),
    _KEY,
)
"""The facts about one lock, besides its state and kind."""
FACTS_OF_SHARED: Sequence[Column[LockInfo]] = (Column(_("held by"), holding), _KEY)
"""The same for a lock that several may hold. Its holders are a table."""


def facts(lock: LockInfo) -> Sequence[Column[LockInfo]]:
    """Return the facts about a lock that are known."""
    columns = FACTS_OF_SHARED if lock.kind in SHARED else FACTS
    return [column for column in columns if column.value(lock) not in (None, "")]


HOLDERS: Sequence[Column[HolderInfo]] = (
    Column(_("holder"), lambda one: Owner(one.holder.owner or "")),
    Column(_("state"), lambda one: Judged(one.state, one.why)),
    Column(_("held for"), lambda one: _held(one.holder), right=True),
    Column(_("remaining"), lambda one: Seconds(one.holder.remaining), right=True),
    Column(_("fencing token"), lambda one: one.holder.fencing_token, right=True),
    Column(_("label"), lambda one: one.holder.label, below="holder", shrinks=True),
)
NOTE: Sequence[Column[tuple[str, Any]]] = (
    Column(_("what"), lambda its: its[0]),
    Column(_("noted"), lambda its: json.dumps(its[1])),
)
WAITERS: Sequence[Column[WaiterInfo]] = (
    Column(_("place"), lambda waiter: waiter.position + 1, right=True),
    Column(_("waiter"), lambda waiter: Owner(waiter.owner)),
    Column(_("waits for"), lambda waiter: Seconds(waiter.waited), right=True),
    Column(_("label"), lambda one: (wants(one), silent(one)), below="waiter", shrinks=True),
)
GROUPS: Sequence[Column[Group]] = (
    Column(_("number"), lambda group: group.number, right=True),
    Column(_("host"), lambda group: group.host),
    Column(_("longest wait"), lambda group: Seconds(group.oldest), right=True),
    Column(_("label"), lambda one: (wants(one), silent(one.waiters[0])), below="host"),
)
"""Waiters by host and place in the code."""

PAST: Sequence[Column[PastHolder]] = (
    Column(_("last holder"), lambda one: Owner(one.owner), shrinks=True),
    Column(_("since"), lambda one: one.acquired_at),
    Column(_("held for"), lambda one: Seconds(one.lasted), right=True),
    Column(_("ending"), lambda one: one, shrinks=True),
    Column(_("fencing token"), lambda one: one.fencing_token, right=True, wide=True),
    Column(_("label"), lambda one: one.label, below="last holder", shrinks=True),
)
RUNS: Sequence[Column[RunInfo]] = (
    Column(_("planned"), lambda run: run.planned or Sentence(_("by hand"))),
    Column(_("started"), lambda run: run.started),
    Column(_("took"), lambda run: Seconds(run.duration), right=True),
    Column(_("outcome"), lambda run: run),
    Column(_("by"), lambda run: run.owner, shrinks=True),
    Column(_("fencing token"), lambda run: run.fencing_token, right=True, wide=True),
    Column(_("why"), lambda run: run.why, below="by", shrinks=True),
)


def settings_of(name: str) -> dict[str, Setting]:
    """Return the settings of a lock, under the names that they have in Django's settings."""
    return {term.upper(): its for term, its in conf.origins(conf.written(name)).items()}


def _value(value: Any) -> str:
    """The value of a setting, as it would be written in the settings."""
    if isinstance(value, float):
        return f"{value:.15g}"
    return of_function(value) if callable(value) else repr(value)


def _place(row: tuple[str, Setting]) -> str:
    """The place where a setting is written."""
    term, setting = row
    if setting.source == "default":
        return Sentence(_("the default"))
    entry = "" if setting.entry is None else f"['LOCKS'][{setting.entry!r}]"
    return Unusual(f"REDISLOCK{entry}['{term}']")


SETTINGS: Sequence[Column[tuple[str, Setting]]] = (
    Column(_("setting"), lambda row: row[0]),
    Column(_("value"), lambda row: _value(row[1].value), shrinks=True),
    Column(_("from"), _place, shrinks=True),
)
