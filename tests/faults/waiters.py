"""What the tests of lost data and of the server's clock share: waiters in a known order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from redis import Redis

from django_redislock import Lease, redis_lock
from django_redislock.lease.watchdog import watchdog
from tests.contract.api import Api
from tests.waiting import PATIENCE, eventually

NAME = "invoice:42"
LOCK = f"redislock:{{{NAME}}}"
QUEUE = f"{LOCK}:queue"
HISTORY = f"{LOCK}:history"


def renew_now(lease: Lease) -> None:
    """Let the watchdog renew it now, and not in a third of its ttl."""
    lease._lifetime.due = 0.0
    watchdog(lease._server).reconsider(lease._lifetime)


class Line:
    """Waiters who come one after the other. Each stays inside until the door opens."""

    def __init__(self, api: Api, redis: Redis, count: int) -> None:
        self.door = threading.Event()
        self.order: list[int] = []
        """Who has entered, by the number of arrival."""
        self.fencing_tokens: list[int] = []
        self._port, self._redis = api, redis
        self._ends: list[Future[Any]] = []
        self.join(count)

    def join(self, count: int) -> None:
        """So many more come."""
        for number in range(len(self._ends), len(self._ends) + count):
            self._ends.append(self._port.start(self._waits(number)))
            eventually(lambda number=number: self._redis.zcard(QUEUE) == number + 1)

    def _waits(self, number: int) -> Callable[[], None]:
        def inside(lease: Lease) -> None:
            self.order.append(number)
            self.fencing_tokens.append(lease.fencing_token)
            assert self.door.wait(PATIENCE)

        return lambda: self._port.enter(redis_lock(NAME, wait=PATIENCE), inside)

    def one_enters(self) -> int:
        """Somebody has come in, and the others are back in line. Returns who it is."""
        eventually(lambda: self.order and self._redis.zcard(QUEUE) == len(self._ends) - 1)
        return self.order[0]

    def all_enter(self, after: Lease) -> None:
        """Each of them is served, with a fencing token that is larger than the one before."""
        self.door.set()
        for end in self._ends:
            end.result(PATIENCE)
        tokens = [after.fencing_token, *self.fencing_tokens]
        assert tokens == sorted(set(tokens)), tokens
        assert not self._redis.exists(LOCK, QUEUE)
