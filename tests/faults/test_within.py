"""The time that a request may take is its own: `wait` bounds it, and so does the shortest lease,
whatever the time-outs of the connections that threads share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import Lease, LockUnavailable, Redlock, connections, io, redis_lock
from django_redislock.waiting import LEAST
from tests.contract.ports import Port
from tests.faults.caches import caches
from tests.faults.conftest import load_scripts
from tests.faults.proxy import Fault, Proxy, script
from tests.waiting import PATIENCE, eventually

MARGIN = 0.9
"""Seconds by which a busy machine may be late. Each of these took several seconds more."""


@pytest.fixture
def server(settings: Any) -> Iterator[RedisServer]:
    """A server of its own, with the time-outs that redis-py has by itself."""
    with RedisServer() as server:
        if server.external:
            pytest.skip("it is somebody else's server, which is not ours to stop")
        with Redis.from_url(server.url) as redis:
            load_scripts(redis)
        settings.CACHES = caches(server.url)
        yield server


@contextmanager
def stopped(server: RedisServer) -> Iterator[None]:
    """It accepts connections, and answers nothing."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def seconds(call: Callable[[], Any]) -> float:
    """How long it takes to fail."""
    began = time.monotonic()
    with pytest.raises(LockUnavailable):
        call()
    return time.monotonic() - began


@pytest.mark.parametrize("warm", [True, False], ids=["connected", "not connected"])
def test_wait_is_an_upper_bound(port: Port, server: RedisServer, warm: bool) -> None:
    """A server that is stopped takes no more than `wait`, or `LEAST` if that is more."""
    if warm:
        port.release(port.acquire(redis_lock("warm")))
    with stopped(server):
        for wait in (0, 0.5, 2.5):
            lock = redis_lock("job", wait=wait)
            assert seconds(lambda lock=lock: port.acquire(lock)) < max(wait, LEAST) + MARGIN


def test_a_try_begins_at_the_end(server: RedisServer) -> None:
    """A server that stops while a busy lock is waited for adds `LEAST` at most."""
    holder = redis_lock("job").acquire()
    assert holder is not None
    with ThreadPoolExecutor() as threads, Redis.from_url(server.url) as redis:
        waiter = threads.submit(seconds, lambda: redis_lock("job", wait=2).acquire())
        eventually(lambda: redis.exists("redislock:{job}:queue"))
        with stopped(server):
            assert waiter.result(PATIENCE) < 2 + LEAST + MARGIN
    holder.release()


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.RESET_AFTER], ids=lambda it: it.name)
def test_taking_back_costs_the_caller_nothing(
    port: Port, proxy: Proxy, redis: Redis, fault: Fault
) -> None:
    """What a doubtful acquire may have done is undone, in the background if there is no time."""
    proxy.on(script("mutex_acquire"), fault, times=9)
    held_up = proxy.on(script("mutex_release"), Fault.HOLD_REQUEST, times=9)
    assert seconds(lambda: port.acquire(redis_lock("job", wait=0))) < LEAST + MARGIN
    assert redis.exists("redislock:{job}")
    held_up.let_go()
    eventually(lambda: not redis.exists("redislock:{job}"))


def test_a_short_lease_after_a_long_one(server: RedisServer) -> None:
    """Its loss is told at its deadline, although the connections were made for the long one."""
    long = redis_lock("long", ttl=30).acquire()
    told: list[float] = []

    def lost(lease: Lease) -> None:
        told.append(time.monotonic())

    # The watchdog is connected by now: it has shown that this process lives.
    with Redis.from_url(server.url) as redis:
        eventually(lambda: redis.keys("redislock:process:*"))
    short = redis_lock("short", ttl=1.5, on_lost=lost).acquire()
    assert long is not None
    assert short is not None
    deadline = time.monotonic() + short.remaining()
    with stopped(server):
        eventually(lambda: told)
        assert told[0] - deadline < 0.5
    long.release()


def test_a_short_lease_leaves_the_others_their_time(settings: Any) -> None:
    """A Redlock that gives each server 10 ms changes nothing for those who use the same pool."""
    with RedisServer() as a, RedisServer() as b, RedisServer() as c:
        urls = {name: server.url for name, server in zip("abc", (a, b, c), strict=True)}
        settings.CACHES = {
            name: caches(f"{url}#within")["default"] for name, url in urls.items()
        } | caches(os.environ["REDISLOCK_TEST_URL"])
        with suppress(LockUnavailable):  # 10 ms may be too little, indeed
            Redlock("job", using=list(urls), ttl=0.1).acquire(wait=0)
        for alias in urls:
            pool = io._server_pool(alias)
            for connection in (pool.make_connection(), pool.get_connection()):
                assert connection.socket_timeout == connections.BACKGROUND_TIMEOUT
                assert connection.socket_connect_timeout == connections.BACKGROUND_TIMEOUT
                if connection._sock is not None:
                    assert connection._sock.gettimeout() == connections.BACKGROUND_TIMEOUT
