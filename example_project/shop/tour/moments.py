"""What each customer has done of late, for the lanes of the tour's page.

A customer writes down each moment at which it begins to do something else. It does so at once, and
in Redis, because a killed process can't report afterwards what it did.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

from django_redis import get_redis_connection

KEY = "redislock-shop:tour"
KEPT = 300
SECONDS_KEPT = 600


class Doing(StrEnum):
    WAITS = "waits"
    WORKS = "works"
    NOTHING = "does nothing"
    REFUSED = "refused"
    # The tour writes these, about a process that can't.
    KILLED = "killed"
    STOPPED = "stopped"
    WOKEN = "woken"


class Moment(NamedTuple):
    at: float
    who: str
    doing: Doing


def note(who: str, doing: Doing) -> None:
    """Write down what somebody does from now on."""
    with get_redis_connection().pipeline() as pipeline:
        pipeline.lpush(KEY, f"{time.time():.3f}|{who}|{doing}")
        pipeline.ltrim(KEY, 0, KEPT - 1)
        pipeline.expire(KEY, SECONDS_KEPT)
        pipeline.execute()


@contextmanager
def working(who: str) -> Iterator[None]:
    """Note the section in which nobody else may work: from before the stock is read until after
    it is written."""
    note(who, Doing.WORKS)
    try:
        yield
    finally:
        note(who, Doing.NOTHING)


def latest() -> list[Moment]:
    """Return the moments that are kept, the oldest first."""
    lines = [line.decode().split("|") for line in get_redis_connection().lrange(KEY, 0, -1)]
    return [Moment(float(at), who, Doing(doing)) for at, who, doing in reversed(lines)]


def forget() -> None:
    get_redis_connection().delete(KEY)
