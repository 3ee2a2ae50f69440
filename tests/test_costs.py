"""docs/kinds.md says what a lock of each kind costs: that is counted here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from django_redislock import MultiLock, ReadWriteLock, Semaphore, TimestampLock, redis_lock
from django_redislock.lease.lock import Lock
from tests.contract.conftest import no_signs_of_life  # noqa: F401  # a fixture
from tests.contract.test_mutex import round_trips

PAGE = Path(__file__).parent.parent / "docs" / "kinds.md"
ROW = re.compile(r"\| (\d)[^|]*\| (\d)[^|]*\| (\d)[^|]*\|$")


def keys(redis: Redis) -> int:
    """Without the index, and what is there once for each process."""
    return sum(not re.search(rb":index$|:process:", key) for key in redis.scan_iter())


@pytest.mark.parametrize(
    ("row", "lock"),
    [
        ("`redis_lock`", redis_lock("name")),
        ("`Semaphore`, for each holder", Semaphore("name", 3)),
        ("`ReadWriteLock`, for each holder", ReadWriteLock("name").read()),
        ("`ReadWriteLock`, for each holder", ReadWriteLock("name").write()),
        ("`MultiLock` of three names", MultiLock(["a", "b", "c"])),
        ("`TimestampLock`", TimestampLock("lock.name")),
        ("`redis_lock` with a `timestamp_key`", redis_lock("name", timestamp_key="lock.name")),
    ],
)
@pytest.mark.usefixtures("no_signs_of_life")
def test_what_it_costs(row: str, lock: Lock, redis: Redis, settings: Any) -> None:
    """Round trips, keys while it is held, and keys afterwards."""
    [said] = [
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| {row} |")
    ]
    first = lock.acquire()  # a script that the server does not know is sent twice
    assert first is not None
    first.release()
    redis.flushdb()
    before = round_trips(redis)
    lease = lock.acquire()
    assert lease is not None
    held = keys(redis)
    lease.release()
    found = ROW.search(said)
    assert found
    assert (round_trips(redis) - before, held, keys(redis)) == tuple(map(int, found.groups()))
