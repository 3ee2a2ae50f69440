"""What a semaphore owes, sync and async, on a real Redis."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from redis import Redis

from django_redislock import (
    Lease,
    LeaseLost,
    LeaseRevoked,
    LeaseState,
    LockError,
    LockNotAcquired,
    LockReentered,
    Semaphore,
    redis_lock,
)
from django_redislock.lease.watchdog import watchdog
from django_redislock.primitives import permits
from django_redislock.primitives.contract import run
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.contract.api import Api, elsewhere, queued
from tests.waiting import PATIENCE

KEY = "redislock:{export}"
QUEUE, HOLDERS, INDEX = f"{KEY}:queue", f"{KEY}:holders", "redislock:index"
KEYS = KEY, QUEUE, HOLDERS, f"{KEY}:waiters"


def semaphore(limit: int = 2, **options: object) -> Semaphore:
    return Semaphore("export", limit, **options)  # type: ignore[arg-type]


def other(api: Api, limit: int = 2, wait: float | None = 0, **options: object) -> Future[Lease]:
    """Another thread or task asks."""
    return elsewhere(api, semaphore(limit, **options), wait)


def tokens(redis: Redis) -> set[str]:
    return {token.decode() for token in redis.zrange(KEY, 0, -1)}


def test_so_many_hold_it(api: Api, redis: Redis) -> None:
    """Two hold two places, and a third caller asks in vain until one is given back."""
    first, second = api.acquire(semaphore()), other(api).result(PATIENCE)
    assert first.state == second.state == LeaseState.HELD
    assert second.fencing_token > first.fencing_token
    assert tokens(redis) == {first.token, second.token}
    assert other(api).result(PATIENCE) is None
    api.release(first)
    third = other(api).result(PATIENCE)
    assert tokens(redis) == {second.token, third.token}
    api.release(second)
    api.release(third)
    assert not redis.exists(*KEYS)
    assert redis.zscore(INDEX, KEY) is None


def test_a_conflict_says_who(api: Api) -> None:
    """The error names the holder whose lease ends first, and how many hold the semaphore."""
    long = api.acquire(semaphore(3, ttl=40))
    first = other(api, 3, ttl=10, label="shop/exports.py:7 in export").result(PATIENCE)
    more = other(api, 3, ttl=30).result(PATIENCE)
    with pytest.raises(LockNotAcquired, match=r"and 2 more") as caught:
        api.start(lambda: api.enter(semaphore(3, wait=0), lambda _: None)).result(PATIENCE)
    holder = caught.value.holder
    assert caught.value.holders == 3
    assert (holder.owner, holder.label) == (first.owner, "shop/exports.py:7 in export")
    assert holder.fencing_token == first.fencing_token
    assert 0 < (holder.remaining or 0) <= 10
    assert api.holder(semaphore(3)).fencing_token == first.fencing_token  # type: ignore[union-attr]
    found = [holder.fencing_token for holder in api.holders(semaphore(3))]
    assert found == [first.fencing_token, more.fencing_token, long.fencing_token]
    for lease in (long, first, more):
        api.release(lease)


def test_waiters_are_served_in_order_of_arrival(api: Api, redis: Redis) -> None:
    """Each place that is given back goes to the first waiter, in the step of the release."""
    held = [api.acquire(semaphore()), other(api).result(PATIENCE)]
    waiters = []
    for number in range(6):
        waiters.append(other(api, wait=None))
        queued(redis, "export", number + 1)
    fences = [lease.fencing_token for lease in held]
    for waiter in waiters:
        api.release(held.pop(0))
        assert redis.zcard(KEY) == 2, "never free"
        assert other(api).result(PATIENCE) is None, "nobody barges in"
        lease = waiter.result(PATIENCE)
        fences.append(lease.fencing_token)
        held.append(lease)
    assert fences == sorted(set(fences))
    assert redis.zscore(KEY, held[-1].token) - redis.time()[0] * 1000 > 20_000, "its full ttl"
    for lease in held:
        api.release(lease)
    assert not redis.exists(*KEYS)


def test_the_limit_may_change_while_it_is_held(api: Api, redis: Redis) -> None:
    """5 → 2 → 4: a limit counts for the caller that asks with it, and no holder is thrown out."""
    five = [other(api, 5).result(PATIENCE) for _ in range(5)]
    assert other(api, 5).result(PATIENCE) is None
    waiter = other(api, 2, wait=None)
    queued(redis, "export", 1)
    for _ in range(3):
        api.release(five.pop())
        assert redis.zcard(QUEUE) == 1, "two others hold it yet"
    api.release(five.pop())
    leases = [five.pop(), waiter.result(PATIENCE)]
    assert other(api, 2).result(PATIENCE) is None
    leases += [other(api, 4).result(PATIENCE) for _ in range(2)]
    assert other(api, 4).result(PATIENCE) is None
    behind, last = other(api, 2, wait=None), None
    queued(redis, "export", 1)
    last = other(api, 4, wait=None)
    queued(redis, "export", 2)
    api.release(leases.pop())
    assert redis.zcard(QUEUE) == 2, "in order of arrival, whatever they ask for"
    api.release(leases.pop())
    api.release(leases.pop())
    leases += [behind.result(PATIENCE), last.result(PATIENCE)]
    for lease in leases:
        api.extend(lease)
        api.release(lease)


def test_a_waiter_that_gives_up_lets_those_behind_it_pass(api: Api, redis: Redis) -> None:
    """There is room for the second waiter, but not for the first."""
    lease = api.acquire(semaphore())
    first = other(api, 1, wait=1)
    queued(redis, "export", 1)
    second = other(api, 2, wait=None)
    queued(redis, "export", 2)
    assert first.result(PATIENCE) is None
    api.release(second.result(PATIENCE))
    api.release(lease)


def test_a_withdrawn_token_gets_nothing(api: Api, redis: Redis) -> None:
    """A release in doubt leaves a tombstone, and an acquire that arrives late is refused."""
    lease = api.acquire(semaphore())
    lease._claim.doubtful = True
    api.release(lease)
    with pytest.raises(LeaseLost, match="withdrawn earlier"):
        run(lease._claim.primitive.acquire(SyncPort(server_of("default")), lease._claim, 0))
    assert not redis.exists(*KEYS)


def test_extend(api: Api, redis: Redis) -> None:
    """Each lease is extended for itself; an extension sets a TTL that was removed."""
    first, second = api.acquire(semaphore(ttl=10)), other(api, ttl=20).result(PATIENCE)
    ends = redis.zscore(KEY, second.token)
    redis.persist(KEY)
    api.extend(first, 60)
    assert first.ttl == 60
    assert redis.zscore(KEY, second.token) == ends
    assert 55_000 < redis.pttl(KEY) <= 60_000
    watchdog(server_of("default")).write_down()
    assert redis.zscore(INDEX, KEY) == redis.zscore(KEY, first.token)
    assert redis.hget(HOLDERS, first.token)[33:].split(b"|")[2] == b"60000"
    api.release(first)
    assert redis.pttl(KEY) <= 20_000
    redis.zrem(KEY, second.token)
    with pytest.raises(LeaseLost):
        api.extend(second)
    assert not redis.exists(KEY)


def test_clear(api: Api, redis: Redis) -> None:
    """All holders lose it, and learn who cleared it and why; waiters get their places."""
    leases = [api.acquire(semaphore(renew=False)), other(api, renew=False).result(PATIENCE)]
    waiter = other(api, wait=None)
    queued(redis, "export", 1)
    assert api.clear(semaphore(), by="eva", reason="hosts are gone") is not None
    successor = waiter.result(PATIENCE)
    assert tokens(redis) == {successor.token}
    for lease in leases:
        with pytest.raises(LeaseRevoked, match=r"eva.*hosts are gone"):
            api.extend(lease)
    api.release(successor)
    assert api.clear(semaphore(), reason="nobody") is None


def test_clear_more_than_can_be_seen_at_once(
    api: Api, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clear looks again until nobody is left who held the semaphore."""
    monkeypatch.setattr(permits, "SHOWN", 2)
    leases = [other(api, 5, renew=False).result(PATIENCE) for _ in range(5)]
    assert len(api.holders(semaphore(5))) == 2
    first = api.holder(semaphore(5))
    cleared = api.clear(semaphore(5), reason="hosts are gone")
    assert cleared.fencing_token == first.fencing_token
    assert tokens(redis) == set()
    for lease in leases:
        with pytest.raises(LeaseRevoked):
            api.extend(lease)


def test_a_mutex_of_the_same_name(api: Api, redis: Redis) -> None:
    """Neither takes what the other holds; the error says what it is."""
    lease = api.acquire(semaphore())
    with pytest.raises(LockError, match=r"semaphore or a read-write lock"):
        api.acquire(redis_lock("export"), wait=0)
    api.extend(lease)
    api.release(lease)
    mutex = api.acquire(redis_lock("export"))
    with pytest.raises(LockError, match=r"as a mutex"):
        api.acquire(semaphore(), wait=0)
    api.extend(mutex)
    api.release(mutex)
    api.release(api.acquire(semaphore()))


def test_the_last_fencing_token_is_restored(api: Api, redis: Redis) -> None:
    """If Redis has forgotten it, renewals restore the largest one."""
    first, second = api.acquire(semaphore()), other(api).result(PATIENCE)
    redis.delete("redislock:clock")
    for lease in (first, second, first):
        api.extend(lease)
    assert int(redis.get("redislock:clock")) == second.fencing_token
    api.release(second)
    api.release(first)


def test_contention(api: Api, redis: Redis) -> None:
    """Many come and go: never more than three at a time, and all of them at last."""
    inside = threading.Semaphore(3)
    fences: list[int] = []

    def section(lease: Lease) -> None:
        assert inside.acquire(blocking=False), "too many at once"
        fences.append(lease.fencing_token)
        inside.release()

    def worker() -> None:
        for _ in range(8):
            api.enter(semaphore(3, wait=PATIENCE), section)

    for future in [api.start(worker) for _ in range(8)]:
        future.result(PATIENCE)
    assert len(set(fences)) == 64
    assert not redis.exists(*KEYS)


# The same thread or task asks again.


def test_a_thread_may_hold_several_places(api: Api, redis: Redis) -> None:
    """A thread that holds all places would wait for itself, and gets an error."""
    with semaphore() as first, semaphore() as second:
        assert first.token != second.token
        with pytest.raises(LockReentered), semaphore(wait=0):
            pass
        with semaphore(reentrant=True) as again:
            assert again is second
        assert redis.zcard(KEY) == 2
    assert not redis.exists(*KEYS)
