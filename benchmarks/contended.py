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
import gc
import multiprocessing
import random
import statistics
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.connection import Connection
from operator import itemgetter
from typing import Any, NamedTuple

from django_redis import get_redis_connection
from redis import Redis

from django_redislock import redis_lock

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

try:
    import redis_lock as python_redis_lock
except ImportError:
    python_redis_lock = None

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


class Turn(NamedTuple):
    """What the processes of a crowd have to know of a turn."""

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
    one_process = {"threads": [waiters], "tasks": [waiters], "lone": [1, waiters - 1]}
    shares = one_process.get(kind, [1] * waiters)
    contestants = [title for title in (ASYNC if kind == "tasks" else SYNC) if available(title)]
    if thinking or kind == "lone" or waiters not in (8, 128):
        contestants.remove(POLLING)  # Its waiters starve; that is soon shown.
    think = 2 * SECTION * waiters if thinking else 0.0
    seconds *= max(1.0, waiters / 50)  # Enough for some turns each.
    meter = Meter(server)
    served: dict[str, list[list[int]]] = {title: [] for title in contestants}
    with Crew(len(shares)) as crew:
        for title in contestants:
            play(crew, meter, shares, title, kind, think, 0.1)  # Connects and imports.
        for title in turns(contestants, rounds):
            spent, times = play(crew, meter, shares, title, kind, think, seconds)
            add(rows, case, title, spent)
            served[title].append(times)
    # Who is served how often is told by all rounds together, since a turn ends in mid-round.
    for title, rounds_of in served.items():
        times = [sum(of_waiter) for of_waiter in zip(*rounds_of, strict=True)]
        mean = statistics.mean(times)
        spent = {"jain": round(mean**2 / statistics.mean(x * x for x in times), 5)}
        if kind == "lone":
            spent["lone"] = round(times[0] / statistics.mean(times[1:]), 4)
        add(rows, case, title, spent)


def play(
    crew: Crew,
    meter: Meter,
    shares: list[int],
    title: str,
    kind: str,
    think: float,
    seconds: float,
) -> tuple[dict[str, float], list[int]]:
    """One turn of a contestant: its figures, and how often each waiter was served."""
    name = f"crowd:{random.getrandbits(64):x}"
    if title == FLOOR:
        with Redis.from_url(url(meter.server, DATABASES[FLOOR])) as redis:
            redis.rpush(name, "token")
    meter.start()
    start = time.monotonic() + 0.02 + 0.001 * len(shares)
    turn = Turn(title, kind, name, start, start + seconds, think)
    firsts = [sum(shares[:number]) for number in range(len(shares))]
    answers = crew.do(*((crowd, (turn, *who)) for who in zip(firsts, shares, strict=True)))
    spent = meter.stop()
    spans: list[list[Span]] = [waiter for answer in answers for waiter in answer["spans"]]
    order = sorted((span for waiter in spans for span in waiter), key=itemgetter(1))
    served = [sum(got <= turn.end for _, got, _ in waiter) for waiter in spans]
    # When all come at the same time, they wait for less than they will. And who is not served
    # before the end has waited for at least so long.
    waits = [got - asked for waiter in spans for asked, got, _ in waiter[1:]]
    longest = max(min(got, turn.end) - asked for asked, got, _ in order)
    handoffs = [
        got - released
        for (_, _, released), (asked, got, _) in pairwise(order)
        if asked < released and got <= turn.end
    ]
    return {
        "sections_per_second": round(sum(served) / seconds, 2),
        "handoff": round(statistics.median(handoffs or [0.0]), 7),
        "wait_median": round(statistics.median(waits or [0.0]), 7),
        "wait_max": round(longest, 7),
        "client_cpu": round(sum(answer["cpu"] for answer in answers) / len(order), 7),
        "server_cpu": round(spent["server_cpu"] / len(order), 7),
        "requests": round(spent["round_trips"] / len(order), 3),
        "connections": round(connections(meter.redis, DATABASES[title]) / len(shares), 2),
    }, served


def available(title: str) -> bool:
    return title != PEER or python_redis_lock is not None


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
            [(asked, _)] = crew.do((hold, (title, name)))
            # Anywhere in the lease, so that no rhythm of polling is met.
            time.sleep(0.1 + 0.5 * random.Random(number).random())
            [_, (_, got)] = crew.do((idle, ()), (hold, (title, name)))
            add(rows, case, title, {"late": round(got - asked - EXPIRES, 6)})


# In the processes of the waiters.


class Crew:
    """So many processes, that do what they are told."""

    def __init__(self, size: int) -> None:
        fork = multiprocessing.get_context("fork")
        gc.freeze()  # Or each process would soon have copied what it shares with this one.
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


def crowd(turn: Turn, first: int, size: int) -> dict[str, Any]:
    """The waiters of one process; `first` is the number of its first one."""
    global _runner
    cpu = time.process_time()
    spans: list[list[Span]] = [[] for _ in range(size)]
    dice = [random.Random(first + number) for number in range(size)]
    if turn.kind == "tasks":
        _runner = _runner or asyncio.Runner()
        _runner.run(_tasks(turn, spans, dice))
    else:
        client = get_redis_connection(turn.title)
        threads = []
        for span, die in zip(spans, dice, strict=True):
            lock = SYNC[turn.title](client, turn.name)
            threads.append(threading.Thread(target=_wait, args=(turn, lock, span, die)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {"spans": spans, "cpu": time.process_time() - cpu}


def _wait(turn: Turn, lock: Any, spans: list[Span], die: random.Random) -> None:
    time.sleep(turn.delay())
    while (asked := time.monotonic()) < turn.end:
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
        while (asked := time.monotonic()) < turn.end:
            await lock.acquire()
            got = time.monotonic()
            if got < turn.end:
                await asyncio.sleep(SECTION)
            released = time.monotonic()
            await lock.release()
            spans.append((asked, got, released))
            if turn.think:
                await asyncio.sleep(die.uniform(0, turn.think))

    locks = [ASYNC[title](_async_clients[title], turn.name) for _ in spans]
    await asyncio.gather(*map(wait, locks, spans, dice))


def hold(title: str, name: str) -> tuple[float, float]:
    """Take it, and never give it back; when it was asked for, and when it was given."""
    client = get_redis_connection(title)
    first = SYNC[title](client, f"{name}: connect, import")
    first.acquire()
    first.release()
    lock = SYNC[title](client, name, ttl=EXPIRES, renew=False)
    asked = time.monotonic()
    lock.acquire()
    return asked, time.monotonic()


def idle() -> None: ...
