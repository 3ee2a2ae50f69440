"""What the processes of test_timestamp.py run."""

from __future__ import annotations

from django_redislock import TimestampLock, redis_lock
from tests.worker import say, told


def hold(ttl: str) -> None:
    """Hold the timestamp lock until told to go on."""
    with TimestampLock("lock.import", ttl=float(ttl)):
        say("holding")
        told()


def hold_both(ttl: str) -> None:
    """The same, together with a mutex."""
    with redis_lock("import", timestamp_key="lock.import", ttl=float(ttl)):
        say("holding")
        told()
