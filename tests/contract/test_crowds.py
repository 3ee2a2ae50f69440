"""Many waiters of one process: one of them asks from time to time, for all of them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from redis import Redis

from django_redislock import redis_lock
from django_redislock.transport import inbox
from tests.contract.api import Api, queued
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

NAME = "invoice:42"
KEY = f"redislock:{{{NAME}}}"
WAITERS = 20


@pytest.fixture(autouse=True)
def _sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process looks after its waiters ten times as often."""
    monkeypatch.setattr(inbox, "LOOK_EVERY", inbox.LOOK_EVERY / 10)
    monkeypatch.setattr(inbox, "PRESENT_EVERY", inbox.PRESENT_EVERY / 10)


def line_up(api: Api, redis: Redis, number: int, **options: Any) -> list[Future[Any]]:
    """So many wait, one after the other."""
    waiters = []
    for already in range(number):
        waiters.append(api.start(lambda: api.acquire(redis_lock(NAME, **options), wait=None)))
        queued(redis, NAME, already + 1)
    return waiters


def seen(redis: Redis) -> list[int]:
    """When each waiter gave its last sign of life, in µs."""
    return [int(says.split(b"|")[0]) for says in redis.hvals(f"{KEY}:waiters")]


def all_seen_again(redis: Redis) -> None:
    seconds, microseconds = redis.time()
    since = seconds * 1_000_000 + microseconds
    eventually(lambda: min(seen(redis)) > since)


def scripts(redis: Redis) -> int:
    stats = redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


def release_in_turn(api: Api, waiters: list[Future[Any]]) -> None:
    for waiter in waiters:
        api.release(waiter.result(PATIENCE))


def test_one_asks_for_all(api: Api, redis: Redis) -> None:
    """All of them give signs of life, with fewer requests than there are waiters."""
    held = api.acquire(redis_lock(NAME))
    waiters = line_up(api, redis, WAITERS)
    all_seen_again(redis)  # the last ones have come to rest
    before = scripts(redis)
    all_seen_again(redis)
    all_seen_again(redis)
    assert scripts(redis) - before < WAITERS
    assert len(seen(redis)) == WAITERS
    api.release(held)
    release_in_turn(api, waiters)
    assert not redis.exists(KEY, f"{KEY}:queue", f"{KEY}:waiters")


def test_the_next_one_asks(api: Api, redis: Redis) -> None:
    """If the one that asks gives up, another one finds that a lease has ended."""
    held = api.acquire(redis_lock(NAME, ttl=3, renew=False))
    first = api.start(lambda: api.acquire(redis_lock(NAME), wait=0.5))
    queued(redis, NAME, 1)
    second = api.start(lambda: api.acquire(redis_lock(NAME), wait=None))
    queued(redis, NAME, 2)
    assert first.result(PATIENCE) is None
    lease = second.result(PATIENCE)
    late = lease._grant.acquired_us / 1e6 - held._grant.acquired_us / 1e6 - 3
    assert late < 1, "long before it would have asked without a reason"
    api.release(lease)


@pytest.mark.parametrize("keys", [("queue", "waiters"), ("queue",), ("waiters",)])
def test_places_that_are_lost(api: Api, redis: Redis, keys: tuple[str, ...]) -> None:
    """All take them again, in their order."""
    held = api.acquire(redis_lock(NAME))
    waiters = line_up(api, redis, 5)
    order = redis.zrange(f"{KEY}:queue", 0, -1)
    redis.delete(*(f"{KEY}:{key}" for key in keys))
    eventually(lambda: redis.zrange(f"{KEY}:queue", 0, -1) == order)
    eventually(lambda: set(redis.hkeys(f"{KEY}:waiters")) == set(order))
    api.release(held)
    release_in_turn(api, waiters)


def test_a_place_that_only_one_has_lost(api: Api, redis: Redis) -> None:
    """It was passed over, and its message was lost."""
    held = api.acquire(redis_lock(NAME))
    waiters = line_up(api, redis, 5)
    order = redis.zrange(f"{KEY}:queue", 0, -1)
    lost = str(order[3], "ascii")
    redis.zrem(f"{KEY}:queue", lost)
    redis.hdel(f"{KEY}:waiters", lost)
    eventually(lambda: redis.zrange(f"{KEY}:queue", 0, -1) == order)
    api.release(held)
    release_in_turn(api, waiters)


def test_nobody_looks_after_a_lone_waiter(
    api: Api, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks by itself, so no request is sent for it."""
    sent: list[Any] = []

    def present(*args: Any) -> list[str]:
        sent.append(args)
        return []

    monkeypatch.setattr(inbox, "present", present)
    held = api.acquire(redis_lock(NAME))
    waiters = line_up(api, redis, 1)
    all_seen_again(redis)
    all_seen_again(redis)
    assert not sent
    api.release(held)
    release_in_turn(api, waiters)
