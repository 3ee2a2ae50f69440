"""Another thread disconnects the pool, as DJANGO_REDIS_CLOSE_CONNECTION does."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from django.test import override_settings
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import LockUnavailable, redis_lock
from django_redislock.transport.server import server_of
from tests.faults.caches import caches
from tests.faults.proxy import Fault, Proxy, script
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
    assert not server_of("default").shared_pool()._in_use_connections


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
        scope: dict[str, Any] = {"__name__": module, "error": eval(kind)(text)}
        if kind == "AttributeError":
            scope["error"].obj = None if passes else ""
        exec("def connect(self): raise error", scope)
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
