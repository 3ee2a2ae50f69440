"""Who holds what, who waits, what is stale; and clearing it safely. For people, not for programs
that want a lock.

Nothing here blocks a lock, or waits for one. A page of locks is read from the index, without SCAN;
what never entered it (values of others below our prefix) is found by `discover`, on request.

A Redis Cluster has no index, which would be in a slot of its own, so there all locks are found by
SCAN on every primary, up to a number of keys: what is asked about one lock costs as much as
elsewhere, a list costs more.

**Stale** is decided from what is seen, and never from a lock's age:

*   it has no TTL, so nobody ends it, and its process is not known to live;
*   it is a time in the manner of the old `SETNX` locks, and that has passed;
*   its process shows no sign of life: each process that holds leases keeps one key at the server,
    for 30 seconds at a time, and its leases themselves are renewed.

A process that has been silent for less than that, since it was killed, stopped, or its host can't
reach the server, is *unknown*: it may yet come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, NamedTuple

from django.utils.translation import gettext_noop as _

from . import conf, connections, label, operations
from .arguments import validate_text, validate_using
from .exceptions import Holder, cleared, server_time
from .io import SyncIO, run
from .keys import Keys, name_of, presence, validate_name
from .primitives import mutex, places, timestamp
from .primitives.primitive import Primitive, Sight, batches
from .renewal import PRESENCE, PRESENCE_EVERY
from .sentences import Sentence
from .tokens import process_of

BATCH = 500
"""Locks in one request: it keeps Redis for about a millisecond."""

MOST_KEYS = 100_000
"""So many keys of a database, or of all nodes of a cluster, are looked at, whatever they are."""

OTHER_TYPE = b"no string"
"""What lua/inspection_locks.lua has for the value at a key that can be no lock."""

PAST = 5
"""Former holders of a lock: one less than lua/mutex.lua has room for."""


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
    has_places: bool = field(repr=False)
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


ORDERS = {
    "remaining": lambda lock: (lock.holder.remaining is None, lock.holder.remaining or 0.0),
    "name": lambda lock: lock.name,
    "held": lambda lock: -(lock.holder.held or 0.0),
    "waiters": lambda lock: -lock.waiters,
    "owner": lambda lock: lock.holder.owner or "",
    "state": lambda lock: lock.state,
}
"""By what locks can be ordered; the lease that ends first, the longest held, the most waited for
come first."""


class _Seen(NamedTuple):
    """A lock that is held, as the server told it."""

    keys: Keys
    waiters: int
    holding: int
    each: list[tuple[bytes, int, bytes | None]]
    """Of each holder: what it says of itself, its TTL in ms; its token, where several may be."""
    now_us: int


class Inspector:
    """What there is at the server of one alias of CACHES. Raises `LockUnavailable`.

    With `cache_locks`, those of the drop-in for `cache.lock()` and each `TimestampLock`, which are
    named by their keys.
    """

    def __init__(self, using: str | None = None, *, cache_locks: bool = False) -> None:
        self.using = conf.policy("", {}).using if using is None else validate_using(using)
        self._prefix = conf.prefix()
        self._cache_locks = cache_locks
        self._index = self._keys_of("-").index
        self._clustered = connections.clustered(self.using)

    # One lock.

    def get(self, name: str) -> LockInfo | None:
        """The lock of that name; None: nobody holds it."""
        found = self._look([self._keys(name)])
        return found[0] if found else None

    def waiters(self, lock: str | LockInfo, limit: int = 100) -> list[WaiterInfo]:
        """The first ones who wait for a lock, by its name or as it was seen, in order."""
        keys = self._keys(lock)
        time, *found = self._ask("inspection_waiters", [keys.queue, keys.waiters], [limit])
        waiting = []
        for position, (_token, ticket, says) in enumerate(found):
            text, _tab, wants = (says or b"0||||").decode().partition("\t")
            seen, _ttl, _inbox, owner, its_label = text.split("|", 4)
            waiting.append(
                WaiterInfo(
                    position=position,
                    kind=Kind(wants.partition("|")[0] or Kind.MUTEX),
                    owner=owner,
                    label=its_label,
                    waited=max(0.0, (int(time) - int(ticket)) / 1e6),
                    silent=max(0.0, (int(time) - int(seen)) / 1e6),
                )
            )
        return waiting

    def past(self, lock: str | LockInfo) -> Past:
        """What is known of those who held it before."""
        keys = self._keys(lock)
        fence, lasted, value, *known = self._ask(
            "inspection_tail", [keys.tail, keys.lock, keys.holders], []
        )
        present = value and Holder.parse(value, -1, 0).fencing_token
        found = [holder for text in known if (holder := past_holder(text)) is not None]
        found = [holder for holder in found if holder.fencing_token != present]
        found.sort(key=lambda holder: holder.fencing_token, reverse=True)
        return Past(
            fencing_token=None if fence is None else int(fence),
            lasted=None if lasted is None else int(lasted) / 1e6,
            holders=found[:PAST],
        )

    def clear(self, lock: LockInfo, *, by: str, reason: str) -> bool:
        """Take a lock away from the holders that were seen, and hand it to the next waiter.

        They get `LeaseRevoked`, with `by` and `reason`, at their next renewals. False: it has
        changed hands since it was seen, and nothing was done.
        """
        by, reason = (
            label.clean(validate_text(text, what))
            for text, what in ((by, "by"), (reason, "reason"))
        )
        primitive: Primitive = mutex
        if lock.has_places:
            primitive = places.READ
        elif lock.cache_lock and lock.kind == Kind.TIMESTAMP:
            primitive = timestamp.WHOLE
        seen = [Sight(one.seen, one.holder) for one in lock.holders]
        return run(
            operations.clear(self._io(), primitive, lock.keys, self.using, seen, by, reason)
        )

    # Many locks.

    def page(
        self,
        *,
        pattern: str = "*",
        states: Iterable[State] = (),
        host: str = "",
        foreign: bool = False,
        order: str = "remaining",
        offset: int = 0,
        limit: int | None = 100,
    ) -> Page:
        """Some of the locks that are held.

        `pattern` is one of names, as in `LOCKS`; `host` the beginning of an owner; with `foreign`
        also what `discover` finds. Without these, and in the order of what remains, only the page
        itself is read.
        """
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
        end = None if limit is None else offset + limit
        states = frozenset(states)
        listed = pattern == "*" and not (states or host or foreign) and order == "remaining"
        if listed and not self._clustered:
            total, names = self._names(offset, end)
            return Page(items=list(self.those(names)), total=total)
        locks = self.all(pattern)
        if foreign:
            others = (lock for lock in self.discover() if fnmatchcase(lock.name, pattern))
            locks = chain(locks, others)
        found = sorted(
            (
                lock
                for lock in locks
                if (not states or lock.state in states)
                and any((one.holder.owner or "").startswith(host) for one in lock.holders)
            ),
            key=ORDERS[order],
        )
        return Page(items=found[offset:end], total=len(found))

    def all(self, pattern: str = "*") -> Iterator[LockInfo]:
        """All locks of such names, in the order in which their leases end."""
        if self._clustered:
            names = [name for name in self._scan(MOST_KEYS) if fnmatchcase(name, pattern)]
            ours = filter(_ours, self.those(names))
            yield from sorted(ours, key=ORDERS["remaining"])
            return
        _, names = self._names(0, None)
        yield from self.those([name for name in names if fnmatchcase(name, pattern)])

    def those(self, names: Sequence[str]) -> Iterator[LockInfo]:
        """Those of them that are held; a batch at a time."""
        for start in range(0, len(names), BATCH):
            yield from self._look([self._keys_of(name) for name in names[start : start + BATCH]])

    def stale(self) -> list[LockInfo]:
        """The locks whose holders can't come back."""
        return [lock for lock in self.all() if lock.state == State.STALE]

    def counts(self) -> Counts:
        """How many locks there are, of which state."""
        locks = list(self.all())
        states = Counter(lock.state for lock in locks)
        return Counts(
            total=len(locks),
            states={state: states[state] for state in State},
            contended=sum(lock.waiters > 0 for lock in locks),
            waiters=sum(lock.waiters for lock in locks),
        )

    def discover(self, *, limit: int = MOST_KEYS) -> list[LockInfo]:
        """Locks below our prefix that are not in the index: values of others, above all.

        Looks at up to about `limit` keys of the database, whatever they are. Nothing is found of
        `cache_locks`: whether a key of the cache is a lock, only the cache's code knows.
        """
        if self._cache_locks:
            return []
        names = self._scan(limit)
        if not self._clustered:
            _, known = self._names(0, None)
            names = sorted(set(names) - set(known))
        return [
            lock
            for lock in self.those(names)
            if lock.seen != OTHER_TYPE and not (self._clustered and _ours(lock))
        ]

    # How it is done.

    def _scan(self, limit: int) -> list[str]:
        """The names of what could be locks, among about `limit` keys."""
        if self._cache_locks:
            return []
        names: dict[str, None] = {}
        looked = 0
        pattern = f"{_escaped(self._prefix)}:{{*}}"
        for pool in connections.primaries(connections.shared_pool(self.using)):
            io, cursor = SyncIO(self.using, pool=pool), b"0"
            while looked < limit:
                cursor, found = run(io.script("inspection_scan", [], [cursor, pattern, 1000]))
                looked += 1000
                for key in found:
                    name = name_of(key.decode(errors="replace"))
                    if name and self._keys_of(name).lock.encode() == key:
                        names[name] = None
                if int(cursor) == 0:
                    break
        return sorted(names)

    def _io(self) -> SyncIO:
        return SyncIO(self.using)

    def _ask(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        return run(self._io().script(script, keys, args))

    def _keys(self, lock: str | LockInfo) -> Keys:
        if isinstance(lock, LockInfo):
            return lock.keys  # the name may be a stranger's, and none that anybody could write
        return self._keys_of(lock if self._cache_locks else validate_name(lock))

    def _keys_of(self, name: str) -> Keys:
        if self._cache_locks:
            return Keys.verbatim(self._prefix, name.encode())
        return Keys.of(self._prefix, name)

    def _names(self, first: int, end: int | None) -> tuple[int, list[str]]:
        last = -1 if end is None else end - 1
        if end is not None and end <= first:
            last, first = 0, 1  # none
        total, names = self._ask("inspection_names", [self._index], [first, last])
        return total, [name.decode(errors="replace") for name in names]

    def _look(self, locks: Sequence[Keys]) -> list[LockInfo]:
        """Those of them that are held."""
        io, found = self._io(), {}
        for batch in batches(io, [lock.lock for lock in locks], BATCH):
            unseen = batch
            while unseen:  # where several have many holders, not all are looked at in one request
                some = [locks[position] for position in unseen]
                keys = [key for lock in some for key in (lock.lock, lock.queue, lock.holders)]
                names = [lock.name for lock in some]
                args: list[Any] = [*names, places.SHOWN, int(self._cache_locks)]
                time, *seen = run(io.script("inspection_locks", [*keys, self._index], args))
                for position, answer in zip(unseen, seen, strict=False):
                    value, pttl, waiters, holding, *all_ = answer
                    if value is not None:
                        each = all_ or [[value, pttl, None]]
                        found[position] = _Seen(locks[position], waiters, holding, each, int(time))
                unseen = unseen[len(seen) :]
        locked = [found[position] for position in sorted(found)]
        written = self._written(locked)
        says = [value for seen in locked for value, _, _ in seen.each] + list(written.values())
        left = self._left({value[:8].decode(errors="replace") for value in says})
        return [self._info(seen, left, written.get(seen.keys.lock)) for seen in locked]

    def _written(self, locked: Sequence[_Seen]) -> dict[str, bytes]:
        """What ours, who hold timestamp locks, have written beside their keys."""
        if not self._cache_locks:
            return {}
        times = [
            (seen.keys, seen.each[0][0])
            for seen in locked
            if foreign(seen.each[0][0], None, seen.now_us / 1e6)[0] == Kind.TIMESTAMP
        ]
        written = {}
        tails = [keys.tail for keys, _ in times]
        for batch in batches(self._io(), tails, BATCH):
            found = self._ask("inspection_written", [tails[position] for position in batch], [])
            for position, (holder, until) in zip(batch, found, strict=True):
                keys, value = times[position]
                if holder and until and abs(float(value) - float(until)) <= timestamp.A_LITTLE:
                    written[keys.lock] = holder
        return written

    def _left(self, processes: set[str]) -> dict[str, float | None]:
        """For how many seconds each process is believed to live yet; None: it is not."""
        known = sorted(process for process in processes if process.isalnum())
        io, keys = self._io(), [presence(self._index, process) for process in known]
        left: dict[str, float | None] = {}
        for batch in batches(io, keys, BATCH):
            some = [keys[position] for position in batch]
            pttls = run(io.script("inspection_processes", some, []))
            for position, pttl in zip(batch, pttls, strict=True):
                left[known[position]] = pttl / 1000 if pttl > 0 else None
        return left

    def _info(self, seen: _Seen, left: dict[str, float | None], written: bytes | None) -> LockInfo:
        kind, limit, newest = Kind.FOREIGN, None, 0
        holders = []
        for value, pttl, token in seen.each:
            its_kind, one = self._holder(value, pttl, token, seen.now_us, left, written)
            if token is None:
                kind = its_kind
            elif (one.holder.fencing_token or 0) > newest:
                newest = one.holder.fencing_token or 0
                kind, limit = _shared(value)
            holders.append(one)
        worst = max(holders, key=lambda one: list(State).index(one.state))
        why = worst.why
        if why and seen.holding > 1:
            alike = sum(one.state == worst.state for one in holders)
            why = Sentence(
                _("%(number)s of %(holding)s holders: %(why)s"),
                number=alike,
                holding=seen.holding,
                why=why,
            )
        return LockInfo(
            name=seen.keys.name,
            using=self.using,
            kind=kind,
            state=worst.state,
            why=why,
            holders=tuple(holders),
            holding=seen.holding,
            limit=limit,
            waiters=seen.waiters,
            keys=seen.keys,
            has_places=seen.each[0][2] is not None,
        )

    def _holder(
        self,
        value: bytes,
        pttl: int,
        token: bytes | None,
        now_us: int,
        left: dict[str, float | None],
        written: bytes | None,
    ) -> tuple[Kind, HolderInfo]:
        """One who holds a lock, by what it has written; and the kind, if it is not `SHARED`."""
        holder = Holder.parse(value, pttl, now_us)
        kind, state, why, ttl = Kind.MUTEX, State.HELD, "", None
        if holder.owner is None:
            kind, state, why = foreign(value, holder.remaining, now_us / 1e6)
            if token:
                state, why = State.UNKNOWN, Sentence(_("what its holder said of itself is lost"))
        seen = token or Sight.of(value, holder).token
        if kind == Kind.TIMESTAMP and self._cache_locks:
            remains_ms = max(0, round(float(value) * 1000 - now_us / 1000))
            holder = timestamp.holder_of(written or value, remains_ms, now_us)
        if holder.owner is not None and state == State.HELD:
            value = written or value
            ttl = int(value.split(b"|", 4)[3]) / 1000
            process = process_of(value[:8].decode())
            state, why = decide(holder, ttl, process is None, left.get(process or ""))
            seen = token or Sight.of(value, holder).token
        return kind, HolderInfo(holder=holder, state=state, why=why, ttl=ttl, seen=seen)


def _ours(lock: LockInfo) -> bool:
    return lock.has_places or lock.holder.owner is not None


def _shared(value: bytes) -> tuple[Kind, int | None]:
    """The kind and limit that lua/places.lua writes behind a tab."""
    kind, *limit = value.partition(b"\t")[2].decode(errors="replace").split("|")
    if kind == Kind.SEMAPHORE and limit and limit[0].isdecimal():
        return Kind.SEMAPHORE, int(limit[0])
    return (Kind(kind) if kind in (Kind.READ, Kind.WRITE) else Kind.FOREIGN), None


def decide(holder: Holder, ttl: float, independent: bool, left: float | None) -> tuple[State, str]:
    """The state of one of our locks, and why. `independent`: it needs no living process; `left`:
    for how long its process is believed to live yet, None: it is not."""
    if left is not None and left > PRESENCE - 2 * PRESENCE_EVERY:
        return State.HELD, ""
    if holder.remaining is None:
        return State.STALE, Sentence(_("it has no TTL, and its process shows no sign of life"))
    if independent:
        return State.HELD, ""
    # Its leases are a sign of life, too: when it was acquired, or renewed.
    assert holder.held is not None
    silent = min(holder.held, max(0.0, ttl - holder.remaining))
    if left is not None:
        silent = min(silent, PRESENCE - left)
    if silent <= 2 * PRESENCE_EVERY:
        return State.HELD, ""
    why = Sentence(
        _("its process has shown no sign of life for %(seconds)s s"), seconds=f"{silent:.0f}"
    )
    return (State.UNKNOWN if silent <= PRESENCE else State.STALE), why


def past_holder(text: bytes) -> PastHolder | None:
    """Read a holder in a lock's tail, as lua/mutex.lua describes it; None: it is none."""
    value, _, end = text.partition(b"\t")
    holder = Holder.parse(value, -1, 0)
    if holder.owner is None or holder.fencing_token is None or holder.acquired_at is None:
        return None
    ending, lasted, by, reason = (end.decode(errors="replace").split("|", 3) + [""] * 3)[:4]
    try:
        return PastHolder(
            owner=holder.owner,
            label=holder.label,
            fencing_token=holder.fencing_token,
            acquired_at=holder.acquired_at,
            lasted=max(0, int(lasted)) / 1e6 if lasted else None,
            ending=Ending(ending or Ending.EXPIRED),
            why=cleared(by, reason) if ending == Ending.CLEARED else "",
        )
    except ValueError:
        return None


# Seconds since the epoch in this century, perhaps with a fraction.
_FIRST_TIME, _LAST_TIME = 946_684_800.0, 4_102_444_800.0


def foreign(value: bytes, remaining: float | None, time: float) -> tuple[Kind, State, str]:
    """The kind and state of a value that this package did not write, and why."""
    try:
        ends = float(value)
    except ValueError:
        ends = 0.0
    if _FIRST_TIME < ends < _LAST_TIME:
        if ends <= time:
            at = f"{server_time(int(ends * 1e6)):%Y-%m-%d %H:%M:%S} UTC"
            why = Sentence(_("its time was over at %(time)s"), time=at)
            return Kind.TIMESTAMP, State.STALE, why
        return Kind.TIMESTAMP, State.HELD, ""
    if remaining is None:
        why = Sentence(_("it has no TTL, and nobody is known to end it"))
        return Kind.FOREIGN, State.STALE, why
    return Kind.FOREIGN, State.HELD, ""


def _escaped(text: str) -> str:
    """For the patterns of Redis."""
    return "".join(f"\\{char}" if char in "*?[]\\" else char for char in text)
