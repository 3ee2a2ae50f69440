"""The capacity of one server: more and more processes acquire and release free locks.

Each process stands for a host: it has a client of its own, and names of its own. What a cycle
costs the server's core is what bounds a fleet, since Redis does one thing at a time: a second
divided by that is what it carries, on a core like this one. Server and processes share all cores
of the machine: how fast they are together says more of the machine than of the lock.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from .harness import Meter, Row, add, in_child, parsers, private_server, say, turns
from .uncontended import FLOOR, OURS, contestants

PROCESSES = [1, 2, 4, 8, 16]


def measure(*, rounds: int, seconds: float, processes: Sequence[int] = PROCESSES) -> list[Row]:
    rows: list[Row] = []
    for number in processes:
        say(f"fleet: {number} processes")
        rows += in_child(
            "benchmarks.fleet:together", processes=number, rounds=rounds, seconds=seconds
        )
    return rows


def together(*, processes: int, rounds: int, seconds: float) -> list[Row]:
    rows: list[Row] = []
    with private_server() as server:
        context = multiprocessing.get_context("spawn")
        fleet = []
        for place in range(processes):
            ours, theirs = context.Pipe()
            args = (server.tcp_port, place, theirs, parsers()[0])
            context.Process(target=_work, args=args, daemon=True).start()
            fleet.append(ours)
        for one in fleet:
            one.recv()  # it is ready
        meter = Meter(server)
        for title in turns([OURS, FLOOR], rounds):
            meter.redis.flushdb()
            meter.start()
            for one in fleet:
                one.send((title, seconds))
            cycles = sum(one.recv() for one in fleet)
            spent = meter.stop()
            found = {
                "per_second": round(cycles / spent["seconds"], 1),
                "server_cpu": round(spent["server_cpu"] / cycles, 9),
                "server_share": round(spent["server_cpu"] / spent["seconds"], 3),
            }
            add(rows, {"processes": processes}, title, found)
        for one in fleet:
            one.send(None)
    return rows


class Server:
    def __init__(self, port: int) -> None:
        self.tcp_port = port


def _work(port: int, place: int, parent: Connection, hiredis: bool) -> None:
    if not hiredis:
        import sys

        sys.modules["hiredis"] = None  # type: ignore[assignment]
    cycles: dict[str, Any] = dict(contestants(Server(port)))
    numbers = count(place, 1000)
    parent.send("ready")
    while (task := parent.recv()) is not None:
        title, seconds = task
        done, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            cycles[title](next(numbers))
            done += 1
        parent.send(done)
