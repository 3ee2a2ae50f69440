"""A lock remembers its last holders, and what became of them: sync and async."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from django_redislock import Lease, LeaseLost, LeaseState, redis_lock
from django_redislock.inspection import Ending, Inspector, PastHolder
from tests.calling import call
from tests.contract.api import Api, queued
from tests.contract.test_mutex import INDEX, KEY, QUEUE, TAIL
from tests.waiting import PATIENCE, eventually

NAME = "invoice:42"


def past() -> list[PastHolder]:
    return Inspector().past(NAME).holders


def ended() -> list[tuple[int, Ending]]:
    """Their fencing tokens, and what became of them."""
    return [(holder.fencing_token, holder.ending) for holder in past()]


def acquire(api: Api, **options: Any) -> Lease:
    """Of another thread or task each time, and nobody renews it."""
    lock = redis_lock(NAME, renew=False, **options)
    lease: Lease = api.start(lambda: api.acquire(lock)).result(PATIENCE)
    return lease


def wait(api: Api, redis: Redis) -> Future[Any]:
    waiter = api.start(lambda: api.acquire(redis_lock(NAME, renew=False), wait=None))
    queued(redis, NAME)
    return waiter


def handed(redis: Redis, token: str = "d" * 32) -> None:
    """A waiter that nobody can wake, and that will not come to look."""
    seconds, microseconds = redis.time()
    now = seconds * 1_000_000 + microseconds
    redis.hset(f"{KEY}:waiters", token, f"{now}|30000|-|far:1:x|never")
    redis.zadd(QUEUE, {token: now})


def test_released(api: Api) -> None:
    """The history says who held the lock, where, since when and for how long."""
    lease = acquire(api, label="shop/pay.py:42 in a|b")
    assert past() == []
    api.release(lease)
    (holder,) = past()
    assert (holder.ending, holder.why) == (Ending.RELEASED, "")
    assert (holder.owner, holder.label) == (lease.owner, "shop/pay.py:42 in a|b")
    assert (holder.fencing_token, holder.acquired_at) == (lease.fencing_token, lease.acquired_at)
    assert abs(datetime.now(UTC) - holder.acquired_at) < timedelta(seconds=PATIENCE)
    assert holder.lasted == Inspector().past(NAME).lasted
    assert 0 <= holder.lasted < PATIENCE


def test_the_last_five(api: Api, redis: Redis) -> None:
    """The last holder comes first. They need no key of their own, and are forgotten with the
    tail."""
    fences = []
    for _ in range(8):
        lease = acquire(api)
        assert [fence for fence, _ in ended()] == fences[:-6:-1]
        fences.append(lease.fencing_token)
        api.release(lease)
    assert [fence for fence, _ in ended()] == fences[:-6:-1]
    assert set(redis.scan_iter(match=f"{KEY}*")) == {TAIL.encode()}
    assert 0 < redis.ttl(TAIL) <= 60, "for a minute, whatever the ttl"
    redis.delete(TAIL)
    assert past() == []


def test_the_last_five_when_the_clock_went_back(api: Api, redis: Redis) -> None:
    """Each fencing token is the one before and one more; none of them takes another's place."""
    api.release(acquire(api))
    fence = int(redis.hget(TAIL, "fence")) + 3_600_000_000
    redis.hset(TAIL, "fence", fence)
    for _ in range(7):
        api.release(acquire(api))
    assert [token for token, _ in ended()] == [fence + step for step in (7, 6, 5, 4, 3)]


def test_released_twice(api: Api, redis: Redis) -> None:
    """A second release changes nothing in the history, whoever holds the lock meanwhile."""
    lease = acquire(api)
    api.release(lease)
    other = acquire(api)
    before = redis.hgetall(TAIL)
    args = [lease.token, NAME, 0]
    keys = lease._claim.keys.mutex(lease.token)
    assert release(redis, keys, args) == 1
    assert redis.hgetall(TAIL) == before
    assert ended() == [(lease.fencing_token, Ending.RELEASED)]
    api.release(other)
    assert len(past()) == 2


def release(redis: Redis, keys: list[str], args: list[Any]) -> int:
    """What a release that was sent once more is answered."""
    return int(call(redis, "mutex_release", keys, *args)[0])


def test_handed_over(api: Api, redis: Redis) -> None:
    """A waiter that was handed the lock is a holder like all others."""
    first = acquire(api)
    waiter = wait(api, redis)
    api.release(first)
    second = waiter.result(PATIENCE)
    assert ended() == [(first.fencing_token, Ending.RELEASED)]
    api.release(second)
    assert ended() == [
        (second.fencing_token, Ending.RELEASED),
        (first.fencing_token, Ending.RELEASED),
    ]


def test_handed_over_and_expired(api: Api, redis: Redis) -> None:
    """It is a holder from the moment at which it knew."""
    first = acquire(api)
    waiter = wait(api, redis)
    api.release(first)
    second = waiter.result(PATIENCE)
    redis.delete(KEY)
    assert ended()[0] == (second.fencing_token, Ending.EXPIRED)
    assert past()[0].owner == second.owner


@pytest.mark.parametrize("cleared", [False, True])
def test_handed_over_and_never_confirmed(api: Api, redis: Redis, cleared: bool) -> None:
    """A waiter that never knew that it had the lock did not hold it."""
    first = acquire(api)
    handed(redis)
    api.release(first)
    assert not redis.exists(QUEUE)
    before = [(first.fencing_token, Ending.RELEASED)]
    assert ended() == before
    if cleared:
        api.clear(redis_lock(NAME), by="eva", reason="gone")
    redis.delete(KEY)
    assert ended() == before
    second = acquire(api)
    assert ended() == before
    api.release(second)
    assert ended() == [(second.fencing_token, Ending.RELEASED), *before]


def test_no_gap(api: Api, redis: Redis) -> None:
    """If one that never confirmed stands between others, fewer of them are known, and none that is
    older than a forgotten one."""
    fences = []
    for number in range(6):
        lease = acquire(api)
        fences.append(lease.fencing_token)
        if number == 5:
            handed(redis)
        api.release(lease)
    redis.delete(KEY)
    assert [fence for fence, _ in ended()] == fences[:0:-1]
    lease = acquire(api)
    assert [fence for fence, _ in ended()] == fences[:1:-1]
    api.release(lease)


def test_expired(api: Api, redis: Redis) -> None:
    """Nobody saw when the lease ended; so says the history before somebody else has the lock, and
    afterwards."""
    lease = acquire(api)
    redis.pexpire(KEY, 1)
    eventually(lambda: not redis.exists(KEY))
    for again in (False, True):
        other = acquire(api) if again else None
        (holder,) = past()
        assert (holder.ending, holder.lasted, holder.why) == (Ending.EXPIRED, None, "")
        assert (holder.owner, holder.fencing_token) == (lease.owner, lease.fencing_token)
    assert other is not None
    api.release(other)
    with pytest.raises(LeaseLost):
        api.release(lease)
    assert [outcome for _, outcome in ended()] == [Ending.RELEASED, Ending.EXPIRED]


@pytest.mark.parametrize("waited_for", [False, True])
def test_cleared(api: Api, redis: Redis, waited_for: bool) -> None:
    """The history says who cleared the lock and why, and how long it was held until then."""
    lease = acquire(api, label="a|b")
    waiter = wait(api, redis) if waited_for else None
    api.clear(redis_lock(NAME), by="e|va", reason="host | gone\tor\nnot")
    (holder,) = past()
    assert holder.ending == Ending.CLEARED
    assert holder.why == "by e/va (host | gone?or?not)"
    assert (holder.owner, holder.label) == (lease.owner, "a|b")
    assert 0 <= holder.lasted < PATIENCE
    with pytest.raises(LeaseLost):
        api.release(lease)
    if waiter is not None:
        api.release(waiter.result(PATIENCE))
    assert ended()[-1] == (lease.fencing_token, Ending.CLEARED)
    assert len(past()) == 1 + waited_for


def test_restored_elsewhere(api: Api, redis: Redis) -> None:
    """One lease is one entry, with its last owner."""
    exported = acquire(api)
    restored = api.start(lambda: api.restore(exported.export())).result(PATIENCE)
    assert past() == []
    redis.delete(KEY)
    (holder,) = past()
    assert exported.owner != restored.owner
    assert (holder.owner, holder.fencing_token) == (restored.owner, exported.fencing_token)
    redis.delete(TAIL)
    exported = acquire(api)
    restored = api.start(lambda: api.restore(exported.export())).result(PATIENCE)
    api.release(restored)
    (holder,) = past()
    assert (holder.owner, holder.ending) == (restored.owner, Ending.RELEASED)
    assert holder.acquired_at == exported.acquired_at


def test_renewed_for_longer(api: Api) -> None:
    """An extended lease is still one lease."""
    lease = acquire(api)
    api.extend(lease, 60)
    assert past() == []
    api.release(lease)
    assert ended() == [(lease.fencing_token, Ending.RELEASED)]


@pytest.mark.parametrize("kind", ["string", "list"])
def test_overwritten_by_a_stranger(api: Api, redis: Redis, kind: str) -> None:
    """The holder has lost the lock; the other program is no holder."""
    lease = acquire(api)
    redis.delete(KEY)
    if kind == "string":
        redis.set(KEY, "mine")
    else:
        redis.rpush(KEY, "mine")
    expired = [(lease.fencing_token, Ending.EXPIRED)]
    assert ended() == expired
    if kind == "string":
        api.clear(redis_lock(NAME), by="eva", reason="old")
    redis.delete(KEY)
    with pytest.raises(LeaseLost):
        api.release(lease)
    assert ended() == expired
    assert lease.state == LeaseState.LOST


def test_the_tail_of_the_version_before(api: Api, redis: Redis) -> None:
    """It knows no holders; holders that come now are added."""
    lease = acquire(api)
    fields = {"fence": lease.fencing_token, "handed": "", "released": "a" * 32, "lasted": 7}
    redis.delete(TAIL)
    redis.hset(TAIL, mapping=fields)
    assert past() == []
    assert Inspector().past(NAME).lasted == 7 / 1e6
    api.release(lease)
    other = acquire(api)
    assert ended() == [(lease.fencing_token, Ending.RELEASED)]
    api.release(other)


def test_a_waiter_of_the_version_before(api: Api, redis: Redis) -> None:
    """It confirms now what it was handed then."""
    first = acquire(api)
    waiter = wait(api, redis)
    fence = int(first.fencing_token) + 5_000_000
    token = redis.zrange(QUEUE, 0, 0)[0].decode()
    with redis.pipeline() as step:
        step.delete(QUEUE, f"{KEY}:waiters")
        step.hset(TAIL, mapping={"fence": fence, "handed": token})
        step.set(KEY, f"{token}|{fence}|{fence}|30000|far:1:x|there", px=30_000)
        step.execute()
    second = waiter.result(PATIENCE)
    assert second.fencing_token == fence
    api.release(second)
    assert (fence, Ending.RELEASED) in ended()


@pytest.mark.parametrize(
    "text", ["", "x", "\t", "t|1|x|1|o|l", "t|1|1|1|o|l\twhat|1", "t|1|1|1|o|l\treleased|x"]
)
def test_what_cannot_be_read(api: Api, redis: Redis, text: str) -> None:
    """An entry that can't be read does not hide the others."""
    lease = acquire(api)
    api.release(lease)
    unused = (lease.fencing_token + 1) % 6
    redis.hset(TAIL, str(unused), text)
    assert ended() == [(lease.fencing_token, Ending.RELEASED)]


def test_the_index_is_swept(api: Api, redis: Redis) -> None:
    """The first holder of any name removes names whose lease ended a while ago without a
    release."""
    seconds, _ = redis.time()
    redis.zadd(INDEX, {"long ago": (seconds - 70) * 1000, "just now": (seconds - 30) * 1000})
    api.release(acquire(api))
    assert redis.zrange(INDEX, 0, -1) == [b"just now"]
