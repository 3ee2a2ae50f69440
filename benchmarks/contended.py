"""What a lock carries for which many wait: who gets it next, how soon, and at what cost.

Each waiter asks for the one lock, works in it for a millisecond, gives it back and asks again: at
once, or after a random time to think, of as much as a round of all waiters takes on average.
Waiters are threads of one process, tasks of one event loop, or processes; "lone" is one process
with a single waiter beside another with all the rest. The floor is a token in a list, which is all
that Redis needs for this: BLPOP takes it, RPUSH puts it back, and who dies with it takes it along.

All go through django-redis, or redis.asyncio, each contestant in a database of its own: so the
server can tell whose connections are whose. The clock is one that all processes share.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import statistics
import threading
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from multiprocessing.connection import Connection
from operator import itemgetter
from typing import Any

from .harness import (
    TTL,
    Meter,
    Row,
    add,
    django_project,
    in_child,
    parsers,
    private_server,
    say,
    turns,
    url,
)

OURS = "redis_lock"
FLOOR = "BLPOP"
PEER = "python-redis-lock"
POLLING = "redis-py Lock"
DATABASES = {FLOOR: 1, OURS: 2, PEER: 3, POLLING: 4}

SECTION = 0.001
"""Seconds."""
SPREAD = 0.02
"""Seconds within which they come for the first time in a turn, in any order."""
EXPIRES = 1
"""Seconds: the lease of a holder that dies, the shortest that all take."""

Span = tuple[float, float, float]
"""When a waiter asked, when it was given the lock, and when it began to give it back."""


# The contestants: what a waiter does.


class Floor:
    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, name

    def acquire(self) -> None:
        self.client.blpop(self.name, 0)

    def release(self) -> None:
        self.client.rpush(self.name, "token")


class AsyncFloor(Floor):
    async def acquire(self) -> None:
        await self.client.blpop(self.name, 0)

    async def release(self) -> None:
        await self.client.rpush(self.name, "token")


class Ours:
    def __init__(self, client: Any, name: str, ttl: float = TTL, renew: bool = True) -> None:
        del client
        self.name, self.options = name, {"ttl": ttl, "renew": renew, "using": OURS}

    def acquire(self) -> None:
        from django_redislock import redis_lock

        self.lease: Any = redis_lock(self.name, **self.options).acquire(wait=None)

    def release(self) -> None:
        self.lease.release()


class AsyncOurs(Ours):
    async def acquire(self) -> None:
        from django_redislock import redis_lock

        self.lease = await redis_lock(self.name, **self.options).aacquire(wait=None)

    async def release(self) -> None:
        await self.lease.arelease()


class Peer:
    """python-redis-lock without renewal, which has a thread for each lock."""

    def __init__(self, client: Any, name: str, ttl: int = TTL, renew: bool = False) -> None:
        self.client, self.name, self.ttl, self.renew = client, name, ttl, renew

    def acquire(self) -> None:
        from redis_lock import Lock

        self.lock: Any = Lock(self.client, self.name, expire=self.ttl, auto_renewal=self.renew)
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


SYNC: dict[str, Any] = {FLOOR: Floor, OURS: Ours, PEER: Peer, POLLING: Polling}
ASYNC: dict[str, Any] = {FLOOR: AsyncFloor, OURS: AsyncOurs, POLLING: AsyncPolling}


# What is measured.


def measure(*, rounds: int, seconds: float, waiters: list[int]) -> list[Row]:
    return in_child(
        "benchmarks.contended:all_cases",
        hiredis=parsers()[0],
        rounds=rounds,
        seconds=seconds,
        crowds=waiters,
    )


def all_cases(*, rounds: int, seconds: float, crowds: list[int]) -> list[Row]:
    rows: list[Row] = []
    with private_server() as server:
        django_project(default=url(server), **{t: url(server, d) for t, d in DATABASES.items()})
        # Before the processes of the crowd are forked, or each would have to import them.
        modules = ["django_redislock", "redis.asyncio"]
        for module in [*modules, "redis_lock"] if available(PEER) else modules:
            import_module(module)
        for kind in ("threads", "processes", "tasks"):
            for thinking in (False, True):
                for waiters in crowds:
                    case = {"kind": kind, "waiters": waiters, "thinking": thinking}
                    measure_case(rows, server, case, rounds, seconds)
        lone = {"kind": "lone", "waiters": 32, "thinking": False}
        measure_case(rows, server, lone, rounds, seconds)
        measure_expiry(rows, rounds)
    return rows


def measure_case(
    rows: list[Row], server: Any, case: dict[str, Any], rounds: int, seconds: float
) -> None:
    kind, waiters, thinking = case["kind"], case["waiters"], case["thinking"]
    say(f"contended, {waiters:3} {kind}{', thinking' if thinking else ''}")
    shares = {"threads": [waiters], "tasks": [waiters], "lone": [1, waiters - 1]}.get(
        kind, [1] * waiters
    )
    contestants = [title for title in (ASYNC if kind == "tasks" else SYNC) if available(title)]
    if thinking or kind == "lone" or waiters not in (8, 128):
        contestants.remove(POLLING)  # It is slower by an order of magnitude; that is soon shown.
    # Enough for ten turns each.
    seconds *= max(1.0, waiters / 50)
    meter = Meter(server)
    with Crew(len(shares)) as crew:
        for title in contestants:
            play(crew, meter, title, shares, {**case, "seconds": min(seconds, 0.1)})
        for title in turns(contestants, rounds):
            play_case = {**case, "seconds": seconds}
            add(rows, case, title, play(crew, meter, title, shares, play_case))
    # Who was served how often is only told by all rounds together.
    for row in rows:
        if row["case"] == case:
            served = [sum(times) for times in zip(*row["values"].pop("served"), strict=True)]
            mean = statistics.mean(served)
            jain = mean**2 / statistics.mean(times**2 for times in served)
            row["values"]["jain"] = [round(jain, 5)]
            if kind == "lone":
                row["values"]["lone"] = [round(served[0] / statistics.mean(served[1:]), 4)]


def play(
    crew: Crew, meter: Meter, title: str, shares: list[int], case: dict[str, Any]
) -> dict[str, Any]:
    """One turn of a contestant."""
    name = f"crowd:{random.getrandbits(64):x}"
    redis = meter.redis
    if title == FLOOR:
        redis.execute_command("SELECT", DATABASES[FLOOR])
        redis.rpush(name, "token")
        redis.execute_command("SELECT", 0)
    meter.start()
    start = time.monotonic() + 0.05 + 0.001 * len(shares)
    end = start + case["seconds"]
    think = 2 * SECTION * case["waiters"] if case["thinking"] else 0.0
    firsts = [sum(shares[:number]) for number in range(len(shares))]
    answers = crew.do(
        *(
            (crowd, (title, case["kind"], name, first, share, start, end, think))
            for first, share in zip(firsts, shares, strict=True)
        )
    )
    spent = meter.stop()
    spans: list[list[Span]] = [waiter for answer in answers for waiter in answer["spans"]]
    served = [sum(got <= end for _, got, _ in waiter) for waiter in spans]
    sections = sum(served)
    # Whoever asks last has to wait, too, so the first round of all is no measure of waiting.
    waits = [got - asked for waiter in spans for asked, got, _ in waiter[1:] if got <= end]
    order = sorted((span for waiter in spans for span in waiter), key=itemgetter(1))
    handoffs = [
        got - released
        for (_, _, released), (asked, got, _) in pairwise(order)
        if asked < released and got <= end
    ]
    all_spans = max(1, len(order))
    return {
        "sections_per_second": round(sections / case["seconds"], 2),
        "handoff": round(statistics.median(handoffs or [0.0]), 7),
        "wait_median": round(statistics.median(waits or [0.0]), 7),
        "wait_max": round(max(waits, default=0.0), 7),
        "client_cpu": round(sum(answer["cpu"] for answer in answers) / all_spans, 7),
        "server_cpu": round(spent["server_cpu"] / all_spans, 7),
        "requests": round(spent["round_trips"] / all_spans, 3),
        "connections": round(connections(redis, DATABASES[title]) / len(shares), 2),
        "served": served,
    }


def available(title: str) -> bool:
    return title != PEER or find_spec("redis_lock") is not None


def connections(redis: Any, database: int) -> int:
    return sum(int(client["db"]) == database for client in redis.client_list())


def measure_expiry(rows: list[Row], rounds: int) -> None:
    """How long after the end of its lease a holder that is gone is succeeded."""
    say("contended, a holder that is gone")
    case = {"kind": "expiry"}
    with Crew(2) as crew:
        contestants = [title for title in (OURS, PEER, POLLING) if available(title)]
        for number, title in enumerate(turns(contestants, rounds)):
            name = f"gone:{number}"
            [held] = crew.do((hold, (title, name)))
            # Anywhere in the lease, so that no rhythm of polling is met.
            time.sleep(0.1 + 0.5 * random.Random(number).random())
            [_, got] = crew.do((idle, ()), (hold, (title, name)))
            add(rows, case, title, {"late": round(got - held - EXPIRES, 6)})
            time.sleep(EXPIRES)


# In the processes of the waiters.


class Crew:
    """So many processes, that do what they are told."""

    def __init__(self, size: int) -> None:
        fork = multiprocessing.get_context("fork")
        self._members = []
        for _ in range(size):
            ours, theirs = fork.Pipe()
            process = fork.Process(target=obey, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))

    def do(self, *orders: tuple[Callable[..., Any], tuple[Any, ...]]) -> list[Any]:
        """One order for each of the first members; what all of them answer."""
        members = self._members[: len(orders)]
        for (_, pipe), order in zip(members, orders, strict=True):
            pipe.send(order)
        return [pipe.recv() for _, pipe in members]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process, _ in self._members:
            process.kill()
        for process, pipe in self._members:
            process.join()
            pipe.close()


def obey(pipe: Connection) -> None:
    while True:
        function, arguments = pipe.recv()
        pipe.send(function(*arguments))


_runner: asyncio.Runner | None = None
_async_clients: dict[str, Any] = {}


def crowd(
    title: str,
    kind: str,
    name: str,
    first: int,
    size: int,
    start: float,
    end: float,
    think: float,
) -> dict[str, Any]:
    """The waiters of one process, from `start` to `end`; the numbers of waiters go on."""
    global _runner
    spans: list[list[Span]] = [[] for _ in range(size)]
    dice = [random.Random(first + number) for number in range(size)]
    cpu = time.process_time()
    if kind == "tasks":
        _runner = _runner or asyncio.Runner()
        _runner.run(_tasks(title, name, spans, dice, start, end, think))
    else:
        from django_redis import get_redis_connection

        client = get_redis_connection(title)
        threads = [
            threading.Thread(
                target=_wait, args=(SYNC[title](client, name), span, die, start, end, think)
            )
            for span, die in zip(spans, dice, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {"spans": spans, "cpu": time.process_time() - cpu}


def _wait(
    lock: Any, spans: list[Span], die: random.Random, start: float, end: float, think: float
) -> None:
    time.sleep(max(0.0, start - time.monotonic()) + random.uniform(0, SPREAD))
    while (asked := time.monotonic()) < end:
        lock.acquire()
        got = time.monotonic()
        time.sleep(SECTION)
        released = time.monotonic()
        lock.release()
        spans.append((asked, got, released))
        if think:
            time.sleep(die.uniform(0, think))


async def _tasks(
    title: str,
    name: str,
    spans: list[list[Span]],
    dice: list[random.Random],
    start: float,
    end: float,
    think: float,
) -> None:
    from django.conf import settings
    from redis.asyncio import Redis

    if title not in _async_clients:
        location = settings.CACHES[title]["LOCATION"]
        _async_clients[title] = Redis.from_url(location, max_connections=1000)

    async def wait(lock: Any, spans: list[Span], die: random.Random) -> None:
        await asyncio.sleep(start - time.monotonic() + random.uniform(0, SPREAD))
        while (asked := time.monotonic()) < end:
            await lock.acquire()
            got = time.monotonic()
            await asyncio.sleep(SECTION)
            released = time.monotonic()
            await lock.release()
            spans.append((asked, got, released))
            if think:
                await asyncio.sleep(die.uniform(0, think))

    waiters = zip(spans, dice, strict=True)
    await asyncio.gather(
        *(wait(ASYNC[title](_async_clients[title], name), span, die) for span, die in waiters)
    )


def hold(title: str, name: str) -> float:
    """Take it, and never give it back; when it was given."""
    from django_redis import get_redis_connection

    SYNC[title](get_redis_connection(title), name, ttl=EXPIRES, renew=False).acquire()
    return time.monotonic()


def idle() -> None: ...
