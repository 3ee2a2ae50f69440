"""The cost of held leases, and of waiting: up to 10,000 of each in one process.

Nothing else goes on in a process that holds them, so what it takes of a processor is the cost of
renewing. It is looked at for `WINDOW` seconds, again and again; meanwhile each lease of ours is
renewed twice, and each of python-redis-lock's once. Figures are for ten seconds, which is a third
of the TTL. As all of that is next to nothing, all numbers of leases are held at the same time,
each in a process of its own with a server of its own.

How late a renewal comes is seen from outside, five times a second: the end of that lease that ends
next is never nearer than two thirds of the TTL, or its renewal was late. Memory is what Python has
given out. What the renewal has of that is told apart by holding as many leases that nobody renews.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Any

from .harness import TTL, Meter, Row, add, django_project, in_child, private_server, say, url

LEASES = [100, 1000, 10_000]
WAITING = [10, 100, 1000]
WINDOW = 2 / 3 * TTL
EVERY = 10.0
"""Figures are for so many seconds."""

OURS, THEIRS = "redis_lock", "python-redis-lock, renewing"
MOST = {THEIRS: 1000}
"""The same for a contestant that has a thread for each of them."""
RUNNING = "benchmark:running"


def measure(
    *,
    rounds: int,
    window: float = WINDOW,
    leases: Sequence[int] = LEASES,
    waiting: Sequence[int] = WAITING,
) -> list[Row]:
    say(f"leases: held, for {rounds * window:.0f} s")
    titles = [OURS, THEIRS] if find_spec("redis_lock") else [OURS]
    cases = [(title, n) for title in titles for n in leases if n <= MOST.get(title, n)]
    with ThreadPoolExecutor(len(cases)) as pool:
        held = [pool.submit(watch, title, n, rounds, window) for title, n in cases]
        rows = [row for one in held for row in one.result()]
    for number in leases:
        say(f"leases: the memory of {number}")
        rows += in_child("benchmarks.leases:remember", number=number, window=window)
    for number in waiting:
        say(f"leases: {number} wait")
        rows += in_child("benchmarks.leases:wait", number=number, rounds=rounds)
    return rows


def watch(title: str, number: int, rounds: int, window: float) -> list[Row]:
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
            window=window,
        )
        late = 0.0
        while not child.done():
            time.sleep(0.2)
            pipeline = redis.pipeline()
            pipeline.exists(RUNNING).time().zrange("redislock:index", 0, 0, withscores=True)
            running, (seconds, microseconds), ends = pipeline.execute()
            if running and ends:
                left = ends[0][1] / 1000 - seconds - microseconds / 1e6
                late = max(late, 2 / 3 * TTL - left)
        rows: list[Row] = child.result()
        for row in rows:
            if title == OURS:
                row["values"]["late"] = [round(late, 3)] * rounds
        return rows


class Server:
    """A holder in another process."""

    def __init__(self, port: int) -> None:
        self.tcp_port = port


def hold(*, title: str, port: int, number: int, rounds: int, window: float) -> list[Row]:
    rows: list[Row] = []
    server = Server(port)
    leases = held(title, number, server)
    meter = Meter(server)
    time.sleep(min(EVERY, window))  # the first renewals; connections are made
    meter.redis.set(RUNNING, "1")
    for _ in range(rounds):
        before = scripts(meter)
        meter.start()
        time.sleep(window)
        spent = meter.stop()
        found = {
            "client_cpu": round(spent["client_cpu"] * EVERY / window, 6),
            "requests": round((scripts(meter) - before) * EVERY / window, 1),
            "threads": threading.active_count() - 1,
        }
        add(rows, {"kind": "held", "leases": number}, title, found)
    meter.redis.delete(RUNNING)
    assert len(leases) == number
    return rows


def scripts(meter: Meter) -> int:
    """Return how many commands the server was sent; only renewals send any."""
    counted = meter.redis.info("commandstats")
    return sum(counted.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))


def held(title: str, number: int, server: Any) -> list[Any]:
    django_project(default=url(server))
    if title == THEIRS:
        import redis_lock as python_redis_lock
        from django_redis import get_redis_connection

        client = get_redis_connection("default")
        locks = [
            python_redis_lock.Lock(client, f"job:{one}", expire=TTL, auto_renewal=True)
            for one in range(number)
        ]
        return [lock for lock in locks if lock.acquire(blocking=False)]
    from django.conf import settings

    from django_redislock import redis_lock

    # As many connections as django-redis and redis-py have by default, at most.
    settings.CACHES["default"]["OPTIONS"] = {}

    leases = [redis_lock(f"job:{one}", ttl=TTL).acquire(wait=0) for one in range(number)]
    return [lease for lease in leases if lease is not None]


def remember(*, number: int, window: float) -> list[Row]:
    """Bytes for each lease: of it and what it consists of, and of what renews it. This is the same
    in each round."""
    with private_server() as server:
        leases = held(OURS, 1, server)
        from django_redislock import redis_lock
        from django_redislock.lease.watchdog import Watchdog

        watched = Watchdog.watch
        tracemalloc.start()

        def acquire(first: int, ttl: float) -> float:
            before, _ = tracemalloc.get_traced_memory()
            for one in range(first, first + number):
                leases.append(redis_lock(f"task:{one}", ttl=ttl).acquire(wait=0))
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            return (after - before) / number

        Watchdog.watch = lambda *_: None  # type: ignore[method-assign]
        lease = acquire(0, 300.0)
        Watchdog.watch = watched  # type: ignore[method-assign]
        both = acquire(number, TTL)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        time.sleep(window)  # the leases are renewed
        _, peak = tracemalloc.get_traced_memory()
        found = {
            "bytes": lease,
            "renewal_bytes": both - lease,
            "renewing_bytes": (peak - before) / number,
        }
        rows: list[Row] = []
        add(rows, {"kind": "memory", "leases": number}, OURS, found)
        return rows


def wait(*, number: int, rounds: int) -> list[Row]:
    """Let this number of tasks wait for as many names, all of which somebody else holds."""
    with private_server() as server:
        others = held(OURS, number, server)
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
