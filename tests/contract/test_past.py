"""A lock remembers its last holders, and what became of them: sync and async.

Only those that held it for a second, or that were cleared or have lost it. A holder is old here
because its value says so.
"""

from __future__ import annotations

from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from django_redislock import Lease, LeaseLost, LeaseState, redis_lock
from django_redislock.inspection import Ending, Inspector, PastHolder
from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.server import server_of
from tests.contract.api import Api, queued
from tests.contract.test_mutex import INDEX, KEY, QUEUE
from tests.waiting import PATIENCE, eventually

NAME = "invoice:42"
HISTORY = f"{KEY}:history"


def past() -> list[PastHolder]:
    return Inspector().past(NAME).holders


def ended() -> list[tuple[int, Ending]]:
    """Their fencing tokens, and what became of them."""
    return [(holder.fencing_token, holder.ending) for holder in past()]


def acquire(api: Api, redis: Redis, **options: Any) -> Lease:
    """As another thread or task each time, without renewal. It has held the lock for a while."""
    lock = redis_lock(NAME, renew=False, **options)
    lease: Lease = api.start(lambda: api.acquire(lock)).result(PATIENCE)
    grow_old(redis)
    return lease


def grow_old(redis: Redis) -> None:
    """The holder seems to have acquired the lock two seconds earlier, and is written down."""
    value = redis.get(KEY)
    fence, acquired_us, rest = value[33:].split(b"|", 2)
    earlier = b"%d" % (int(acquired_us or fence) - 2_000_000)
    redis.set(KEY, value[:33] + b"|".join([fence, earlier, rest]), keepttl=True)
    watchdog(server_of("default")).write_down()


def wait(api: Api, redis: Redis) -> Future[Any]:
    waiter = api.start(lambda: api.acquire(redis_lock(NAME, renew=False), wait=None))
    queued(redis, NAME)
    return waiter


def in_vain(redis: Redis, token: str = "d" * 32) -> None:
    """A waiter that nobody can wake, and that will not come to look."""
    seconds, microseconds = redis.time()
    now = seconds * 1_000_000 + microseconds
    redis.hset(f"{KEY}:waiters", token, f"{now}|30000|-|far:1:x|never")
    redis.zadd(QUEUE, {token: now})


def test_held_for_a_moment(api: Api, redis: Redis) -> None:
    """Nothing is remembered, and nothing is left in Redis but the clock of all names."""
    api.release(api.acquire(redis_lock(NAME)))
    assert past() == []
    ours = redis.scan_iter(match="redislock*")
    assert [key for key in ours if b":process:" not in key] == [b"redislock:clock"]


def test_released(api: Api, redis: Redis) -> None:
    """By whom it was held, where, since when and for how long."""
    lease = acquire(api, redis, label="shop/pay.py:42 in a|b")
    assert past() == []
    api.release(lease)
    (holder,) = past()
    assert (holder.ending, holder.why) == (Ending.RELEASED, "")
    assert (holder.owner, holder.label) == (lease.owner, "shop/pay.py:42 in a|b")
    assert holder.fencing_token == lease.fencing_token
    assert abs(datetime.now(UTC) - holder.acquired_at) < timedelta(seconds=PATIENCE)
    assert holder.lasted == Inspector().past(NAME).lasted
    assert 2 <= holder.lasted < PATIENCE


def test_the_last_five(api: Api, redis: Redis) -> None:
    """The last one first, whoever holds it now; all are forgotten after a minute."""
    fences = []
    for _ in range(8):
        lease = acquire(api, redis)
        assert [fence for fence, _ in ended()] == fences[:-6:-1]
        fences.append(lease.fencing_token)
        api.release(lease)
    assert [fence for fence, _ in ended()] == fences[:-6:-1]
    assert redis.llen(HISTORY) == 6, "those, and one that may hold it now"
    assert 80 < redis.ttl(HISTORY) <= 90, "three times the ttl, and at least a minute"


def test_released_twice(api: Api, redis: Redis) -> None:
    """The second time changes nothing, whoever holds the lock meanwhile."""
    lease = acquire(api, redis)
    api.release(lease)
    other = acquire(api, redis)
    before = redis.lrange(HISTORY, 0, -1)
    api.release(lease)
    assert redis.lrange(HISTORY, 0, -1) == before
    assert ended() == [(lease.fencing_token, Ending.RELEASED)]
    api.release(other)
    assert len(past()) == 2


def test_handed_over(api: Api, redis: Redis) -> None:
    """A waiter that was handed the lock is a holder like all others."""
    first = acquire(api, redis)
    waiter = wait(api, redis)
    api.release(first)
    second = waiter.result(PATIENCE)
    grow_old(redis)
    assert ended() == [(first.fencing_token, Ending.RELEASED)]
    api.release(second)
    assert ended() == [
        (second.fencing_token, Ending.RELEASED),
        (first.fencing_token, Ending.RELEASED),
    ]


@pytest.mark.parametrize("cleared", [False, True])
def test_handed_over_and_never_confirmed(api: Api, redis: Redis, cleared: bool) -> None:
    """It never knew that it had the lock, so it did not hold it."""
    first = acquire(api, redis)
    in_vain(redis)
    api.release(first)
    assert not redis.exists(QUEUE)
    before = [(first.fencing_token, Ending.RELEASED)]
    if cleared:
        api.clear(redis_lock(NAME), by="eva", reason="gone")
    redis.delete(KEY)
    assert ended() == before
    second = acquire(api, redis)
    api.release(second)
    assert ended() == [(second.fencing_token, Ending.RELEASED), *before]


def test_expired(api: Api, redis: Redis) -> None:
    """Nobody saw when; before somebody else has it, and afterwards."""
    lease = acquire(api, redis)
    redis.pexpire(KEY, 1)
    eventually(lambda: not redis.exists(KEY))
    for again in (False, True):
        other = acquire(api, redis) if again else None
        (holder,) = past()
        assert (holder.ending, holder.lasted, holder.why) == (Ending.EXPIRED, None, "")
        assert (holder.owner, holder.fencing_token) == (lease.owner, lease.fencing_token)
    assert other is not None
    api.release(other)
    with pytest.raises(LeaseLost):
        api.release(lease)
    assert [outcome for _, outcome in ended()] == [Ending.RELEASED, Ending.EXPIRED]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("waited_for", [False, True])
def test_cleared(api: Api, redis: Redis, waited_for: bool, old: bool) -> None:
    """By whom and why, and how long it was held until then; also if that was a moment."""
    lease = api.start(lambda: api.acquire(redis_lock(NAME, renew=False, label="a|b"))).result()
    if old:
        grow_old(redis)
    waiter = wait(api, redis) if waited_for else None
    api.clear(redis_lock(NAME), by="e|va", reason="host | gone\tor\nnot")
    (holder,) = past()
    assert holder.ending == Ending.CLEARED
    assert holder.why == "by e/va (host | gone?or?not)"
    assert (holder.owner, holder.label) == (lease.owner, "a|b")
    assert 2 * old <= holder.lasted < PATIENCE
    with pytest.raises(LeaseLost):
        api.release(lease)
    if waiter is not None:
        api.release(waiter.result(PATIENCE))
    assert ended() == [(lease.fencing_token, Ending.CLEARED)]


def test_restored_elsewhere(api: Api, redis: Redis) -> None:
    """One lease has one entry, with its last owner."""
    for lost in (True, False):
        exported = acquire(api, redis)
        restored = api.start(lambda lease=exported: api.restore(lease.export())).result(PATIENCE)
        assert past() == []
        if lost:
            redis.delete(KEY)
        else:
            api.release(restored)
        (holder,) = past()
        assert exported.owner != restored.owner
        assert (holder.owner, holder.fencing_token) == (restored.owner, exported.fencing_token)
        assert holder.ending == (Ending.EXPIRED if lost else Ending.RELEASED)
        redis.delete(HISTORY)


def test_renewed_for_longer(api: Api, redis: Redis) -> None:
    """It is still one entry."""
    lease = acquire(api, redis)
    api.extend(lease, 60)
    assert past() == []
    api.release(lease)
    assert ended() == [(lease.fencing_token, Ending.RELEASED)]


@pytest.mark.parametrize("kind", ["string", "list"])
def test_overwritten_by_another_program(api: Api, redis: Redis, kind: str) -> None:
    """The holder has lost it; the other program is no holder."""
    lease = acquire(api, redis)
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


@pytest.mark.parametrize(
    "text", ["", "x", "\t", "t|1|x|1|o|l", "t|1|1|1|o|l\twhat|1", "t|1|1|1|o|l\treleased|x"]
)
def test_what_cannot_be_read(api: Api, redis: Redis, text: str) -> None:
    """Whoever wrote it, the others are shown."""
    lease = acquire(api, redis)
    api.release(lease)
    redis.lpush(HISTORY, text)
    assert ended() == [(lease.fencing_token, Ending.RELEASED)]


def test_the_index_is_swept(api: Api, redis: Redis) -> None:
    """When any lease is written down: of what ended a while ago without a release."""
    seconds, _ = redis.time()
    redis.zadd(INDEX, {"long ago": (seconds - 70) * 1000, "just now": (seconds - 30) * 1000})
    api.release(acquire(api, redis))
    assert redis.zrange(INDEX, 0, -1) == [b"just now"]
