"""Processes in which no thread can be started: at their limit of threads, or at their end.

A lock needs no thread to be right. It is taken, and is not renewed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import Lease, LeaseLost, LeaseState, Redlock, once, redis_lock
from django_redislock.base import background
from django_redislock.lease import watchdog
from django_redislock.signals import LockEvent, lock_lost
from tests.caches import entry
from tests.contract.api import Api
from tests.contract.test_contract import KINDS
from tests.contract.test_contract import Kind as KindOfLock
from tests.test_commands import command
from tests.waiting import PATIENCE, eventually

TOLD = "No thread can be started"


class Refusing:
    """Refuses to start threads of the package. Those of the tests are started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = RuntimeError("can't start new thread")
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if self.error is not None and thread.name.startswith("redislock-"):
                raise self.error
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)
        monkeypatch.setattr(background, "_of_this_process", {})
        background._unstarted.clear()

    def end(self) -> None:
        """From now on, threads can be started."""
        self.error = None


@pytest.fixture
def refusing(own_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusing]:
    """On a server where the process has no thread yet."""
    yield (refusing := Refusing(monkeypatch))
    refusing.end()


@pytest.fixture
def theirs(own_server: RedisServer) -> Iterator[Redis]:
    with Redis.from_url(own_server.url) as redis:
        yield redis


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "django_redislock")
    return lambda: [record.getMessage() for record in caplog.records]


def left(redis: Redis) -> list[bytes]:
    """The keys that say that somebody holds something, or waits."""
    lasting = (b":clock", b":history", b":record", b":guard")
    return [key for key in redis.scan_iter() if not key.endswith(lasting) and b":gone:" not in key]


@pytest.mark.parametrize("renew", [True, False])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_it_is_held(
    api: Api,
    kind: KindOfLock,
    renew: bool,
    refusing: Refusing,
    theirs: Redis,
    warnings: Callable[[], list[str]],
) -> None:
    """Each kind of lock is acquired and released, and one warning says what is missing."""
    for _ in range(2):
        lease = api.acquire(kind.make(renew=renew))
        assert lease.state == LeaseState.HELD
        lease.check()
        assert left(theirs)
        api.release(lease)
        assert lease.state == LeaseState.RELEASED
        assert not left(theirs)
    (warning,) = warnings()
    assert warning.startswith(f"{TOLD} (can't start new thread)")


def test_redlock(api: Api, refusing: Refusing, own_server: RedisServer, settings: Any) -> None:
    """A Redlock asks its servers one after the other."""
    with RedisServer() as second, RedisServer() as third:
        urls = {"one": own_server.url, "two": second.url, "three": third.url}
        settings.CACHES = {alias: entry(url) for alias, url in urls.items()}
        lease = api.acquire(Redlock("job", using=list(urls)))
        assert lease.state == LeaseState.HELD
        api.release(lease)
        for url in urls.values():
            with Redis.from_url(url) as redis:
                assert not left(redis)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_work_under_a_lock(
    api: Api,
    refusing: Refusing,
    theirs: Redis,
    error: Exception,
    warnings: Callable[[], list[str]],
) -> None:
    """Whatever the interpreter says: the body runs, and its lock is free afterwards."""
    refusing.error = error
    seen: list[Any] = []
    assert api.enter(redis_lock("job"), seen.append) is None
    assert api.enter(once("job"), seen.append) is None
    assert [type(one) for one in seen] == [Lease, bool]
    assert not left(theirs)
    assert f"({str(error) or 'MemoryError'})" in warnings()[0]


def test_a_command(refusing: Refusing, theirs: Redis) -> None:
    """A `LockedCommand` that may have to wait says nothing while it does."""
    held: list[bool] = []
    call_command(command(lambda: held.append(redis_lock("command:test_commands").locked())))
    assert held == [True]
    assert not left(theirs)


def test_it_is_not_renewed(api: Api, refusing: Refusing, theirs: Redis) -> None:
    """It ends with its ttl, and its holder finds out by its own clock."""
    lease = api.acquire(redis_lock("job", ttl=1))
    told: list[Lease] = []
    lease.on_lost(told.append)
    eventually(lambda: lease.state == LeaseState.LOST)
    with pytest.raises(LeaseLost, match="its ttl of 1 s passed before it was renewed"):
        lease.check()
    assert told == [lease]
    eventually(lambda: not theirs.exists("redislock:{job}"))


def test_threads_come_back(api: Api, refusing: Refusing, theirs: Redis) -> None:
    """The next lock that is taken starts the thread, which renews the leases that are there."""
    lease = api.acquire(redis_lock("job", ttl=3))
    refusing.end()
    before = theirs.pexpiretime("redislock:{job}")
    api.release(api.acquire(redis_lock("another")))
    eventually(lambda: theirs.pexpiretime("redislock:{job}") > before)
    api.release(lease)


def test_waiters(
    api: Api, refusing: Refusing, theirs: Redis, warnings: Callable[[], list[str]]
) -> None:
    """They ask by themselves, and get the lock in order."""
    lease = api.acquire(redis_lock("job"))
    order: list[int] = []
    waiters = []

    def wait(number: int) -> None:
        got = api.acquire(redis_lock("job", wait=PATIENCE))
        order.append(number)
        api.release(got)

    for number in (1, 2):
        waiters.append(api.start(lambda number=number: wait(number)))
        eventually(lambda number=number: theirs.zcard("redislock:{job}:queue") == number)
    api.release(lease)
    for waiter in waiters:
        waiter.result(PATIENCE)
    assert order == [1, 2]
    assert not left(theirs)
    assert len(warnings()) == 1


@pytest.mark.parametrize("warm", [False, True])
def test_receivers_and_callbacks(refusing: Refusing, theirs: Redis, warm: bool) -> None:
    """They are called where the loss is found out: in the thread that asks, or in that which
    renews."""
    if warm:
        refusing.end()
        with redis_lock("before"):
            pass
        refusing.error = RuntimeError("can't start new thread")
    told: list[tuple[str, str]] = []

    def callback(lease: Lease) -> None:
        told.append((threading.current_thread().name, "callback"))
        raise SystemExit  # ends a thread, but not that of somebody else

    def receive(event: LockEvent, **_: Any) -> None:
        told.append((threading.current_thread().name, event.outcome))

    lock_lost.connect(receive)
    try:
        lease = redis_lock("job", ttl=1.5, on_lost=callback).acquire()
        assert lease is not None
        theirs.delete("redislock:{job}")
        if warm:
            eventually(lambda: len(told) == 2)
        else:
            with pytest.raises(LeaseLost):
                lease.extend()
    finally:
        lock_lost.disconnect(receive)
    thread = "redislock-watchdog" if warm else "MainThread"
    assert told == [(thread, "lost"), (thread, "callback")]
    with redis_lock("another", ttl=1.5) as another:
        if warm:
            before = theirs.pexpiretime("redislock:{another}")
            eventually(lambda: theirs.pexpiretime("redislock:{another}") > before)
        another.check()


def test_what_is_owed(refusing: Refusing, theirs: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that the background owes is done at the end of the process, or when a thread can
    be started."""
    for ends in (True, False):
        lease = redis_lock("job", ttl=600).acquire()
        assert lease is not None
        # Those of other tests may owe something to servers that are gone.
        monkeypatch.setattr(watchdog, "every", lambda _, its=lease._watchdog: [its])
        lease._abandon()
        assert theirs.exists("redislock:{job}")
        if ends:
            watchdog._at_exit()
            assert not theirs.exists("redislock:{job}")
        else:
            refusing.end()
            with redis_lock("another"):
                pass
            eventually(lambda: not theirs.exists("redislock:{job}"))
