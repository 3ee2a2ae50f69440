"""What the processes of test_kills.py run."""

from __future__ import annotations

from contextlib import ExitStack

from django_redislock import redis_lock
from tests.worker import say, told


def hold_many(*names: str) -> None:
    """Hold several locks whose leases end at different times."""
    with ExitStack() as blocks:
        for number, name in enumerate(names):
            blocks.enter_context(redis_lock(name, ttl=1.5 + number / 10))
        say("holding")
        told()


def wait(ttl: str) -> None:
    """Wait for the lock without limit, for a lease of `ttl` seconds."""
    with redis_lock("job", ttl=float(ttl), wait=None) as lease:
        say("holding", lease.fencing_token)
        told()
