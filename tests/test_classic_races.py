"""The documented races of the old SETNX locks, as scripts on a real Redis; and ours among them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from django_redislock import Lease, LeaseLost, TimestampLock
from tests.classic import Classic, Naive
from tests.waiting import PATIENCE

KEY = "lock.import"
BESIDE = "redislock:key:{lock.import}:timestamp"

FORMS = pytest.mark.parametrize("fractions", [False, True], ids=["whole", "fractions"])


@pytest.fixture(autouse=True)
def _clean(redis: Redis) -> Iterator[None]:
    redis.delete(KEY)
    yield
    redis.delete(KEY)


def crashed(redis: Redis) -> None:
    """A holder that was killed a while ago."""
    redis.set(KEY, int(time.time()) - 5)


def acquire(**options: object) -> Lease | None:
    return TimestampLock(KEY, wait=0, **options).acquire()


class TestTwoAfterAnExpiry:
    """DEL and SETNX to take over: the second DEL removes the first one's lock."""

    def test_naive_ones_both_get_in(self, redis: Redis) -> None:
        """Which is why the documentation says GETSET."""
        crashed(redis)
        first, second = Naive(redis, KEY), Naive(redis, KEY)
        assert not first.setnx()
        assert not second.setnx()
        assert first.read()
        assert second.read()
        first.delete()
        assert first.setnx()
        second.delete()
        assert second.setnx(), "both are in"

    def test_ours_do_not(self, redis: Redis) -> None:
        """Sixteen at once, after each of twenty crashes: one is in."""
        for _ in range(20):
            crashed(redis)
            together = threading.Barrier(16)

            def contend(together: threading.Barrier = together) -> Lease | None:
                together.wait(PATIENCE)
                return acquire()

            with ThreadPoolExecutor(16) as threads:
                got = [threads.submit(contend) for _ in range(16)]
            (lease,) = filter(None, (one.result() for one in got))
            lease.release()

    @FORMS
    def test_ours_and_a_classic_one(self, redis: Redis, fractions: bool) -> None:
        """Whoever comes second is out, whatever it has read before."""
        crashed(redis)
        old = Classic(redis, KEY, fractions=fractions)
        assert old.read()
        lease = acquire(fractions=fractions)
        assert not old.getset()
        lease.check()
        lease.release()
        crashed(redis)
        assert old.read()
        assert old.getset()
        assert acquire(fractions=fractions) is None

    def test_a_naive_one_removes_ours_too(self, redis: Redis) -> None:
        """What no lock at that key can prevent. We learn it at the next renewal."""
        crashed(redis)
        old = Naive(redis, KEY, timeout=60)
        assert old.read()
        lease = acquire()
        old.delete()
        assert old.setnx(), "both are in"
        with pytest.raises(LeaseLost):
            lease.extend()


class TestTheLoserOfGetset:
    def test_moves_the_time_of_a_classic_one(self, redis: Redis) -> None:
        """By a little; the winner doesn't know."""
        crashed(redis)
        winner, loser = Classic(redis, KEY, fractions=True), Classic(redis, KEY, fractions=True)
        assert winner.read()
        assert loser.read()
        assert winner.getset()
        assert not loser.getset()
        assert 0 < float(redis.get(KEY)) - winner.ends < 2

    @FORMS
    @pytest.mark.parametrize("ours", [False, True], ids=["we-whole", "we-fractions"])
    def test_moves_ours(self, redis: Redis, fractions: bool, ours: bool) -> None:
        """It is ours nevertheless: it can be renewed, which puts it right, and released; and
        nobody else gets it."""
        crashed(redis)
        old = Classic(redis, KEY, fractions=fractions)
        old.reads = float
        assert old.read()
        lease = acquire(fractions=ours)
        assert not old.getset()
        assert redis.ttl(KEY) == -1, "GETSET has removed it"
        assert acquire_elsewhere() is None
        lease.extend()
        assert redis.ttl(KEY) > 30
        lease.check()
        lease.release()
        assert not redis.exists(KEY)

        crashed(redis)
        assert old.read()
        lease = acquire(fractions=ours)
        assert not old.getset()
        lease.release()
        assert not redis.exists(KEY), "also without a renewal in between"

    def test_with_another_ttl(self, redis: Redis) -> None:
        """It could as well be a successor: rather lost than two at work."""
        crashed(redis)
        old = Classic(redis, KEY, timeout=300)
        assert old.read()
        lease = acquire()
        assert not old.getset()
        with pytest.raises(LeaseLost, match="another program holds the lock now"):
            lease.extend()
        assert lease._lifetime.lost is not None


def acquire_elsewhere() -> Lease | None:
    """In another thread, since this one holds it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(acquire).result()


class TestAHolderThatOverran:
    def test_a_naive_one_deletes_its_successors_lock(self, redis: Redis) -> None:
        first, second, third = (Naive(redis, KEY) for _ in range(3))
        assert first.acquire()
        crashed(redis)  # its time is over
        assert second.acquire()
        first.release()
        assert third.acquire(), "beside the second"

    def test_with_the_very_value_of_ours(self, redis: Redis) -> None:
        """One of ours, in the same second: the token beside the key tells them apart."""
        lease = acquire()
        value = redis.get(KEY)
        redis.delete(KEY)
        other = acquire_elsewhere()
        redis.set(KEY, value)
        redis.hset(BESIDE, "until", value)
        with pytest.raises(LeaseLost, match="holds the lock now"):
            lease.extend()
        other.release()


class TestBothWays:
    @FORMS
    @pytest.mark.parametrize("ours", [False, True], ids=["we-whole", "we-fractions"])
    def test_they_exclude_each_other(self, redis: Redis, fractions: bool, ours: bool) -> None:
        """An old client that takes integers can read only whole seconds."""
        old = Classic(redis, KEY, fractions=fractions)
        lease = acquire(fractions=ours)
        if ours and not fractions:
            with pytest.raises(ValueError, match="invalid literal"):
                old.acquire()
        else:
            assert not old.acquire()
        lease.release()
        assert old.acquire()
        assert acquire(fractions=ours) is None
        old.release()
        lease = acquire(fractions=ours)
        lease.release()
