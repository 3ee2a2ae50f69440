"""`unavailable`: what a lock does when Redis is away. With "run" its block runs without it, and
only then: not when Redis says no, nor when it is this process that has no connection left."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.http import StreamingHttpResponse
from django.test import RequestFactory
from redis import BlockingConnectionPool, Redis

from devtools.redis_server import RedisServer
from django_redislock import (
    LeaseState,
    LockError,
    LockUnavailable,
    MultiLock,
    ReadWriteLock,
    Redlock,
    Semaphore,
    TimestampLock,
    current_lease,
    deduplicate,
    held,
    initialise,
    once,
    redis_lock,
    signals,
    single_flight,
)
from django_redislock.base import people
from django_redislock.lease.lock import Lock
from django_redislock.periodic import periodic
from django_redislock.primitives.waiting import LEAST
from django_redislock.tasks import limited, unique
from django_redislock.transport.multiplexed import Multiplexed
from django_redislock.transport.server import of_loop, server_of
from django_redislock.views import idempotent_view, lock_view
from tests.caches import caches, cluster, entry
from tests.contract.api import Api
from tests.faults.proxy import Fault, Proxy, script
from tests.models import Product
from tests.waiting import PATIENCE, eventually

MARGIN = 2.0
"""Seconds by which a busy machine may be late."""

KINDS: dict[str, Callable[..., Lock]] = {
    "mutex": lambda **options: redis_lock("job", **options),
    "semaphore": lambda **options: Semaphore("job", 2, **options),
    "read": lambda **options: ReadWriteLock("job", **options).read(),
    "write": lambda **options: ReadWriteLock("job", **options).write(),
    "timestamp": lambda **options: TimestampLock("job", **options),
    "together": lambda **options: redis_lock("job", timestamp_key="old", **options),
    "several": lambda **options: MultiLock(["job", "other"], **options),
    "replicas": lambda **options: redis_lock("job", replicas=1, **options),
}


@pytest.fixture
def events() -> Any:
    seen: list[signals.LockEvent] = []
    signals.observe(seen.append)
    yield seen
    signals.unobserve(seen.append)


@pytest.fixture
def stopped(own_server: RedisServer) -> RedisServer:
    """A server that nobody reaches."""
    own_server.stop()
    return own_server


def run_it(api: Api, lock: Lock) -> LeaseState:
    """The state of the lease in a block under that lock."""
    state: LeaseState = api.enter(lock, lambda lease: lease.state)
    return state


# Redis is away.


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_stopped(api: Api, stopped: RedisServer, kind: str) -> None:
    """The block runs, and its lease says that there is no lock."""
    lock = KINDS[kind](unavailable="run", wait=0)
    assert run_it(api, lock) == LeaseState.UNLOCKED
    with pytest.raises(LockUnavailable) as caught:
        api.enter(KINDS[kind](wait=0), lambda _: pytest.fail("ran without the lock"))
    assert caught.value.away


def test_what_the_lease_is_good_for(api: Api, stopped: RedisServer) -> None:
    """It can be checked and released, as code that does not know of this does. What needs the lock
    is refused, and a fencing token with it."""

    def body(lease: Any) -> None:
        for _ in range(2):
            assert (lease.state, lease.remaining()) == ("unlocked", 0.0)
            assert repr(lease) == "<Lease on 'job': unlocked, 0.0 s left>"
            assert held("job") is None
            assert (lease.inherited, lease.resumptions) == (None, 0)
            assert abs(lease.acquired_at.timestamp() - time.time()) < PATIENCE
            lease.check()
            lease.on_lost(lambda _: pytest.fail("there is nothing to lose"))
            lease.on_unknown(lambda _: pytest.fail("nothing is unknown"))
            for refused, says in [
                (lambda: lease.fencing_token, "'job' has no fencing token: Redis could not"),
                (lambda: lease.fencing_tokens, "has no fencing token"),
                (lease.export, "can't be exported"),
                (lease.extend, "can't be extended"),
                (lambda: lease.extend(60), "can't be extended"),
                (lease.downgrade, "can't be downgraded"),
                (lambda: lease.note(cursor=1), "has no notes"),
                (lambda: lease.checkpoint(cursor=1), "has no notes"),
            ]:
                with pytest.raises(LockError, match=says) as caught:
                    refused()
                assert (type(caught.value), caught.value.name) == (LockError, "job")
            lease.release()

    lock = redis_lock("job", unavailable="run", wait=0)
    api.enter(lock, body)
    lease = api.acquire(lock)
    body(lease)
    api.release(lease)
    with pytest.raises(LockError, match="can't be extended"):
        api.extend(lease)
    with pytest.raises(LockError, match="can't be downgraded"):
        api.downgrade(lease)
    with lease:
        assert current_lease() is lease
    assert not lease._watchdog.register.leases()


def test_a_server_that_hangs(api: Api, own_server: RedisServer) -> None:
    """It accepts connections, and never answers: the block begins within `wait`, or `LEAST`."""
    with own_server.paused():
        for wait in (0, 0.5, 2.5):
            began = time.monotonic()
            lock = redis_lock(f"job {wait}", unavailable="run", wait=wait)
            assert run_it(api, lock) == LeaseState.UNLOCKED
            assert wait <= time.monotonic() - began < max(wait, LEAST) + MARGIN


@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.RESET_AFTER], ids=lambda it: it.name)
def test_connections_that_are_closed(api: Api, proxy: Proxy, redis: Redis, fault: Fault) -> None:
    """As a load balancer does that has no server. What was taken all the same is given back."""
    proxy.on(script("mutex_acquire"), fault, times=99)
    assert run_it(api, redis_lock("job", unavailable="run", wait=0.5)) == LeaseState.UNLOCKED
    eventually(lambda: not redis.exists("redislock:{job}"))


def test_a_server_that_comes_back(api: Api, own_server: RedisServer) -> None:
    """While the block runs: others get the lock, and the end of the block takes it from nobody."""

    def body(lease: Any) -> None:
        own_server.start()
        with ThreadPoolExecutor(1) as elsewhere:
            other = elsewhere.submit(redis_lock("job", wait=PATIENCE).acquire).result(PATIENCE)
        assert lease.state == LeaseState.UNLOCKED
        taken.append(other)

    taken: list[Any] = []
    own_server.stop()
    api.enter(redis_lock("job", unavailable="run", wait=0), body)
    [other] = taken
    other.check()
    assert other.state == LeaseState.HELD
    other.release()


def test_a_server_that_wakes_up(api: Api, own_server: RedisServer) -> None:
    """What was asked of it is carried out in the end, and undone while the block runs."""
    api.release(api.acquire(redis_lock("warm")))
    with Redis.from_url(own_server.url) as redis:

        def body(lease: Any) -> None:
            pause.__exit__(None, None, None)
            eventually(lambda: redis.exists("redislock:{job}:gone:" + lease.token))
            assert not redis.exists("redislock:{job}")
            assert lease.state == LeaseState.UNLOCKED

        pause = own_server.paused()
        pause.__enter__()
        api.enter(redis_lock("job", unavailable="run", wait=0), body)


def test_it_is_told(api: Api, stopped: RedisServer, events: Any, caplog: Any) -> None:
    """To the log, as a warning, and to who listens; it is no acquire, and there is no release."""
    caplog.set_level(logging.DEBUG, "django_redislock")
    received: list[signals.LockEvent] = []

    def receive(event: signals.LockEvent, **_: object) -> None:
        received.append(event)

    signals.lock_unlocked.connect(receive)
    try:
        run_it(api, redis_lock("job", unavailable="run", wait=0, label="here"))
    finally:
        signals.lock_unlocked.disconnect(receive)
    assert events == received
    [event] = events
    assert (event.outcome, event.name, event.label) == ("unlocked", "job", "here")
    assert event.fencing_token is None
    assert "could not be reached" in event.why
    [record] = [its for its in caplog.records if "runs without its lock" in its.message]
    assert record.levelno == logging.WARNING
    assert record.message.startswith("'job' runs without its lock: Redis 'default'")


@pytest.mark.parametrize("kind", [ValueError, TimeoutError, OSError, GeneratorExit])
def test_an_exception_of_the_body(api: Api, stopped: RedisServer, kind: type[Exception]) -> None:
    """It goes through as it is."""

    def body(lease: Any) -> None:
        raise kind("of the body")

    with pytest.raises(kind, match="of the body"):
        api.enter(redis_lock("job", unavailable="run", wait=0), body)


@pytest.mark.parametrize("kind", [ValueError, TimeoutError, OSError, KeyboardInterrupt])
def test_an_exception_of_the_attempt(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """One from outside, such as that of a signal's handler, is no reason to run."""

    def interrupt(*_: object) -> None:
        raise kind("from outside")

    monkeypatch.setattr(people, "of_caller", interrupt)
    with pytest.raises(kind, match="from outside"), redis_lock("job", unavailable="run", wait=0):
        pytest.fail("ran")


def test_a_function(api: Api, stopped: RedisServer) -> None:
    """It is called without the lock."""
    lock = redis_lock("job", unavailable="run", wait=0)
    function = lock(api.function(lambda number: (number, current_lease().state)))
    assert api.call(function, 1) == (1, "unlocked")


def test_generators(stopped: RedisServer) -> None:
    """They run as well."""

    @redis_lock("job", unavailable="run", wait=0)
    def numbers() -> Any:
        assert current_lease().state == LeaseState.UNLOCKED
        yield 1

    assert list(numbers()) == [1]


def test_once_more(own_server: RedisServer) -> None:
    """With `reentrant` an inner block of the same name does not wait for Redis once more; of
    another name, or in another thread, it does."""
    lock = redis_lock("job", unavailable="run", wait=0, reentrant=True)

    def in_another_thread() -> LeaseState:
        with lock as lease:
            return lease.state

    with own_server.paused(), lock as lease:
        began = time.monotonic()
        for _ in range(20):
            with lock as inner:
                assert inner is lease
        assert time.monotonic() - began < LEAST / 2
        assert current_lease() is lease
        for other in (redis_lock("job", wait=0), redis_lock("other", wait=0, reentrant=True)):
            with pytest.raises(LockUnavailable):
                other.acquire()
        with ThreadPoolExecutor(1) as elsewhere:
            began = time.monotonic()
            assert elsewhere.submit(in_another_thread).result(PATIENCE) == LeaseState.UNLOCKED
            assert time.monotonic() - began >= LEAST / 2
    with lock as lease:
        assert lease.state == LeaseState.HELD


def test_once_more_in_a_task(own_server: RedisServer) -> None:
    """The same for a task; one that it has started is another holder."""
    lock = redis_lock("job", unavailable="run", wait=0, reentrant=True)

    async def again(outer: Any) -> bool:
        async with lock as lease:
            return lease is outer

    async def work() -> None:
        async with lock as lease:
            assert await again(lease)
            assert not await asyncio.create_task(again(lease))

    with own_server.paused():
        asyncio.run(work())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("release", ["commit", "warn"])
def test_in_a_transaction(stopped: RedisServer, release: Any) -> None:
    """There is nothing to hold until its end, nor to warn of."""
    from django.db import transaction

    with transaction.atomic():
        lock = redis_lock("job", unavailable="run", wait=0, release=release)
        with lock as lease:
            assert not transaction.get_connection().run_on_commit
        assert not transaction.get_connection().run_on_commit
    assert lease.state == LeaseState.UNLOCKED


@pytest.mark.django_db
def test_a_fenced_write(stopped: RedisServer) -> None:
    """It is refused, since there is no fencing token, and nothing is written."""
    product = Product.objects.create(name="lamp", stock=3)
    with redis_lock("job", unavailable="run", wait=0) as lease:
        for write in (
            lambda: Product.objects.fenced(lease).update(stock=0),
            lambda: product.save(lease=lease),
            lambda: Product.objects.fenced(lease).get(pk=product.pk),
        ):
            with pytest.raises(LockError, match="has no fencing token"):
                write()
    product.refresh_from_db()
    assert (product.stock, product.fencing_token) == (3, 0)


@pytest.mark.django_db
def test_a_view_that_streams(stopped: RedisServer) -> None:
    """It sends its response, and closing it is no trouble."""

    @lock_view("job", unavailable="run")
    def view(request: Any) -> StreamingHttpResponse:
        return StreamingHttpResponse(iter([b"a", b"b"]))

    response = view(RequestFactory().get("/"))
    assert b"".join(response) == b"ab"
    response.close()


def test_a_cluster(api: Api, settings: Any) -> None:
    """No node of it can be reached."""
    settings.CACHES = cluster(["redis://127.0.0.1:1", "redis://127.0.0.2:1"])
    assert run_it(api, redis_lock("job", unavailable="run", wait=0)) == LeaseState.UNLOCKED


def test_a_forked_child(stopped: RedisServer) -> None:
    """It goes on without the lock as its parent does; a block of its own asks for Redis."""
    lock = redis_lock("job", unavailable="run", wait=0, reentrant=True)
    with lock as lease:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                lease.check()
                with lock as own:
                    code = 0 if (lease.state, own is lease) == ("unlocked", False) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        lease.check()


# Redis is not away.


def test_a_lock_that_was_seen_busy(api: Api, own_server: RedisServer) -> None:
    """Redis has said who holds the lock before it went away: the holder may be at work."""
    holder = redis_lock("job").acquire()
    assert holder is not None
    lock = redis_lock("job", unavailable="run", wait=2)
    with Redis.from_url(own_server.url) as redis:
        waiter = api.start(lambda: run_it(api, lock))
        eventually(lambda: redis.exists("redislock:{job}:queue"))
        with own_server.paused(), pytest.raises(LockUnavailable) as caught:
            waiter.result(PATIENCE)
    assert not caught.value.away
    holder.release()


def test_a_lock_whose_other_half_is_away(proxy: Proxy, redis: Redis) -> None:
    """Of a mutex with a timestamp key, Redis has given the mutex."""
    proxy.on(script("timestamp_acquire"), Fault.RESET_BEFORE, times=99)
    with pytest.raises(LockUnavailable):
        KINDS["together"](unavailable="run", wait=0.3).acquire()


def test_too_few_replicas(api: Api, own_server: RedisServer) -> None:
    """Redis has the lease, and it is not safe."""
    lock = redis_lock("job", replicas=1, replicas_timeout=0.05, unavailable="run", wait=0.2)
    with pytest.raises(LockUnavailable, match="0 of 1 replicas") as caught:
        run_it(api, lock)
    assert not caught.value.away


@pytest.mark.parametrize("wait", [0, 0.3])
def test_a_pool_that_lets_callers_wait(
    redis_server: RedisServer, settings: Any, wait: float
) -> None:
    """All of its connections are in use here, so nothing is known of Redis."""
    options = {"max_connections": 1, "timeout": PATIENCE}
    settings.CACHES = caches(
        f"{redis_server.url}&client_name=blocking",
        CONNECTION_POOL_CLASS="redis.BlockingConnectionPool",
        CONNECTION_POOL_KWARGS=options,
    )
    pool = server_of("default").shared_pool()
    assert isinstance(pool, BlockingConnectionPool)
    theirs = pool.get_connection()
    try:
        with pytest.raises(LockUnavailable, match="Too many connections") as caught:
            redis_lock("job", unavailable="run", wait=wait).acquire()
        assert not caught.value.away
    finally:
        pool.release(theirs)


async def test_a_pool_of_an_event_loop(redis_server: RedisServer, settings: Any) -> None:
    """A lock with replicas needs a connection of its own, and others have them all."""
    url = f"{redis_server.url}&client_name=of_loop"
    settings.CACHES = caches(url, CONNECTION_POOL_KWARGS={"max_connections": 1})
    links = (await of_loop(asyncio.get_running_loop(), server_of("default"))).pool
    assert isinstance(links, Multiplexed)
    theirs = await links.link_alone()
    with pytest.raises(LockUnavailable, match="Too many connections") as caught:
        await redis_lock("job", replicas=1, unavailable="run", wait=0).aacquire()
    assert not caught.value.away
    links.release(theirs)


def test_a_lock_that_is_to_be_stolen(api: Api, stopped: RedisServer) -> None:
    """Its holder would go on working, so the steal has failed."""
    lock = redis_lock("job", unavailable="run", wait=0, reentrant=True)
    with lock, pytest.raises(LockUnavailable):
        lock.acquire(steal=True, reason="it hangs")
    with pytest.raises(LockUnavailable):
        api.acquire(lock, steal=True, reason="it hangs")


# What always needs Redis.


class Computed(Exception):
    """It was computed, or done, without Redis."""


def test_what_is_recorded(stopped: RedisServer, settings: Any) -> None:
    """Work that must not be done twice does not follow the settings, however wide they are."""
    settings.REDISLOCK = {"UNAVAILABLE": "run", "WAIT": 0}

    def work() -> None:
        raise Computed

    for decorate in (once("job"), deduplicate("job"), single_flight("job")):
        with pytest.raises(LockUnavailable):
            decorate(work)()
    with pytest.raises(LockUnavailable):
        initialise("job", 1)
    request = RequestFactory().post("/", headers={"Idempotency-Key": "7"})
    view = idempotent_view(scope=lambda _: "")(lambda request: work())
    assert view(request).status_code == 503
    with pytest.raises(LockUnavailable):
        redis_lock("job", unavailable="raise").acquire()


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: once("job", **options),
        lambda **options: deduplicate("job", **options),
        lambda **options: single_flight("job", **options),
        lambda **options: initialise("job", 1, **options),
        lambda **options: Redlock("job", ["a", "b", "c"], **options),
        lambda **options: unique("job", until="end", **options)(lambda: None),
        lambda **options: limited("job", 1, **options)(lambda: None),
        lambda **options: periodic(every=60, **options)(lambda: None),
        idempotent_view,
        lambda **options: redis_lock("job").acquire(**options),
    ],
    ids=[
        *("once", "deduplicate", "single_flight", "initialise", "Redlock", "unique", "limited"),
        *("periodic", "idempotent_view", "acquire"),
    ],
)
@pytest.mark.parametrize("unavailable", ["run", "skip", "raise"])
def test_where_it_is_no_argument(make: Any, unavailable: str) -> None:
    """It is refused when the work is defined."""
    with pytest.raises(TypeError, match="unavailable"):
        make(unavailable=unavailable)


def test_a_majority_that_is_away(settings: Any) -> None:
    """A Redlock whose servers can't be reached does not run, whatever the settings say: others
    may reach a majority."""
    settings.CACHES = {alias: entry(f"unix:///nowhere/{alias}") for alias in "abc"}
    settings.REDISLOCK = {"LOCKS": {"job": {"KIND": "redlock", "USING": [*"abc"]}}, "WAIT": 0}
    for more in ({}, {"UNAVAILABLE": "run"}):
        settings.REDISLOCK = settings.REDISLOCK | more
        with pytest.raises(LockUnavailable), redis_lock("job"):
            pytest.fail("ran without the lock")


# Skipped.


def test_what_is_skipped(api: Api, stopped: RedisServer, caplog: Any) -> None:
    """A function returns None, and acquire() as well; a block can't be skipped."""
    lock = redis_lock("job", unavailable="skip", wait=0)
    assert api.call(lock(api.function(lambda: pytest.fail("ran")))) is None
    assert api.acquire(lock) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert caplog.messages[0].startswith("'job' was not acquired: Redis 'default'")
    with pytest.raises(TypeError, match="unavailable= is for decorated functions: the body"):
        api.enter(lock, lambda _: pytest.fail("ran"))


def test_by_the_settings(api: Api, stopped: RedisServer, settings: Any) -> None:
    """A block raises then, since it can't be skipped."""
    settings.REDISLOCK = {"UNAVAILABLE": "skip", "WAIT": 0, "LOCKS": {"x": {"UNAVAILABLE": "run"}}}
    assert api.call(redis_lock("job")(api.function(lambda: pytest.fail("ran")))) is None
    with pytest.raises(LockUnavailable):
        api.enter(redis_lock("job"), lambda _: pytest.fail("ran"))
    assert run_it(api, redis_lock("x")) == LeaseState.UNLOCKED
    with pytest.raises(LockUnavailable):
        run_it(api, redis_lock("x", unavailable="raise"))


def test_generators_that_are_skipped(stopped: RedisServer) -> None:
    """They yield nothing."""

    @redis_lock("job", unavailable="skip", wait=0)
    def numbers() -> Any:
        yield pytest.fail("ran")

    assert list(numbers()) == []


def test_a_refusal_skips_nothing(own_server: RedisServer) -> None:
    """Too few replicas are an error with "skip", too."""
    options: Any = {"replicas": 1, "replicas_timeout": 0.05, "unavailable": "skip", "wait": 0}

    @redis_lock("job", **options)
    def job() -> None:
        pytest.fail("ran")

    with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
        job()


def test_busy_is_not_away(redis_server: RedisServer) -> None:
    """`on_conflict` says what happens then."""
    with redis_lock("job"), ThreadPoolExecutor(1) as elsewhere:
        lock = redis_lock("job", wait=0, unavailable="run", on_conflict="skip")
        assert elsewhere.submit(lock(lambda: pytest.fail("ran"))).result(PATIENCE) is None
