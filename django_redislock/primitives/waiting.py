"""Waiting: how long a waiter sleeps at a time, and what it logs.

A waiter sleeps in slices. Each slice ends with another acquire, which is its sign of life
and repairs whatever was lost. Between two acquires, the release that hands it the lock wakes it
(inbox.py).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from ..base.exceptions import LockUnavailable
from ..base.people import Holder, log_extra

logger = logging.getLogger("django_redislock")

Uniform = Callable[[float, float], float]

chance = random.SystemRandom()
"""A generator of its own: the numbers that a project draws after random.seed() must not depend on
our waiters."""
uniform: Uniform = chance.uniform

NEVER = float("inf")


LEAST = 1.0
"""Seconds that a request of an acquire gets, however little is left of `wait`: so a slow server
can answer even an acquire that does not wait."""


def end(began: float, wait: float | None) -> float:
    """Return when the time of an acquire is over."""
    return NEVER if wait is None else began + max(wait, LEAST)


DEAF = "-"
"""The inbox of a waiter that nobody can wake; as in lua/queue.lua."""

HEAD = 8
"""The number of waiters at the head of a queue that ask when the holder's TTL ends; the others
sleep longer."""


def slice_for(
    position: int, remaining: float | None, left: float, uniform: Uniform = uniform
) -> float:
    """Return the seconds to sleep at `position` in the queue, if the lease ends in `remaining`.

    Five hundred waiters that all looked twice a second would keep Redis busy for nothing. So
    only the waiters at the head look often, and they are the first to see that a lease has run
    out. The longest slice is shorter than SIGN_OF_LIFE in lua/queue.lua.
    """
    if position < HEAD:
        # A little after the lease has run out: Redis counts in milliseconds.
        seconds, after = uniform(0.7, 0.9), 0.002
    else:
        # All waiters before us may have been killed together with the holder.
        seconds, after = uniform(2.0, 3.0), uniform(0.05, 0.5)
    return no_longer(seconds, remaining, after, left)


def poll(polls: int, remaining: float | None, left: float, uniform: Uniform = uniform) -> float:
    """Return the seconds to sleep before the lock is asked for again, where nobody wakes a waiter.
    `polls` counts how often that was done."""
    longest = 0.05 * 2.0 ** min(polls, 3)
    seconds = uniform(0.5, 1.0) * longest
    return no_longer(seconds, remaining, uniform(0.002, 0.02), left)


def no_longer(seconds: float, remaining: float | None, after: float, left: float) -> float:
    """Return these seconds, but no more than until so long after the holder's lease has ended, nor
    than are left of the wait."""
    ends = NEVER if remaining is None else remaining + after
    return min(seconds, ends, left)


LINE = 4
"""The number of waiting threads of a process that ask a server at the same time; the others stand
in line. Otherwise a server that stalls or comes back would face hundreds of connections."""


def backoff(failures: int, longest: float = 1.0, uniform: Uniform = uniform) -> float:
    """Return the seconds before a server is asked again that did not answer `failures` times."""
    if failures == 1:
        return 0.0
    return uniform(0.5, 1.0) * min(0.05 * 2.0 ** min(failures, 5), longest)


class WaitLog:
    """The log lines of one wait, so that no long wait is silent."""

    EVERY = 5.0
    """Seconds between two lines while Redis can't be reached, and before the first line about a
    busy lock. Each further line about a busy lock comes after twice the time, since hundreds of
    waiters may wait for hours."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._unavailable_at = 0.0
        self._busy_at = self.EVERY

    def unavailable(self, error: LockUnavailable, waited: float) -> None:
        """Log that Redis could not be reached and will be asked again."""
        if waited >= self._unavailable_at:
            self._unavailable_at = waited + self.EVERY
            extra = {"lock_name": self._name, "lock_waited": waited}
            logger.warning("Waiting for %r: %s", self._name, error, extra=extra)

    @property
    def next_busy(self) -> float:
        """The seconds of waiting after which the next line about a busy lock is due."""
        return self._busy_at if logger.isEnabledFor(logging.INFO) else NEVER

    def busy(self, name: str, holder: Holder, waited: float, position: int = 0) -> None:
        """Log that somebody else holds the lock `name`."""
        if waited >= self._busy_at:
            self._busy_at = 2 * waited
            ahead = f" Waiters ahead: {position}." if position else ""
            extra = log_extra("lock", {"name": name, "waited": waited, "holder": holder})
            text = "Waiting for %r for %.1f s: it is held by %s.%s"
            logger.info(text, name, waited, str(holder), ahead, extra=extra)
