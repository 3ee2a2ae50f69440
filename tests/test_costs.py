"""What a free lock of each kind costs: what docs/kinds.md says, and its commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from redis import Redis

from django_redislock import (
    MultiLock,
    ReadWriteLock,
    Semaphore,
    TimestampLock,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.lease.lock import Lock
from tests.contract.api import Api
from tests.contract.conftest import no_signs_of_life  # noqa: F401  # a fixture
from tests.contract.test_mutex import round_trips

PAGE = Path(__file__).parent.parent / "docs" / "kinds.md"
ROW = re.compile(r"\| (\d)[^|]*\| (\d)[^|]*\| (\d)[^|]*\|$")


def keys(redis: Redis) -> int:
    """Without the index and the clock, and what is there once for each process."""
    return sum(not re.search(rb":index$|:clock$|:process:", key) for key in redis.scan_iter())


def commands(redis: Redis) -> int:
    """Commands that the server has counted, of clients and in scripts."""
    stats = redis.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if name != "cmdstat_info")


@pytest.mark.parametrize(
    ("row", "lock", "most"),
    [
        ("`redis_lock`", redis_lock("name"), 9),
        ("`Semaphore`, for each holder", Semaphore("name", 3), 14),
        ("`ReadWriteLock`, for each holder", ReadWriteLock("name").read(), 14),
        ("`ReadWriteLock`, for each holder", ReadWriteLock("name").write(), 14),
        ("`MultiLock` of three names", MultiLock(["a", "b", "c"]), 13),
        ("`TimestampLock`", TimestampLock("lock.name"), 19),
        ("`redis_lock` with a `timestamp_key`", redis_lock("name", timestamp_key="lock.name"), 37),
    ],
)
@pytest.mark.usefixtures("no_signs_of_life")
def test_what_it_costs(row: str, lock: Lock, most: int, api: Api, redis: Redis) -> None:
    """Round trips, keys while it is held, keys afterwards, and at most so many commands."""
    [said] = [
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| {row} |")
    ]
    api.release(api.acquire(lock))  # a script that the server does not know is sent twice
    redis.flushdb()
    before, ran = round_trips(redis), commands(redis)
    lease = api.acquire(lock)
    ran = commands(redis) - ran
    held = keys(redis)
    ran -= commands(redis)
    api.release(lease)
    ran += commands(redis)
    found = ROW.search(said)
    assert found
    assert (round_trips(redis) - before, held, keys(redis)) == tuple(map(int, found.groups()))
    assert ran <= most


@pytest.mark.usefixtures("no_signs_of_life")
def test_what_once_costs(api: Api, redis: Redis) -> None:
    """Two round trips: the lock is taken and the record read, the record written and the lock
    released."""
    api.enter(once("import"), bool)  # a script that the server does not know is sent twice
    before = round_trips(redis)
    assert api.enter(once("export"), bool) is True
    assert round_trips(redis) - before == 2


@pytest.mark.usefixtures("no_signs_of_life")
def test_what_single_flight_costs(api: Api, redis: Redis) -> None:
    """Two round trips if nothing is kept, as `once`."""
    api.call(single_flight("rates", ttl=60)(api.function(lambda: 1)))
    before = round_trips(redis)
    assert api.call(single_flight("taxes", ttl=60)(api.function(lambda: 2))) == 2
    assert round_trips(redis) - before == 2
