"""Semaphores and read-write locks whose processes die or stop, or whose messages get lost."""

from __future__ import annotations

import signal
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import (
    Lease,
    LeaseState,
    LockUnavailable,
    ReadWriteLock,
    Semaphore,
    redis_lock,
)
from tests.faults.conftest import load_scripts
from tests.faults.proxy import Fault, Proxy, script
from tests.faults.remains import SLACK, queued
from tests.faults.scene import ACQUIRE, EXTEND, RELEASE, Scene, with_every_fault
from tests.faults.test_kills import kill_waiters
from tests.faults.test_lost_acquire import one_lost
from tests.faults.test_lost_release import lost_while_others_wait
from tests.processes import Start
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"
DOWNGRADE = script("permits_downgrade")
HOLD = "tests.faults.shared_programs:hold"


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
    return not redis.exists(*keys) and redis.zscore("redislock:index", "job") is None


def lease_of(future: Future[Lease | None]) -> Lease:
    lease = future.result(PATIENCE)
    assert lease is not None
    return lease


class TestKilled:
    def test_a_holder(self, start: Start, redis: Redis, others: ThreadPoolExecutor) -> None:
        """Its place comes back when its lease ends; the other holder keeps its own."""
        dead = start(HOLD, "semaphore", "1")
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
        self,
        start: Start,
        redis_server: RedisServer,
        redis: Redis,
        others: ThreadPoolExecutor,
    ) -> None:
        """The place that was handed to it goes to the next one after the claim window."""
        load_scripts(redis)
        with Proxy(redis_server) as proxy, semaphore() as first:
            second = lease_of(others.submit(semaphore().acquire))
            woken = start(HOLD, "semaphore", "30", url=proxy.url)
            eventually(lambda: queued(redis, 1))
            behind = others.submit(semaphore().acquire)
            eventually(lambda: queued(redis, 2))
            confirming = proxy.on(ACQUIRE, Fault.HOLD_REQUEST)
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
            writer = start(HOLD, "write", "30")
            eventually(lambda: queued(redis, 1))
            behind = others.submit(both().read().acquire)
            eventually(lambda: queued(redis, 2))
            kill_waiters(redis, writer)
            lease_of(behind).release()
        assert free(redis)

    def test_everybody(self, start: Start, redis: Redis) -> None:
        """Holders and waiters: the next one is in when the last of their leases has ended."""
        holders = [start(HOLD, "read", ttl) for ttl in ("1", "1.3")]
        for holder in holders:
            holder.holds()
        waiters = []
        for number, kind in enumerate(("write", "read", "write")):
            waiters.append(start(HOLD, kind, "30"))
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
        reader = start(HOLD, "read", "1")
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


class SemaphoreScene(Scene):
    """One of its two places is free; the other is held by somebody who sees no fault."""

    def connect(self) -> None:
        super().connect()
        self.beside = Semaphore(self.name, 2, using="direct", ttl=600).acquire()

    def lock(self, **options: Any) -> redis_lock:
        return Semaphore(self.name, 2, using=self.using, **options)

    def start_direct(self, wait: float | None = None, **options: Any) -> Future[Any]:
        lock = Semaphore(self.name, 2, using="direct", **options)
        return self.api.start(lambda: self.api.acquire(lock, wait=wait))

    def owned(self, lease: Lease | None) -> None:
        assert lease is not None, "told that others hold it"
        assert lease.state == LeaseState.HELD
        record = (self.redis.hget(f"{self.key}:holders", lease.token) or b"").decode()
        assert record.startswith(f"{lease.token}|{lease.fencing_token}|")
        assert self.redis.zscore(self.key, lease.token)

    def is_free(self, after: Lease | None = None) -> None:
        """The other one holds it still, and there is one place, and no more."""
        eventually(lambda: self.redis.zcard(self.key) == 1)
        lease = self.acquire_direct()
        assert after is None or lease.fencing_token > after.fencing_token
        assert self.start_direct(wait=0).result(PATIENCE) is None
        self.release(lease)
        assert self.beside is not None
        self.beside.release()
        eventually(lambda: self.left() == [])


lossy = partial(with_every_fault, scene=SemaphoreScene)


@lossy
def test_an_acquire_that_is_lost(scene: Scene) -> None:
    """It has the place, or has failed and left nothing: never a place that nobody holds."""
    one_lost(scene)


@lossy
def test_a_release_that_is_lost_while_others_wait(scene: Scene) -> None:
    """The first of them gets the place, once."""
    lost_while_others_wait(scene)


@lossy
def test_a_release_that_is_lost(scene: Scene) -> None:
    """Repeated when others have held and released places since: it says released."""
    lease = scene.acquire()
    rule = scene.lose(RELEASE, times=scene.tries)
    with pytest.raises(LockUnavailable):
        scene.api.release(lease)
    if rule.carried_out:
        for _ in range(8):
            scene.release(scene.acquire_direct())
    scene.release(lease)
    scene.release_last(lease)


@lossy
def test_a_renewal_that_is_lost(scene: Scene) -> None:
    """It is unknown, and not lost; the next one is in time."""
    lease = scene.acquire(ttl=10, renew=False)
    scene.lose(EXTEND)
    with pytest.raises(LockUnavailable):
        scene.api.extend(lease)
    assert lease.state == LeaseState.UNKNOWN
    scene.api.extend(lease)
    scene.owned(lease)
    scene.release_last(lease)


class WriterScene(Scene):
    def lock(self, **options: Any) -> redis_lock:
        return ReadWriteLock(self.name, using=self.using, **options).write()

    def owned(self, lease: Lease | None) -> None:
        assert lease is not None, "told that others hold it"
        assert self.redis.zscore(self.key, lease.token)


@partial(with_every_fault, scene=WriterScene)
def test_a_downgrade_that_is_lost(scene: Scene) -> None:
    """Nobody writes beside it, whatever became of it, and it can be repeated."""
    readers = ReadWriteLock(scene.name, using="direct").read()
    lease = scene.acquire()
    scene.lose(DOWNGRADE)
    if scene.tries == 1:
        with pytest.raises(LockUnavailable):
            scene.api.downgrade(lease)
    scene.api.downgrade(lease)
    beside = scene.got(scene.api.start(lambda: scene.api.acquire(readers)))
    scene.api.release(beside)
    scene.release(lease)
    assert scene.left() == []
