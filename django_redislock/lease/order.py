"""The locks around the code that is running, and the order in which they are taken.

Code that takes A and then B here, and B and then A there, can deadlock. What finds that works like
the Linux kernel's lockdep (Ingo Molnár and Arjan van de Ven, 2006): it needs no deadlock to
happen. When a thread or task that holds A asks for B and may wait, both places are noted. When B
leads back to A, by whatever was noted before, in this process and at any time, the order is
reported with all the places.

*   Patterns are noted, if there are some: the entry of `LOCKS` that a name follows, or
    the template of a decorated function. So `invoice:1` before `stock:7` here, and `stock:8`
    before `invoice:2` there, are reported. Two names of one pattern are told apart: taking them
    sorted is right, and taking them in both orders is reported.
*   An acquire that tries once (`wait=0`) can't be part of a deadlock. The lock that it then holds
    can.
*   Locks with several holders are left out: semaphores, and the read side of read-write locks.

A deadlock itself is no disaster here, since a wait ends: it is a `LockNotAcquired` after `wait`
seconds that nobody can explain.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from ..base import people
from ..base.exceptions import LockError, LockOrderError, LockOrderWarning
from ..primitives.contract import Claim
from ..primitives.keys import validate_name
from ..settings import conf, kinds, naming
from ..transport.server import Server
from .holds import Hold, current, enclosing
from .lease import Lease
from .register import held_by

logger = logging.getLogger("django_redislock")

MAX_EDGES = 10_000
"""The number of orders that are remembered: a program that makes up names must not fill the
memory."""
SHARED = {"semaphore", "read"}
"""Kinds of locks that may have several holders."""

Node = tuple[str, str]
"""Server, and pattern or name."""


class _Seen(NamedTuple):
    """The places where one lock was held and another one was asked for."""

    held: str
    held_at: str
    wanted: str
    wanted_at: str
    servers: tuple[str, str] = "", ""
    """The addresses of the servers of `held` and of `wanted`."""

    def __str__(self) -> str:
        return (
            f"{self.wanted!r} is wanted at {self.wanted_at} while {self.held!r} is held, "
            f"taken at {self.held_at}"
        )


class Order:
    """The orders in which locks were taken."""

    def __init__(self) -> None:
        # Without a lock: each thread writes before it reads, so one of two at the same time sees
        # both.
        self._after: dict[Node, dict[Node, _Seen]] = {}
        self._edges = 0
        self._limit_logged = False

    def note(self, seen: _Seen, *, raises: bool) -> None:
        """Note an order. Raises `LockOrderError`, or warns, if it contradicts an earlier one."""
        held, wanted = _nodes(seen)
        if wanted in self._after.get(held, {}) or self._full():
            return
        after = self._after.setdefault(held, {})
        after[wanted] = seen
        self._edges += 1
        back = self._path(wanted, held)
        if back is None:
            return
        before = "; ".join(map(str, back))
        message = (
            f"Locks are taken in different orders. Here {seen}. Elsewhere {before}. Two processes "
            f"that do so at the same time wait for each other. Take the locks in one order "
            f"everywhere, or in one step with MultiLock."
        )
        if raises:
            after.pop(wanted, None)  # so that the next contradiction is reported, too
            self._edges -= 1
            raise LockOrderError(message, seen.wanted)
        warnings.warn(message, LockOrderWarning, stacklevel=2)

    def _full(self) -> bool:
        if self._edges < MAX_EDGES:
            return False
        if not self._limit_logged:
            self._limit_logged = True
            logger.warning(
                "%d orders of locks are remembered, which is the limit: new ones are not checked. "
                "For names with a variable part, add a pattern such as 'invoice:*' to "
                "REDISLOCK['LOCKS']: all of them then count as one.",
                self._edges,
            )
        return True

    def _path(self, start: Node, end: Node) -> list[_Seen] | None:
        """Return the shortest path from one lock to the other, since people have to read it."""
        came: dict[Node, tuple[Node, _Seen] | None] = {start: None}
        for node in (queue := [start]):
            if node == end:
                break
            for following, seen in list(self._after.get(node, {}).items()):
                if following not in came:
                    came[following] = node, seen
                    queue.append(following)
        else:
            return None
        path: list[_Seen] = []
        while (step := came[node]) is not None:
            node, seen = step
            path.append(seen)
        return path[::-1]


_of_this_process = Order()
testing: Order | None = None
"""The orders of a test that checks its own (testing/assertions.py)."""


def check(claim: Claim, server: Server, me: people.Holding, mode: str) -> None:
    """Check the order before `me` waits for `claim`. Raises `LockOrderError`, or warns, as `mode`
    says."""
    if claim.primitive.kind in SHARED:
        return
    order = testing or _of_this_process
    for lease in _held(me):
        if lease._claim.primitive.kind in SHARED or not lease._lifetime.alive:
            continue
        servers = lease._server.address, server.address
        for held in [keys.name for keys in lease._claim.names]:
            for wanted in [keys.name for keys in claim.names]:
                if (servers[0], held) != (servers[1], wanted):
                    order.note(
                        _Seen(held, lease.label, wanted, claim.label, servers),
                        raises=testing is not None or mode == "raise",
                    )


def _held(me: people.Holding) -> Iterable[Lease]:
    """Return the leases of this thread or task, and of the one that waits for it: a task that
    works in a thread (`sync_to_async`), or the other way round."""
    waits = (
        lease
        for lease in enclosing(Lease)
        if isinstance(lease._holds.holder, threading.Thread) != isinstance(me, threading.Thread)
    )
    return {lease.token: lease for lease in [*held_by(me), *waits]}.values()


def _nodes(seen: _Seen) -> tuple[Node, Node]:
    names = seen.held, seen.wanted
    one, other = zip(seen.servers, map(_pattern, names), strict=True)
    if one == other:  # two names of one pattern count as different
        one, other = zip(seen.servers, names, strict=True)
    return one, other


def _pattern(name: str) -> str:
    name = conf.written(name)
    known = conf.entry(name)
    if known is not None and known != "*":
        return known
    return next((pattern for pattern in naming.patterns if fnmatchcase(name, pattern)), name)


def held_here() -> Iterator[Lease]:
    """Yield the leases of the blocks around this code, from the innermost outwards, and then all
    that this thread or task holds. A lease may come twice."""
    for leases in (enclosing(Lease), reversed(held_by(people.holder()))):
        yield from (lease for lease in leases if lease._lifetime.alive)


def names_of(lease: Lease) -> list[str]:
    """Return the names that a lease holds. A `MultiLock` holds several."""
    return [keys.name for keys in lease._claim.watched_keys]


def held(name: str) -> Lease | None:
    """Return the lease by which the code that is running holds a name, or None. The name may have
    its scope or not.

    That is the lease of a block around it, or one that this thread or task has acquired and not
    released. Its answer is what this process knows: no request is sent.
    """
    validate_name(name)
    found = next((lease for lease in held_here() if name in names_of(lease)), None)
    if found is None and (scope := conf.policy(name, {}).scope) is not None:
        name = kinds.in_scope(scope, name)
        found = next((lease for lease in held_here() if name in names_of(lease)), None)
    return found


class Steps:
    """Make a block the innermost one while a generator runs, and only then.

    Between two steps the caller of the generator runs, in the same context. What the generator
    has entered itself is current again at its next step.
    """

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._inside: Hold | None = hold
        self._outside: Hold | None = None

    def __enter__(self) -> None:
        self._outside = current.get()
        current.set(self._inside)
        if self._hold.cancellation is not None:
            self._hold.cancellation.follow()

    def __exit__(self, *exc_info: object) -> None:
        self._inside = current.get()
        current.set(self._outside)


def current_lease() -> Lease:
    """Return the lease of the innermost `redis_lock` block or function that is running.

    Raises `LockError` when none is.
    """
    for lease in enclosing(Lease):
        return lease
    raise LockError(
        "current_lease() is called where no lock is held: outside of a `with "
        "redis_lock(…)` block and of a function that it decorates."
    )
