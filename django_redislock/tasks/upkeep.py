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

from ..base import process
from ..base.background import Background
from ..base.clock import now
from ..base.exceptions import LockError
from ..primitives import work
from ..primitives.contract import run
from ..primitives.keys import Keys
from ..transport.ports import SyncPort
from ..transport.server import Server

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


class Upkeep:
    """The claims and the names that a process looks after."""

    def __init__(self) -> None:
        self._open: dict[str, _Claim] = {}
        self._dropped: dict[str, _Claim] = {}
        """Claims of transactions that were rolled back."""
        self._sweeps: dict[str, _Sweep] = {}
        """By the key of the lock."""
        self._wake = threading.Event()
        """Set when there is something new to do."""
        self._background = Background(self._run, "redislock-tasks")

    def until_commit(self, server: Server, keys: Keys, id: str) -> None:
        """Renew the claim `id` until `committed` or `undo`."""
        self._open[id] = _Claim(server, keys)
        self._start()

    def committed(self, id: str) -> None:
        """Renew the claim no longer."""
        self._open.pop(id, None)

    def undo(self, id: str) -> None:
        """Undo the claim in the background. A finalizer may call this, in the middle of
        anything."""
        if (claim := self._open.pop(id, None)) is not None:
            self._dropped[id] = claim
            self._wake.set()

    def undo_dropped(self) -> None:
        """Undo the claims of transactions that were rolled back, unless that was done."""
        while self._dropped:
            id, (server, keys) = self._dropped.popitem()
            try:
                run(work.confirm(SyncPort(server), keys, id, "", work.SHORT))
            except LockError as error:
                logger.info("A claim that was rolled back ends by itself: %s", error)

    def sweep(self, key: str, call: Callable[[], bool], every: float) -> None:
        """Sweep a name every so many seconds, until nothing is parked there."""
        if key not in self._sweeps:
            self._sweeps[key] = _Sweep(call, every, now() + every)
            self._start()

    def _start(self) -> None:
        self._background.start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            self.undo_dropped()
            for id, (server, keys) in [*self._open.items()]:
                try:
                    run(work.confirm(SyncPort(server), keys, id, id, work.SHORT))
                except LockError as error:
                    logger.warning("The claim of a task could not be renewed: %s", error)
            for key, its in [*self._sweeps.items()]:
                if its.due <= now():
                    self._swept(key, its)
            due = min((its.due for its in self._sweeps.values()), default=now() + LONGEST)
            renewal = work.SHORT / 3 if self._open else LONGEST
            self._wake.wait(max(0.0, min(renewal, due - now())))
            self._wake.clear()

    def _swept(self, key: str, its: _Sweep) -> None:
        try:
            parked = its.sweep()
        except Exception:
            logger.exception("Parked tasks could not be looked after; it is tried again")
            parked = True
        if parked:
            self._sweeps[key] = its._replace(due=now() + its.every)
        else:
            self._sweeps.pop(key, None)


_of_this_process: dict[str, Upkeep] = {}


def upkeep() -> Upkeep:
    """Return that of this process."""
    process.notice_fork()
    # Two threads may each make one, but both use the one that was stored first.
    return _of_this_process.get("") or _of_this_process.setdefault("", Upkeep())


process.in_child(_of_this_process.clear)  # the thread stayed in the parent
