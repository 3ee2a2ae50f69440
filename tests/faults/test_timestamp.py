"""Timestamp locks, alone and beside a mutex: what they don't share with other kinds of lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import Lease, LeaseState, LockUnavailable, TimestampLock, redis_lock
from django_redislock.base import tokens
from django_redislock.base.clock import deadline
from django_redislock.base.exceptions import LockNotAcquired
from django_redislock.primitives import timestamp
from django_redislock.primitives.contract import Refusal, run
from django_redislock.transport import ports
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.caches import entry
from tests.classic import Classic
from tests.contract.api import Api
from tests.faults.proxy import Fault, Proxy, script
from tests.faults.scene import FOR_EVER, TIMEOUT
from tests.processes import Worker
from tests.waiting import PATIENCE, eventually

KEY, MUTEX = "lock.import", "redislock:{import}"
BOTH = pytest.mark.parametrize("both", [False, True], ids=["alone", "with-a-mutex"])


@pytest.fixture(autouse=True)
def _clean(redis: Redis) -> Iterator[None]:
    redis.delete(KEY)
    yield
    redis.delete(KEY)


@pytest.fixture
def lossy(proxy: Proxy, redis_server: RedisServer, settings: Any) -> Proxy:
    """A proxy behind which clients are impatient; "direct" goes past it."""
    impatient = entry(proxy.url, SOCKET_TIMEOUT=TIMEOUT)
    settings.CACHES = {"default": impatient, "direct": entry(redis_server.url)}
    return proxy


def lock(both: bool, **options: Any) -> Any:
    if both:
        return redis_lock("import", timestamp_key=KEY, **options)
    return TimestampLock(KEY, **options)


def free(redis: Redis) -> bool:
    return not redis.exists(KEY, MUTEX)


def held_by(redis: Redis, lease: Lease) -> bool:
    holder = redis.hget(f"redislock:key:{{{KEY}}}:timestamp", "holder") or b""
    return bool(redis.exists(KEY)) and holder.startswith(lease.token.encode())


@BOTH
def test_a_killed_holder(start: Callable[..., Worker], api: Api, redis: Redis, both: bool) -> None:
    """It has renewed its lock; what the key says then is the time at which the next one gets it,
    ours or an old client."""
    program = ["hold", "1", "migration" if both else "timestamp"]
    holder = start(*program)
    holder.holds()
    first = int(redis.get(KEY))
    eventually(lambda: int(redis.get(KEY)) > first)
    assert api.acquire(lock(both), wait=0) is None
    holder.kill()
    ends = int(redis.get(KEY))
    lease = api.acquire(lock(both), wait=PATIENCE)
    assert redis.time()[0] >= ends
    api.release(lease)
    assert free(redis)

    holder = start(*program)
    holder.holds()
    holder.kill()
    old = Classic(redis, KEY)
    assert not old.acquire()
    eventually(old.acquire)


@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.LOSE_REPLY])
def test_an_outage_while_it_waits_for_an_old_client(
    api: Api, lossy: Proxy, redis: Redis, fault: Fault
) -> None:
    """Longer than a round of the wait, which is a third of the ttl: it goes on, and gets it."""
    old = Classic(redis, KEY)
    assert old.acquire()
    rule = lossy.on(script("timestamp_acquire"), fault, times=FOR_EVER)
    waiter = api.start(lambda: api.acquire(lock(True, ttl=0.9), wait=PATIENCE))
    rule.happened(6)
    assert not waiter.done()
    old.release()
    rule.let_go()
    lease = waiter.result(PATIENCE)
    assert held_by(redis, lease)
    lease.check()
    api.release(lease)
    assert free(redis)


class Slow(SyncPort):
    """Each answer of the first round comes in time for its own step, but both together take
    longer than the lease lives."""

    def __init__(self, ttl: float) -> None:
        super().__init__(server_of("default"))
        self._ahead = 0.0
        self._slow = {"mutex_acquire": 0.5 * ttl, "timestamp_acquire": 0.6 * ttl}

    def now(self) -> float:
        return super().now() + self._ahead

    async def script(self, name: str, *words: Any) -> Any:
        answer = await super().script(name, *words)
        self._ahead += self._slow.pop(name, 0.0)
        return answer


@pytest.mark.parametrize("wait", [0, None])
def test_the_second_comes_after_the_first_is_over(redis: Redis, wait: float | None) -> None:
    """A lease that is returned is held; with wait=0 there is none, and an error."""
    lease = lock(True, ttl=30).acquire()
    claim = copy(lease._claim)
    claim.token, claim.sent = tokens.new(), False
    lease.release()
    port = Slow(claim.ttl)
    if wait == 0:
        with pytest.raises(LockUnavailable):
            run(timestamp.TOGETHER.acquire(port, claim, wait))
    else:
        got = run(timestamp.TOGETHER.acquire(port, claim, wait))
        assert not isinstance(got, LockNotAcquired)
        assert port.now() < deadline(got.sent, claim.ttl)
        assert redis.exists(KEY, MUTEX) == 2
    assert run(timestamp.TOGETHER.release(SyncPort(server_of("default")), claim)) is None
    assert free(redis)


def test_a_release_by_who_does_not_know_of_the_first(api: Api, redis: Redis) -> None:
    """The server remembers nothing of it. A claim knows that an answer was lost, and believes that
    the lock was released then."""
    lease = api.acquire(TimestampLock(KEY))
    first, second = copy(lease._claim), copy(lease._claim)
    assert run(timestamp.WHOLE.release(SyncPort(server_of("default")), first)) is None
    assert free(redis)
    refusal = run(timestamp.WHOLE.release(SyncPort(server_of("default")), second))
    assert refusal == Refusal(None, None)
    second.release_lost = True
    assert run(timestamp.WHOLE.release(SyncPort(server_of("default")), second)) is None


def test_redis_goes_away_between_the_two_releases(
    api: Api, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release that is repeated finds that the timestamp lock is free, which is no loss."""
    real = ports.BasePort.script

    async def away(self: Any, name: str, keys: Any, args: Any) -> Any:
        if name == "mutex_release":
            raise LockUnavailable("nobody listens")  # so the request was not sent
        return await real(self, name, keys, args)

    lease = api.acquire(lock(True))
    monkeypatch.setattr(ports.BasePort, "script", away)
    with pytest.raises(LockUnavailable):
        api.release(lease)
    assert not redis.exists(KEY)
    assert redis.exists(MUTEX)
    monkeypatch.undo()
    api.release(lease)
    # The one in the background may be the first.
    eventually(lambda: lease.state == LeaseState.RELEASED)
    assert free(redis)
