"""Clients of the old SETNX locks, written from the documentation of that age; step by step, so
that tests can interleave them."""

from __future__ import annotations

import time

from redis import Redis


class Classic:
    """It looks at the time before it takes a lock over, and before it deletes the key."""

    def __init__(
        self, redis: Redis, key: str, *, timeout: float = 30, fractions: bool = False
    ) -> None:
        self.redis, self.key, self.timeout = redis, key, timeout
        self.reads = self.writes = float if fractions else int
        self.ends = 0.0
        """When its lock ends, as it believes."""

    def now(self) -> float:
        return time.time()

    def value(self) -> str:
        """What it would write now."""
        return str(self.writes(self.now() + self.timeout + 1))

    def over(self, value: bytes | None) -> bool:
        return value is not None and self.reads(value) < self.now()

    def setnx(self) -> bool:
        value = self.value()
        if not self.redis.setnx(self.key, value):
            return False
        self.ends = float(value)
        return True

    def read(self) -> bool:
        """Whether the time at the key is over."""
        return self.over(self.redis.get(self.key))

    def getset(self) -> bool:
        """True: the lock was taken over. Else another one was faster, and its time is moved."""
        value = self.value()
        if not self.over(self.redis.getset(self.key, value)):
            return False
        self.ends = float(value)
        return True

    def acquire(self) -> bool:
        """Try once."""
        return self.setnx() or (self.read() and self.getset())

    def release(self) -> None:
        if self.ends > self.now():
            self.redis.delete(self.key)
        self.ends = 0.0


class Naive(Classic):
    """It takes over with DEL and SETNX, which the documentation warns of, and deletes the key
    without looking at the time."""

    def delete(self) -> None:
        self.redis.delete(self.key)

    def acquire(self) -> bool:
        if self.setnx():
            return True
        if not self.read():
            return False
        self.delete()
        return self.setnx()

    def release(self) -> None:
        self.delete()
