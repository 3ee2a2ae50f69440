"""What the mutex owes, sync and async, on a real Redis."""

from __future__ import annotations

from redis import Redis

from django_redislock import redis_lock
from django_redislock.base.clock import now
from django_redislock.lease.lifetime import NEVER
from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.server import server_of
from tests.calling import call
from tests.contract.api import Api, queued
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{invoice:42}"
QUEUE, INDEX = f"{KEY}:queue", "redislock:index"


def round_trips(redis: Redis) -> int:
    """Script calls that the server has counted."""
    stats = redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


def heard(redis: Redis) -> bool:
    """Somebody waits, and its process can be told."""
    return any(b":inbox:" in waiter for waiter in redis.hvals(f"{KEY}:waiters"))


def messages(redis: Redis) -> int:
    """Wake-ups that the server has counted."""
    return int(redis.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"])


def test_a_neighbour_is_told_by_the_answer(api: Api, redis: Redis) -> None:
    """A waiter in the process that releases has its whole lease at once, without a message and
    without a confirmation."""
    lease = api.acquire(redis_lock("invoice:42"))
    waiter = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=None))
    eventually(lambda: heard(redis))
    before = messages(redis)
    api.release(lease)
    assert redis.pttl(KEY) > 20_000
    assert redis.get(KEY)[32:33] != b"?"
    handed = waiter.result(PATIENCE)
    assert messages(redis) == before
    assert handed.fencing_token > lease.fencing_token
    assert handed.remaining() > 20
    assert redis.get(KEY).startswith(f"{handed.token}+{handed.fencing_token}|".encode())
    api.release(handed)
    assert not redis.exists(KEY, QUEUE, f"{KEY}:waiters")


def test_a_waiter_elsewhere_is_told_by_a_message(api: Api, redis: Redis) -> None:
    """A waiter in another process has the lock for a few seconds, and its whole lease as soon as
    the watchdog has renewed it."""
    lease = api.acquire(redis_lock("invoice:42"))
    waiter = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=None))
    eventually(lambda: heard(redis))
    before = messages(redis)
    keys = lease._claim.keys.mutex(lease.token)
    assert call(redis, "mutex_release", keys, lease.token, 0, "")[0] == 1
    handed = waiter.result(PATIENCE)
    assert messages(redis) > before
    eventually(lambda: redis.pttl(KEY) > 20_000)
    api.release(handed)


def test_a_waiter_without_a_sign_of_life_is_passed_over(api: Api, redis: Redis) -> None:
    """A waiter whose process is stopped costs the others nothing, though its connection is open.
    It has its turn if it comes back."""
    lease = api.acquire(redis_lock("invoice:42"))
    stopped = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=None))
    queued(redis, "invoice:42")
    token = redis.zrange(QUEUE, 0, 0)[0]
    alive = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=None))
    queued(redis, "invoice:42", 2)
    seen, rest = redis.hget(f"{KEY}:waiters", token).split(b"|", 1)
    redis.hset(f"{KEY}:waiters", token, b"%d|%s" % (int(seen) - 6_000_000, rest))
    api.release(lease)
    assert not redis.get(KEY).startswith(token)
    next_one = alive.result(PATIENCE)
    api.release(next_one)
    api.release(stopped.result(PATIENCE))


def test_extend_repairs_what_somebody_changed(api: Api, redis: Redis) -> None:
    """An extension sets the key's TTL, shortened or removed; the value has the new ttl."""
    lease = api.acquire(redis_lock("invoice:42", ttl=10, renew=False))
    redis.pexpire(KEY, 5000)
    api.extend(lease)
    assert 8 < redis.pttl(KEY) / 1000 <= 10
    redis.persist(KEY)
    api.extend(lease, 60)
    assert 55 < redis.pttl(KEY) / 1000 <= 60
    assert redis.get(KEY).split(b"|")[3] == b"60000"
    api.release(lease)


def test_clear_of_a_strangers_value(api: Api, redis: Redis) -> None:
    """A plain string at our key counts as held by a stranger, and an operator may clear it."""
    redis.set(KEY, "c0ffee")
    assert api.holder(redis_lock("invoice:42")).owner is None
    assert api.acquire(redis_lock("invoice:42"), wait=0) is None
    assert api.clear(redis_lock("invoice:42"), reason="left by an old version") is not None
    assert not redis.exists(KEY)


def test_the_index_knows_what_is_held(api: Api, redis: Redis) -> None:
    """It has a lease that was written down until its release, and the time when it ends. Renewals
    change that time."""
    lease = api.acquire(redis_lock("invoice:42", ttl=10))
    assert redis.zscore(INDEX, KEY) is None
    watchdog(server_of("default")).write_down()
    ends = redis.zscore(INDEX, KEY)
    seconds, microseconds = redis.time()
    assert 0 < ends / 1000 - (seconds + microseconds / 1e6) < 11
    redis.pexpire(KEY, 5_000)
    redis.zadd(INDEX, {KEY: ends - 5_000})
    api.extend(lease)
    assert redis.zscore(INDEX, KEY) >= ends
    api.release(lease)
    assert redis.zscore(INDEX, KEY) is None


def test_a_restored_lease_is_as_the_first_one(api: Api, redis: Redis) -> None:
    """A restored lease has the explicit arguments of its lock, and what is left of `max_hold`."""
    lock = redis_lock("invoice:42", ttl=20, renew=False, max_hold=3600, release="commit")
    restored = api.restore(api.acquire(lock).export())
    assert (restored.ttl, restored._lifetime.renew) == (20, False)
    assert restored._policy.release == "commit"
    assert 3500 < restored._lifetime.hold_until - now() <= 3600
    api.release(restored)
    restored = api.restore(api.acquire(redis_lock("invoice:42")).export())
    assert (restored._lifetime.renew, restored._lifetime.hold_until) == (True, NEVER)
    api.release(restored)


def test_an_exported_lease_keeps_its_ttl(api: Api, redis: Redis) -> None:
    """A restore never shortens the TTL, and sets one that was removed."""
    lease = api.acquire(redis_lock("invoice:42", ttl=20))
    redis.pexpire(KEY, 50_000)
    restored = api.restore(lease.export())
    assert 40_000 < redis.pttl(KEY) <= 50_000
    redis.persist(KEY)
    restored = api.restore(restored.export())
    assert 10_000 < redis.pttl(KEY) <= 20_000
    api.release(restored)
