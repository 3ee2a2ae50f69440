"""What a process does about the tasks that it has parked.

A name for which this process has parked a message is swept once in each ttl, by one thread, until
none is parked there: the holder of the permit may be killed, and no other task of that name begin
or end.
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

LONGEST = 3600.0
"""Seconds that the thread rests at most."""

logger = logging.getLogger("django_redislock")


class Chore(NamedTuple):
    sweep: Callable[[], bool]
    """Returns whether it has to be done again."""
    every: float
    due: float


class Upkeep:
    """The names that a process looks after."""

    def __init__(self) -> None:
        self._chores: dict[tuple[str, str], Chore] = {}
        """By the address of a server and the key of a lock."""
        self._wake = threading.Event()
        """Set when there is one more."""
        self._background = Background(self._run, "redislock-tasks")

    def add(self, key: tuple[str, str], sweep: Callable[[], bool], every: float) -> None:
        """Call `sweep` every so many seconds from now on, until it returns False."""
        # Also if it is to be called earlier: then the lease that it waits for may still live.
        self._chores[key] = Chore(sweep, every, now() + every)
        self._background.start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            for key, its in [*self._chores.items()]:
                if its.due <= now():
                    # First: what is parked from now on adds it again.
                    newest = self._chores.pop(key)
                    if newest is not its:
                        self._chores.setdefault(key, newest)
                    elif _again(its.sweep):
                        self._chores.setdefault(key, its._replace(due=now() + its.every))
            due = min((its.due for its in self._chores.values()), default=now() + LONGEST)
            self._wake.wait(max(0.0, due - now()))
            self._wake.clear()


def _again(sweep: Callable[[], bool]) -> bool:
    """Call it. Return whether it has to be done again, as after an error."""
    try:
        return sweep()
    except Exception as error:
        known = isinstance(error, LockError)
        logger.warning("Tasks could not be looked after now: %s", error, exc_info=not known)
        return True


_of_this_process: dict[str, Upkeep] = {}


def upkeep() -> Upkeep:
    """Return that of this process."""
    process.notice_fork()
    # Two threads may each make one, but both use the one that was stored first.
    return _of_this_process.get("") or _of_this_process.setdefault("", Upkeep())


process.in_child(_of_this_process.clear)  # the thread stayed in the parent
