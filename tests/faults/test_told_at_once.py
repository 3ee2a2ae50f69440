"""A lease that is lost is known within a round trip, and not at its next renewal.

The leases here are renewed after minutes, so whoever knows of a loss within seconds was told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import (
    Lease,
    LeaseLost,
    LeaseRevoked,
    LeaseState,
    MultiLock,
    Semaphore,
    redis_lock,
)
from django_redislock.lease import watchdog as watchdog_module
from django_redislock.lease.register import PRESENCE
from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.inbox import Inbox
from django_redislock.transport.server import server_of
from tests.contract.api import Api
from tests.recovery import Recovery
from tests.test_doctor import documented
from tests.waiting import PATIENCE, eventually

TTL = 600
TOLD = 3
"""Seconds, on a busy machine. Their next renewals are in minutes."""
KEY = "redislock:{job}"


@pytest.fixture
def server(settings: Any) -> Iterator[RedisServer]:
    """A server of its own, which may be emptied."""
    with RedisServer(args=["--maxmemory-samples", "64"]) as server:
        settings.CACHES = caches(server.url)
        yield server


@pytest.fixture
def there(server: RedisServer) -> Iterator[Redis]:
    with Redis.from_url(server.url) as client:
        yield client


def caches(url: str) -> dict[str, Any]:
    return {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}}


def tracked(redis: Redis, number: int = 1) -> None:
    """Wait until the server follows so many keys."""
    # After half a minute a lease is written down again, and followed again for that reason.
    eventually(lambda: redis.info("stats")["tracking_total_keys"] == number, within=PRESENCE / 2)


def acquire(api: Api, redis: Redis, lock: Any = None) -> Lease:
    lease: Lease = api.acquire(lock or redis_lock("job", ttl=TTL))
    tracked(redis)
    return lease


def delete(redis: Redis) -> None:
    redis.delete(KEY)


def flush(redis: Redis) -> None:
    redis.flushall()


def overwrite(redis: Redis) -> None:
    redis.set(KEY, "somebody else's")


def expire(redis: Redis) -> None:
    # The server does nothing else meanwhile, or the holder would repair the TTL.
    script = "redis.call('PEXPIRE', KEYS[1], 1) for _ = 1, 1e6 do end"
    redis.eval(script, 1, KEY)
    assert not redis.exists(KEY)


def evict(redis: Redis) -> None:
    redis.config_set("maxmemory-policy", "volatile-ttl")
    redis.config_set("maxmemory", redis.info("memory")["used_memory"] // 2)
    eventually(lambda: not redis.exists(KEY))
    redis.config_set("maxmemory", 0)


HOW = {
    delete: "`DEL`",
    flush: "`FLUSHALL`",
    overwrite: "`SET`",
    expire: "expiry",
    evict: "eviction",
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.recovery
def test_a_lock_that_is_gone(
    api: Api, there: Redis, recovery: Recovery, how: Callable[[Redis], None]
) -> None:
    lost: list[Lease] = []
    lease = acquire(api, there, redis_lock("job", ttl=TTL, on_lost=lost.append))
    recovery.begins()
    how(there)
    eventually(lambda: lost == [lease])
    recovery.done(f"a lock is gone by {HOW[how]}", "its holder is told", within=TOLD)
    with pytest.raises(LeaseLost):
        lease.check()


@pytest.mark.recovery
def test_cleared(api: Api, there: Redis, recovery: Recovery) -> None:
    """The holder learns who has cleared it, and why."""
    lease = acquire(api, there)
    recovery.begins()
    api.start(lambda: redis_lock("job").clear(reason="it hangs", by="ada")).result(PATIENCE)
    eventually(lambda: lease.state == LeaseState.LOST)
    recovery.done("an operator clears a lock", "its holder is told", within=TOLD)
    with pytest.raises(LeaseRevoked, match=r"ada.*it hangs"):
        lease.check()


def test_several_names(api: Api, there: Redis) -> None:
    """One of them is enough."""
    lease = api.acquire(MultiLock(["job", "other"], ttl=TTL))
    tracked(there, 2)
    there.delete("redislock:{other}")
    eventually(lambda: lease.state == LeaseState.LOST)


def test_after_renewals(api: Api, there: Redis) -> None:
    """Each renewal changes the key, which the server then forgets: so it is named again."""
    lease = api.acquire(redis_lock("job", ttl=6))
    tracked(there)
    for _ in range(2):
        due = lease._lifetime.due
        eventually(lambda due=due: lease._lifetime.due > due)
    api.extend(lease, TTL)  # over another connection, so that is told, too
    tracked(there)
    eventually(lambda: lease._lifetime.due > time.monotonic() + 60 and not _news())
    delete(there)
    eventually(lambda: lease.state == LeaseState.LOST)


def _news() -> bool:
    return bool(watchdog(server_of("default"))._news)


def test_own_renewals_tell_nothing(
    api: Api, there: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each renewal would cause another one."""
    suspected: list[Any] = []
    monkeypatch.setattr(watchdog(server_of("default")), "suspect", suspected.append)
    lease = api.acquire(redis_lock("job", ttl=6))
    tracked(there)
    for _ in range(2):
        due = lease._lifetime.due
        eventually(lambda due=due: lease._lifetime.due > due)
        tracked(there)
    assert suspected == []
    there.pexpire(KEY, 5999)
    eventually(lambda: suspected == [[KEY]])


def test_a_lease_that_is_kept(api: Api, there: Redis) -> None:
    """A change that takes nothing away is looked at, and then the lock is followed again."""
    lease = acquire(api, there)
    there.pexpire(KEY, 5000)
    eventually(lambda: there.pttl(KEY) > 10_000)  # repaired at once
    tracked(there)
    assert lease.state == LeaseState.HELD
    delete(there)
    eventually(lambda: lease.state == LeaseState.LOST)


def test_a_short_hold_is_not_followed(api: Api, there: Redis) -> None:
    """Most locks are held for less than a second, and cost nothing more."""
    there.config_resetstat()
    for _ in range(20):
        api.release(api.acquire(redis_lock("job", ttl=TTL)))
    assert "cmdstat_client|tracking" not in there.info("commandstats")


def test_permits_are_not_followed(api: Api, there: Redis) -> None:
    """The key of a semaphore changes with each of its other holders."""
    api.acquire(Semaphore("job", 3, ttl=TTL))
    lease = acquire(api, there, redis_lock("other", ttl=TTL))
    assert lease._lifetime.tracked


def test_short_leases(api: Api, there: Redis) -> None:
    """The next renewal tells within a second, so following them would only cost the server."""
    lease = api.acquire(redis_lock("job", ttl=3))
    eventually(lambda: there.exists(f"{KEY}:history"))  # the watchdog has looked at it
    acquire(api, there, redis_lock("other", ttl=TTL))
    assert not lease._lifetime.tracked
    delete(there)
    eventually(lambda: lease.state == LeaseState.LOST)


def test_too_many(api: Api, there: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has its oldest locks followed, however many it holds."""
    monkeypatch.setattr(watchdog_module, "MOST_TRACKED", 1)
    first = acquire(api, there)
    second = api.acquire(redis_lock("other", ttl=6))
    eventually(lambda: there.exists("redislock:{other}:history"))
    assert there.info("stats")["tracking_total_keys"] == 1
    assert (first._lifetime.tracked, second._lifetime.tracked) == (True, False)
    there.delete("redislock:{other}")
    eventually(lambda: second.state == LeaseState.LOST)  # at its next renewal
    delete(there)
    eventually(lambda: first.state == LeaseState.LOST, within=TOLD)


def test_the_connection_is_lost(api: Api, there: Redis) -> None:
    """A new one follows the lock after the next renewal."""
    lease = api.acquire(redis_lock("job", ttl=9))
    tracked(there)
    box = server_of("default").kept(Inbox, "redislock")
    before = box.redirect
    there.client_kill_filter(_type="pubsub")
    eventually(lambda: box.redirect not in (None, before))
    eventually(
        lambda: any(
            its["redir"] == str(box.redirect) for its in there.client_list() if "t" in its["flags"]
        )
    )
    tracked(there)
    api.extend(lease, TTL)
    tracked(there)
    delete(there)
    eventually(lambda: lease.state == LeaseState.LOST)


@pytest.mark.parametrize(
    "refused",
    ["", "-client|tracking", "-client|id", "-client|caching", "resetchannels &redislock:*"],
)
def test_a_user_who_may_not(
    api: Api, server: RedisServer, there: Redis, settings: Any, refused: str
) -> None:
    """Everything else works, and the loss is noticed at the next renewal."""
    rule = documented("locks")
    there.execute_command("ACL", "SETUSER", *rule[2:], *refused.split())
    settings.CACHES = caches(server.url.replace("unix://", "unix://locks:SECRET@"))
    lease = api.acquire(redis_lock("job", ttl=4.5))
    eventually(lambda: there.exists(f"{KEY}:history"))  # the watchdog has looked at it
    if refused:
        waiter = api.start(lambda: api.acquire(redis_lock("job"), wait=PATIENCE))
        eventually(lambda: there.zcard(f"{KEY}:queue") == 1)
        assert there.info("stats")["tracking_total_keys"] == 0
        delete(there)
        eventually(lambda: lease.state == LeaseState.LOST)
        api.release(waiter.result(PATIENCE))
    else:
        tracked(there)
