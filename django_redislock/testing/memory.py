"""Locks in memory: the scripts that run at a real server, run in this process.

fakeredis has the commands, and runs our Lua; so no rule of a lock is written a second time here.
The connections to it are ordinary ones, for all that is above them.

Its clock and that of the leases (clock.py) are one, which a test moves. It never goes back, also
not from test to test, since it makes the fencing tokens.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any
from unittest import mock

from ..base import background, clock
from ..lease.lease import Lease
from ..transport import command as exchange
from ..transport import pools
from ..transport.inbox import Inbox
from ..transport.server import every
from .condition import Condition
from .no_server import Caches

PATIENCE = 2.0
"""Seconds, at most, that a test waits for what others do when it has moved the clock."""


class _Time:
    """In place of the module `time`."""

    def __init__(self) -> None:
        self.ahead = 0.0
        # Not asked again: a test may have stopped that clock, for its own purposes.
        self._epoch = time.time() - self._real()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def _real() -> float:
        return time.clock_gettime(clock._CLOCK)

    def clock_gettime(self, which: int) -> float:
        return time.clock_gettime(which) + self.ahead

    def time(self) -> float:
        return self._epoch + self._real() + self.ahead


class _InMemory(Caches):
    def __init__(self) -> None:
        super().__init__("memory")
        self._servers: dict[str, Any] = {}

    def options(self, alias: str) -> dict[str, Any]:
        import fakeredis

        server = self._servers.setdefault(alias, fakeredis.FakeServer(version=(7, 4)))
        kind = {"version": (7, 4), "server_type": "redis", "lua_modules": None}
        connection = {"connection_class": fakeredis.FakeRedisConnection}
        return {**connection, **kind, "client_class": fakeredis.FakeRedis, "server": server}

    def clear(self) -> None:
        for server in self._servers.values():
            with server.lock:
                for database in server.dbs.values():
                    database.clear()

    def wake(self) -> None:
        """Let all who wait look at the clock."""
        for watchdog in self.watchdogs:
            watchdog.wake()
        for inbox in every(Inbox):
            inbox.wake_all()


_time = _Time()
_memory = _InMemory()


class Memory:
    """Locks in memory, and the clock that they go by."""

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass at once, for the server and for this process.

        It is as if the process had been stopped for so long: leases that live no longer are lost,
        and what is due is done when this returns: who waited has been woken, `on_lost` been
        called, and a lease that has time left renewed.
        """
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise ValueError(f"seconds must be a number from 0 on, not {seconds!r}")
        _time.ahead += seconds
        for lease in _memory.leases:
            lease.expire()
        _memory.wake()
        give_up = time.monotonic() + PATIENCE
        while any(map(_is_due, _memory.leases)) and time.monotonic() < give_up:
            time.sleep(0.001)
        await_told()


def _is_due(lease: Lease) -> bool:
    return lease.lost is None and not lease.closing and lease.due <= clock.now()


def await_told() -> None:
    """Wait until all have been told that a lease was lost."""
    for thread in threading.enumerate():
        if thread.name == "redislock-lost" and thread is not threading.current_thread():
            thread.join(PATIENCE)
    background.settle()


def locks_in_memory() -> Condition[Memory]:
    """Locks exclude each other, wait, run out and are handed on as at a real server, in this
    process. It ends with no lock and no record left.

    Needs fakeredis: `pip install "django-redislock[testing]"`.
    """
    if not (find_spec("fakeredis") and find_spec("lupa")):
        raise ImportError(
            'locks_in_memory() runs our Lua in fakeredis: pip install "django-redislock[testing]"'
        )
    return Condition(_in_memory)


@contextmanager
def _in_memory() -> Iterator[Memory]:
    from fakeredis.aioredis import FakeAsyncRedisConnection

    with ExitStack() as stack:

        def instead(module: Any, **others: Any) -> None:
            stack.enter_context(mock.patch.multiple(module, **others))

        stack.enter_context(_memory.in_place())
        instead(pools, _async_twin=lambda using, kind: FakeAsyncRedisConnection)  # noqa: ARG005
        # There are no replicas, and they confirm everything.
        instead(exchange, _wait=lambda terms: ("PING",))  # noqa: ARG005
        instead(exchange, _confirm=lambda replicas, terms: None)  # noqa: ARG005
        instead(clock, time=_time)
        for name, module in list(sys.modules.items()):
            # All of it goes by one clock, whichever of its modules asks for the time.
            if name.startswith("fakeredis") and getattr(module, "time", None) is time:
                instead(module, time=_time)
        try:
            yield Memory()
        finally:
            _memory.forget()
            _memory.clear()
            _memory.wake()
