"""What is told of locks: of those that are held, who waits for them, and who held them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from django.utils.translation import gettext_noop as _

from ..base.exceptions import Holder
from ..primitives.keys import Keys
from .sentences import Sentence


class State(StrEnum):
    HELD = "held"
    UNKNOWN = "unknown"
    """Its process has been silent for a while, and may yet come back; or what one of several
    holders has said of itself is lost."""
    STALE = "stale"
    """Its holder can't come back."""


class Kind(StrEnum):
    MUTEX = "mutex"
    SEMAPHORE = "semaphore"
    READ = "read"
    """A read-write lock that is held for reading."""
    WRITE = "write"
    """One that is held for writing."""
    FOREIGN = "foreign"
    """A value that this package did not write, or of which it can't tell what it has been."""
    TIMESTAMP = "timestamp"
    """A value that is a time, as the old `SETNX` locks have it; of a `TimestampLock` of ours, who
    holds it is known."""


UNREADABLE = Sentence(_("what is written there can't be read"))
"""What others have written, or what was damaged."""

SHARED = frozenset({Kind.SEMAPHORE, Kind.READ, Kind.WRITE})
"""Those that several may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderInfo:
    """One who holds a lock, as it was seen. Times are seconds."""

    holder: Holder
    state: State
    why: str
    """Why it is unknown or stale."""
    ttl: float | None
    """How long its lease lives without renewal."""
    seen: bytes = field(repr=False)
    """What binds `clear` to this very holder: a secret, since it is its token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """A lock that is held, as it was seen. Times are seconds."""

    name: str
    using: str
    kind: Kind
    state: State
    """The worst one of its holders."""
    why: str
    """Why it is unknown or stale."""
    holders: tuple[HolderInfo, ...]
    """Those who hold it, up to 1000; the one whose lease ends first comes first."""
    holding: int
    """How many hold it."""
    limit: int | None
    """How many may hold a semaphore, as the last one said who has a place."""
    waiters: int
    keys: Keys = field(repr=False)
    has_permits: bool = field(repr=False)
    """It is a semaphore or a read-write lock, also where nothing tells which."""

    @property
    def holder(self) -> Holder:
        """Who holds it; of several, the one whose lease ends first."""
        return self.holders[0].holder

    @property
    def ttl(self) -> float | None:
        """How long that lease lives without renewal."""
        return self.holders[0].ttl

    @property
    def seen(self) -> bytes:
        """What binds `clear` to that holder: a secret, since it is its token."""
        return self.holders[0].seen

    def only(self, wanted: Callable[[HolderInfo], bool]) -> LockInfo | None:
        """The lock with those of its holders that are wanted: what `clear` takes it from."""
        holders = tuple(filter(wanted, self.holders))
        return replace(self, holders=holders) if holders else None

    @property
    def cache_lock(self) -> bool:
        """It is one of the drop-in for `cache.lock()`, or a `TimestampLock`: named by its key."""
        return bool(self.keys.stem)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaiterInfo:
    """Who waits for a lock. Times are seconds."""

    position: int
    kind: Kind
    """What for: of a read-write lock, whether to read or to write."""
    owner: str
    label: str
    waited: float
    silent: float
    """Since it last showed that it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of the locks."""

    items: list[LockInfo]
    total: int
    """How many there are of those that were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many locks there are."""

    total: int
    states: dict[State, int]
    contended: int
    """With somebody waiting."""
    waiters: int


class Ending(StrEnum):
    RELEASED = "released"
    EXPIRED = "expired"
    """Its ttl passed unrenewed, or its key was deleted or overwritten."""
    CLEARED = "cleared"
    """By an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastHolder:
    """Who held a lock, and what became of it."""

    owner: str
    label: str
    fencing_token: int
    acquired_at: datetime
    lasted: float | None
    """Seconds for which it was held; None when it has expired: nobody saw when."""
    ending: Ending
    why: str
    """By whom it was cleared, and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of a lock's last holders, for a minute after them at least."""

    fencing_token: int | None
    lasted: float | None
    """For how many seconds it was held the last time."""
    holders: list[PastHolder]
    """Up to five, the last one first; without the one that holds it now."""
    unreadable: int = 0
    """So many entries can't be read: others have written them, or something went wrong."""
