"""The cost of held leases, and of waiting: up to 100,000 of them in one process.

A reference holds as many keys as we hold leases: one thread extends them at a third of their ttl,
250 in one script that compares each token and writes the end of each lease into an index, as one
would write it by hand. Both are held at the same time, each in a process of its own with a server
of its own, and nothing else goes on there. Figures of a window are for ten seconds.

How late a renewal comes is seen from outside, five times a second: the end of that lease that ends
next is never nearer than two thirds of the ttl, or its renewal was late. Memory is what Python has
given out: of ours what is there beside the lease objects that the project itself keeps, of the
reference the list of keys and tokens, both with what a renewal needs for a moment.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import threading
import time
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from itertools import count
from typing import Any

from redis.exceptions import RedisError

from .harness import (
    TTL,
    Meter,
    Row,
    add,
    django_project,
    in_child,
    private_server,
    say,
    turns,
    url,
)
from .uncontended import FLOOR, OURS, contestants

LEASES = 10_000
TTLS = [3, 10, TTL]
WAITING = [10, 100, 1000]
PILE = 100_000
EVERY = 10.0
"""Figures are for so many seconds."""

HAND = "a hand-written batch"
BATCH = 250
RUNNING = "benchmark:running"

EXTEND = """
for i = 1, #KEYS - 1 do
  local token = redis.call('GET', KEYS[i])
  if token and string.sub(token, 1, 32) == ARGV[i + 2] then
    redis.call('PEXPIRE', KEYS[i], ARGV[1])
    redis.call('ZADD', KEYS[#KEYS], ARGV[2], KEYS[i])
  end
end
return 1
"""


def measure(
    *,
    rounds: int,
    leases: int = LEASES,
    ttls: Sequence[float] = TTLS,
    waiting: Sequence[int] = WAITING,
    pile: int = PILE,
) -> list[Row]:
    rows: list[Row] = []
    for ttl in ttls:
        say(f"leases: {leases} held, with a ttl of {ttl} s")
        with ThreadPoolExecutor(2) as pool:
            held = [pool.submit(watch, title, leases, rounds, ttl) for title in (OURS, HAND)]
            rows += [row for one in held for row in one.result()]
    say("leases: their memory")
    for title in (OURS, HAND):
        rows += in_child("benchmarks.leases:remember", title=title, number=leases)
    say(f"leases: {pile} pile up")
    rows += in_child("benchmarks.leases:pile_up", number=pile)
    for number in waiting:
        say(f"leases: {number} wait")
        rows += in_child("benchmarks.leases:wait", number=number, rounds=rounds)
    return rows


def watch(title: str, number: int, rounds: int, ttl: float) -> list[Row]:
    """Hold the leases in a child, and measure from here how late their renewals come."""
    with private_server() as server, ThreadPoolExecutor(1) as pool:
        from redis import Redis

        redis = Redis.from_url(url(server))
        child = pool.submit(
            in_child,
            "benchmarks.leases:hold",
            title=title,
            port=server.tcp_port,
            number=number,
            rounds=rounds,
            ttl=ttl,
        )
        late = 0.0
        while not child.done():
            time.sleep(0.2)
            pipeline = redis.pipeline()
            pipeline.exists(RUNNING).time().zrange("redislock:index", 0, 0, withscores=True)
            running, (seconds, microseconds), ends = pipeline.execute()
            if running and ends:
                left = ends[0][1] / 1000 - seconds - microseconds / 1e6
                late = max(late, 2 / 3 * ttl - left)
        rows: list[Row] = child.result()
        for row in rows:
            row["values"]["late"] = [round(late, 3)] * rounds
        return rows


class Server:
    """A server that another process has started."""

    def __init__(self, port: int) -> None:
        self.tcp_port = port


def hold(*, title: str, port: int, number: int, rounds: int, ttl: float) -> list[Row]:
    rows: list[Row] = []
    server = Server(port)
    django_project(default=url(server))
    keeper = HOLDERS[title](number, ttl)
    meter = Meter(server)
    window = max(2.0, 2 / 3 * ttl)
    time.sleep(window)  # the first renewals; connections are made
    meter.redis.set(RUNNING, "1")
    for _ in range(rounds):
        before = scripts(meter)
        meter.start()
        time.sleep(window)
        spent = meter.stop()
        found = {
            "client_cpu": round(spent["client_cpu"] * EVERY / window, 6),
            "server_cpu": round(spent["server_cpu"] * EVERY / window, 6),
            "requests": round((scripts(meter) - before) * EVERY / window, 1),
            "threads": threading.active_count() - 1,
        }
        add(rows, {"kind": "held", "leases": number, "ttl": ttl}, title, found)
    meter.redis.delete(RUNNING)
    assert keeper is not None
    return rows


def scripts(meter: Meter) -> int:
    """Return how many commands the server was sent; only renewals send any."""
    counted = meter.redis.info("commandstats")
    return sum(counted.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))


def hold_ours(number: int, ttl: float, name: str = "job") -> list[Any]:
    from django.conf import settings

    from django_redislock import redis_lock

    # As many connections as django-redis and redis-py have by default, at most.
    settings.CACHES["default"]["OPTIONS"] = {}
    return [redis_lock(f"{name}:{one}", ttl=ttl).acquire(wait=0) for one in range(number)]


class Hand:
    """Keys that one thread extends."""

    def __init__(self, number: int, ttl: float, name: str = "job") -> None:
        from django_redis import get_redis_connection

        self.client = get_redis_connection("default")
        self.script = self.client.script_load(EXTEND)
        self.ttl = ttl
        self.held: list[tuple[str, str]] = []
        for one in range(number):
            key, token = f"redislock:{{{name}:{one}}}", secrets.token_hex(16)
            self.client.set(key, token, nx=True, px=int(ttl * 1000))
            self.held.append((key, token))
        self.extend()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        due = time.monotonic()
        with suppress(RedisError):  # the server is gone: the turn is over
            while True:
                due += self.ttl / 3
                time.sleep(max(0.0, due - time.monotonic()))
                self.extend()

    def extend(self) -> None:
        for start in range(0, len(self.held), BATCH):
            some = self.held[start : start + BATCH]
            keys = [key for key, _ in some]
            tokens = [token for _, token in some]
            ends = int((time.time() + self.ttl) * 1000)
            words = [*keys, "redislock:index", int(self.ttl * 1000), ends, *tokens]
            self.client.evalsha(self.script, len(some) + 1, *words)


HOLDERS: dict[str, Any] = {OURS: hold_ours, HAND: Hand}


def remember(*, title: str, number: int) -> list[Row]:
    """Bytes for each lease beside the lease objects, as they are held and renewed. This is the
    same in each round."""
    ttl = 3.0
    with private_server() as server:
        django_project(default=url(server))
        first = HOLDERS[title](1, ttl, "first")  # imports, connections, scripts, the thread
        from django_redislock.lease.watchdog import Watchdog

        tracemalloc.start()

        def size() -> int:
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        before, objects = size(), 0
        if title == OURS:
            watched, Watchdog.watch = Watchdog.watch, lambda *_: None  # type: ignore[method-assign]
            leases = hold_ours(number, 600.0)
            objects = size() - before
            for lease in leases:
                lease.release()
            del leases, lease
            Watchdog.watch = watched  # type: ignore[method-assign]
            before = size()
        keeper = HOLDERS[title](number, ttl)
        time.sleep(ttl)
        tracemalloc.reset_peak()
        time.sleep(ttl)
        _, peak = tracemalloc.get_traced_memory()
        assert first is not None
        assert keeper is not None
        found = {"bytes": objects / number, "over": (peak - before - objects) / number}
        rows: list[Row] = []
        add(rows, {"kind": "memory", "leases": number}, title, found)
        return rows


def pile_up(*, number: int, steps: int = 10, cycles: int = 300) -> list[Row]:
    """Take many leases and keep them: what does one take meanwhile, and what does a free cycle
    take beside them?"""
    rows: list[Row] = []
    numbers = count()
    kept: list[Any] = []
    with private_server() as server:
        competing = [one for one in contestants(server) if one[0] in (OURS, FLOOR)]
        from django_redislock import redis_lock

        for step in range(steps + 1):
            for title, cycle in turns(competing, 5):
                begun = time.perf_counter()
                for _ in range(cycles):
                    cycle(next(numbers))
                spent = {"seconds": round((time.perf_counter() - begun) / cycles, 9)}
                add(rows, {"kind": "beside", "held": len(kept)}, title, spent)
            if step < steps:
                share = number // steps
                begun = time.perf_counter()
                for _ in range(share):
                    kept.append(redis_lock(f"held:{len(kept)}", ttl=600).acquire(wait=0))
                spent = {"seconds": round((time.perf_counter() - begun) / share, 9)}
                add(rows, {"kind": "piling", "held": len(kept)}, OURS, spent)
    return rows


def wait(*, number: int, rounds: int) -> list[Row]:
    """Let this number of tasks wait for as many names, all of which somebody else holds."""
    with private_server() as server:
        django_project(default=url(server))
        others = hold_ours(number, TTL)
        return asyncio.run(_wait(server, number, rounds, others))


async def _wait(server: Any, number: int, rounds: int, others: list[Any]) -> list[Row]:
    from django_redislock import redis_lock

    rows: list[Row] = []
    meter = Meter(server)
    served: list[float] = []

    async def one(name: str, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(redis_lock(name, wait=None, ttl=TTL))
        served.append(time.perf_counter())

    async with AsyncExitStack() as stack:
        tasks = [asyncio.ensure_future(one(f"job:{each}", stack)) for each in range(number)]
        while sum(1 for _ in meter.redis.scan_iter("*:queue", count=1000)) < number:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        found = []
        for _ in range(rounds):
            meter.start()
            await asyncio.sleep(EVERY / 5)
            spent = meter.stop()
            found.append(
                {
                    "client_cpu": round(spent["client_cpu"] * 5, 6),
                    "server_cpu": round(spent["server_cpu"] * 5, 6),
                    "requests": round(spent["round_trips"] * 5, 1),
                    "threads": threading.active_count() - 1,
                    "connections": len(meter.redis.client_list()) - 1,  # the connection that asks
                }
            )
        begun = time.perf_counter()
        for lease in others:
            lease.release()
        released = time.perf_counter()
        await asyncio.gather(*tasks)
        for spent in found:
            spent["served"] = round(max(served) - begun, 4)
            spent["releasing"] = round(released - begun, 4)
            add(rows, {"kind": "waiting", "names": number}, OURS, spent)
    return rows
