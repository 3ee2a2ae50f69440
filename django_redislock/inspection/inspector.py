"""Inspect the locks on one server, and the Redlocks on several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar

from ..base import people, tokens
from ..base.exceptions import LockUnavailable
from ..base.people import server_time
from ..base.servers import Servers
from ..lease import claims
from ..lease.register import PRESENCE, PRESENCE_EVERY
from ..lease.watchdog import write_down
from ..primitives import mutex, note, permits, timestamp
from ..primitives.contract import Primitive, Sight, batches, run
from ..primitives.keys import Keys, Word, counter, presence, validate_name
from ..primitives.redlock import Redlock
from ..primitives.scripts import ask, pttls
from ..settings import conf
from ..settings.conf import aliases
from ..settings.validators import validate_operator, validate_using
from ..transport import connections
from ..transport.command import carry_out, primaries
from ..transport.ports import SyncPort, find_out_slots
from ..transport.protocol import Command, pack
from ..transport.server import server_of
from . import reading
from .facts import Counts, Kind, LockInfo, NoteInfo, Page, Past, State, WaiterInfo
from .listing import ORDERS, Listing, Urgent
from .reading import Raw

LOCKS_AT_ONCE = 500
"""Locks in one request, which keeps Redis busy for about a millisecond."""

READ_IN_FULL = 1000
"""Locks of one server that a list reads whether or not it shows them."""

ENTRIES_AT_ONCE = 1000
"""Names or waiters in one request."""

MOST_KEYS = 100_000
"""The number of keys of a database, or of all nodes of a cluster, that a scan looks at."""

PAST = 5
"""Past holders of a lock that are returned: one less than lua/lock.lua keeps."""

T = TypeVar("T")


class Inspector:
    """The locks on the server of one alias of CACHES. Raises `LockUnavailable`.

    With `cache_locks`: the locks that are named by their keys, which are those of `cache.lock()`
    and each `TimestampLock`.
    """

    def __init__(self, using: str | None = None, *, cache_locks: bool = False) -> None:
        self.using = conf.policy("", {}).using if using is None else validate_using(using, "using")
        self._server = server_of(self.using)
        self._prefix = conf.prefix()
        self._begins = f"{self._prefix}:{{"
        self._cache_locks = cache_locks
        self._index = self._keys_of("-").index
        self.unasked: dict[str, LockUnavailable] = {}
        """The nodes of a cluster that could not be reached last time, with the errors."""

    # One lock.

    def get(self, name: str) -> LockInfo | None:
        """Return the lock of that name; None: nobody holds it."""
        return next(self._read([self._keys(name)]), None)

    def waiters(self, lock: str | LockInfo, limit: int = 100) -> list[WaiterInfo]:
        """Return the first waiters of a lock, in order."""
        keys = self._keys(lock)
        found: dict[bytes, WaiterInfo] = {}
        first: Any = "-inf"
        while len(found) < limit:
            before = len(found)
            now, some = self._ask(
                reading.waiters,
                "inspection_waiters",
                [keys.queue, keys.waiters],
                [first, min(limit - before + 1, ENTRIES_AT_ONCE)],
            )
            for token, arrived, says in some:  # the first one ended the answer before
                if token not in found:
                    found[token] = reading.waiter(len(found), arrived, says, now)
            if len(found) == before:
                break
            first = some[-1][1]
        return [*found.values()][:limit]

    def past(self, lock: str | LockInfo) -> Past:
        """Return what is known about past holders."""
        keys = self._keys(lock)
        its = [keys.history, keys.lock, keys.holders]
        present, read = self._ask(reading.history, "inspection_history", its, [])
        unreadable = read.count(None)
        found = [one for one in read if one is not None and one.fencing_token != present]
        found.sort(key=lambda holder: holder.fencing_token, reverse=True)
        fences = [one.fencing_token for one in found] + ([present] if present else [])
        return Past(
            fencing_token=max(fences, default=None),
            lasted=found[0].lasted if found else None,
            holders=found[:PAST],
            unreadable=unreadable,
        )

    def note(self, lock: str | LockInfo) -> NoteInfo | None:
        """Return what the holder has noted, or one before it that did not end."""
        found = run(note.look(self._port(), self._keys(lock)))
        if found is None or found.content is None:
            return None
        return NoteInfo(
            content=found.content,
            written_at=server_time(found.written_us),
            resumptions=found.resumptions,
        )

    def forget_note(self, lock: str | LockInfo) -> bool:
        """Let the next holder begin anew. Return False if there is no note."""
        return run(note.forget(self._port(), self._keys(lock)))

    def clear(self, lock: LockInfo, *, by: str, reason: str) -> bool:
        """Take a lock away from the holders in `lock`, and hand it to the next waiter.

        These holders get `LeaseRevoked`, with `by` and `reason`, at their next renewals. Returns
        False if the lock has changed hands since it was read; nothing was done then.
        """
        by, reason = validate_operator(by, reason)
        primitive: Primitive = mutex
        if lock.has_permits:
            primitive = permits.READ
        elif lock.cache_lock and lock.kind == Kind.TIMESTAMP:
            primitive = timestamp.WHOLE
        holders = [Sight(one.seen, one.holder) for one in lock.holders if lock.holding]
        return run(
            claims.clear(self._port(), primitive, lock.keys, self._server, holders, by, reason)
        )

    def clearings(self) -> int:
        """Return how many times operators have cleared a lock at this server, as far as its data
        goes back."""
        return self._counted("clearings")

    def missed_wakeups(self) -> int:
        """Return how many times a waiter was handed a lock at this server and no message said so,
        as far as its data goes back."""
        return self._counted("missed_wakeups")

    def _counted(self, what: str) -> int:
        return self._ask(people.number, "inspection_count", [counter(self._index, what)], []) or 0

    # Many locks.

    def page(self, **question: Any) -> Page:
        """Return some of the held locks: see `Listing.page`."""
        return Listing([self]).page(**question)

    def _urgent(self) -> Urgent:
        """Return the locks that come first in the order of urgency, and count the others.

        Up to `READ_IN_FULL` locks are read, all of them. Of more, a script picks those that may be
        in trouble and those with waiters, and only these are read.
        """
        if self._cache_locks or self._by_slot():
            return Urgent(list(self.all()))
        write_down(self._server)
        ranks: list[int] = []
        keys: list[bytes] = []
        looked, listed = 0, 1
        while looked < listed:
            args = [looked, ENTRIES_AT_ONCE, round((PRESENCE - 2 * PRESENCE_EVERY) * 1000)]
            listed, some = self._ask(reading.ranks, "inspection_urgent", [self._index], args)
            if listed <= READ_IN_FULL:
                return Urgent(list(self._indexed()))
            ranks += [rank for rank, _key in some]
            keys += [key for _rank, key in some]
            looked += ENTRIES_AT_ONCE
        return Urgent(list(self._read(self._ours(keys))), ranks, listed)

    def _others(self, urgent: Urgent, offset: int = 0, limit: int | None = None) -> list[LockInfo]:
        """Return some of the locks that are not in `urgent`, in the order in which their leases
        end."""
        found: list[LockInfo] = []
        known = {lock.keys.lock for lock in urgent.locks}
        first, number = urgent.rank_of_other(offset), urgent.listed
        while first < number and (limit is None or len(found) < limit):
            last = first + LOCKS_AT_ONCE if limit is None else first + limit - len(found)
            last = min(last, first + LOCKS_AT_ONCE)
            number, some = self._ask(
                reading.some_of, "inspection_page", [self._index], [first, last - 1]
            )
            found += self._read([one for one in self._ours(some) if one.lock not in known])
            first = last
        return found

    def all(self, pattern: str = "*") -> Iterator[LockInfo]:
        """Yield all locks whose names match, in the order in which their leases end."""
        if self._by_slot():
            names = [name for name in self._scan(MOST_KEYS) if fnmatchcase(name, pattern)]
            ours = filter(_is_ours, self._held(names, lenient=True))
            yield from sorted(ours, key=ORDERS["remaining"])
        elif pattern == "*":
            yield from self._indexed()
        else:
            yield from self.held(
                [name for name in self._index_names() if fnmatchcase(name, pattern)]
            )

    def held(self, names: Sequence[str]) -> Iterator[LockInfo]:
        """Yield the locks of these names that are held. They are read in batches."""
        self._by_slot()
        return self._held(names)

    def stale(self) -> list[LockInfo]:
        """Return the locks whose holders can't come back."""
        return self.page(states=[State.STALE], limit=None).items

    def counts(self) -> Counts:
        """Count the locks, by state."""
        return self.page(limit=0).counts

    def discover(self, *, limit: int = MOST_KEYS) -> list[LockInfo]:
        """Return the locks below our prefix that are not in the index: foreign values, mostly.

        Looks at up to about `limit` keys of the database, whatever they are. Finds nothing with
        `cache_locks`: only the project's code knows which keys of the cache are locks.
        """
        if self._cache_locks:
            return []
        by_slot = self._by_slot()
        names = self._scan(limit)
        if not by_slot:
            names = sorted(set(names).difference(self._index_names()))
        return [
            lock
            for lock in self._held(names, lenient=by_slot)
            if lock.holding and not (by_slot and _is_ours(lock))
        ]

    # Requests.

    def _by_slot(self) -> bool:
        """Return whether the server has no index, since a script may touch keys of one slot
        only."""
        return find_out_slots(self._server, self._prefix)

    def _scan(self, limit: int, beside: str = "") -> list[str]:
        """Return the names of keys that could be locks, or of keys beside them that match, among
        about `limit` keys."""
        if self._cache_locks:
            return []
        names: dict[str, None] = {}
        looked = 0
        pattern = f"{people.escaped(self._prefix)}:{{*}}{beside}"
        nodes = primaries(self._server.shared_pool())
        self.unasked = {}
        for pool in nodes:
            cursor = b"0"
            options = pool.connection_kwargs
            with self._tolerating(
                (options.get("host"), options.get("port")), self._server.clustered
            ):
                while looked < limit:
                    cursor, found = self._scan_on(pool, cursor, pattern)
                    looked += 1000
                    for key in found:
                        its = self._keys_at(key[: key.rindex(b"}") + 1])
                        if its is not None and its.name:
                            names[its.name] = None
                    if int(cursor) == 0:
                        break
        if len(self.unasked) == len(nodes):
            raise next(iter(self.unasked.values()))
        return sorted(names)

    def _scan_on(self, pool: Any, cursor: bytes, pattern: str) -> tuple[bytes, list[bytes]]:
        """Return the next cursor, and some keys."""
        if self._server.clustered and not connections.routed(self._server.shared_pool()):
            # Without a key, a script goes to one part of the server. A plain SCAN is carried out
            # by the one address, which knows all parts.
            scan = Command(pack(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)))
            cursor, found = run(carry_out(pool, scan))
        else:
            args: list[Word] = [tokens.word(), cursor, pattern, 1000]
            port = SyncPort(self._server, pool=pool)
            cursor, found = run(ask(port, reading.scanned, "inspection_scan", [], args))
        return cursor, found

    @contextmanager
    def _tolerating(self, node: tuple[Any, ...] | None, lenient: bool) -> Iterator[None]:
        """If `lenient`, leave out a node of the cluster that can't be reached."""
        try:
            yield
        except LockUnavailable as error:
            if not lenient:
                raise
            self.unasked[":".join(map(str, node)) if node else self._server.where] = error

    def _port(self) -> SyncPort:
        return SyncPort(self._server)

    def _ask(
        self, read: Callable[[Any], T], script: str, keys: Sequence[str], args: Sequence[Any]
    ) -> T:
        return run(ask(self._port(), read, script, keys, [tokens.word(), *args]))

    def _keys(self, lock: str | LockInfo) -> Keys:
        if isinstance(lock, LockInfo):
            return lock.keys  # a foreign name may not be valid
        return self._keys_of(lock if self._cache_locks else validate_name(lock))

    def _keys_of(self, name: str) -> Keys:
        if self._cache_locks:
            return Keys.verbatim(self._prefix, name.encode(errors="surrogateescape"))
        return Keys.of(self._prefix, name)

    def _keys_at(self, key: bytes) -> Keys | None:
        """Return the keys of the lock at a key; None: no name belongs to that key."""
        if self._cache_locks:
            return Keys.verbatim(self._prefix, key)
        text = key.decode(errors="replace")
        if text.startswith(self._begins) and text.endswith("}") and "\ufffd" not in text:
            return Keys(text[len(self._begins) : -1], text, self._index)
        return None

    def _ours(self, keys: Sequence[bytes]) -> list[Keys]:
        """Return the keys of the locks of an index. Other programs may write into it."""
        return [*filter(None, map(self._keys_at, keys))]

    # The index.

    def _indexed(self) -> Iterator[LockInfo]:
        """Yield the locks in the index that are held, each once."""
        known: set[str] = set()
        for some in self._parts(LOCKS_AT_ONCE):
            new = [one for one in some if one.lock not in known]
            known.update(one.lock for one in new)
            yield from self._read(new)

    def _index_names(self) -> list[str]:
        """Return the names in the index."""
        return [*dict.fromkeys(one.name for some in self._parts(ENTRIES_AT_ONCE) for one in some)]

    def _parts(self, limit: int) -> Iterator[list[Keys]]:
        """Yield what is in the index, up to `limit` locks at a time; of overdue leases, only the
        last `MOST_KEYS`."""
        write_down(self._server)
        first: bytes | str = ""
        skip = 0
        while True:
            # A lease that is renewed meanwhile comes again later, so none is missed.
            args = [first, skip, limit, MOST_KEYS]
            following, some = self._ask(reading.part, "inspection_index", [self._index], args)
            yield self._ours(some)
            if not following:
                break
            # More leases than `limit` may end at the same time.
            skip = skip + limit if following == first else 0
            first = following

    # Locks by their names.

    def _held(self, names: Sequence[str], *, lenient: bool = False) -> Iterator[LockInfo]:
        return self._read([self._keys_of(name) for name in names], lenient=lenient)

    def _read(self, locks: Sequence[Keys], *, lenient: bool = False) -> Iterator[LockInfo]:
        """Yield the locks of these keys that are held. They are read in batches."""
        for start in range(0, len(locks), LOCKS_AT_ONCE):
            found = self._raw(locks[start : start + LOCKS_AT_ONCE], lenient=lenient)
            if self._cache_locks:
                self._add_written(found)
            left = self._left({process for raw in found for process in raw.processes})
            yield from (reading.lock(raw, self.using, left) for raw in found)

    def _raw(self, locks: Sequence[Keys], *, lenient: bool = False) -> list[Raw]:
        if self._cache_locks:  # a key of one of our own names is no lock of the cache
            locks = [its for its in locks if not its.lock.startswith(self._begins)]
        found: dict[int, Raw] = {}
        pool = self._server.shared_pool()
        for batch in batches(self._port(), [lock.lock for lock in locks], LOCKS_AT_ONCE):
            node = connections.node_of(pool, locks[batch[0]].lock)
            with self._tolerating(node, lenient):
                self._add_raw(found, locks, batch)
        return [found[position] for position in sorted(found)]

    def _add_raw(self, found: dict[int, Raw], locks: Sequence[Keys], batch: list[int]) -> None:
        unread = batch
        while unread:  # if locks have many holders, one answer does not have all locks
            some = [locks[position] for position in unread]
            keys = [key for lock in some for key in lock.looked_at]
            args = [permits.SHOWN, int(self._cache_locks)]
            read = partial(reading.raws, some)
            raws = self._ask(read, "inspection_locks", [*keys, self._index], args)
            seen = zip(unread, raws, strict=False)
            found |= {position: raw for position, raw in seen if raw is not None}
            unread = unread[len(raws) :]

    def _add_written(self, found: list[Raw]) -> None:
        """Add what our holders of timestamp locks have written beside the keys."""
        times = [position for position, raw in enumerate(found) if raw.is_timestamp]
        tails = [found[position].keys.timestamp for position in times]
        for batch in batches(self._port(), tails, LOCKS_AT_ONCE):
            its = [tails[number] for number in batch]
            some = self._ask(partial(reading.written, its), "inspection_written", its, [])
            for number, (holder, until) in zip(batch, some, strict=True):
                raw = found[times[number]]
                value = raw.values[0][0]
                if holder and until and reading.same_time(value, until):
                    found[times[number]] = raw._replace(written=holder)

    def _left(self, processes: set[str]) -> dict[str, float | None]:
        """Return for how many seconds each process is sure to live; None: not at all."""
        known = sorted(process for process in processes if process.isalnum())
        port, keys = self._port(), [presence(self._index, process) for process in known]
        left: dict[str, float | None] = {}
        for batch in batches(port, keys, LOCKS_AT_ONCE):
            some = [keys[position] for position in batch]
            try:
                lives = self._ask(partial(pttls, some), "inspection_processes", some, [])
            except LockUnavailable:
                if not self._server.clustered:
                    raise
                # The process's key may be on another node than the lock; while that node can't
                # be asked, the process counts as alive.
                lives = [round(PRESENCE * 1000)] * len(some)
            for position, pttl in zip(batch, lives, strict=True):
                left[known[position]] = pttl / 1000 if pttl > 0 else None
        return left


def inspectors(using: str) -> list[Inspector]:
    """Return what inspects all locks of a server: ours, and those that are named by their keys."""
    return [Inspector(using), Inspector(using, cache_locks=True)]


def servers() -> list[str]:
    """Return the aliases of CACHES that locks use, one for each server: through two aliases, the
    same locks would be listed twice."""
    found: dict[str, str] = {}
    for alias in aliases():
        found.setdefault(server_of(alias).address, alias)
    return list(found.values())


def _is_ours(lock: LockInfo) -> bool:
    broken = lock.state == State.BROKEN
    return lock.has_permits or lock.holder.owner is not None or broken


class RedlockInspector:
    """The Redlocks on a group of servers.

    A server that can't be reached is left out. Raises `LockUnavailable` if no majority can be
    asked."""

    def __init__(self, servers: Servers) -> None:
        self.using = servers
        self.unasked: dict[str, LockUnavailable] = {}
        """The servers that could not be reached last time, with the errors."""
        self._each = [Inspector(alias) for alias in servers.aliases]

    def get(self, name: str) -> LockInfo | None:
        """Return the lock if one lease is, or may be, on a majority of the servers."""
        found = [lock for lock in self._ask(lambda one: one.get(name)) if lock is not None]
        at = Counter(lock.seen for lock in found)
        for lock in found:
            if at[lock.seen] + len(self.unasked) >= self.using.quorum:
                return replace(lock, using=self.using)
        return None

    def held(self, names: Sequence[str]) -> Iterator[LockInfo]:
        """Yield the locks of these names that are held."""
        return filter(None, map(self.get, names))

    def waiters(self, lock: str | LockInfo, limit: int = 100) -> list[WaiterInfo]:  # noqa: ARG002
        """Return an empty list: a Redlock has no queue."""
        return []

    def past(self, lock: str | LockInfo) -> Past:
        """Return what the first server that answers knows about past holders."""
        return self._ask(lambda one: one.past(lock))[0]

    def note(self, lock: str | LockInfo) -> None:
        """Return None: a Redlock has no note."""

    def clear(self, lock: LockInfo, *, by: str, reason: str) -> bool:
        """Clear the lock on all servers, as `Inspector.clear` does. It may stay on `unasked`."""
        by, reason = validate_operator(by, reason)
        server, kind = server_of(self.using), Redlock(self.using)
        seen = [Sight(one.seen, one.holder) for one in lock.holders]
        done = run(claims.clear(SyncPort(server), kind, lock.keys, server, seen, by, reason))
        self._ask(lambda one: one.get(lock.name))
        return done

    def _ask(self, question: Callable[[Inspector], T]) -> list[T]:
        """Return the answers of the servers that answered."""
        answers: list[T] = []
        self.unasked = {}
        for one in self._each:
            try:
                answers.append(question(one))
            except LockUnavailable as error:
                self.unasked[one.using] = error
        if len(answers) < self.using.quorum:
            why = "; ".join(map(str, self.unasked.values()))
            raise LockUnavailable(f"No majority of the servers {self.using} can be asked: {why}")
        return answers


def inspector_of(using: str | Servers) -> Inspector | RedlockInspector:
    """Return what inspects the locks of an alias, or the Redlocks of a group of servers."""
    return RedlockInspector(using) if isinstance(using, Servers) else Inspector(using)
