"""The leases that this process holds, as known from their events."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from ..base import process
from ..lease.lease import Lease
from ..lease.register import Register
from ..settings import conf, naming
from ..signals import LockEvent
from ..transport.server import every

# The pattern of a lock's name. There may be millions of names, and few patterns.


OTHER = "other"
"""Locks whose names follow no pattern that the project has written down."""


def pattern(name: str) -> str:
    """Return the entry of `LOCKS` that a name matches, else a template that it could come from."""
    name = conf.written(name)
    its = conf.entry(name)
    if its is not None:
        return its
    return next((known for known in naming.patterns if fnmatchcase(name, known)), OTHER)


T = TypeVar("T")

_Id = tuple[str, str, int | None]


class HeldLeases(Generic[T]):
    """Remember a value from the acquire of a lease to its end.

    A lease that was exported, or whose object was dropped, ends without an event. Then `gone` is
    called with the value, at the next event after the object has gone.
    """

    def __init__(self, gone: Callable[[T], object]) -> None:
        self._gone = gone
        self._values: dict[_Id, tuple[weakref.ref[Lease], T]] = {}
        # Filled by the garbage collector, in the middle of any code. `gone` may take a lock, and
        # is therefore not called from there.
        self._dropped: deque[T] = deque()
        process.in_child(self._forget)

    def begin(self, event: LockEvent, value: T) -> bool:
        """Remember a value for the acquired lock. Returns False if its end may have no event."""
        self._sweep()
        lease = _lease(event)
        if lease is None:
            return False
        its = _id(event)
        # Without a fencing token, this may be the id of an earlier lease that was lost unnoticed.
        self._drop(its)
        self._values[its] = weakref.ref(lease, lambda _: self._drop(its)), value
        return True

    def end(self, event: LockEvent) -> T | None:
        """Forget the value of a lock that has ended, and return it."""
        self._sweep()
        found = self._values.pop(_id(event), None)
        return None if found is None else found[1]

    def _drop(self, its: _Id) -> None:
        found = self._values.pop(its, None)
        if found is not None:
            self._dropped.append(found[1])

    def _sweep(self) -> None:
        while self._dropped:
            try:
                value = self._dropped.popleft()
            except IndexError:  # another thread was faster
                return
            self._gone(value)

    def _forget(self) -> None:
        self._values = {}  # a child does not hold its parent's leases
        self._dropped = deque()


def _id(event: LockEvent) -> _Id:
    return event.using, event.key, event.fencing_token


def _lease(event: LockEvent) -> Lease | None:
    """Return the acquired lease. None for `cache.lock(…, timeout=…)`, which no register has."""
    held = (lease for one in every(Register) for lease in one.held(event.key))
    its = (event.using, event.fencing_token)
    same = (one for one in held if (one.using, one._grant.fencing_token) == its)
    return next(same, None)
