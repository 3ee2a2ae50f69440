"""The server's clock jumps, as when a virtual machine is moved or a wrong clock is corrected.

Debian's libfaketime does it: `apt-get install libfaketime`. Where it is missing these tests are
skipped, unless REDISLOCK_REQUIRE_FAKETIME=1 says that they must not be.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from redis import Redis

from devtools.redis_server import RedisServer, RedisServerError, find_server
from django_redislock import LeaseLost, LeaseState, redis_lock
from tests.caches import caches, entry
from tests.contract.api import Api
from tests.faults.torture.site import LIBFAKETIME, faked
from tests.faults.waiters import LOCK, NAME, Line, renew_now
from tests.waiting import PATIENCE, eventually

JUMP = 60.0
TTL = 30.0


class Clock:
    """The clock of a Redis server of our own."""

    def __init__(self, directory: Path) -> None:
        self._offset = directory / "offset"
        self._write(0)
        self.server = RedisServer(env=faked(self._offset))
        self.server.start()
        self.redis = Redis.from_url(self.server.url)

    def set(self, offset: float) -> None:
        """From now on it is so many seconds ahead of ours, or behind it."""
        self._write(offset)
        eventually(lambda: abs(self._ahead() - offset) < 5, within=5)

    def _ahead(self) -> float:
        return float(self.redis.time()[0]) - time.time()

    def _write(self, offset: float) -> None:
        new = self._offset.with_suffix(".new")
        new.write_text(f"{offset:+g}\n")
        new.replace(self._offset)

    def close(self) -> None:
        self.redis.close()
        self.server.stop()


@pytest.fixture(scope="module")
def shared_clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clock]:
    if find_server().url is not None:
        pytest.skip("needs a server of its own to harm")
    if LIBFAKETIME is None:
        missing("there is no libfaketime")
    try:
        clock = Clock(tmp_path_factory.mktemp("clock"))
    except RedisServerError as error:
        missing(f"the server does not start with libfaketime: {error}")
    try:
        try:
            clock.set(JUMP)
        except AssertionError:
            missing("the server does not take its time from libfaketime")
        yield clock
    finally:
        clock.close()


def missing(why: str) -> NoReturn:
    if os.environ.get("REDISLOCK_REQUIRE_FAKETIME") == "1":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture
def clock(shared_clock: Clock, settings: Any) -> Clock:
    """It is right, and knows no locks."""
    shared_clock.set(0)
    shared_clock.redis.flushall()
    settings.CACHES = caches(shared_clock.server.url)
    return shared_clock


def test_the_fencing_token_grows(api: Api, clock: Clock) -> None:
    """Whichever way the clock jumps, and whether leases are released or expire."""
    tokens = []
    for offset in (0, JUMP, 0, -JUMP, 0, JUMP, -JUMP / 2, 0):
        clock.set(offset)
        lease = api.acquire(redis_lock(NAME))
        tokens.append(lease.fencing_token)
        api.release(lease)
        expires = api.acquire(redis_lock(NAME, ttl=0.1, renew=False))
        tokens.append(expires.fencing_token)
        eventually(lambda: not clock.redis.exists(LOCK))
    assert tokens == sorted(set(tokens))


def test_forward_by_more_than_a_lease(api: Api, clock: Clock) -> None:
    """The lease ends at once. Its holder is told at the next renewal; the first waiter who looks
    has the lock, the others keep their order."""
    lease = api.acquire(redis_lock(NAME, ttl=TTL))
    line = Line(api, clock.redis, 5)
    clock.set(JUMP)
    first = line.one_enters()
    assert lease.state == LeaseState.HELD, "by its own clock, until it asks"
    renew_now(lease)
    eventually(lambda: lease.state == LeaseState.LOST)
    with pytest.raises(LeaseLost):
        api.release(lease)
    line.all_enter(after=lease)
    assert line.order == [first, *(number for number in range(5) if number != first)]


def test_forward_by_less_than_a_lease(api: Api, clock: Clock) -> None:
    """The holder keeps it, for that much less. Those who wait are not taken for stopped, although
    none of them was seen lately by that clock."""
    lease = api.acquire(redis_lock(NAME, ttl=TTL))
    line = Line(api, clock.redis, 5)
    clock.set(TTL / 2)
    assert lease.state == LeaseState.HELD
    assert 0 < clock.redis.pttl(LOCK) / 1000 <= TTL / 2
    api.release(lease)
    line.one_enters()
    line.all_enter(after=lease)
    assert line.order == [0, 1, 2, 3, 4]


def test_back(api: Api, clock: Clock) -> None:
    """The lease lives longer at the server, by as much. Waiters that come after the jump stand
    behind those that came before it, and nobody is kept from the lock."""
    lease = api.acquire(redis_lock(NAME, ttl=TTL))
    line = Line(api, clock.redis, 3)
    clock.set(-JUMP)
    line.join(2)
    assert JUMP < clock.redis.pttl(LOCK) / 1000 <= TTL + JUMP
    api.extend(lease)
    assert lease.state == LeaseState.HELD
    api.release(lease)
    line.all_enter(after=lease)
    assert line.order == [0, 1, 2, 3, 4]


def test_back_and_forward_again(api: Api, clock: Clock) -> None:
    """A lease that was taken while the clock was wrong lives on when it is right again."""
    clock.set(-JUMP)
    lease = api.acquire(redis_lock(NAME, ttl=2 * JUMP))
    clock.set(0)
    api.extend(lease)
    assert lease.state == LeaseState.HELD
    api.release(lease)
    assert lease.state == LeaseState.RELEASED


@pytest.mark.parametrize(("offset", "held"), [(-JUMP, 0), (10, 10)])
def test_what_is_told_of_the_holder(api: Api, clock: Clock, offset: float, held: float) -> None:
    """Since when, by the server's clock of that time; for how long, by that of now, and never
    less than nothing."""
    lease = api.acquire(redis_lock(NAME, ttl=TTL))
    clock.set(offset)
    holder = api.holder(redis_lock(NAME))
    assert holder is not None
    assert holder.acquired_at == lease.acquired_at
    assert held <= holder.held < held + PATIENCE
    assert holder.remaining <= TTL - offset
    api.release(lease)


@pytest.mark.parametrize("step", [20.0, -20.0])
def test_a_lock_that_is_handed_over_by_a_message(
    api: Api, clock: Clock, settings: Any, step: float
) -> None:
    """The waiter knows the server's clock from before it was set. It does not believe in its
    lease for longer than the server does."""
    settings.CACHES = caches(clock.server.url) | {
        "elsewhere": entry(f"{clock.server.url}#elsewhere")
    }
    held = redis_lock(NAME, using="elsewhere", ttl=300).acquire()
    assert held is not None
    lock = redis_lock(NAME, ttl=60, wait=None)
    waiter = api.start(lambda: api.acquire(lock, wait=None))
    eventually(lambda: clock.redis.pubsub_channels("redislock:inbox:*"))
    waiters = f"{LOCK}:waiters"
    first = clock.redis.hvals(waiters)
    eventually(lambda: clock.redis.hvals(waiters) not in ([], first))
    clock.set(step)
    held.release()
    lease = waiter.result(PATIENCE)
    left = lease.remaining()
    assert 0 < left <= clock.redis.pttl(LOCK) / 1000 + 0.1
    api.release(lease)
