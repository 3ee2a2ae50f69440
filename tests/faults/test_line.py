"""Waiting threads of a process stand in line when they ask, whatever they wait for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import (
    LeaseLost,
    LockUnavailable,
    ReadWriteLock,
    Redlock,
    Semaphore,
    TimestampLock,
    redis_lock,
)
from django_redislock.primitives import timestamp
from django_redislock.primitives.waiting import LINE
from django_redislock.transport import ports
from django_redislock.transport.inbox import Inbox
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.caches import caches, entry
from tests.contract.api import Api, SyncApi, queued
from tests.faults.interruption import every_place
from tests.faults.test_restart import steady_port
from tests.waiting import PATIENCE, eventually

WAITERS = 6
NOWHERE = "redis://127.0.0.1:1/0"
"""No server listens there."""

KINDS = {
    "mutex": lambda: redis_lock("job"),
    "semaphore": lambda: Semaphore("job", 1),
    "writer": lambda: ReadWriteLock("job").write(),
    "timestamp": lambda: TimestampLock("job"),
    "redlock": lambda: Redlock("job", using=["a", "b", "c"]),
}


class Line:
    """The line of all servers. It has no place at first."""

    def __init__(self) -> None:
        self.standing: set[int] = set()
        """The threads that stand in it now."""
        self.seen: set[int] = set()
        """Those that stood in it since it was last asked for."""
        self.passed: list[int] = []
        """The threads that had a place."""
        self._places = threading.Semaphore(0)

    def acquire(self, *, timeout: float) -> bool:
        me = threading.get_ident()
        self.standing.add(me)
        try:
            got = self._places.acquire(timeout=timeout)
        finally:
            self.standing.discard(me)
        if got:
            self.passed.append(me)
        return got

    def release(self) -> None:
        self._places.release()

    def has(self, number: int) -> Callable[[], bool]:
        """Whether so many stand in it, or look for messages meanwhile."""
        self.seen = set()

        def look() -> bool:
            self.seen.update(self.standing)
            return len(self.seen) == number

        return look


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    line = Line()
    monkeypatch.setattr(ports, "_line", lambda _: line)
    yield line
    for _ in range(WAITERS):
        line.release()


@pytest.fixture
def three(settings: Any, redis_server: RedisServer) -> Iterator[None]:
    """Two servers more for the locks of several servers."""
    with RedisServer() as b, RedisServer() as c:
        urls = {"a": redis_server.url, "b": b.url, "c": c.url}
        settings.CACHES |= {using: entry(url) for using, url in urls.items()}
        yield


def begin(make: Callable[[], Any], number: int = WAITERS, **options: Any) -> list[Future[Any]]:
    api = SyncApi()
    return [api.start(lambda: make().acquire(**options)) for _ in range(number)]


def at_rest() -> Inbox:
    """Wait until all but the first one rest. Return their inbox."""
    box = server_of("default").kept(Inbox, "redislock")
    eventually(lambda: len(box._local_queues.resting) == WAITERS - 1)
    return box


def serve(waiters: list[Future[Any]]) -> None:
    """All of them have the lock, one after the other."""
    for waiter in waiters:
        waiter.add_done_callback(lambda waiter: waiter.result().release())
    for waiter in waiters:
        waiter.result(PATIENCE)


@pytest.mark.parametrize("kind", ["mutex", "semaphore", "writer", "timestamp"])
def test_who_comes_while_redis_is_away(kind: str, line: Line, settings: Any) -> None:
    """They ask once, and stand in line from then on."""
    settings.CACHES = caches(f"{NOWHERE}#{kind}")
    waiters = begin(KINDS[kind], wait=2)
    eventually(line.has(WAITERS))
    for waiter in waiters:
        with pytest.raises(LockUnavailable):
            waiter.result(PATIENCE)


@pytest.mark.parametrize("names", [["job"] * WAITERS, [f"job {n}" for n in range(WAITERS)]])
def test_one_asks_for_all_while_redis_is_away(
    names: list[str], api: Api, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they wait for, the others rest until the connection for messages is back, which
    wakes them."""
    monkeypatch.setattr(ports, "LONGEST_AWAY", 10**6)
    asked: Counter[str | None] = Counter()
    for port in (ports.SyncPort, ports.AsyncPort):
        monkeypatch.setattr(port, "_execute", counted(port._execute, asked))
    server = RedisServer(tcp_port=steady_port())
    with server:
        settings.CACHES = caches(f"redis://127.0.0.1:{server.tcp_port}/0")
        holders = [redis_lock(name).acquire() for name in dict.fromkeys(names)]
        waiters, redis = [], Redis.from_url(server.url)
        for number, name in enumerate(names, 1):
            lock = redis_lock(name, wait=PATIENCE)
            waiters.append(api.start(partial(api.acquire, lock)))
            queued(redis, name, number if name == "job" else 1)
        queues = [f"redislock:{{{name}}}:queue" for name in dict.fromkeys(names)]
        tokens = [token.decode() for queue in queues for token in redis.zrange(queue, 0, -1)]
        assert len(tokens) == WAITERS
        box = server_of("default").kept(Inbox, "redislock")
        server.stop()
        eventually(lambda: not box.listening.is_set())
        asked.clear()
        eventually(lambda: max(asked[token] for token in tokens) > 5)
        _, *others = sorted((asked[token] for token in tokens), reverse=True)
        assert max(others) < 3, "once when the connection was lost, and once more in vain"
        server.start()
        for waiter in waiters:  # Redis has lost its data, so any of them may be the first
            waiter.add_done_callback(lambda its: api.start(partial(api.release, its.result())))
        for waiter in waiters:
            waiter.result(PATIENCE)
        for holder in holders:
            with pytest.raises(LeaseLost):
                holder.release()


def counted(execute: Callable[..., Any], asked: Counter[str | None]) -> Callable[..., Any]:
    """Return it, with a count of the requests of each waiter."""

    def and_count(self: Any, command: Any) -> Any:
        asked[command.word] += 1
        return execute(self, command)

    return and_count


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("kind", ["timestamp", "redlock"])
def test_locks_without_a_queue(kind: str, line: Line) -> None:
    """Those who wait for such a lock stand in line, too, and leave it when they have asked."""
    held = KINDS[kind]().acquire()
    waiters = begin(KINDS[kind], wait=None)
    eventually(line.has(WAITERS))
    line.release()
    eventually(lambda: len({*line.passed}) == WAITERS)
    held.release()
    serve(waiters)


def test_a_release_without_an_answer(
    line: Line, own_server: RedisServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any waiter of the process may have the lock now. They ask, but not all at once."""
    settings.CACHES = caches(own_server.url, SOCKET_TIMEOUT=0.2)
    held = redis_lock("job", ttl=60).acquire()
    waiters = begin(partial(redis_lock, "job"), wait=None)
    at_rest()
    asked: list[int] = []
    execute = SyncPort._execute

    def spy(port: SyncPort, command: Any) -> Any:
        asked.append(threading.get_ident())
        return execute(port, command)

    monkeypatch.setattr(SyncPort, "_execute", spy)
    with own_server.paused():
        with pytest.raises(LockUnavailable):
            held.release()
        eventually(line.has(WAITERS))
        assert not {*asked} & line.seen
    for _ in range(WAITERS):
        line.release()
    held.release()
    serve(waiters)


def test_a_wake_up_in_the_line(line: Line, redis: Redis) -> None:
    """Whoever is woken while it stands in line asks once, and not once more."""
    held = redis_lock("job").acquire()
    waiters = []
    for already in range(WAITERS):
        waiters += begin(partial(redis_lock, "job"), 1, wait=None)
        queued(redis, "job", already + 1)
    box = at_rest()
    box.wake_all()
    eventually(line.has(WAITERS))
    box.wake_all()
    line.release()
    # The first one goes on to ask by itself, twice; the others rest.
    eventually(lambda: 3 in map(line.passed.count, {*line.passed}))
    assert len(line.passed) == WAITERS + 2
    held.release()
    serve(waiters)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <coroutine object:pytest.PytestUnraisableExceptionWarning"
)
def test_an_interrupted_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends a wait for a lock without a queue, its place in the line is free again."""
    # It asks at the beginning, in line, and at the end.
    monkeypatch.setattr(timestamp, "poll", lambda polls, _, left, __: min(left, polls**3 / 100))
    [holder] = begin(partial(TimestampLock, "job", ttl=600), 1)
    held = holder.result(PATIENCE)
    places = [*every_place(lambda _: TimestampLock("job").acquire(wait=0.06))]
    assert len(places) > 100
    assert server_of("default").kept(ports._line)._value >= LINE
    held.release()
