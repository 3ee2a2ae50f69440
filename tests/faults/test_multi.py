"""A lock on several names when a waiter, a node or the data is away. What it shares with other
kinds of lock is in test_kinds.py."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import LeaseState, LockUnavailable, MultiLock, redis_lock
from django_redislock.transport import ports
from django_redislock.transport.ports import BasePort
from tests.caches import caches, entry
from tests.calling import at_length
from tests.contract.api import Api
from tests.contract.test_contract import keys
from tests.faults.proxy import Fault, Proxy, script
from tests.faults.scene import FAULTS, FOR_EVER, TIMEOUT
from tests.waiting import PATIENCE, eventually

ACQUIRE = script("mutex_acquire")
NAMES = ["a", "b", "c"]


@pytest.fixture(autouse=True)
def _past_the_proxy(proxy: Proxy, redis_server: RedisServer, settings: Any) -> None:
    """Clients give up on an answer soon; "direct" is a way past the proxy."""
    settings.CACHES = caches(proxy.url, SOCKET_TIMEOUT=TIMEOUT) | {
        "direct": entry(redis_server.url)
    }


def key(name: str, beside: str = "") -> str:
    return f"redislock:{{{name}}}{beside}"


def direct(name: str) -> redis_lock:
    return redis_lock(name, using="direct")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("away", NAMES)
def test_a_node_of_a_cluster_is_away(
    api: Api, proxy: Proxy, redis: Redis, fault: Fault, away: str, monkeypatch: Any
) -> None:
    """While it waits for that one, it keeps nobody from the names that are elsewhere; and it has
    all of them when it is back."""
    monkeypatch.setattr(BasePort, "slots", lambda _, keys: [crc32(key.encode()) for key in keys])
    at_length(monkeypatch)
    rule = proxy.on(
        lambda words: ACQUIRE(words) and words[3] == key(away).encode(), fault, times=FOR_EVER
    )
    several = api.start(lambda: api.acquire(MultiLock(NAMES, ttl=600), wait=None))
    rule.happened()
    others = [api.acquire(direct(name), wait=PATIENCE) for name in NAMES if name != away]
    assert all(others)
    rule.happened(rule.count + 2)
    for other in others:
        api.release(other)
    rule.let_go()
    lease = several.result(PATIENCE)
    assert all(redis.get(key(name)).decode().startswith(lease.token) for name in NAMES)
    api.release(lease)
    eventually(lambda: not keys(redis))


def test_a_lost_wakeup(api: Api, proxy: Proxy, redis: Redis) -> None:
    """Its next slice finds the name its own, or free, and takes the others too."""
    single = api.acquire(direct("b"))
    waiter = api.start(lambda: api.acquire(MultiLock(NAMES), wait=PATIENCE))
    eventually(lambda: redis.zcard(key("b", ":queue")))
    proxy.deaf = True
    api.release(single)
    lease = waiter.result(PATIENCE)
    api.release(lease)
    assert not keys(redis)


def test_a_waiter_that_is_gone(api: Api, proxy: Proxy, redis: Redis) -> None:
    """What was handed to it goes on to the next one after a few seconds."""
    single = api.acquire(direct("b"))
    rule = proxy.on(ACQUIRE, Fault.LOSE_REQUEST, times=0)
    gone = api.start(lambda: api.acquire(MultiLock(NAMES), wait=PATIENCE))
    eventually(lambda: redis.zcard(key("b", ":queue")))
    next_one = api.start(lambda: api.acquire(direct("b"), wait=PATIENCE))
    eventually(lambda: redis.zcard(key("b", ":queue")) == 2)
    rule.times = FOR_EVER  # from here on, nothing of it arrives
    api.release(single)
    lease = next_one.result(PATIENCE)
    rule.let_go()
    api.release(lease)
    api.release(gone.result(PATIENCE))
    assert not keys(redis)


def test_names_that_were_lost_while_it_waited(api: Api, proxy: Proxy, redis: Redis) -> None:
    """A FLUSHDB in the middle: it comes back to its place, and gets all of them in the end."""
    single = api.acquire(direct("b"))
    waiter = api.start(lambda: api.acquire(MultiLock(NAMES), wait=PATIENCE))
    eventually(lambda: redis.zcard(key("b", ":queue")))
    redis.delete(*redis.keys("redislock:*"))
    lease = waiter.result(PATIENCE)
    assert all(redis.get(key(name)).decode().startswith(lease.token) for name in NAMES)
    assert single.token != lease.token
    api.release(lease)


def test_a_node_of_a_cluster_is_away_at_the_release(
    api: Api, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release that is repeated finds that the other names are free, which is no loss."""
    monkeypatch.setattr(BasePort, "slots", lambda _, keys: [crc32(key.encode()) for key in keys])
    at_length(monkeypatch)
    lease = api.acquire(MultiLock(NAMES))
    real = ports.BasePort.script

    async def away(self: Any, name: str, keys: Any, args: Any) -> Any:
        if name == "mutex_release" and keys[0] == key("b"):
            raise LockUnavailable("nobody listens")  # so the request was not sent
        return await real(self, name, keys, args)

    with monkeypatch.context() as patch:
        patch.setattr(ports.BasePort, "script", away)
        with pytest.raises(LockUnavailable):
            api.release(lease)
        assert [redis.exists(key(name)) for name in NAMES] == [0, 1, 0]
    api.release(lease)
    # The one in the background may be the first.
    eventually(lambda: lease.state == LeaseState.RELEASED)
    assert not redis.exists(*map(key, NAMES))
