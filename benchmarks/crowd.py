"""The contestants for a lock with many waiters, and the processes in which they wait."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import random
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from django_redis import get_redis_connection

from django_redislock import redis_lock

from .harness import TTL

try:
    import redis_lock as python_redis_lock
except ImportError:
    python_redis_lock = None

OURS = "redis_lock"
FLOOR = "BLPOP on a socket"
LIBRARY = "BLPOP by redis-py"
PEER = "python-redis-lock"
POLLING = "redis-py Lock"

HANDOFF = {
    ("threads", 8): 2.6,
    ("threads", 128): 2.8,
    ("processes", 8): 3.0,
    ("processes", 32): 3.5,
    ("tasks", 8): 2.2,
}
"""A handoff, in relation to that of a token in a list, of so many waiters."""

SECTION = 0.001
"""Seconds."""
SPREAD = 0.02
"""Seconds within which the waiters come for the first time in a turn, in any order."""
EXPIRES = 1
"""Seconds: the lease of a holder that dies, the shortest that all contestants accept."""

Span = tuple[float, float, float]
"""When a waiter asked, when it got the lock, and when it began to release it."""


class Turn(NamedTuple):
    """The description of a turn, for the processes of a crowd."""

    title: str
    kind: str
    name: str
    start: float
    end: float
    think: float
    """Seconds, at most; half of it on average."""

    def delay(self) -> float:
        """Until a waiter comes for the first time."""
        return max(0.0, self.start - time.monotonic()) + random.uniform(0, SPREAD)


# The contestants: the work of a waiter.


def _packed(*words: str) -> bytes:
    text = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{text}".encode()


class Floor:
    """A token in a list, without a client library."""

    def __init__(self, client: Any, name: str) -> None:
        self.at: dict[str, Any] = client.connection_pool.connection_kwargs
        self.select = _packed("SELECT", str(self.at["db"]))
        self.take, self.put = _packed("BLPOP", name, "0"), _packed("RPUSH", name, "token")
        self.socket: socket.socket | None = None

    def acquire(self) -> None:
        if self.socket is None:
            self.socket = socket.create_connection((self.at["host"], self.at["port"]))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ask(self.select, b"\r\n")
        self._ask(self.take, b"token\r\n")

    def release(self) -> None:
        self._ask(self.put, b"\r\n")

    def _ask(self, request: bytes, end: bytes) -> None:
        assert self.socket is not None
        self.socket.sendall(request)
        answer = b""
        while not answer.endswith(end):
            answer += self.socket.recv(256)


class AsyncFloor(Floor):
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def acquire(self) -> None:
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.at["host"], self.at["port"])
            await self._ask(self.select, b"\r\n")
        await self._ask(self.take, b"token\r\n")

    async def release(self) -> None:
        await self._ask(self.put, b"\r\n")

    async def _ask(self, request: bytes, end: bytes) -> None:
        assert self.streams is not None
        reader, writer = self.streams
        writer.write(request)
        await reader.readuntil(end)


class Library:
    """The same through redis-py."""

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, name

    def acquire(self) -> None:
        self.client.blpop(self.name, 0)

    def release(self) -> None:
        self.client.rpush(self.name, "token")


class AsyncLibrary(Library):
    async def acquire(self) -> None:
        await self.client.blpop(self.name, 0)

    async def release(self) -> None:
        await self.client.rpush(self.name, "token")


class Ours:
    def __init__(self, client: Any, name: str, ttl: float = TTL, renew: bool = True) -> None:
        del client
        self.name, self.options = name, {"ttl": ttl, "renew": renew, "using": OURS}

    def acquire(self) -> None:
        self.lease: Any = redis_lock(self.name, **self.options).acquire(wait=None)

    def release(self) -> None:
        self.lease.release()


class AsyncOurs(Ours):
    async def acquire(self) -> None:
        self.lease = await redis_lock(self.name, **self.options).aacquire(wait=None)

    async def release(self) -> None:
        await self.lease.arelease()


class Peer:
    """python-redis-lock without renewal, which has a thread for each lock."""

    def __init__(self, client: Any, name: str, ttl: int = TTL, renew: bool = False) -> None:
        self.client, self.name, self.ttl, self.renew = client, name, ttl, renew

    def acquire(self) -> None:
        self.lock: Any = python_redis_lock.Lock(
            self.client, self.name, expire=self.ttl, auto_renewal=self.renew
        )
        self.lock.acquire()

    def release(self) -> None:
        self.lock.release()


class Polling(Peer):
    def acquire(self) -> None:
        self.lock = self.client.lock(self.name, timeout=self.ttl)
        self.lock.acquire()


class AsyncPolling(Polling):
    async def acquire(self) -> None:
        self.lock = self.client.lock(self.name, timeout=self.ttl)
        await self.lock.acquire()

    async def release(self) -> None:
        await self.lock.release()


SYNC: dict[str, Any] = {
    FLOOR: Floor,
    LIBRARY: Library,
    OURS: Ours,
    PEER: Peer,
    POLLING: Polling,
}
ASYNC: dict[str, Any] = {
    FLOOR: AsyncFloor,
    LIBRARY: AsyncLibrary,
    OURS: AsyncOurs,
    POLLING: AsyncPolling,
}


def available(title: str) -> bool:
    return title != PEER or python_redis_lock is not None


# The processes.


class Processes:
    """Processes that follow orders."""

    def __init__(self, size: int) -> None:
        fork = multiprocessing.get_context("fork")
        gc.freeze()  # otherwise each process would soon copy the memory that they share
        self._members: list[tuple[Any, Connection]] = []
        for _ in range(size):
            ours, theirs = fork.Pipe()
            # All our ends of the pipes; otherwise no process would notice the end of this one.
            inherited = [ours, *(pipe for _, pipe in self._members)]
            process = fork.Process(target=obey, args=(theirs, inherited), daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))

    def do(self, *orders: tuple[Callable[..., Any], tuple[Any, ...]]) -> list[Any]:
        """Send an order to each of the first members. Return their answers."""
        members = self._members[: len(orders)]
        for (_, pipe), order in zip(members, orders, strict=True):
            pipe.send(order)
        return [pipe.recv() for _, pipe in members]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process, _ in self._members:
            process.kill()
        for process, pipe in self._members:
            process.join()
            pipe.close()


def obey(pipe: Connection, inherited: list[Connection]) -> None:
    for other in inherited:
        other.close()
    with suppress(EOFError):
        while True:
            function, arguments = pipe.recv()
            pipe.send(function(*arguments))


_runner: asyncio.Runner | None = None
_async_clients: dict[str, Any] = {}
_kept: Any = None
"""The waiters of the last turn, so that their connections are there to be counted."""


def crowd(turn: Turn, first: int, size: int) -> dict[str, Any]:
    """The waiters of one process; `first` is the number of its first one."""
    global _runner, _kept
    _kept = None
    cpu = time.process_time()
    spans: list[list[Span]] = [[] for _ in range(size)]
    dice = [random.Random(first + number) for number in range(size)]
    if turn.kind == "tasks":
        _runner = _runner or asyncio.Runner()
        _runner.run(_tasks(turn, spans, dice))
    else:
        client = get_redis_connection(turn.title)
        locks = _kept = [SYNC[turn.title](client, turn.name) for _ in spans]
        with ThreadPoolExecutor(size) as threads:  # No waiter is done before all have begun.
            list(threads.map(partial(_wait, turn), locks, spans, dice))
    return {"spans": spans, "cpu": time.process_time() - cpu}


def _wait(turn: Turn, lock: Any, spans: list[Span], die: random.Random) -> None:
    time.sleep(turn.delay())
    while not spans or time.monotonic() < turn.end:
        asked = time.monotonic()
        lock.acquire()
        got = time.monotonic()
        if got < turn.end:
            time.sleep(SECTION)
        released = time.monotonic()
        lock.release()
        spans.append((asked, got, released))
        if turn.think:
            time.sleep(die.uniform(0, turn.think))


async def _tasks(turn: Turn, spans: list[list[Span]], dice: list[random.Random]) -> None:
    from django.conf import settings
    from redis.asyncio import Redis as AsyncRedis

    title = turn.title
    if title not in _async_clients:
        location = settings.CACHES[title]["LOCATION"]
        _async_clients[title] = AsyncRedis.from_url(location, max_connections=1000)

    async def wait(lock: Any, spans: list[Span], die: random.Random) -> None:
        await asyncio.sleep(turn.delay())
        while not spans or time.monotonic() < turn.end:
            asked = time.monotonic()
            await lock.acquire()
            got = time.monotonic()
            if got < turn.end:
                await asyncio.sleep(SECTION)
            released = time.monotonic()
            await lock.release()
            spans.append((asked, got, released))
            if turn.think:
                await asyncio.sleep(die.uniform(0, turn.think))

    global _kept
    locks = _kept = [ASYNC[title](_async_clients[title], turn.name) for _ in spans]
    await asyncio.gather(*map(wait, locks, spans, dice))


def hold(title: str, name: str) -> tuple[float, float]:
    """Take the lock, and never release it. Return when it was asked for, and when it was
    granted."""
    client = get_redis_connection(title)
    first = SYNC[title](client, f"{name}: connect, import")
    first.acquire()
    first.release()
    lock = SYNC[title](client, name, ttl=EXPIRES, renew=False)
    asked = time.monotonic()
    lock.acquire()
    return asked, time.monotonic()


def idle() -> None: ...
