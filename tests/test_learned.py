"""How a waiter learned that it has the lock: from its process, by a message, or by looking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from django_redislock import redis_lock, signals
from django_redislock.signals import LockEvent
from tests.processes import Worker
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def learned() -> Iterator[list[str]]:
    seen: list[str] = []

    def observer(event: LockEvent) -> None:
        if event.outcome == "acquired":
            seen.append(event.learned)

    signals.observe(observer)
    yield seen
    signals.unobserve(observer)


def waits() -> None:
    with redis_lock("job", wait=PATIENCE, ttl=60):
        pass


def listens(redis: Redis) -> None:
    """Wait until a waiter has said to which inbox messages are to go."""
    eventually(
        lambda: any(
            says.split(b"|")[2] not in (b"", b"-")
            for says in redis.hvals("redislock:{job}:waiters")
        )
    )


def test_without_a_wait(learned: list[str]) -> None:
    waits()
    assert learned == [""]


def test_from_the_process(redis: Redis, learned: list[str]) -> None:
    """A thread hands the lock to another one."""
    with ThreadPoolExecutor(1) as threads:
        with redis_lock("job"):
            waiter = threads.submit(waits)
            listens(redis)
        waiter.result(PATIENCE)
    assert learned == ["", "process"]


def test_by_a_message(redis: Redis, learned: list[str], start: Callable[..., Worker]) -> None:
    """Another process hands it over."""
    worker = start("hold", "30")
    worker.holds()
    with ThreadPoolExecutor(1) as threads:
        waiter = threads.submit(waits)
        listens(redis)
        worker.go_on()
        waiter.result(PATIENCE)
    assert learned == ["message"]


def test_by_looking(redis: Redis, learned: list[str]) -> None:
    """Nobody says that a lease has ended."""
    redis_lock("job", ttl=1, renew=False).acquire()
    learned.clear()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(waits).result(PATIENCE)
    assert learned == ["look"]
