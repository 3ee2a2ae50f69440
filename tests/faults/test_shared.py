"""Semaphores and read-write locks whose processes die or stop. What they share with other kinds
of lock when messages get lost is in test_kinds.py."""

from __future__ import annotations

import signal
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import (
    Lease,
    LockUnavailable,
    ReadWriteLock,
    Semaphore,
)
from tests.caches import caches, entry
from tests.contract.api import Api
from tests.faults.proxy import Fault, Proxy, script
from tests.faults.remains import SLACK, queued
from tests.faults.scene import ACQUIRE, FAULTS, PATIENT, RESETS, TIMEOUT
from tests.faults.test_kills import kill_waiters
from tests.processes import Start
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"


def semaphore(**options: Any) -> Semaphore:
    return Semaphore("job", 2, **{"wait": PATIENCE, **options})


def both(**options: Any) -> ReadWriteLock:
    return ReadWriteLock("job", **{"wait": PATIENCE, **options})


def ends(redis: Redis) -> float:
    """When the first lease ends, in microseconds of the server's clock."""
    ((_, score),) = redis.zrange(KEY, 0, 0, withscores=True)
    return float(score) * 1000


def free(redis: Redis) -> bool:
    keys = [KEY, *(f"{KEY}:{what}" for what in ("queue", "waiters", "holders"))]
    return not redis.exists(*keys) and redis.zscore("redislock:index", "redislock:{job}") is None


def lease_of(future: Future[Lease | None]) -> Lease:
    lease = future.result(PATIENCE)
    assert lease is not None
    return lease


class TestKilled:
    def test_a_holder(self, start: Start, redis: Redis, others: ThreadPoolExecutor) -> None:
        """Its place comes back when its lease ends; the other holder keeps its own."""
        dead = start("wait", "1", "semaphore")
        dead.holds()
        with semaphore() as other:
            waiting = others.submit(semaphore().acquire)
            eventually(lambda: queued(redis, 1))
            dead.kill()
            end = ends(redis)
            lease = lease_of(waiting)
            assert -5_000 < lease._grant.acquired_us - end < SLACK * 1e6
            other.check()
            assert redis.zcard(KEY) == 2
            lease.release()
        assert free(redis)

    def test_a_waiter_before_it_confirms(
        self, start: Start, beside: Proxy, redis: Redis, others: ThreadPoolExecutor
    ) -> None:
        """It gets no message, and asks. The place that was handed to it goes to the next one when
        it would have been passed over."""
        with semaphore() as first:
            second = lease_of(others.submit(semaphore().acquire))
            woken = start("wait", "30", "semaphore", url=beside.url)
            eventually(lambda: queued(redis, 1))
            behind = others.submit(semaphore().acquire)
            eventually(lambda: queued(redis, 2))
            confirming = beside.on(ACQUIRE, Fault.HOLD_REQUEST)
            beside.deaf = True
            second.release()
            confirming.happened()
            handed = ends(redis)
            assert redis.zcard(KEY) == 2
            woken.kill()
            lease = lease_of(behind)
            assert -5_000 < lease._grant.acquired_us - handed < SLACK * 1e6
            confirming.let_go()
            eventually(lambda: redis.zcard(f"{KEY}:queue") == 1)  # for nobody
            first.check()
            lease.release()
        eventually(lambda: free(redis))

    def test_a_writer_that_waits(
        self, start: Start, redis: Redis, others: ThreadPoolExecutor
    ) -> None:
        """Readers behind it need not wait for those before it to end."""
        with both().read():
            writer = start("wait", "30", "write")
            eventually(lambda: queued(redis, 1))
            behind = others.submit(both().read().acquire)
            eventually(lambda: queued(redis, 2))
            kill_waiters(redis, writer)
            lease_of(behind).release()
        assert free(redis)

    def test_everybody(self, start: Start, redis: Redis) -> None:
        """Holders and waiters: the next one is in when the last of their leases has ended."""
        holders = [start("wait", ttl, "read") for ttl in ("1", "1.3")]
        for holder in holders:
            holder.holds()
        waiters = []
        for number, kind in enumerate(("write", "read", "write")):
            waiters.append(start("wait", "30", kind))
            eventually(lambda number=number: queued(redis, number + 1))
        for process in holders:
            process.kill()
        kill_waiters(redis, *waiters)
        with both().write() as lease:
            lease.check()
        assert free(redis)


class TestStopped:
    def test_a_reader(self, start: Start, redis: Redis, others: ThreadPoolExecutor) -> None:
        """A writer waits for its lease and no longer; when it goes on it is told."""
        reader = start("wait", "1", "read")
        reader.holds()
        waiting = others.submit(both().write().acquire)
        eventually(lambda: queued(redis, 1))
        reader.stop()
        end = ends(redis)
        lease = lease_of(waiting)
        assert -5_000 < lease._grant.acquired_us - end < SLACK * 1e6
        reader.signal(signal.SIGCONT)
        reader.go_on()
        assert reader.says() == "lost"
        lease.check()
        lease.release()
        assert free(redis)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_downgrade_that_is_lost(
    api: Api, proxy: Proxy, redis: Redis, redis_server: RedisServer, settings: Any, fault: Fault
) -> None:
    """Nobody writes beside it, whatever became of it, and it can be repeated."""
    timeout = PATIENT if fault in RESETS else TIMEOUT
    settings.CACHES = caches(proxy.url, SOCKET_TIMEOUT=timeout) | {
        "direct": entry(redis_server.url)
    }
    lease = api.acquire(both().write())
    rule = proxy.on(script("permits_downgrade"), fault)
    if fault not in RESETS:
        with pytest.raises(LockUnavailable):
            api.downgrade(lease)
    api.downgrade(lease)
    assert rule.count == 1
    beside = api.start(lambda: api.acquire(both(using="direct").read())).result(PATIENCE)
    assert redis.zcard(KEY) == 2
    api.release(beside)
    api.release(lease)
    assert free(redis)
