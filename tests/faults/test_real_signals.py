"""Signals of the operating system, at random moments of lock after lock."""

from __future__ import annotations

import gc
import logging
import random
import signal
import time
import warnings
from collections.abc import Iterator

import pytest
from redis import Redis

from django_redislock import connections, decorators, redis_lock, renewal
from tests.waiting import PATIENCE, eventually

SECONDS = 1.0


class Limit(Exception):
    """As a soft time limit."""


@pytest.fixture
def untidy() -> Iterator[None]:
    """Python warns of connections that redis-py was making, and of coroutines just made; and the
    handlers of its logging keep a lock if an exception comes when they have just taken it."""
    logging.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        gc.collect()
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("untidy")
def test_limits_at_random(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them comes out, and afterwards the process has a connection, and no lock."""
    monkeypatch.setattr(decorators, "_watched", lambda: False)  # as in production
    sent: list[Limit] = []
    came_out = 0

    def limit(number: int, frame: object) -> None:
        sent.append(Limit(len(sent)))
        raise sent[-1]

    moments = random.Random(17)
    with redis_lock("job"):
        pass
    pool = connections.shared_pool("default")
    before = pool._created_connections - len(pool._available_connections)
    handler = signal.signal(signal.SIGALRM, limit)
    names, ends = 0, time.monotonic() + SECONDS
    try:
        while time.monotonic() < ends:
            known = len(sent)
            names += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.00005, 0.002))
                while len(sent) == known:
                    with redis_lock(f"job {names}"):
                        pass
            except Limit as error:
                came_out += error is sent[-1]
            assert len(sent) == known + 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert came_out == len(sent) > 20
    assert pool._created_connections - len(pool._available_connections) <= before
    eventually(lambda: not any(dog._to_release for dog in renewal._watchdogs.values()))
    with redis_lock("job", wait=PATIENCE):
        pass
