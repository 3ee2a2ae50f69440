"""The handler of a signal raises in the middle of a request, as a soft time limit does.

It may raise anything: what it raises is no answer of Redis, whatever its type.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.exceptions
from django.test import override_settings
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import LockUnavailable, redis_lock
from django_redislock.transport.line import Line
from django_redislock.transport.server import server_of
from tests.caches import caches
from tests.faults.proxy import Fault, Proxy, script
from tests.lines import taken
from tests.waiting import PATIENCE, eventually


class SoftTimeLimit(Exception):
    """As that of Celery."""


LIMITS = [
    SoftTimeLimit("over"),
    TimeoutError("over"),
    OSError("over"),
    ValueError("over"),
    redis.exceptions.TimeoutError("over"),
    KeyboardInterrupt("over"),
]

ways = pytest.mark.parametrize(
    "options",
    [{}, {"socket_timeout": None}, {"health_check_interval": 100}],
    ids=["short", "without-time-out", "redis-py"],
)


@pytest.fixture
def limit() -> Iterator[Callable[[Callable[[], object], BaseException], None]]:
    """Raise an exception in this thread as soon as something has happened."""
    threads = []

    def limit(happened: Callable[[], object], error: BaseException) -> None:
        def handler(number: int, frame: object) -> None:
            raise error

        def kill() -> None:
            happened()
            signal.pthread_kill(main, signal.SIGUSR1)

        signal.signal(signal.SIGUSR1, handler)
        main = threading.get_ident()
        threads.append(threading.Thread(target=kill))
        threads[-1].start()

    before = signal.getsignal(signal.SIGUSR1)
    yield limit
    for thread in threads:
        thread.join(PATIENCE)
    signal.signal(signal.SIGUSR1, before)


def acquire(lease: Any) -> None:
    redis_lock("job").acquire()


def extend(lease: Any) -> None:
    lease.extend()


def release(lease: Any) -> None:
    lease.release()


@ways
@pytest.mark.parametrize("error", LIMITS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("act", [acquire, extend, release], ids=lambda act: act.__name__)
def test_it_comes_out_at_once(
    proxy: Proxy,
    redis: Redis,
    limit: Callable[[Callable[[], object], BaseException], None],
    act: Callable[[Any], None],
    error: BaseException,
    options: dict[str, Any],
) -> None:
    """Out of whatever waits for an answer; and its connection brings nobody that answer later."""
    url = f"{proxy.url}?client_name={next(iter(options), 'none')}"
    with override_settings(CACHES=caches(url, CONNECTION_POOL_KWARGS=options)):
        lease = None if act is acquire else redis_lock("job").acquire()
        rule = proxy.on(script(f"mutex_{act.__name__}"), Fault.HOLD_REPLY)
        limit(rule.happened, error)
        with pytest.raises(type(error)) as caught:
            act(lease)
        assert caught.value is error
        rule.let_go()
        pool = server_of("default").shared_pool()
        eventually(lambda: not taken(pool))
        if lease is not None and act is extend:
            lease.release()
        eventually(lambda: not redis.exists("redislock:{job}"))
        with redis_lock("job", wait=0) as lease:
            lease.extend()


def test_one_while_another_is_handled(redis: Redis) -> None:
    """What redis-py raises while the limit's exception is being handled is still redis-py's."""

    def handler(number: int, frame: object) -> None:
        raise SoftTimeLimit

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signal.raise_signal(signal.SIGUSR1)
    except SoftTimeLimit:
        with (
            override_settings(CACHES=caches("redis://127.0.0.1:1")),
            pytest.raises(LockUnavailable),
        ):
            redis_lock("job").acquire(wait=0)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", [TypeError, AttributeError, ValueError, RuntimeError])
def test_a_mistake_of_ours(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception], redis: Redis
) -> None:
    """It is seen at once, and not tried again as if Redis were away."""

    def ask(*_: Any, **__: Any) -> Any:
        raise kind("a mistake")

    monkeypatch.setattr(Line, "ask", ask)
    with pytest.raises(kind, match="a mistake"):
        redis_lock("job", wait=PATIENCE).acquire()
    pool = server_of("default").shared_pool()
    eventually(lambda: not taken(pool))


# On a server that hangs.


def leave(lease: Any) -> None:
    with lease:
        pass


def wait_for(lease: Any) -> None:
    redis_lock("job").acquire(wait=None)


@pytest.mark.parametrize(
    "act", [acquire, wait_for, extend, release, leave], ids=lambda act: act.__name__
)
@pytest.mark.parametrize("error", LIMITS[:2], ids=lambda error: type(error).__name__)
def test_a_server_that_hangs(
    own_server: RedisServer, act: Callable[[Any], None], error: BaseException, settings: Any
) -> None:
    """The operation ends when the limit does, and not when the server is given up."""

    def handler(number: int, frame: object) -> None:
        raise error

    settings.CACHES = caches(own_server.url, SOCKET_TIMEOUT=PATIENCE)
    lease = redis_lock("other" if act in (acquire, wait_for) else "job").acquire()
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with own_server.paused():
            began = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(type(error)) as caught:
                act(lease)
            assert caught.value is error
            assert time.monotonic() - began < PATIENCE / 3
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if act is not extend:
        with Redis.from_url(own_server.url) as redis:
            eventually(lambda: not redis.exists("redislock:{job}"))
