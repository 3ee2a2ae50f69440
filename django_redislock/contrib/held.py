"""The leases that this process holds, as far as it is told."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ..base import fork
from ..lease.lease import Lease
from ..lease.watchdog import Watchdog
from ..signals import LockEvent
from ..transport.server import every

T = TypeVar("T")

_Id = tuple[str, str, int | None]


class HeldLeases(Generic[T]):
    """Remembers something from the acquire of a lease to its end.

    No event tells of the end of a lease that was exported, or whose object was dropped: then
    `gone` gets what was remembered, at the next event after that object is no more.
    """

    def __init__(self, gone: Callable[[T], object]) -> None:
        self._gone = gone
        self._values: dict[_Id, tuple[weakref.ref[Lease], T]] = {}
        # Filled by the garbage collector, in the middle of anything: so `gone`, which may take
        # a lock, is not called from there.
        self._dropped: deque[T] = deque()
        fork.in_child(self._forget)

    def begin(self, event: LockEvent, value: T) -> bool:
        """A lock was acquired. False: nothing is remembered, since its end may pass unnoticed."""
        self._sweep()
        lease = _lease(event)
        if lease is None:
            return False
        its = _id(event)
        # Without a fencing token, an earlier lease of which nobody knows yet that it is lost.
        self._drop(its)
        self._values[its] = weakref.ref(lease, lambda _: self._drop(its)), value
        return True

    def end(self, event: LockEvent) -> T | None:
        """It is held no more: what was remembered, if anything was."""
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
        self._values = {}  # they are the parent's
        self._dropped = deque()


def _id(event: LockEvent) -> _Id:
    return event.using, event.key, event.fencing_token


def _lease(event: LockEvent) -> Lease | None:
    """The lease that was acquired. None for `cache.lock(…, timeout=…)`: nobody watches those."""
    held = (lease for watchdog in every(Watchdog) for lease in watchdog.held(event.key))
    its = (event.using, event.fencing_token)
    return next((lease for lease in held if (lease.using, lease.fence) == its), None)
