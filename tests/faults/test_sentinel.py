"""A failover by real sentinels in the middle of holding and of waiting, which loses nothing.

What a failover may lose, and what comes of that: test_failover.py.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from redis import Redis
from redis.exceptions import RedisError

from devtools.redis_sentinel import RedisSentinels
from devtools.redis_server import RedisServer, find_server
from django_redislock import Lease, LeaseState, LockUnavailable, redis_lock
from django_redislock.inspection import Inspector
from tests.caches import through
from tests.contract.api import Api, extended
from tests.recovery import Recovery
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"

pytestmark = pytest.mark.skipif(
    find_server().binary is None, reason="needs servers of its own, and REDISLOCK_SERVER is a URL"
)


def role(server: RedisServer) -> bytes:
    """Return what it is; b"" while it closes all connections, since its role changes."""
    try:
        with Redis.from_url(server.url) as redis:
            of: bytes = redis.role()[0]
            return of
    except RedisError:
        return b""


class Watched(NamedTuple):
    """A primary and its replica, watched by three sentinels."""

    primary: RedisServer
    replica: RedisServer
    sentinels: RedisSentinels

    def kill(self) -> None:
        """Kill the primary, and wait for its successor."""
        assert self.primary.pid is not None
        os.kill(self.primary.pid, signal.SIGKILL)
        eventually(lambda: not self.primary.running)
        eventually(self.taken_over)

    def order(self) -> None:
        """Make them change places, as an operator does before maintenance. The old primary learns
        it later."""
        self.sentinels.ask("SENTINEL", "FAILOVER", self.sentinels.service)
        eventually(self.taken_over)

    def settled(self) -> bool:
        """The old primary is gone, or follows the new one: no more connections are closed."""
        if not self.primary.running:
            return True
        return role(self.primary) == b"slave"

    def taken_over(self) -> bool:
        return role(self.replica) == b"master" and self.sentinels.agree_on(self.replica)


@pytest.fixture
def watched(settings: Any) -> Iterator[Watched]:
    """Everybody asks the sentinels for the primary."""
    options = ["--repl-diskless-sync-delay", "0"]
    # Else it would go on granting locks while it does not know yet that it has a successor.
    refuses = ["--min-replicas-to-write", "1"]
    with RedisServer(tcp_port=0, args=[*options, *refuses]) as primary:
        follow = [*options, "--replicaof", "127.0.0.1", str(primary.tcp_port)]
        with (
            RedisServer(tcp_port=0, args=follow) as replica,
            RedisSentinels(primary) as sentinels,
        ):
            settings.CACHES = through(sentinels, timeout=2)
            yield Watched(primary, replica, sentinels)


@pytest.fixture(params=["kill", "order"])
def failover(request: pytest.FixtureRequest, watched: Watched) -> Callable[[], None]:
    """The primary dies, or is told to step back."""
    change: Callable[[], None] = getattr(watched, request.param)
    return change


def arrived(watched: Watched, waiters: int = 0) -> None:
    """Wait until the replica has the lock, and those who wait for it."""
    with Redis.from_url(watched.replica.url) as redis:
        eventually(lambda: redis.exists(KEY) and redis.zcard(f"{KEY}:queue") == waiters)


def all_have_asked(redis: Redis, since_us: int) -> bool:
    """Each of the three who wait has asked here since then, and its process listens here."""
    waiters = [waiter.split(b"|") for waiter in redis.hvals(f"{KEY}:waiters")]
    channels = redis.pubsub_channels("redislock:inbox:*")
    asked = [inbox in channels and int(seen) > since_us for seen, _, inbox, *_ in waiters]
    return asked == [True] * 3


def test_holding_and_waiting(watched: Watched, failover: Callable[[], None], api: Api) -> None:
    """The lease goes on, and those who wait get the lock, in the order in which they came, once
    they have asked the new primary. Before that, the first one to ask would have it."""
    lease = api.acquire(redis_lock("job", ttl=60))
    waiters = []
    for number in range(3):
        waiters.append(
            api.start(lambda: api.acquire(redis_lock("job", ttl=60), wait=2 * PATIENCE))
        )
        eventually(lambda n=number: len(Inspector().waiters("job")) == n + 1)
    arrived(watched, waiters=3)
    failover()
    eventually(lambda: extended(api, lease))
    assert lease.state == LeaseState.HELD
    with Redis.from_url(watched.replica.url) as redis:
        eventually(watched.settled)
        seconds, micros = redis.time()
        eventually(lambda: all_have_asked(redis, seconds * 1_000_000 + micros))
    for waiter in waiters:
        assert not waiter.done()
        api.release(lease)
        following = waiter.result(2 * PATIENCE)
        assert following.fencing_token > lease.fencing_token
        lease = following
    api.release(lease)
    with Redis.from_url(watched.replica.url) as redis:
        assert not redis.exists(KEY, f"{KEY}:queue")


def test_while_nobody_is_primary(watched: Watched, api: Api) -> None:
    """A renewal fails, and the lease is unknown; who waits goes on waiting."""
    lease = api.acquire(redis_lock("job", ttl=60))
    waiter = api.start(lambda: api.acquire(redis_lock("job"), wait=2 * PATIENCE))
    arrived(watched, waiters=1)
    assert watched.primary.pid is not None
    os.kill(watched.primary.pid, signal.SIGSTOP)
    with pytest.raises(LockUnavailable):
        api.extend(lease)
    assert lease.state == LeaseState.UNKNOWN
    lease.check()
    os.kill(watched.primary.pid, signal.SIGKILL)
    eventually(lambda: extended(api, lease))
    assert lease.state == LeaseState.HELD
    api.release(lease)
    api.release(waiter.result(2 * PATIENCE))


def test_renewed_by_the_watchdog(watched: Watched, failover: Callable[[], None], api: Api) -> None:
    """It finds the new primary by itself."""
    lease = api.acquire(redis_lock("job", ttl=24))
    arrived(watched)
    failover()
    due = lease._lifetime.due
    eventually(lambda: lease._lifetime.due > due and lease.state == LeaseState.HELD)
    with Redis.from_url(watched.replica.url) as redis:
        assert redis.get(KEY).decode().startswith(lease.token)
    api.release(lease)


def test_a_lease_that_was_confirmed(watched: Watched, api: Api) -> None:
    """With `replicas` it is on the new primary for sure. That has no replica itself yet, so no
    renewal counts until the old primary is back, and follows it."""
    lease = api.acquire(redis_lock("job", ttl=60, replicas=1))
    watched.kill()
    with pytest.raises(LockUnavailable):
        api.extend(lease)
    assert lease.state == LeaseState.UNKNOWN
    with Redis.from_url(watched.replica.url) as redis:
        assert redis.get(KEY).decode().startswith(lease.token)
    # Sentinels write into the old one's configuration that it is a replica now; ours has no file
    # for that. Started as a primary, without data, they might take it for theirs again.
    follow = ["--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1"]
    follow.append(str(watched.replica.tcp_port))
    with RedisServer(tcp_port=watched.primary.tcp_port, args=follow):
        eventually(lambda: extended(api, lease))
        assert lease.state == LeaseState.HELD
        api.release(lease)


FAULTS = {"kill": "Sentinel: the primary is killed", "order": "Sentinel: `SENTINEL FAILOVER`"}
SOON = 25.0
"""Seconds that all may take: some of them are those of the sentinels, here with
`down-after-milliseconds 500`."""


@pytest.mark.recovery
@pytest.mark.parametrize("how", FAULTS)
def test_how_long_it_takes(watched: Watched, how: str, api: Api, recovery: Recovery) -> None:
    """Until the new primary grants free locks and renews leases, and waiters listen there."""
    lease = api.acquire(redis_lock("job", ttl=60))
    waiter = api.start(lambda: api.acquire(redis_lock("job", ttl=60), wait=None))
    arrived(watched, waiters=1)
    with Redis.from_url(watched.replica.url) as redis:

        def ends() -> float:
            return time.time() * 1000 + redis.pttl(KEY)

        def granted() -> Lease:
            while True:
                eventually(lambda: role(watched.replica) == b"master")
                lease: Lease = api.acquire(redis_lock("free", ttl=60), wait=PATIENCE)
                if redis.exists("redislock:{free}"):  # not the old primary
                    return lease
                api.release(lease)

        recovery.begins()
        change = api.start(getattr(watched, how))
        free = recovery.start(api, granted)
        eventually(lambda: role(watched.replica) == b"master")
        before = ends()
        eventually(lambda: extended(api, lease) and ends() > before + 50)
        recovery.done(FAULTS[how], "a lease is renewed", within=SOON)
        eventually(lambda: redis.pubsub_channels("redislock:inbox:*"))
        recovery.done(FAULTS[how], "waiters are woken by messages", within=SOON)
        change.result(2 * PATIENCE)
        other, seconds = free.result(PATIENCE)
    recovery.took(seconds, FAULTS[how], "a free lock is acquired", within=SOON)
    eventually(watched.settled)
    api.release(other)
    api.release(lease)
    api.release(waiter.result(2 * PATIENCE))
