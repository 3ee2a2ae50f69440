"""Free locks of other kinds: a semaphore, a read-write lock, several names, and several servers;
and what works under a lock: `once`, `single_flight` and `lock_view`.

A cycle is acquire and release, each time with a new name, beside the same two plain commands as in
`uncontended`. A Redlock asks three servers, which share the core of the server here. And a usual
lock in processes that are not usual: one that listens to messages, and one with many `LOCKS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, product
from typing import Any

from devtools.bytecodes import listen

from .harness import Meter, Row, add, in_child, parsers, pin, private_server, say, turns, url
from .uncontended import FLOOR, OURS, Cycle, contestants, spent

REDLOCK = "Redlock of three servers"
SHARED = ["Semaphore", "ReadWriteLock, reading", "ReadWriteLock, writing"]
MULTI = "MultiLock of two names"
ONCE, FLIGHT, VIEW = "once", "single_flight", "lock_view"
LISTENING, LISTED = "that listens to messages", "with 200 LOCKS, 50 of them patterns"
PROCESSES = ["", LISTENING, LISTED]
"""The usual one comes first."""


def measure(*, rounds: int, cycles: int) -> list[Row]:
    rows: list[Row] = []
    for cores, process in product(("one", "two"), PROCESSES):
        say(f"kinds, cores: {cores}, a process {process or 'as usual'}")
        rows += in_child(
            "benchmarks.kinds:free",
            hiredis=parsers()[0],
            case={"cores": cores, "process": process},
            rounds=rounds,
            cycles=cycles,
        )
    return rows


def free(*, case: dict[str, Any], rounds: int, cycles: int) -> list[Row]:
    rows: list[Row] = []
    numbers = count()
    with ExitStack() as stack:
        server = stack.enter_context(private_server(case["cores"]))
        others = [stack.enter_context(_beside(server)) for _ in range(2)]
        meter = Meter(server)
        competing = dict(contestants(server, b=url(others[0]), c=url(others[1])))
        competing = {title: competing[title] for title in (OURS, FLOOR)}
        if case["process"] == LISTENING:
            listen()
        elif case["process"] == LISTED:
            _list_locks()
        else:
            competing |= dict(_of_kinds())
        for title, cycle in turns([*competing.items()], rounds):
            add(rows, case, title, spent(meter, cycle, numbers, cycles))
    return rows


def _list_locks() -> None:
    from django.test import override_settings

    locks = {f"order-{n}:*" if n < 50 else f"order-{n}": {"TTL": 30 + n} for n in range(200)}
    override_settings(REDISLOCK={"LOCKS": locks}).enable()


def _beside(server: Any) -> Any:
    """Make another server on the cores of this one."""
    import os

    from devtools.redis_server import RedisServer

    class Beside(RedisServer):
        def start(self) -> None:
            super().start()
            cores = os.sched_getaffinity(server.pid)
            if len(cores) == 1:
                pin(self.pid, *cores)

    return Beside(tcp_port=0)


def _of_kinds() -> Iterator[tuple[str, Cycle]]:
    from django.http import HttpRequest, HttpResponse
    from django.test import RequestFactory

    from django_redislock import (
        MultiLock,
        ReadWriteLock,
        Redlock,
        Semaphore,
        once,
        single_flight,
    )
    from django_redislock.views import lock_view

    def locked(make: Any) -> Cycle:
        def cycle(number: int) -> None:
            with make(f"invoice:{number}"):
                pass

        return cycle

    reading, writing = SHARED[1:]
    yield SHARED[0], locked(lambda name: Semaphore(name, 2))
    yield reading, locked(lambda name: ReadWriteLock(name).read())
    yield writing, locked(lambda name: ReadWriteLock(name).write())
    yield MULTI, locked(lambda name: MultiLock([name, f"{name}:too"]))
    yield REDLOCK, locked(lambda name: Redlock(name, using=["default", "b", "c"]))

    request = RequestFactory().post("/")

    @lock_view("invoice:{number}")
    def view(request: HttpRequest, number: int) -> HttpResponse:  # noqa: ARG001
        return HttpResponse()

    yield ONCE, locked(once)
    yield FLIGHT, single_flight("invoice:{number}")(lambda number: number)
    yield VIEW, lambda number: view(request, number)
