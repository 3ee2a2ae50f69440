"""Locks in memory: the Lua scripts of the package run in this process, in fakeredis.

No rule of a lock is written a second time here, and the code above the connections is the code of
production.

fakeredis and the leases (base/clock.py) share one clock, which a test can move. The clock never
goes back, also not between two tests, since fencing tokens are made from it.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

from ..base import background, clock
from ..lease.lease import Lease
from ..transport import command
from ..transport.connections import NEEDED, PoolsInMemory, installed
from ..transport.inbox import Inbox
from ..transport.server import every
from .stubs import Condition, StandIns

SETTLE_WITHIN = 2.0
"""Seconds that other threads have to act after a test has moved the clock."""


class _Time:
    """A stand-in for the module `time`."""

    def __init__(self) -> None:
        self.ahead = 0.0
        # Read once: a test may stop the clock of the module `time` for its own purposes.
        self._epoch = time.time() - self._real()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def _real() -> float:
        return time.perf_counter() if clock._CLOCK is None else time.clock_gettime(clock._CLOCK)

    def clock_gettime(self, which: int) -> float:
        return time.clock_gettime(which) + self.ahead

    def perf_counter(self) -> float:
        return time.perf_counter() + self.ahead

    def time(self) -> float:
        return self._epoch + self._real() + self.ahead


class _InMemory(StandIns[PoolsInMemory]):
    def __init__(self) -> None:
        super().__init__("memory", PoolsInMemory)

    def clear(self) -> None:
        for pools in self._pools.values():
            with pools.server.lock:
                for database in pools.server.dbs.values():
                    database.clear()

    def wake(self) -> None:
        """Wake all waiting threads and tasks, so that they read the clock."""
        for watchdog in self.watchdogs:
            watchdog.wake()
        for inbox in every(Inbox):
            inbox.wake_all()


_time = _Time()
_memory = _InMemory()


class Memory:
    """The clock of locks in memory."""

    def advance(self, seconds: float) -> None:
        """Let seconds pass at once, for the server and for this process.

        The effect is that of a process that was stopped for this time. Leases that have ended are
        lost. When this returns, waiters were woken, `on_lost` was called, and the other leases
        were renewed.
        """
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise ValueError(f"seconds must be a number from 0 on, not {seconds!r}")
        _time.ahead += seconds
        for lease in _memory.leases:
            lease._lifetime.expire()
        _memory.wake()
        give_up = time.monotonic() + SETTLE_WITHIN
        while any(map(_is_due, _memory.leases)) and time.monotonic() < give_up:
            time.sleep(0.001)
        await_receivers()


def _is_due(lease: Lease) -> bool:
    lifetime = lease._lifetime
    return lifetime.lost is None and not lifetime.closing and lifetime.due <= clock.now()


def await_receivers() -> None:
    """Wait until `on_lost` and all receivers of signals were called."""
    for thread in threading.enumerate():
        if thread.name == "redislock-lost" and thread is not threading.current_thread():
            thread.join(SETTLE_WITHIN)
    background.settle()


def locks_in_memory() -> Condition[Memory]:
    """Locks exclude each other, wait, expire and are handed over in this process, as on a real
    server. All locks and records are gone afterwards.

    Needs fakeredis: `pip install "django-redislock[testing]"`.
    """
    if not installed():
        raise ImportError(f"locks_in_memory() needs {NEEDED}")
    return Condition(_in_memory)


@contextmanager
def _in_memory() -> Iterator[Memory]:
    import_module("fakeredis")  # all of it, so that its clock is moved
    with ExitStack() as stack:

        def replace(module: Any, **others: Any) -> None:
            stack.enter_context(mock.patch.multiple(module, **others))

        stack.enter_context(_memory.in_place())
        # Without replicas, every WAIT is confirmed.
        replace(command, _wait=lambda *_: ("PING",))
        replace(command, _confirm=lambda replicas, terms: None)  # noqa: ARG005
        replace(clock, time=_time)
        for name, module in list(sys.modules.items()):
            # All modules of fakeredis read the same clock.
            if name.startswith("fakeredis") and getattr(module, "time", None) is time:
                replace(module, time=_time)
        try:
            yield Memory()
        finally:
            _memory.forget()
            _memory.clear()
            _memory.wake()
