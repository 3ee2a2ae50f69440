"""What the processes of test_shared.py run."""

from __future__ import annotations

from django_redislock import LeaseLost, ReadWriteLock, Semaphore, redis_lock
from tests.worker import say, told


def lock_of(kind: str, ttl: float) -> redis_lock:
    if kind == "semaphore":
        return Semaphore("job", 2, ttl=ttl, wait=None)
    both = ReadWriteLock("job", ttl=ttl, wait=None)
    return both.read() if kind == "read" else both.write()


def hold(kind: str, ttl: str) -> None:
    """Wait for it, and hold it until told to go on."""
    say("waiting")
    try:
        with lock_of(kind, float(ttl)) as lease:
            say("holding", lease.fencing_token)
            told()
    except LeaseLost:
        say("lost")
    else:
        say("released")
