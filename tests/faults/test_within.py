"""The time that a request may take is its own: `wait` bounds it, and so does the shortest lease,
whatever the time-outs of the connections that threads share."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from redis import ConnectionPool, Redis

from devtools.redis_server import RedisServer
from django_redislock import (
    Lease,
    LockUnavailable,
    Redlock,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.primitives.waiting import LEAST, WaitLog
from django_redislock.transport import connections
from django_redislock.transport.quorum import Member
from django_redislock.transport.server import server_of
from tests.caches import caches, entry
from tests.contract.api import Api
from tests.faults.proxy import Fault, Proxy, script
from tests.waiting import PATIENCE, eventually

MARGIN = 2.0
"""Seconds by which a busy machine may be late. Each of these took several seconds more."""


def seconds(call: Callable[[], Any]) -> float:
    """How long it takes to fail."""
    began = time.monotonic()
    with pytest.raises(LockUnavailable):
        call()
    return time.monotonic() - began


@pytest.mark.parametrize("warm", [True, False], ids=["connected", "not connected"])
def test_wait_is_an_upper_bound(api: Api, own_server: RedisServer, warm: bool) -> None:
    """A server that is stopped takes no more than `wait`, or `LEAST` if that is more."""
    if warm:
        api.release(api.acquire(redis_lock("warm")))
    with own_server.paused():
        for wait in (0, 0.5, 2.5):
            lock = redis_lock("job", wait=wait)
            assert seconds(lambda lock=lock: api.acquire(lock)) < max(wait, LEAST) + MARGIN


def test_what_looks_before_it_locks(own_server: RedisServer) -> None:
    """`once` and `single_flight` read a record first, which is a part of the same time."""

    @single_flight("rates", wait=0)
    def rates() -> int:
        return 1

    def run_once() -> None:
        with once("job", wait=0):
            pytest.fail("ran without the lock")

    with own_server.paused():
        for call in (run_once, rates):
            assert seconds(call) < LEAST + MARGIN


def test_a_try_begins_at_the_end(own_server: RedisServer) -> None:
    """A server that stops while a busy lock is waited for adds `LEAST` at most."""
    holder = redis_lock("job").acquire()
    assert holder is not None
    with ThreadPoolExecutor() as threads, Redis.from_url(own_server.url) as redis:
        waiter = threads.submit(seconds, lambda: redis_lock("job", wait=2).acquire())
        eventually(lambda: redis.exists("redislock:{job}:queue"))
        with own_server.paused():
            assert waiter.result(PATIENCE) < 2 + LEAST + MARGIN
    holder.release()


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.RESET_AFTER], ids=lambda it: it.name)
def test_taking_back_costs_the_caller_nothing(
    api: Api, proxy: Proxy, redis: Redis, fault: Fault
) -> None:
    """A doubtful acquire is undone, in the background if there is no time."""
    proxy.on(script("mutex_acquire"), fault, times=9)
    held_up = proxy.on(script("mutex_release"), Fault.HOLD_REQUEST, times=9)
    assert seconds(lambda: api.acquire(redis_lock("job", wait=0))) < LEAST + MARGIN
    assert redis.exists("redislock:{job}")
    held_up.let_go()
    eventually(lambda: not redis.exists("redislock:{job}"))


@pytest.mark.parametrize("wait", [0, None])
def test_a_full_pool(redis_server: RedisServer, settings: Any, wait: float | None) -> None:
    """A connection of a plain pool that may make no more is waited for, by a release, too; for
    `LEAST` at most."""
    settings.CACHES = caches(
        f"{redis_server.url}&client_name=full", CONNECTION_POOL_KWARGS={"max_connections": 1}
    )
    pool = server_of("default").shared_pool()
    assert isinstance(pool, ConnectionPool)
    lock = redis_lock("job", wait=wait)
    with ThreadPoolExecutor() as threads:
        theirs = pool.get_connection()
        waiter = threads.submit(lock.acquire)
        time.sleep(0.1)
        pool.release(theirs)
        lease = waiter.result(PATIENCE)
        assert lease is not None
        theirs = pool.get_connection()
        began = time.monotonic()
        with pytest.raises(LockUnavailable, match="Too many connections"):
            redis_lock("other", wait=0).acquire()
        assert LEAST / 2 < time.monotonic() - began < LEAST + MARGIN
        waiter = threads.submit(lease.release)
        time.sleep(0.1)
        pool.release(theirs)
        waiter.result(PATIENCE)


def test_a_short_lease_after_a_long_one(own_server: RedisServer) -> None:
    """Its loss is told at its deadline, although the connections were made for the long one."""
    long = redis_lock("long", ttl=30).acquire()
    told: list[float] = []

    def lost(lease: Lease) -> None:
        told.append(time.monotonic())

    # The watchdog is connected by now: it has shown that this process lives.
    with Redis.from_url(own_server.url) as redis:
        eventually(lambda: redis.keys("redislock:process:*"))
    short = redis_lock("short", ttl=1.5, on_lost=lost).acquire()
    assert long is not None
    assert short is not None
    deadline = time.monotonic() + short.remaining()
    with own_server.paused():
        eventually(lambda: told)
        assert told[0] - deadline < MARGIN
    long.release()


def test_a_short_lease_leaves_the_others_their_time(settings: Any) -> None:
    """A Redlock that gives each server 10 ms changes nothing for those who use the same pool."""
    with RedisServer() as a, RedisServer() as b, RedisServer() as c:
        urls = {name: server.url for name, server in zip("abc", (a, b, c), strict=True)}
        settings.CACHES = {name: entry(f"{url}#within") for name, url in urls.items()} | caches(
            os.environ["REDISLOCK_TEST_URL"]
        )
        with suppress(LockUnavailable):  # 10 ms may be too little, indeed
            Redlock("job", using=list(urls), ttl=0.1).acquire(wait=0)
        for alias in urls:
            pool = server_of(alias).kept(Member).pool
            for connection in (pool.make_connection(), pool.get_connection()):
                assert connection.socket_timeout == connections.BACKGROUND_TIMEOUT
                assert connection.socket_connect_timeout == connections.BACKGROUND_TIMEOUT
                if connection._sock is not None:
                    assert connection._sock.gettimeout() == connections.BACKGROUND_TIMEOUT


class TestNeverSilent:
    """Whoever waits for long is heard of, and an error says what it was."""

    @pytest.fixture(autouse=True)
    def _often(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.setattr(WaitLog, "EVERY", 0.5)
        caplog.set_level(logging.INFO, logger="django_redislock")

    def waits(self, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
        return [one for one in caplog.records if one.getMessage().startswith("Waiting for")]

    def test_a_server_that_does_not_answer(
        self,
        api: Api,
        own_server: RedisServer,
        settings: Any,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The first failure is a line, and then one comes every few seconds; the error says which
        server it was, for how long, and which lock."""
        settings.CACHES = caches(own_server.url + "&client_name=hasty", SOCKET_TIMEOUT=0.2)
        where = re.escape(server_of("default").where)
        with own_server.paused(), pytest.raises(LockUnavailable) as caught:
            api.acquire(redis_lock("job", wait=2))
        assert re.match(
            rf"Redis 'default' \({where}\) did not answer for [23]\S* s while locking 'job': "
            r"TimeoutError: ",
            str(caught.value),
        )
        first, *others = self.waits(caplog)
        assert first.levelno == logging.WARNING
        assert re.match(
            rf"Waiting for 'job': Redis 'default' \({where}\) did not answer for 0.\d+ s while "
            r"locking 'job': TimeoutError: ",
            first.getMessage(),
        )
        assert 1 <= len(others) <= 4
        assert all(one.levelno == logging.WARNING for one in others)

    def test_a_server_that_is_away(self, api: Api, settings: Any) -> None:
        """The error ends with what redis-py said; a lease's operations raise it, too."""
        with RedisServer(tcp_port=0) as server:
            settings.CACHES = caches(f"redis://localhost:{server.tcp_port}")
            lease = api.acquire(redis_lock("job"))
            server.stop()
            where = f"localhost:{server.tcp_port}"

        def elsewhere() -> None:
            api.start(lambda: api.acquire(redis_lock("job", wait=0))).result(PATIENCE)

        for call, doing in (
            (elsewhere, "locking"),
            (lambda: api.extend(lease), "extending"),
            (lambda: api.release(lease), "releasing"),
            (lambda: api.holder(redis_lock("job")), "asking for"),
        ):
            with pytest.raises(LockUnavailable) as caught:
                call()
            assert re.match(
                rf"Redis 'default' \({where}\) could not be reached (for \S+ s )?while {doing} "
                r"'job': ConnectionError: ",
                str(caught.value),
            )

    def test_a_busy_lock(self, api: Api, caplog: pytest.LogCaptureFixture) -> None:
        """A long wait says who holds it, since when, and who comes before; ever more rarely."""
        holder = api.acquire(redis_lock("job", label="shop/tasks.py:7"))
        other = api.start(lambda: api.acquire(redis_lock("job"), wait=PATIENCE))
        with Redis.from_url(os.environ["REDISLOCK_TEST_URL"]) as redis:
            eventually(lambda: redis.zcard("redislock:{job}:queue") == 1)
        waiter = api.start(lambda: api.acquire(redis_lock("job", label="me"), wait=4))
        assert waiter.result(PATIENCE) is None
        lines = [
            one.getMessage()
            for one in self.waits(caplog)
            if "Waiters ahead: 1" in one.getMessage()
        ]
        assert 1 <= len(lines) <= 4
        assert re.match(
            r"Waiting for 'job' for \d.\d s: it is held by .*\(shop/tasks.py:7\) since .* UTC, "
            r"for \d+.\d s; the lease ends in .*\. Waiters ahead: 1\.",
            lines[0],
        )
        api.release(holder)
        api.release(other.result(PATIENCE))

    def test_no_trouble_is_told(
        self, api: Api, redis: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A connection that the server has closed is nothing to write about."""
        api.release(api.acquire(redis_lock("job")))
        redis.client_kill_filter(_type="normal", skipme=True)
        api.release(api.acquire(redis_lock("job")))
        assert not self.waits(caplog)
