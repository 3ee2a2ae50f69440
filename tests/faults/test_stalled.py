"""A server that stalls for two seconds in the middle of everything, and then goes on.

It is stopped with SIGSTOP, as by a hypervisor or a fork of its own: it answers nothing, its
kernel goes on accepting connections and data, and when it goes on it carries out all that has
come meanwhile, also for those who have left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import LeaseState, LockUnavailable, redis_lock
from tests.caches import entry
from tests.contract.api import Api, queued
from tests.faults.scene import TIMEOUT
from tests.waiting import PATIENCE, eventually

STALL = 2.0


@contextmanager
def stalled(server: RedisServer) -> Iterator[None]:
    """The body begins when the server has stopped; it goes on after `STALL` seconds."""
    with server.paused():
        goes_on = time.monotonic() + STALL
        yield
        time.sleep(max(0.0, goes_on - time.monotonic()))


@pytest.fixture
def server(own_server: RedisServer, settings: Any) -> RedisServer:
    """ "patient" waits for its answers; "hasty" and "other" give up soon. Each api has its own of
    these aliases."""
    settings.CACHES = settings.CACHES | {
        f"{using}-{which}": entry(
            f"{own_server.url}#{using}-{which}",  # pools are remembered by URL
            SOCKET_TIMEOUT=10 if using == "patient" else TIMEOUT,
        )
        for using, which in product(("patient", "hasty", "other"), ("sync", "async"))
    }
    return own_server


@pytest.fixture
def redis(server: RedisServer) -> Iterator[Redis]:
    """To look at the server that stalls."""
    with Redis.from_url(server.url) as client:
        yield client


def left(redis: Redis) -> set[str]:
    """The names of which anything is left that does not go by itself."""
    keys = {key.decode() for key in redis.scan_iter(match="redislock:{*", count=1000)}
    gone = {key for key in keys if (":history" in key or ":gone:" in key) and redis.ttl(key) > 0}
    index = {name.decode() for name in redis.zrange("redislock:index", 0, -1)}
    return {key.partition("{")[2].partition("}")[0] for key in keys - gone} | index


def owned(redis: Redis, lease: Any) -> None:
    assert lease.state == LeaseState.HELD
    assert redis.get(f"redislock:{{{lease.name}}}")[:32].decode() == lease.token


class Stage:
    """What one api does; the names and aliases of the other one's are others."""

    def __init__(self, which: str, api: Api, redis: Redis) -> None:
        self.api, self.redis = api, redis
        self._which = which

    def lock(self, name: str, using: str, **options: Any) -> redis_lock:
        return redis_lock(self.name(name), using=f"{using}-{self._which}", **options)

    def name(self, name: str) -> str:
        return f"{name}:{self._which}"

    def start(self, name: str, using: str, wait: float | None, **options: Any) -> Future[Any]:
        lock = self.lock(name, using, **options)
        return self.api.start(lambda: self.api.acquire(lock, wait=wait))


@pytest.fixture
def stages(apis: dict[str, Api], redis: Redis) -> list[Stage]:
    return [Stage(which, api, redis) for which, api in apis.items()]


def test_acquire(stages: list[Stage], server: RedisServer, redis: Redis) -> None:
    """A caller that may wait for so long gets the lock. The others get an error, and leave
    nothing."""
    held, early = [], []
    for stage in stages:
        held.append(stage.api.acquire(stage.lock("queue", "patient")))
        early.append(stage.start("queue", "hasty", None))
        queued(redis, stage.name("queue"))
    with stalled(server):
        patient, failing, late = [], [], []
        for stage in stages:
            patient += [
                stage.start("once", "patient", 2 * STALL),
                # Granted for one second, two seconds after it was asked for.
                stage.start("short", "patient", 20, ttl=1),
                stage.start("for ever", "hasty", None),
                stage.start("long", "hasty", 20),
            ]
            late.append(stage.start("queue", "hasty", None))
            failing += [stage.start(f"once-{n}", "hasty", 0, ttl=600) for n in range(5)]
            failing.append(stage.start("given up", "hasty", 0.5, ttl=600))
        for future in failing:
            with pytest.raises(LockUnavailable):
                future.result(PATIENCE)
        assert not any(future.done() for future in patient)
    for number, future in enumerate(patient):
        lease = future.result(PATIENCE)
        owned(redis, lease)
        stages[number // 4].api.release(lease)
    for stage, lease, *waiters in zip(stages, held, early, late, strict=True):
        queued(redis, stage.name("queue"), 2)
        owned(redis, lease)
        stage.api.release(lease)
        for waiter in waiters:
            successor = waiter.result(PATIENCE)
            owned(redis, successor)
            stage.api.release(successor)
    eventually(lambda: left(redis) == set())


def test_release(stages: list[Stage], server: RedisServer, redis: Redis) -> None:
    """A patient client is told that it has released. A hasty one is told that Redis could not be
    reached, may repeat the release, and leaves a block without an error. The next one gets the
    lock once."""
    begun, entered = threading.Event(), threading.Barrier(len(stages) + 1)

    def body(lease: Any) -> None:
        entered.wait(PATIENCE)
        assert begun.wait(PATIENCE)

    def enter(stage: Stage) -> Future[Any]:
        lock = stage.lock("block", "other", ttl=600)
        return stage.api.start(lambda: stage.api.enter(lock, body))

    patient, hasty, unsent, waiters = [], [], [], []
    for stage in stages:
        acquire = stage.api.acquire
        patient.append(acquire(stage.lock("patient", "patient", ttl=600)))
        # The first of them has the open connection, on which its release is sent. The other
        # one has to open one, and fails in that.
        hasty.append(acquire(stage.lock("hasty", "hasty", ttl=600)))
        unsent.append(acquire(stage.lock("unsent", "hasty", ttl=600)))
        waiters.append(stage.start("hasty", "patient", None))
        queued(redis, stage.name("hasty"))
    blocks = [enter(stage) for stage in stages]
    entered.wait(PATIENCE)
    with stalled(server):
        begun.set()
        releasing = [
            stage.api.start(partial(stage.api.release, lease))
            for stage, lease in zip(stages, patient, strict=True)
        ]
        for stage, *leases in zip(stages, hasty, unsent, strict=True):
            for lease in leases:
                with pytest.raises(LockUnavailable):
                    stage.api.release(lease)
        for block in blocks:
            block.result(PATIENCE)
        assert not any(future.done() for future in releasing)
    for future in releasing:
        future.result(PATIENCE)
    assert all(lease.state == LeaseState.RELEASED for lease in patient)
    successors = [waiter.result(PATIENCE) for waiter in waiters]
    for stage, successor, *leases in zip(stages, successors, hasty, unsent, strict=True):
        owned(redis, successor)
        assert successor.fencing_token > leases[0].fencing_token
        for lease in leases:
            stage.api.release(lease)
            assert lease.state == LeaseState.RELEASED
        owned(redis, successor)
        stage.api.release(successor)
    eventually(lambda: left(redis) == set())


def test_renewal(stages: list[Stage], server: RedisServer, redis: Redis) -> None:
    """A lease that lives for longer than the stall is held when it is over; a shorter one is
    lost, and its holder knows it before the server goes on."""
    long, short, waiters = [], [], []
    for stage in stages:
        long.append(stage.api.acquire(stage.lock("long", "hasty", ttl=6)))
        short.append(stage.api.acquire(stage.lock("short", "hasty", ttl=1)))
        waiters.append(stage.start("short", "patient", None))
        queued(redis, stage.name("short"))
    with stalled(server):
        eventually(lambda: all(lease.state == LeaseState.LOST for lease in short))
        eventually(lambda: all(lease.state == LeaseState.UNKNOWN for lease in long))
        assert not any(waiter.done() for waiter in waiters)
    successors = [waiter.result(PATIENCE) for waiter in waiters]
    for stage, survivor, lost, successor in zip(stages, long, short, successors, strict=True):
        owned(redis, successor)
        assert successor.fencing_token > lost.fencing_token
        eventually(lambda lease=survivor: lease.state == LeaseState.HELD)
        owned(redis, survivor)
        assert survivor.remaining() <= redis.pttl(f"redislock:{{{survivor.name}}}") / 1000
        for lease in (survivor, successor):
            stage.api.release(lease)
    eventually(lambda: left(redis) == set())
