"""The cost of a free lock: acquire and release, repeated, each time with a new name.

All contestants do the same through the same django-redis client and its pool, with the same TTL,
a new lock object and a new random token for each cycle. The names are never used twice, so nobody
gains from having seen one; what a contestant leaves on the server is removed before the next one's
turn, by FLUSHDB, and its first cycles are not counted.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
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

Cycle = Callable[[int], object]
AsyncCycle = Callable[[int], Awaitable[object]]

OURS = "redis_lock"
DROP_IN = "cache.lock by LockingClient"
FLOOR = "two plain commands"
BARE = "two commands on a socket"

WARM_UP = 30
TASKS = [1, 50, 128]

COMPARE_AND_DELETE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)


def measure(*, rounds: int, cycles: int) -> list[Row]:
    """Measure with hiredis and without, on one core and across two; synchronous, then asyncio."""
    rows: list[Row] = []
    for hiredis in parsers():
        for cores in ("one", "two"):
            for function in ("synchronous", "asynchronous"):
                say(f"uncontended, {function}, {hiredis=}, cores: {cores}")
                rows += in_child(
                    f"benchmarks.uncontended:{function}",
                    hiredis=hiredis,
                    case={"hiredis": hiredis, "cores": cores},
                    rounds=rounds,
                    cycles=cycles,
                )
    return rows


def synchronous(*, case: dict[str, Any], rounds: int, cycles: int) -> list[Row]:
    rows: list[Row] = []
    numbers = count()
    with private_server(case["cores"]) as server:
        meter = Meter(server)
        for title, cycle in turns(contestants(server), rounds):
            add(rows, {"kind": "sync", **case}, title, spent(meter, cycle, numbers, cycles))
    return rows


def spent(meter: Meter, cycle: Cycle, numbers: Iterator[int], cycles: int) -> dict[str, float]:
    """Do so many cycles, and return what one takes."""
    clean_up(meter)
    for _ in range(WARM_UP):
        cycle(next(numbers))
    meter.start()
    for _ in range(cycles):
        cycle(next(numbers))
    return meter.stop(cycles)


def clean_up(meter: Meter) -> None:
    """Remove what the last contestant left, here and on the server."""
    gc.collect()
    meter.redis.flushdb()


def contestants(server: Any, **more: str) -> list[tuple[str, Cycle]]:
    """A function that does one cycle, given a number that no other cycle has. `more` are further
    aliases of the project, and their URLs."""
    django_project(default=url(server), dropin=url(server), **more)
    from django.core.cache import cache, caches
    from django_redis import get_redis_connection
    from redis.lock import Lock

    from django_redislock import redis_lock

    client = get_redis_connection("default")

    def ours(number: int) -> None:
        with redis_lock(f"invoice:{number}"):
            pass

    @redis_lock("invoice:{number}")
    def decorated(number: int) -> None: ...

    def redis_py(number: int) -> None:
        with Lock(client, f"invoice:{number}", timeout=TTL):
            pass

    def django_redis(number: int) -> None:
        with cache.lock(f"invoice:{number}", timeout=TTL):
            pass

    def drop_in(number: int) -> None:
        with caches["dropin"].lock(f"invoice:{number}", timeout=TTL):
            pass

    script = client.script_load(COMPARE_AND_DELETE)

    def plain(number: int) -> None:
        name, token = f"invoice:{number}", secrets.token_hex(16)
        client.set(name, token, nx=True, px=TTL * 1000)
        client.evalsha(script, 1, name, token)

    return [
        (OURS, ours),
        (f"{OURS} as decorator", decorated),
        ("redis-py Lock", redis_py),
        ("cache.lock", django_redis),
        (DROP_IN, drop_in),
        *_peers(client),
        (FLOOR, plain),
        (BARE, _bare(server, script)),
    ]


def _peers(client: Any) -> Iterator[tuple[str, Cycle]]:
    """Return the contestants that are installed."""
    with suppress(ImportError):
        import redis_lock as python_redis_lock

        def unrenewed(number: int) -> None:
            with python_redis_lock.Lock(client, f"invoice:{number}", expire=TTL):
                pass

        def renewed(number: int) -> None:
            with python_redis_lock.Lock(
                client, f"invoice:{number}", expire=TTL, auto_renewal=True
            ):
                pass

        yield "python-redis-lock", unrenewed
        yield "python-redis-lock, renewing", renewed
    with suppress(ImportError):
        from pottery import Redlock

        def pottery(number: int) -> None:
            with Redlock(key=f"invoice:{number}", masters={client}, auto_release_time=TTL):
                pass

        yield "pottery Redlock", pottery
    with suppress(ImportError):
        from sherlock import RedisLock

        def sherlock(number: int) -> None:
            with RedisLock(f"invoice:{number}", client=client, expire=TTL):
                pass

        yield "sherlock", sherlock


def _bare(server: Any, script: str) -> Cycle:
    """Send the same two commands without a client library."""
    connection = socket.create_connection(("127.0.0.1", server.tcp_port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(*words: str) -> bytes:
        text = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        connection.sendall(f"*{len(words)}\r\n{text}".encode())
        return connection.recv(1024)

    def cycle(number: int) -> None:
        name, token = f"invoice:{number}", secrets.token_hex(16)
        send("SET", name, token, "NX", "PX", str(TTL * 1000))
        send("EVALSHA", script, "1", name, token)

    return cycle


def asynchronous(*, case: dict[str, Any], rounds: int, cycles: int) -> list[Row]:
    with private_server(case["cores"]) as server:
        return asyncio.run(_asynchronous(server, case, rounds, cycles))


async def _asynchronous(server: Any, case: dict[str, Any], rounds: int, cycles: int) -> list[Row]:
    rows: list[Row] = []
    numbers = count()
    meter = Meter(server)
    competing = await async_contestants(server)

    async def repeat(cycle: AsyncCycle, times: int) -> None:
        for _ in range(times):
            await cycle(next(numbers))

    for tasks in TASKS:
        for title, cycle in turns(competing, rounds):
            clean_up(meter)
            await asyncio.gather(*(repeat(cycle, 2) for _ in range(tasks)))
            share = -(-cycles // tasks)
            meter.start()
            await asyncio.gather(*(repeat(cycle, share) for _ in range(tasks)))
            spent = meter.stop(share * tasks)
            add(rows, {"kind": "async", "tasks": tasks, **case}, title, spent)
    return rows


async def async_contestants(server: Any) -> list[tuple[str, AsyncCycle]]:
    django_project(default=url(server))
    from redis.asyncio import Redis
    from redis.asyncio.lock import Lock

    from django_redislock import redis_lock

    client = Redis.from_url(url(server), max_connections=1000)
    script = await client.script_load(COMPARE_AND_DELETE)

    async def ours(number: int) -> None:
        async with redis_lock(f"invoice:{number}"):
            pass

    async def redis_py(number: int) -> None:
        async with Lock(client, f"invoice:{number}", timeout=TTL):
            pass

    async def plain(number: int) -> None:
        name, token = f"invoice:{number}", secrets.token_hex(16)
        await client.set(name, token, nx=True, px=TTL * 1000)
        await client.evalsha(script, 1, name, token)

    return [(OURS, ours), ("redis.asyncio Lock", redis_py), (FLOOR, plain)]
