"""Facts about locks: their holders, their waiters, their past holders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from django.utils.translation import gettext_noop as _

from ..base.people import Holder
from ..primitives.keys import Keys
from .words import Sentence, duration


class State(StrEnum):
    HELD = _("held")
    UNKNOWN = _("unknown")
    """Its process has been silent for a while, but may come back."""
    STALE = _("stale")
    """Its holder can't come back."""
    BROKEN = _("broken")
    """Another program has overwritten one of its keys, or what one of several holders said of
    itself: it may be that nobody can take it."""


WORST_FIRST = (State.BROKEN, State.STALE, State.UNKNOWN, State.HELD)


class Kind(StrEnum):
    MUTEX = "mutex"
    SEMAPHORE = "semaphore"
    TASK = "task"
    """Tasks of `unique` or `limited` that run."""
    READ = "read"
    """A read-write lock, held for reading."""
    WRITE = "write"
    """A read-write lock, held for writing."""
    FOREIGN = "foreign"
    """A value that this package did not write, or can't read any more."""
    TIMESTAMP = "timestamp"
    """A value that is a time, as the old `SETNX` locks have it; the holder is known if it is our
    `TimestampLock`."""


UNREADABLE = Sentence(_("what is written there can't be read"))
"""Said of foreign or damaged entries."""

_NEVER = datetime.max.replace(tzinfo=UTC)

SHARED = frozenset({Kind.SEMAPHORE, Kind.TASK, Kind.READ, Kind.WRITE})
"""Kinds that several holders may share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderInfo:
    """A holder of a lock, as it was read. Times are seconds."""

    holder: Holder
    state: State
    why: str
    """The reason if it is not held."""
    ttl: float | None
    """The seconds that its lease lives without renewal."""
    seen: bytes = field(repr=False)
    """The holder's token, to which `clear` is bound: a secret."""

    @property
    def urgency(self) -> tuple[int, datetime]:
        """The worse the state and the longer it has been held, the less."""
        return WORST_FIRST.index(self.state), self.holder.acquired_at or _NEVER


class Progress(NamedTuple):
    """How far the work under a lock is, as its holder has noted it."""

    done: float
    total: float | None
    left: float | None
    """Seconds that it may still take, at the pace of this holder; None: not known."""

    def __str__(self) -> str:
        done, total = f"{self.done:,.12g}", self.total
        if not total:
            return Sentence(_("%(done)s done"), done=done)
        share = {"done": done, "total": f"{total:,.12g}", "share": round(100 * self.done / total)}
        if self.left is None:
            return Sentence(_("%(done)s of %(total)s, %(share)s %%"), **share)
        return Sentence(
            _("%(done)s of %(total)s, %(share)s %%, about %(left)s to go"),
            left=duration(self.left),
            **share,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteInfo:
    """What a holder has noted for its successor. It may be personal data."""

    content: dict[str, Any]
    written_at: datetime
    resumptions: int
    """How many holders have taken it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """A held lock, as it was read. Times are seconds."""

    name: str
    using: str
    kind: Kind
    state: State
    """The worst state of its holders."""
    why: str
    """The reason if it is not held."""
    holders: tuple[HolderInfo, ...]
    """Its holders, up to 1000: those in the worst state first, and of these, the one that has held
    it longest. Renewals don't change that."""
    holding: int
    """The number of holders. 0: nobody holds it, and a key of it is broken; then `holders` has
    one of whom nothing is known."""
    limit: int | None
    """The limit of a semaphore or of tasks, as its newest holder said."""
    waiters: int
    progress: Progress | None = None
    """How far the work of a mutex is, if its holder notes it."""
    keys: Keys = field(repr=False)
    has_permits: bool = field(repr=False)
    """Whether it is a semaphore or a read-write lock, even if it can't be read which."""

    @property
    def holder(self) -> Holder:
        """The holder; of several, the first one."""
        return self.holders[0].holder

    @property
    def ttl(self) -> float | None:
        """The seconds that this holder's lease lives without renewal."""
        return self.holders[0].ttl

    @property
    def seen(self) -> bytes:
        """This holder's token, to which `clear` is bound: a secret."""
        return self.holders[0].seen

    @property
    def alive(self) -> list[HolderInfo]:
        """Its holders that are alive, or may be."""
        return [one for one in self.holders if self.holding and one.state != State.STALE]

    @property
    def hosts(self) -> list[str]:
        """The hosts of its holders, as far as known."""
        owners = (one.holder.owner or "" for one in self.holders)
        return sorted({owner.partition(":")[0] for owner in owners} - {""})

    def held_by(self, beginning: str) -> bool:
        """Return whether the owner of one of its holders begins so."""
        return any((one.holder.owner or "").startswith(beginning) for one in self.holders)

    def only(self, wanted: Callable[[HolderInfo], bool]) -> LockInfo | None:
        """The lock with the wanted holders, from whom `clear` then takes it; None if there are
        none."""
        holders = tuple(filter(wanted, self.holders))
        return replace(self, holders=holders) if holders else None

    @property
    def cache_lock(self) -> bool:
        """Whether it is named by its key: a lock of `cache.lock()`, or a `TimestampLock`."""
        return self.keys.named_by_others


PASSED_OVER_AFTER = 5.0
"""Seconds without a sign of life after which a waiter does not get the lock: SIGN_OF_LIFE in
lua/queue.lua."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaiterInfo:
    """A waiter for a lock. Times are seconds."""

    position: int
    kind: Kind
    """The purpose of the waiter: to read or to write a read-write lock."""
    owner: str
    label: str
    waited: float
    silent: float
    """Seconds since its last sign that it waits."""

    @property
    def alive(self) -> bool:
        """Whether it shows signs of life. Another one is passed over: its process was killed or
        stopped, or does not reach the server."""
        return self.silent < PASSED_OVER_AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of locks."""

    total: int
    states: dict[State, int]
    contended: int
    """Locks with a waiter."""
    waiters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of the locks."""

    items: list[LockInfo]
    total: int
    """The number of locks that match, on all pages."""
    counts: Counts
    """Numbers of the locks that match, on all pages."""


class Ending(StrEnum):
    RELEASED = _("released")
    EXPIRED = _("expired")
    """Its TTL passed without a renewal, or its key was deleted or overwritten."""
    CLEARED = _("cleared")
    """Cleared by an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastHolder:
    """A past holder of a lock."""

    owner: str
    label: str
    fencing_token: int
    acquired_at: datetime
    lasted: float | None
    """Seconds for which it held the lock; None if the lease expired, since nobody saw when."""
    ending: Ending
    why: str
    """The operator who cleared it, and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The past holders of a lock, as far as known, for at least a minute after the last one: those
    that held it for a second, and those whose hold ended badly."""

    fencing_token: int | None
    """The newest fencing token that is known, of a past holder or the present one."""
    lasted: float | None
    """Seconds for which the last holder held it."""
    holders: list[PastHolder]
    """Up to five past holders, the last one first; the present holder is not among them."""
    unreadable: int = 0
    """The number of entries that can't be read: they are foreign or damaged."""


# Waiters by host and place in the code: 300 of them are one line.


class Group(NamedTuple):
    """Waiters on one host for one place in the code, that are alive, or that are not; for a
    read-write lock, with one purpose."""

    host: str
    label: str
    kind: Kind
    alive: bool
    waiters: list[WaiterInfo]
    """In the order of the queue."""

    @property
    def number(self) -> int:
        return len(self.waiters)

    @property
    def oldest(self) -> float:
        """The seconds for which the first of them has waited."""
        return self.waiters[0].waited


def groups(waiters: Iterable[WaiterInfo]) -> list[Group]:
    """Group waiters, in the order of the first one of each group."""
    found: dict[tuple[str, str, Kind, bool], Group] = {}
    for waiter in waiters:
        host = waiter.owner.partition(":")[0]
        key = host, waiter.label, waiter.kind, waiter.alive
        found.setdefault(key, Group(*key, [])).waiters.append(waiter)
    return list(found.values())
