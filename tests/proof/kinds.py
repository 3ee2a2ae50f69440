"""The locks of this package that the proof is about, each as the torture takes it."""

from __future__ import annotations

from typing import Any

from tests.peers.adapters import Ours

PLACES = 3


class Mutex(Ours):
    title = "mutex"


class WaitingMutex(Ours):
    title = "mutex, `AFTER_LOSS`"

    def lock(self, mode: str, name: str, ttl: float) -> Any:
        from django_redislock import redis_lock

        return redis_lock(name, ttl=ttl, after_loss="wait")


class Places(Ours):
    title = "semaphore"
    places = PLACES

    def lock(self, mode: str, name: str, ttl: float) -> Any:
        from django_redislock import Semaphore

        return Semaphore(name, PLACES, ttl=ttl)


class ReadWrite(Ours):
    """A reader takes one place and a writer takes all, of more places than there are processes."""

    title = "read-write lock"
    places = 1000
    modes = {"read": 1, "write": places}

    def lock(self, mode: str, name: str, ttl: float) -> Any:
        from django_redislock import ReadWriteLock

        lock = ReadWriteLock(name, ttl=ttl)
        return lock.read() if mode == "read" else lock.write()


class Names(Ours):
    """Two names that are always taken together, so what is true of a mutex is true of them."""

    title = "MultiLock"

    def lock(self, mode: str, name: str, ttl: float) -> Any:
        from django_redislock import MultiLock

        return MultiLock([name, f"{name}-2"], ttl=ttl)

    def token(self, name: str, lease: Any) -> int | None:
        token: int = lease.fencing_tokens[name]
        return token


class Majority(Ours):
    title = "Redlock"
    servers = 3
    shortest = 1.0  # a server has a tenth of it to answer

    def lock(self, mode: str, name: str, ttl: float) -> Any:
        from django_redislock import Redlock

        return Redlock(name, using=["default", "1", "2"], ttl=ttl)

    def token(self, name: str, lease: Any) -> int | None:
        return None


KINDS: tuple[type[Ours], ...] = (Mutex, Places, ReadWrite, Names)
