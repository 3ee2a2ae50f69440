"""What the TimestampLock owes, sync and async, on a real Redis."""

from __future__ import annotations

import pytest
from redis import Redis

from django_redislock import (
    LeaseLost,
    LeaseState,
    LockError,
    LockReentered,
    Semaphore,
    TimestampLock,
    redis_lock,
)
from django_redislock.primitives.contract import run
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.classic import Classic
from tests.contract.api import Api
from tests.waiting import PATIENCE, eventually

KEY = "lock.import"
BESIDE = "redislock:key:{lock.import}:timestamp"


@pytest.fixture(autouse=True)
def _no_key_left(redis: Redis) -> None:
    redis.delete(KEY)


def server_time(redis: Redis) -> float:
    seconds, micro = redis.time()
    return float(seconds + micro / 1e6)


def set_time(redis: Redis, left: float) -> None:
    """As if the lock ended in so many seconds: at the key, and for us who remember it."""
    value = str(int(server_time(redis) + left))
    redis.set(KEY, value)
    redis.hset(BESIDE, "until", value)


def elsewhere(api: Api, wait: float | None = 0, **options: object) -> object:
    """What somebody else gets."""
    lock = TimestampLock(KEY, **options)
    return api.start(lambda: api.acquire(lock, wait=wait)).result(PATIENCE)


def test_acquire_and_release(api: Api, redis: Redis) -> None:
    """The value says when the lease ends, in whole seconds, one more than the ttl."""
    before = server_time(redis)
    lease = api.acquire(TimestampLock(KEY, ttl=30))
    value = redis.get(KEY).decode()
    assert value.isdecimal()
    assert int(before) + 31 <= int(value) <= server_time(redis) + 31
    assert redis.ttl(KEY) > 31, "it has to be there until its time is over"
    assert 80 < redis.ttl(BESIDE) <= 91, "it goes by itself, a minute after the lease"
    api.release(lease)
    assert not redis.exists(KEY)
    assert not redis.exists(BESIDE)


def test_fractions(api: Api, redis: Redis) -> None:
    """On request, the value has fractions, also when the lease is renewed and restored."""
    before = server_time(redis)
    lease = api.acquire(TimestampLock(KEY, ttl=30, fractions=True))
    first = redis.get(KEY).decode()
    assert "." in first
    assert before + 31 <= float(first) + 1e-6
    assert float(first) <= server_time(redis) + 31
    api.extend(lease)
    second = redis.get(KEY).decode()
    assert "." in second
    assert float(second) > float(first)
    restored = api.restore(lease.export())
    assert restored._claim.primitive == lease._claim.primitive
    assert "." in redis.get(KEY).decode()
    api.release(restored)
    assert not redis.exists(KEY)


def test_no_fencing_token(api: Api) -> None:
    """The error says why there is none."""
    lease = api.acquire(TimestampLock(KEY))
    with pytest.raises(LockError, match="has no fencing token: the old clients"):
        lease.fencing_token  # noqa: B018
    assert api.holder(TimestampLock(KEY)).fencing_token is None
    api.release(lease)


def test_one_whose_time_is_over_is_taken(api: Api, redis: Redis) -> None:
    """A lock whose time is over is free, be it of an old client or of a lease that was not
    renewed."""
    redis.set(KEY, int(server_time(redis)) - 5)
    lease = api.acquire(TimestampLock(KEY, renew=False), wait=0)
    assert lease is not None
    set_time(redis, -5)
    other = elsewhere(api)
    assert other is not None
    api.release(other)


def test_an_old_holder_is_waited_for(api: Api, redis: Redis) -> None:
    """A waiter has the lock when the time of an old client is over."""
    ends = server_time(redis) + 1
    redis.set(KEY, f"{ends:.3f}")
    lease = api.acquire(TimestampLock(KEY), wait=PATIENCE)
    assert server_time(redis) > ends - 0.001
    api.release(lease)


def test_one_that_overran_leaves_its_successor_alone(api: Api, redis: Redis) -> None:
    """The holder learns that it has lost the lock, also if the successor is an old client."""
    lease = api.acquire(TimestampLock(KEY, renew=False))
    set_time(redis, -5)
    old = Classic(redis, KEY)
    assert old.acquire()
    value = redis.get(KEY)
    with pytest.raises(LeaseLost, match="another program holds the lock now"):
        api.release(lease)
    assert redis.get(KEY) == value

    lease = api.acquire(TimestampLock("lock.other", renew=False))
    redis.set("lock.other", int(server_time(redis)) - 5)
    redis.hset("redislock:key:{lock.other}:timestamp", "until", redis.get("lock.other"))
    other = api.start(lambda: api.acquire(TimestampLock("lock.other"), wait=0)).result()
    value = redis.get("lock.other")
    with pytest.raises(LeaseLost, match="holds the lock now"):
        api.release(lease)
    assert redis.get("lock.other") == value
    api.release(other)


def test_one_that_overran_alone(api: Api, redis: Redis) -> None:
    """If nobody came meanwhile, nothing is deleted, and the holder learns that its time is
    over."""
    lease = api.acquire(TimestampLock(KEY, renew=False))
    set_time(redis, -5)
    with pytest.raises(LeaseLost, match="it expired before it was renewed"):
        api.extend(lease)
    assert lease.state == LeaseState.LOST


def test_extend(api: Api, redis: Redis) -> None:
    """Old clients see the later time; a shorter ttl never takes away what was promised."""
    lease = api.acquire(TimestampLock(KEY, ttl=10))
    first = int(redis.get(KEY))
    api.extend(lease, 60)
    later = int(redis.get(KEY))
    assert later >= first + 49
    assert lease.remaining() > 50
    api.extend(lease, 10)
    assert int(redis.get(KEY)) == later
    assert lease.ttl == 10
    api.release(lease)


def test_a_holder_that_is_forgotten(api: Api, redis: Redis) -> None:
    """Without the key beside the lock, evicted or flushed, nobody knows whose lock it is: the
    lease is lost."""
    lease = api.acquire(TimestampLock(KEY))
    redis.delete(BESIDE)
    value = redis.get(KEY)
    with pytest.raises(LeaseLost):
        api.extend(lease)
    assert redis.get(KEY) == value


def test_clear(api: Api, redis: Redis) -> None:
    """An old client's lock is removed, though nobody can inform it."""
    assert Classic(redis, KEY).acquire()
    assert api.clear(TimestampLock(KEY), by="Ada", reason="stuck").owner is None
    assert not redis.exists(KEY)


def test_reentered(redis: Redis) -> None:
    """Its holder gets an error, or with reentrant=True holds it once more."""

    with TimestampLock(KEY):
        with pytest.raises(LockReentered):
            TimestampLock(KEY).acquire()
        with TimestampLock(KEY, reentrant=True):
            pass
    assert not redis.exists(KEY)


@pytest.mark.parametrize("value", [b"token", b"", b"1", b"1e9", b"nan", b"\xff", b"-1700000000"])
def test_a_value_that_is_no_time(api: Api, redis: Redis, value: bytes) -> None:
    """A value that is no time of this century is the lock of another program, as long as it is
    there."""
    redis.set(KEY, value)
    assert api.acquire(TimestampLock(KEY), wait=0) is None
    assert redis.get(KEY) == value
    holder = api.holder(TimestampLock(KEY))
    assert (holder.owner, holder.remaining) == (None, None)


def test_a_key_of_another_type(api: Api, redis: Redis) -> None:
    """The error comes at once, and nothing is written."""
    redis.rpush(KEY, "x")
    with pytest.raises(LockError):
        api.acquire(TimestampLock(KEY), wait=None)
    assert redis.lrange(KEY, 0, -1) == [b"x"]


def test_it_is_another_lock_than_that_of_its_name(api: Api) -> None:
    """The argument is a key as it is, and not a name."""
    lease = api.acquire(TimestampLock(KEY))
    other = api.acquire(redis_lock(KEY), wait=0)
    assert other is not None
    api.release(other)
    api.release(lease)


def test_by_settings(api: Api, redis: Redis, settings: object) -> None:
    """The settings can make `redis_lock` of a name a timestamp lock."""
    settings.REDISLOCK = {"LOCKS": {KEY: {"KIND": "timestamp"}}}
    lease = api.acquire(redis_lock(KEY))
    assert redis.get(KEY).isdigit()
    assert elsewhere(api) is None
    api.release(lease)
    eventually(lambda: not redis.exists(KEY))


def test_wrong_arguments() -> None:
    """The error names the argument and says what to write."""
    with pytest.raises(TypeError, match="name must be a str"):
        TimestampLock(b"lock.import").acquire()  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="fractions must be True or False"):
        TimestampLock(KEY, fractions=6)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timestamp_key is empty"):
        redis_lock("import", timestamp_key="")
    with pytest.raises(TypeError, match="timestamp_key must be a str, the key in Redis as it is"):
        redis_lock("import", timestamp_key=b"lock")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timestamp_key is for a mutex, or a timestamp lock"):
        Semaphore("import", 3, timestamp_key="lock").acquire()  # type: ignore[call-arg]


def test_a_key_that_no_name_can_have(api: Api, redis: Redis) -> None:
    """`timestamp_key` gives a key that no name can have."""
    key = "any{key}: of\nothers"
    redis.delete(key)
    lease = api.acquire(TimestampLock("import", timestamp_key=key))
    assert redis.get(key).isdigit()
    assert not Classic(redis, key).acquire()
    api.release(lease)
    assert not redis.exists(key)


def test_a_release_that_is_repeated_often(redis: Redis) -> None:
    """It takes no more memory each time: the watchdog repeats one for as long as it gets no
    answer."""
    lease = redis_lock("job", timestamp_key="old").acquire()
    assert lease is not None
    port = SyncPort(server_of("default"))
    for _ in range(20):
        run(lease._claim.primitive.release(port, lease._claim))
    assert len(lease._claim.released) < 5
    lease.release()
