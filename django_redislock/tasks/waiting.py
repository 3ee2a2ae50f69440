"""What a process does about its tasks in the background, in one thread.

A claim that waits for the end of a database transaction is renewed until it commits or is rolled
back, so it lives not longer than 30 seconds after a kill. And a name for which this process has
parked a message is swept once in each ttl, until none is parked there: the holder of the permit
may be killed, and no other task of that name begin or end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from ..base import background, process
from ..base.clock import now
from ..base.exceptions import LockError
from ..primitives import work
from ..primitives.contract import run
from ..primitives.keys import Keys
from ..transport.ports import SyncPort
from ..transport.server import Server

INFINITY = float("inf")
LONGEST = 3600.0
"""Seconds that the thread rests at most."""

logger = logging.getLogger("django_redislock")


class _Claim(NamedTuple):
    server: Server
    keys: Keys


class _Sweep(NamedTuple):
    sweep: Callable[[], bool]
    """Returns whether any message is still parked."""
    every: float
    due: float


_open: dict[str, _Claim] = {}
_dropped: dict[str, _Claim] = {}
"""Claims of transactions that were rolled back."""
_sweeps: dict[str, _Sweep] = {}
"""By the key of the lock."""
_wake = threading.Event()
"""Set when there is something new to do."""
_thread: list[threading.Thread] = []


def until_commit(server: Server, keys: Keys, id: str) -> None:
    """Renew the claim `id` until `committed` or `undo`."""
    _open[id] = _Claim(server, keys)
    _start()


def committed(id: str) -> None:
    """Renew the claim no longer."""
    _open.pop(id, None)


def undo(id: str) -> None:
    """Undo the claim in the background. A finalizer may call this, in the middle of anything."""
    if (claim := _open.pop(id, None)) is not None:
        _dropped[id] = claim
        _wake.set()


def undo_dropped() -> None:
    """Undo the claims of transactions that were rolled back, unless that was done."""
    while _dropped:
        id, (server, keys) = _dropped.popitem()
        try:
            run(work.confirm(SyncPort(server), keys, id, "", work.SHORT))
        except LockError as error:
            logger.info("A claim of a transaction that was rolled back ends by itself: %s", error)


def sweep(key: str, call: Callable[[], bool], every: float) -> None:
    """Sweep a name every so many seconds, until nothing is parked there."""
    if key not in _sweeps:
        _sweeps[key] = _Sweep(call, every, now() + every)
        _start()


def _start() -> None:
    process.notice_fork()
    if any(one.is_alive() for one in _thread):
        _wake.set()
    else:
        _thread[:] = filter(None, [background.start(_work, "redislock-tasks")])


def _work() -> None:
    while _open or _dropped or _sweeps:
        undo_dropped()
        for id, (server, keys) in [*_open.items()]:
            try:
                run(work.confirm(SyncPort(server), keys, id, id, work.SHORT))
            except LockError as error:
                logger.warning("The claim of a task could not be renewed: %s", error)
        for key, its in [*_sweeps.items()]:
            if its.due <= now():
                _swept(key, its)
        next_sweep = min((its.due for its in _sweeps.values()), default=INFINITY) - now()
        _wake.wait(max(0.0, min(work.SHORT / 3 if _open else INFINITY, next_sweep, LONGEST)))
        _wake.clear()
        if not (_open or _dropped or _sweeps):
            # Whoever comes from now on starts another thread.
            _thread.clear()


def _swept(key: str, its: _Sweep) -> None:
    try:
        parked = its.sweep()
    except Exception:
        logger.exception("Parked tasks could not be looked after; it is tried again")
        parked = True
    if parked:
        _sweeps[key] = its._replace(due=now() + its.every)
    else:
        _sweeps.pop(key, None)


def _after_fork() -> None:
    _open.clear()
    _dropped.clear()
    _sweeps.clear()
    _thread.clear()


process.in_child(_after_fork)
