"""What a lock owes that is a mutex and a timestamp lock in one, sync and async."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from redis import Redis

from django_redislock import (
    LeaseLost,
    LeaseRevoked,
    LockError,
    LockNotAcquired,
    LockReentered,
    ReadWriteLock,
    Semaphore,
    TimestampLock,
    once,
    redis_lock,
)
from django_redislock.inspection import Inspector
from tests.classic import Classic
from tests.contract.api import Api
from tests.contract.test_mutex import round_trips
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

KEY, OLD = "redislock:{import}", "lock.import"


@pytest.fixture(autouse=True)
def _clean(redis: Redis, settings: Any) -> Iterator[None]:
    redis.delete(OLD)
    settings.REDISLOCK = {"LOCKS": {"import": {"TIMESTAMP_KEY": OLD}}}
    yield
    redis.delete(OLD)


def elsewhere(api: Api, call: Callable[[], Any]) -> Any:
    return api.start(call).result(PATIENCE)


def test_both_are_held(api: Api, redis: Redis) -> None:
    """Both locks are held, and both are gone after the release. The mutex gives the fencing
    token."""
    lease = api.acquire(redis_lock("import"))
    assert redis.get(KEY).startswith(lease.token.encode())
    assert redis.get(OLD).isdigit()
    assert lease.fencing_token > 0
    assert not Classic(redis, OLD).acquire()
    assert elsewhere(api, lambda: api.acquire(redis_lock("import"), wait=0)) is None
    assert elsewhere(api, lambda: api.acquire(TimestampLock(OLD), wait=0)) is None
    api.release(lease)
    assert not redis.exists(KEY, OLD)


def test_an_old_client_that_polls_fast(api: Api, redis: Redis) -> None:
    """An old client that takes the lock again at once does not keep new code out."""
    stop, begun = threading.Event(), threading.Event()

    def old() -> None:
        client = Classic(redis, OLD)
        while not stop.is_set():
            if client.acquire():
                begun.set()
                stop.wait(0.005)
                client.release()
            stop.wait(0.002)

    thread = threading.Thread(target=old)
    thread.start()
    try:
        assert begun.wait(PATIENCE)
        for _ in range(5):
            api.release(api.acquire(redis_lock("import"), wait=PATIENCE))
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("ttl", [30, 1.5])
def test_who_waits_for_old_ones_asks_often(api: Api, redis: Redis, ttl: float) -> None:
    """The holder of the mutex asks for the other lock many times in a second, or old clients that
    do so would always be faster. It keeps to that however often the mutex was extended."""
    old = Classic(redis, OLD)
    assert old.acquire()
    waiter = api.start(lambda: api.acquire(redis_lock("import", ttl=ttl), wait=PATIENCE))
    eventually(lambda: redis.exists(KEY))
    before = round_trips(redis)
    threading.Event().wait(2)
    asked = round_trips(redis) - before
    old.release()
    api.release(waiter.result(PATIENCE))
    assert 15 < asked < 100


def test_the_second_key_is_of_another_type(api: Api, redis: Redis) -> None:
    """The error comes at once, and the first lock is given back."""
    redis.rpush(OLD, "x")
    with pytest.raises(LockError):
        api.acquire(redis_lock("import"), wait=None)
    assert not redis.exists(KEY)
    assert redis.lrange(OLD, 0, -1) == [b"x"]


def test_once(api: Api, redis: Redis, settings: Any) -> None:
    """Work that is done once is done under both locks."""
    settings.REDISLOCK = {"LOCKS": {"once:import": {"TIMESTAMP_KEY": OLD}}}
    done = []
    for _ in range(2):
        api.enter(once("import"), lambda first: first and done.append(redis.exists(OLD)))
    assert done == [1]
    assert not redis.exists(OLD)


def test_in_the_code(api: Api, redis: Redis, settings: Any) -> None:
    """The code can name the second key of a lock; the settings can name it for a pattern."""
    settings.REDISLOCK = {}
    lease = api.acquire(redis_lock("import", timestamp_key=OLD))
    assert redis.exists(KEY, OLD) == 2
    api.release(lease)
    settings.REDISLOCK = {"LOCKS": {"im*": {"TIMESTAMP_KEY": "lock.{name}"}}}
    lease = api.acquire(redis_lock("import"))
    assert redis.exists(KEY, OLD) == 2
    api.release(lease)


def test_a_pattern_is_for_mutexes(api: Api, redis: Redis, settings: Any) -> None:
    """A lock that the code makes of another kind has no second key. A timestamp lock has the key
    that the code says, or that an entry for timestamp locks says."""
    settings.REDISLOCK = {"LOCKS": {"*": {"TIMESTAMP_KEY": "other.{name}"}}}
    for lock in (TimestampLock(OLD), Semaphore("s", 3), ReadWriteLock("r").write()):
        lease = api.acquire(lock)
        assert not redis.keys("other.*")
        api.extend(lease)
        api.release(lease)
    lease = api.acquire(TimestampLock("import", timestamp_key=OLD))
    assert redis.exists(OLD)
    api.release(lease)
    settings.REDISLOCK = {"LOCKS": {"import": {"KIND": "timestamp", "TIMESTAMP_KEY": OLD}}}
    for lock in (TimestampLock("import"), redis_lock("import")):
        lease = api.acquire(lock)
        assert redis.exists(OLD)
        api.release(lease)


def test_fractions_are_refused(api: Api, settings: Any) -> None:
    """Beside a mutex, fractions would not be written."""
    settings.REDISLOCK = {"LOCKS": {"import": {"TIMESTAMP_KEY": OLD, "FRACTIONS": True}}}
    with pytest.raises(ImproperlyConfigured, match="whole seconds"):
        api.acquire(redis_lock("import"))


def test_two_names_with_one_old_key(api: Api, settings: Any) -> None:
    """A holder of one name would wait for itself, and gets an error; others wait."""
    settings.REDISLOCK = {"LOCKS": {"import*": {"TIMESTAMP_KEY": OLD}}}

    def both(lease: Any) -> None:
        assert elsewhere(api, lambda: api.acquire(redis_lock("import:2"), wait=0)) is None

    api.enter(redis_lock("import:1"), both)
    lease = redis_lock("import:1").acquire()
    for other in (redis_lock("import:2"), TimestampLock(OLD), redis_lock("import:1")):
        with pytest.raises(LockReentered):
            other.acquire()
    lease.release()
    lease = TimestampLock(OLD).acquire()
    with pytest.raises(LockReentered):
        redis_lock("import:2").acquire()
    lease.release()
    lease = redis_lock("import:1", reentrant=True).acquire()
    assert redis_lock("import:1", reentrant=True).acquire() is lease
    with pytest.raises(LockReentered):
        redis_lock("import:2", reentrant=True).acquire()
    lease.release()
    lease.release()


def test_the_line_is_deleted(api: Api, redis: Redis, settings: Any) -> None:
    """While the settings are rolled out, processes with the entry and processes without it exclude
    each other. A lease is released as it was acquired."""
    lease = api.acquire(redis_lock("import"))
    settings.REDISLOCK = {}
    assert elsewhere(api, lambda: api.acquire(redis_lock("import"), wait=0)) is None
    api.release(lease)
    assert not redis.exists(KEY, OLD)
    lease = api.acquire(redis_lock("import"))
    assert not redis.exists(OLD)
    settings.REDISLOCK = {"LOCKS": {"import": {"TIMESTAMP_KEY": OLD}}}
    assert elsewhere(api, lambda: api.acquire(redis_lock("import"), wait=0)) is None
    api.release(lease)


def test_an_old_client_holds_it(api: Api, redis: Redis) -> None:
    """A caller that does not get the second lock gives the first one back, and the error names the
    old client."""
    old = Classic(redis, OLD)
    assert old.acquire()
    assert api.acquire(redis_lock("import"), wait=0) is None
    assert api.acquire(redis_lock("import"), wait=0.2) is None
    assert not redis.exists(KEY)
    with pytest.raises(LockNotAcquired) as caught:
        api.enter(redis_lock("import", wait=0), lambda lease: None)
    holder = caught.value.holder
    assert holder.owner is None
    assert holder.remaining is not None
    assert 25 < holder.remaining <= 31
    assert api.holder(redis_lock("import")).remaining > 25
    old.release()
    lease = api.acquire(redis_lock("import"), wait=0)
    assert lease is not None
    api.release(lease)


def test_it_waits_for_an_old_client(api: Api, redis: Redis) -> None:
    """A waiter that waits for longer than its ttl extends the mutex meanwhile, and keeps its
    place."""
    old = Classic(redis, OLD)
    assert old.acquire()
    first = api.start(lambda: api.acquire(redis_lock("import", ttl=0.6), wait=None))
    eventually(lambda: redis.exists(KEY))
    value = redis.get(KEY)
    second = api.start(lambda: api.acquire(redis_lock("import"), wait=None))
    eventually(lambda: redis.zcard(f"{KEY}:queue") == 1)
    before = redis.time()[0]
    eventually(lambda: redis.time()[0] >= before + 2)
    assert redis.get(KEY)[33:] == value[33:]
    assert not first.done()
    old.release()
    lease = first.result(PATIENCE)
    lease.check()
    assert redis.get(KEY)[33:] == value[33:]
    api.release(lease)
    api.release(second.result(PATIENCE))


def test_the_mutex_is_lost_while_it_waits(api: Api, redis: Redis) -> None:
    """The waiter waits for the mutex again."""
    old = Classic(redis, OLD)
    assert old.acquire()
    waiter = api.start(lambda: api.acquire(redis_lock("import", ttl=0.6), wait=None))
    eventually(lambda: redis.exists(KEY))
    first = redis.get(KEY)
    redis.delete(KEY)
    eventually(lambda: redis.exists(KEY))
    assert redis.get(KEY) != first
    old.release()
    lease = waiter.result(PATIENCE)
    lease.check()
    api.release(lease)


def test_an_old_client_is_cleared(api: Api, redis: Redis) -> None:
    """While new code waits for an old client, an operator sees and clears the old client."""
    old = Classic(redis, OLD)
    assert old.acquire()
    waiter = api.start(lambda: api.acquire(redis_lock("import"), wait=None))
    eventually(lambda: redis.exists(KEY))
    assert api.holder(redis_lock("import")).owner is None
    assert api.clear(redis_lock("import"), reason="its machine is gone").owner is None
    lease = waiter.result(PATIENCE)
    lease.check()
    assert api.holder(redis_lock("import")).owner == lease.owner
    api.release(lease)


def test_cleared_while_it_waits(api: Api, redis: Redis) -> None:
    """If an operator clears the mutex that a waiter holds, the waiter gets the error, and nothing
    is left."""
    old = Classic(redis, OLD)
    assert old.acquire()
    waiter = api.start(lambda: api.acquire(redis_lock("import", ttl=0.6), wait=None))
    eventually(lambda: redis.exists(KEY))
    seen = Inspector().get("import")
    assert Inspector().clear(seen, by="Ada", reason="stuck")
    with pytest.raises(LeaseRevoked):
        waiter.result(PATIENCE)
    eventually(lambda: not redis.exists(KEY))
    assert redis.exists(OLD), "which is the old client's"


def test_both_are_renewed(api: Api, redis: Redis) -> None:
    """The watchdog renews both locks."""
    lease = api.acquire(redis_lock("import", ttl=1))
    before = int(redis.get(OLD))
    eventually(lambda: int(redis.get(OLD)) >= before + 2)
    lease.check()
    assert redis.get(KEY).startswith(lease.token.encode())
    api.extend(lease, 60)
    assert int(redis.get(OLD)) > before + 50
    assert redis.pttl(KEY) > 50_000
    api.release(lease)


@pytest.mark.parametrize("extended", [True, False])
@pytest.mark.parametrize("key", [KEY, OLD])
def test_lost_when_either_is(api: Api, redis: Redis, key: str, extended: bool) -> None:
    """A release frees what is left, whether an extension has noticed the loss or not."""
    lease = api.acquire(redis_lock("import"))
    redis.delete(key)
    if extended:
        with pytest.raises(LeaseLost):
            api.extend(lease)
    with pytest.raises(LeaseLost):
        api.release(lease)
    assert not redis.exists(KEY, OLD)


def test_old_and_new_ones_exclude_each_other(api: Api, redis: Redis) -> None:
    """Old clients, new code with a second key and timestamp locks: never two are inside."""
    inside, worst, rounds = [0], [0], [0]
    guard = threading.Lock()

    def work(lease: Any = None) -> None:
        with guard:
            inside[0] += 1
            worst[0] = max(worst[0], inside[0])
            rounds[0] += 1
        threading.Event().wait(0.001)
        with guard:
            inside[0] -= 1

    def old() -> None:
        client = Classic(redis, OLD)
        for _ in range(5):
            while not client.acquire():
                threading.Event().wait(0.01)
            work()
            client.release()

    def new() -> None:
        for _ in range(5):
            api.enter(redis_lock("import", wait=PATIENCE), work)

    def stamped() -> None:
        for _ in range(5):
            api.enter(TimestampLock(OLD, wait=PATIENCE), work)

    for running in [api.start(target) for target in (old, new, stamped, old, new, stamped)]:
        running.result(2 * PATIENCE)
    assert (worst[0], rounds[0]) == (1, 30)
