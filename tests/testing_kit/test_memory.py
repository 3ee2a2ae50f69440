"""Locks in memory, and the clock that a test moves. That they keep what locks owe is in
test_contract.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import TestCase
from redis import Redis

from django_redislock import (
    Lease,
    LeaseLost,
    LockUnavailable,
    Redlock,
    TimestampLock,
    redis_lock,
)
from django_redislock.base.clock import now
from django_redislock.inspection import Inspector
from django_redislock.testing import (
    Memory,
    locks_always_busy,
    locks_always_free,
    locks_in_memory,
    redis_unavailable,
)
from tests.contract.api import Api
from tests.waiting import PATIENCE, eventually

pytest.importorskip("fakeredis")


@pytest.fixture(autouse=True)
def _no_server(settings: Any) -> None:
    cache = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    settings.CACHES = dict.fromkeys(("default", "x", "y", "z"), cache)


@pytest.fixture
def memory() -> Iterator[Memory]:
    with locks_in_memory() as memory:
        yield memory


def waiting(name: str) -> bool:
    lock = Inspector().get(name)
    return lock is not None and lock.waiters == 1


def test_nothing_was_lost(memory: Memory, settings: Any) -> None:
    """With `AFTER_LOSS`, a server that is new for each test makes nobody wait. What can't be kept
    is refused, as on a real server."""
    settings.REDISLOCK = {"AFTER_LOSS": "wait"}
    with redis_lock("invoice:42", wait=0):
        pass
    with pytest.raises(ValueError, match="after_loss='wait' is for a mutex"):
        TimestampLock("lock.invoice").acquire(wait=0)


class TestClock:
    def test_a_lease_runs_out(self, api: Api, memory: Memory) -> None:
        """When `advance` returns, the lease is lost, its callbacks have run, and others may have
        the lock."""
        lost: list[Lease] = []

        def slowly(lease: Lease) -> None:
            threading.Event().wait(0.1)
            lost.append(lease)

        lease = api.acquire(redis_lock("invoice:42", ttl=30, on_lost=slowly))
        memory.advance(31)
        assert lost == [lease]
        assert lease.state == "lost"
        assert api.acquire(redis_lock("invoice:42"), wait=0).fencing_token > lease.fencing_token

    def test_it_is_renewed(self, api: Api, memory: Memory) -> None:
        """When `advance` returns, a lease with time left has been renewed."""
        lease = api.acquire(redis_lock("invoice:42", ttl=30))
        for _ in range(5):
            memory.advance(25)
            assert lease.remaining() > 25
        assert Inspector().get("invoice:42").holder.owner == lease.owner

    def test_a_lease_that_is_not_renewed(self, api: Api, memory: Memory) -> None:
        """Without renewal a lease ends after its ttl, and `max_hold` ends every lease."""
        leases = [
            api.acquire(redis_lock("invoice:42", ttl=30, renew=False)),
            api.acquire(redis_lock("order:7", ttl=30, max_hold=40)),
        ]
        memory.advance(20)
        memory.advance(20.1)
        assert [lease.state for lease in leases] == ["lost", "lost"]

    @pytest.mark.parametrize("lock", [redis_lock, TimestampLock], ids=["mutex", "timestamp"])
    def test_a_waiter_gives_up(self, api: Api, memory: Memory, lock: Any) -> None:
        """A waiter gives up after its wait by that clock."""
        began = now()
        held = api.acquire(lock("invoice:42", ttl=360_000))
        waiter = api.start(lambda: api.acquire(lock("invoice:42"), wait=1000))
        # It may not have begun to wait when this begins.
        eventually(lambda: memory.advance(600) or waiter.done())
        assert waiter.result() is None
        assert held.state == "held"
        assert now() - began >= 1000

    def test_a_waiter_succeeds(self, api: Api, memory: Memory) -> None:
        """A waiter gets the lock when the lease before it has ended."""
        api.acquire(redis_lock("invoice:42", ttl=1000))
        waiter = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=5000))
        eventually(lambda: waiting("invoice:42"))
        memory.advance(1001)
        assert waiter.result(PATIENCE).state == "held"

    async def test_a_task_is_cancelled(self, memory: Memory) -> None:
        """Even in the event loop whose task moves the clock."""
        with pytest.raises(LeaseLost):
            async with redis_lock("invoice:42", ttl=30, cancel_on_lost=True):
                memory.advance(31)
                await asyncio.Event().wait()

    def test_it_is_the_real_one_besides(self, memory: Memory) -> None:
        """Time passes, and one test's moves don't affect the next test."""
        real = now()
        memory.advance(1000)
        assert 1000 <= now() - real < 1000 + PATIENCE
        lease = redis_lock("invoice:42", ttl=0.2, renew=False).acquire()
        eventually(lambda: lease.state == "lost")

    @pytest.mark.parametrize("seconds", [-1, "1", float("inf"), float("nan"), None])
    def test_wrong_arguments(self, memory: Memory, seconds: Any) -> None:
        """Time can't go back or stop."""
        with pytest.raises(ValueError, match="seconds must be a number from 0 on"):
            memory.advance(seconds)


class TestWorld:
    def test_it_ends_with_nothing(self, redis: Redis) -> None:
        """A lock that a test leaves is gone in the next, and never was at a real server."""
        with locks_in_memory():
            lease = redis_lock("invoice:42").acquire()
            redis_lock("invoice:42").holder()
        assert lease.state == "released"
        with locks_in_memory():
            assert redis_lock("invoice:42").holder() is None
            with redis_lock("invoice:42"):
                pass
        assert redis.keys("redislock*") == []

    def test_threads_do_not_heap_up(self) -> None:
        """One watchdog and one inbox serve all tests of a process."""

        def one() -> None:
            with locks_in_memory():
                redis_lock("invoice:42").acquire()
                redis_lock("invoice:42").holder()

        one()
        before = threading.active_count()
        for _ in range(20):
            one()
        assert threading.active_count() <= before

    def test_tokens_grow_from_test_to_test(self) -> None:
        """Fencing tokens grow, so that rows that one test has fenced accept the next."""
        tokens = []
        for _ in range(2):
            with locks_in_memory() as memory, redis_lock("invoice:42", renew=False) as lease:
                tokens.append(lease.fencing_token)
                memory.advance(20)
        assert tokens[0] < tokens[1]

    @pytest.mark.usefixtures("memory")
    def test_several_servers(self) -> None:
        """Each alias is a server."""
        with Redlock("invoice:42", using=["x", "y", "z"]):
            assert redis_lock("invoice:42", using="y").acquire(wait=0) is None
            with redis_lock("invoice:42", using="default"):
                pass

    @pytest.mark.usefixtures("memory")
    def test_replicas(self, api: Api) -> None:
        """REPLICAS in the settings does no harm."""
        lease = api.acquire(redis_lock("invoice:42", replicas=2))
        api.extend(lease)
        api.release(lease)

    def test_one_within_another(self, api: Api) -> None:
        """The inner condition counts; names that are busy within are busy as well."""
        with locks_always_free(), locks_in_memory():
            lease = api.acquire(redis_lock("invoice:42"))
            assert redis_lock("invoice:42").holder().owner == lease.owner
            with locks_always_busy("order:*"):
                assert api.acquire(redis_lock("order:7")) is None
                assert redis_lock("invoice:42").holder().owner == lease.owner
                api.release(lease)
            assert redis_lock("invoice:42").holder() is None
            with redis_unavailable(), pytest.raises(LockUnavailable):
                api.acquire(redis_lock("invoice:42"))
            with locks_always_free():
                api.acquire(redis_lock("invoice:42"))
            assert redis_lock("invoice:42").holder() is None

    def test_a_stopped_wall_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A stopped `time.time()`, as by freezegun, does not stop the locks."""
        monkeypatch.setattr("time.time", lambda: 0.0)
        with locks_in_memory():
            redis_lock("invoice:42", ttl=0.1, renew=False).acquire()
            assert redis_lock("invoice:42").acquire(wait=PATIENCE) is not None

    def test_without_fakeredis(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error says what to install."""
        monkeypatch.setattr("django_redislock.transport.connections.find_spec", lambda name: None)
        with pytest.raises(ImportError, match=r"django-redislock\[testing\]"):
            locks_in_memory()


class TestInTestCase(TestCase):
    """In a TestCase, no transaction is committed."""

    def setUp(self) -> None:
        self.enterContext(locks_in_memory())

    def test_commit_never_comes(self) -> None:
        """The lock is kept from others; this thread may take it again."""
        for _ in range(2):
            with redis_lock("invoice:42", release="commit"):
                pass
            assert redis_lock("invoice:42").holder() is not None

    def test_commit_is_played(self) -> None:
        """captureOnCommitCallbacks releases the lock."""
        with self.captureOnCommitCallbacks(execute=True):
            with redis_lock("invoice:42", release="commit"):
                pass
            assert redis_lock("invoice:42").holder() is not None
        assert redis_lock("invoice:42").holder() is None

    async def test_async(self) -> None:
        """A coroutine and its threads hold the lock together."""
        async with redis_lock("invoice:42") as lease:
            assert (await redis_lock("invoice:42").aholder()).owner == lease.owner
