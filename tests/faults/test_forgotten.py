"""Connections that something between us and the server has forgotten, since they were idle.

A firewall, a load balancer or a NAT gateway drops the state of a connection after some minutes
without a packet, and tells neither end. What the client sends next is answered with a reset, or
gets lost. The server goes on believing in the connection.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import Lease, LeaseState, LockUnavailable, redis_lock
from django_redislock.transport.protocol import ANSWER_WITHIN
from django_redislock.transport.server import server_of
from django_redislock.transport.subscription import Subscription
from tests.caches import caches, entry
from tests.contract.api import Api, AsyncApi, queued
from tests.faults.proxy import Fault, Proxy
from tests.recovery import Recovery
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.recovery

RESET, LOST = Fault.RESET_BEFORE, Fault.LOSE_REQUEST
KINDS = {
    RESET: "an idle connection is forgotten, and what is sent over it is answered with a reset",
    LOST: "an idle connection is forgotten, and what is sent over it gets lost",
}
both = pytest.mark.parametrize("fault", list(KINDS), ids=lambda fault: fault.name.lower())
INTERVAL = 0.2
"""Seconds; a health_check_interval."""
MARGIN = 3.0
"""Seconds by which a busy machine may be late."""
MANY = 4
"""Idle connections of a pool."""


def idle(api: Api, number: int) -> None:
    """Open connections that are idle from then on: one of the event loop, or those of threads."""
    if isinstance(api, AsyncApi):
        api.release(api.acquire(redis_lock("warm")))
        return
    pool: Any = server_of("default").shared_pool()
    connections = [pool.get_connection() for _ in range(number)]
    for connection in connections:
        pool.release(connection)


def acquired(api: Api, wait: float) -> Any:
    try:
        return api.acquire(redis_lock("job"), wait=wait)
    except LockUnavailable:
        assert wait == 0, "there was time for another try"
        return None


@both
@pytest.mark.parametrize("wait", [0, 10], ids=["try", "wait"])
def test_a_lock(api: Api, proxy: Proxy, recovery: Recovery, fault: Fault, wait: float) -> None:
    """A reset costs nothing, even a caller that does not wait. A message that gets lost costs the
    time-out of an answer; a caller with less time fails, until that time-out is over."""
    idle(api, MANY)
    proxy.forget(fault)
    recovery.begins()
    if fault is RESET:
        lease = api.acquire(redis_lock("job"), wait=wait)
    else:
        lease = eventually(lambda: acquired(api, wait))
    limit = MARGIN if fault is RESET else ANSWER_WITHIN + MARGIN
    recovery.done(KINDS[fault], "a lock is acquired", within=limit)
    api.release(lease)


@both
def test_with_a_health_check_interval(
    api: Api, proxy: Proxy, settings: Any, recovery: Recovery, fault: Fault
) -> None:
    """A connection that was idle for longer is not used again. So it costs nothing, even a caller
    that does not wait."""
    options = {"health_check_interval": INTERVAL}
    settings.CACHES = caches(f"{proxy.url}-checked", CONNECTION_POOL_KWARGS=options)
    idle(api, MANY)
    before = proxy.connected
    time.sleep(2 * INTERVAL)  # idle for longer
    proxy.forget(fault)
    recovery.begins()
    lease = api.acquire(redis_lock("job"), wait=0)
    recovery.done(KINDS[fault], "a lock is acquired, with `health_check_interval`", within=MARGIN)
    assert lease is not None
    assert proxy.connected > before
    api.release(lease)


@pytest.fixture
def waiting(
    api: Api, proxy: Proxy, redis: Redis, redis_server: RedisServer, settings: Any
) -> tuple[Lease, Future[Any]]:
    """A lease that is held past the proxy, and somebody who waits for the lock through it."""
    settings.CACHES["direct"] = entry(redis_server.url)
    lease = api.acquire(redis_lock("job", using="direct"))
    waiter = api.start(lambda: api.acquire(redis_lock("job"), wait=None))
    queued(redis, "job", 1)
    eventually(lambda: listens(redis))
    return lease, waiter


def listens(redis: Redis) -> bool:
    """Whether the server can wake the one who waits, as both know."""
    [waiter] = redis.hvals("redislock:{job}:waiters")
    [(_, listeners)] = redis.pubsub_numsub(waiter.split(b"|")[2])
    return bool(listeners)


@both
def test_a_waiter(
    api: Api,
    proxy: Proxy,
    waiting: tuple[Lease, Future[Any]],
    recovery: Recovery,
    fault: Fault,
) -> None:
    """The server still counts its process as a listener, and hands it the lock. Nobody hears of
    that, but a waiter asks by itself."""
    lease, waiter = waiting
    proxy.forget(fault)
    recovery.begins()
    api.release(lease)
    following = waiter.result(2 * PATIENCE)
    limit = MARGIN if fault is RESET else ANSWER_WITHIN + MARGIN
    recovery.done(KINDS[fault], "a waiter has the lock that is released", within=limit)
    api.release(following)


@pytest.fixture
def pings(recovery: Recovery, monkeypatch: pytest.MonkeyPatch) -> float:
    """After so many seconds without a message, an inbox sends a PING."""
    if not recovery.recorded:
        monkeypatch.setattr(Subscription, "PING_EVERY", 1.0)
    return Subscription.PING_EVERY


@both
def test_the_inbox(
    api: Api,
    proxy: Proxy,
    redis: Redis,
    recovery: Recovery,
    pings: float,
    waiting: tuple[Lease, Future[Any]],
    fault: Fault,
) -> None:
    """The process listens again when a PING was answered with a reset, or not at all."""

    def listeners() -> set[str]:
        return {one["id"] for one in redis.client_list(_type="pubsub")}

    lease, waiter = waiting
    before = listeners()
    proxy.forget(fault)
    recovery.begins()
    eventually(lambda: listeners() - before)
    limit = pings * (1 if fault is RESET else 2) + MARGIN
    recovery.done(KINDS[fault], "waiters are woken by messages", within=limit)
    api.release(lease)
    api.release(waiter.result(PATIENCE))


@both
def test_a_renewal(api: Api, proxy: Proxy, redis: Redis, recovery: Recovery, fault: Fault) -> None:
    """It is sent again over another connection, while the lease lives."""
    ttl, lost = 6.0, threading.Event()
    lease = api.acquire(redis_lock("job", ttl=ttl, on_lost=lambda lease: lost.set()))
    first = redis.pexpiretime("redislock:{job}")
    eventually(lambda: redis.pexpiretime("redislock:{job}") > first)  # it is connected
    proxy.forget(fault)
    recovery.begins()
    last = redis.pexpiretime("redislock:{job}")
    eventually(lambda: redis.pexpiretime("redislock:{job}") > last)
    recovery.done(KINDS[fault], f"a lease of {ttl:g} s is renewed", within=ttl)
    eventually(lambda: lease.state == LeaseState.HELD)
    assert not lost.is_set()
    proxy.cut()  # what idles in the pool is of no use for the release
    proxy.mend()
    eventually(lambda: released(api, lease))


def released(api: Api, lease: Lease) -> bool:
    try:
        api.release(lease)
    except LockUnavailable:
        return False
    return True
