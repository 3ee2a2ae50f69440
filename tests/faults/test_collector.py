"""Locked generators that nobody finishes, and that the garbage collector closes."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from django_redislock import LockError, current_lease, once, redis_lock
from django_redislock.transport.ports import BasePort
from tests.calling import watch
from tests.waiting import PATIENCE, eventually


def held(redis: Redis) -> bool:
    return bool(redis.exists("redislock:{job}", "redislock:{once:job}"))


@redis_lock("job")
def decorated() -> Iterator[Any]:
    """The decorator locks it."""
    yield


def block() -> Iterator[Any]:
    """It has a block of its own."""
    with redis_lock("job"):
        yield


def first() -> Iterator[Any]:
    """Its block is one of `once`."""
    with once("job"):
        yield


lock = redis_lock("job")


def kept() -> Iterator[Any]:
    """Its lock is one of the module, and outlives it."""
    with lock:
        yield


generators = pytest.mark.parametrize("generator", [decorated, block, first, kept])


@pytest.fixture
def senders(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that have sent a command."""
    threads: list[int] = []
    script = BasePort.script

    async def watched(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return await script(*args)

    watch(monkeypatch, watched)
    return threads


@generators
@pytest.mark.parametrize("elsewhere", [False, True], ids=["its thread", "another thread"])
def test_in_a_reference_cycle(
    redis: Redis, senders: list[int], generator: Callable[[], Any], elsewhere: bool
) -> None:
    """Nothing is sent where the collector happens to run: the watchdog releases the lock."""
    gc.collect()
    gc.disable()
    try:
        cycle: list[Any] = [generator()]
        next(cycle[0])
        cycle.append(cycle)
        assert held(redis)
        del cycle
        senders.clear()
        if elsewhere:
            collector = threading.Thread(target=gc.collect)
            collector.start()
            collector.join(PATIENCE)
            me = collector.ident
        else:
            gc.collect()
            me = threading.get_ident()
        assert me not in senders
        if not elsewhere:
            with pytest.raises(LockError):
                current_lease()
    finally:
        gc.enable()
    eventually(lambda: not held(redis))
    with redis_lock("job", wait=PATIENCE):
        pass


@generators
def test_outside_of_one(redis: Redis, generator: Callable[[], Any]) -> None:
    """Whoever leaves a loop half-way has released the lock."""
    for _ in generator():
        break
    assert not held(redis)
