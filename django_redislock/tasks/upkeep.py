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
from contextlib import suppress
from typing import NamedTuple

from ..base import process
from ..base.background import Background
from ..base.clock import now
from ..base.exceptions import LockError

LONGEST = 3600.0
"""Seconds that the thread rests at most."""

logger = logging.getLogger("django_redislock")


class Chore(NamedTuple):
    do: Callable[[], bool]
    """Returns whether it has to be done again."""
    every: float
    due: float


class Upkeep:
    """The claims and the names that a process looks after."""

    def __init__(self) -> None:
        self._chores: dict[str, Chore] = {}
        """By the id of a claim, or the key of a lock."""
        self._undone: list[Callable[[], object]] = []
        """What is left to do of transactions that were rolled back."""
        self._wake = threading.Event()
        """Set when there is something new to do."""
        self._background = Background(self._run, "redislock-tasks")

    def add(self, key: str, do: Callable[[], bool], every: float) -> None:
        """Call `do` every so many seconds, until it returns False, or `forget`."""
        if key not in self._chores:
            self._chores[key] = Chore(do, every, now() + every)
            self._background.start()
            self._wake.set()

    def forget(self, key: str) -> None:
        """Call it no longer."""
        self._chores.pop(key, None)

    def undo(self, key: str, undo: Callable[[], object]) -> None:
        """Call `undo` in the background instead. A finalizer may call this, in the middle of
        anything."""
        if self._chores.pop(key, None) is not None:
            self._undone.append(undo)
            self._wake.set()

    def catch_up(self) -> None:
        """Undo what transactions that were rolled back have claimed, unless that was done."""
        while self._undone:
            # Another thread may be about to do it, and a claim that comes now may not meet the one
            # that is undone. Done twice is as done once.
            with suppress(IndexError, ValueError):
                undo = self._undone[0]
                _done(undo)
                self._undone.remove(undo)

    def _run(self) -> None:
        while True:
            self.catch_up()
            for key, its in [*self._chores.items()]:
                if its.due <= now():
                    if _done(its.do):
                        self._chores[key] = its._replace(due=now() + its.every)
                    else:
                        self.forget(key)
            due = min((its.due for its in self._chores.values()), default=now() + LONGEST)
            self._wake.wait(max(0.0, due - now()))
            self._wake.clear()


def _done(do: Callable[[], object]) -> bool:
    """Call it. Return whether it has to be done again, as after an error."""
    try:
        return bool(do())
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
