"""Another thread disconnects the pool, as DJANGO_REDIS_CLOSE_CONNECTION does."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
from django.core.cache import caches as cache_handlers
from django.test import override_settings
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import LockUnavailable, redis_lock
from django_redislock.transport.command import causes
from django_redislock.transport.server import server_of
from tests.caches import caches
from tests.faults.proxy import Fault, Proxy, script
from tests.lines import taken
from tests.waiting import PATIENCE, eventually


@pytest.mark.parametrize("within", [None, PATIENCE], ids=["for ever", "in time"])
@pytest.mark.parametrize("name", ["mutex_acquire", "mutex_extend", "mutex_release"])
def test_while_an_answer_is_awaited(
    proxy: Proxy, redis: Redis, name: str, within: float | None
) -> None:
    """The request is asked again, and no error of redis-py's inside leaves the block."""
    with redis_lock("other"):
        pass  # so that an idle connection is there
    rule = proxy.on(script(name), Fault.HOLD_REPLY)

    def disconnect() -> None:
        rule.happened()
        server_of("default").shared_pool().disconnect()

    thread = threading.Thread(target=disconnect)
    thread.start()
    with redis_lock("job", wait=within) as lease:
        if name == "mutex_extend":
            with suppress(LockUnavailable):  # it is not asked twice
                lease.extend()
        assert redis.exists("redislock:{job}")
    thread.join()
    rule.let_go()
    eventually(lambda: not redis.exists("redislock:{job}"))
    pool = server_of("default").shared_pool()
    eventually(lambda: not taken(pool))


@pytest.mark.slow
def test_again_and_again(redis_server: RedisServer, settings: Any) -> None:
    """No request waits for the data of another socket, which has got the number of the one that
    was closed: each ends long before SOCKET_TIMEOUT."""
    settings.CACHES = caches(f"{redis_server.url}&client_name=closed", SOCKET_TIMEOUT=PATIENCE)
    over, longest = threading.Event(), [0.0]

    def lock(number: int) -> None:
        for count in itertools.count():
            if over.is_set():
                break
            began = time.monotonic()
            with suppress(LockUnavailable), redis_lock(f"job {number} {count}", wait=None):
                pass
            longest.append(time.monotonic() - began)

    with ExitStack() as quiet, ThreadPoolExecutor(8) as threads:
        locking = [threads.submit(lock, number) for number in range(8)]
        for _ in range(150):
            server_of("default").shared_pool().disconnect()
            for end in socket.socketpair():
                quiet.enter_context(end)
            time.sleep(0.02)
        over.set()
        for one in locking:
            one.result(2 * PATIENCE)
    assert max(longest) < PATIENCE / 3


@pytest.mark.parametrize(
    ("kind", "text", "passes"),
    [
        ("AttributeError", "'NoneType' object has no attribute 'readline'", True),
        ("TypeError", "'NoneType' object is not callable", True),
        ("ValueError", "I/O operation on closed file.", True),
        ("AttributeError", "'str' object has no attribute 'items'", False),
        ("TypeError", "'str' object cannot be interpreted as an integer", False),
        ("ValueError", "Timeout value out of range", False),
    ],
)
def test_what_redis_py_stumbles_over(
    monkeypatch: pytest.MonkeyPatch, kind: str, text: str, passes: bool
) -> None:
    """While it connects: from its own code that is trouble with the connection if another thread
    has closed it, else an option that is wrong; from elsewhere it is a mistake."""
    for module, error in (("redis.connection", LockUnavailable), ("shop", eval(kind))):
        obj = {"obj": None if passes else ""} if kind == "AttributeError" else {}
        # A new one for each thread that connects.
        scope: dict[str, Any] = {"__name__": module, "new": partial(eval(kind), text, **obj)}
        exec("def connect(self): raise new()", scope)
        with (
            override_settings(
                CACHES=caches(f"redis://localhost:1?client_name={module}{kind}{passes}")
            ),
            monkeypatch.context() as patch,
        ):
            patch.setattr("redis.connection.Connection.connect", scope["connect"])
            with pytest.raises(error) as caught:
                redis_lock("job").acquire(wait=0)
        if module != "shop":
            assert caught.value.passing is passes


def test_an_error_that_has_led_to_itself() -> None:
    """As one object has that is raised for each request: looking for its causes comes to an
    end."""
    error, ours = OSError("refused"), LockUnavailable("Redis could not be reached")
    ours.__cause__, error.__context__ = error, ours
    assert [*itertools.islice(causes(error, None), 9)] == [error, ours]


def test_at_random(redis: Redis, settings: Any) -> None:
    """Threads lock while others disconnect the pool and close the cache, at random: locks exclude
    each other, none is lost, and no error leaves a block."""
    settings.DJANGO_REDIS_CLOSE_CONNECTION = True
    moments = random.Random(17)
    ended = threading.Event()
    inside = [0] * 3
    pool = server_of("default").shared_pool()

    def disconnect() -> None:
        while not ended.wait(moments.uniform(0.0001, 0.02)):
            pool.disconnect()
            cache_handlers["default"].close()

    def work(number: int) -> None:
        mine = number % 3
        for _ in range(60):
            with redis_lock(f"job {mine}", wait=PATIENCE) as lease:
                inside[mine] += 1
                assert inside[mine] == 1
                assert redis.get(f"redislock:{{job {mine}}}").startswith(lease.token.encode())
                inside[mine] -= 1

    with ThreadPoolExecutor(8) as threads:
        enders = [threads.submit(disconnect) for _ in range(2)]
        try:
            list(threads.map(work, range(6)))
        finally:
            ended.set()
        for ender in enders:
            ender.result()
    eventually(lambda: not redis.keys("redislock:{job *}"))
    eventually(lambda: not taken(pool))
