"""A free lock on a server that is far away, where only round trips matter.

The client speaks to a relay, in a process of its own, that passes each request on after a while;
answers go straight back. How long a round trip then really takes is asked for with PING through
the same relay, and recorded: a sleep is never quite as long as it should be, above all a short
one. (The kernel could do it better, `tc qdisc … netem`, but has to be built and allowed to.)
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import threading
import time
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from .harness import Meter, Row, add, in_child, parsers, private_server, say, turns, url
from .uncontended import FLOOR, OURS, contestants

DELAYS = [0.0, 0.2, 1.0, 5.0]
"""Milliseconds."""
TITLES = [OURS, "redis-py Lock", "cache.lock", "python-redis-lock", FLOOR]


def measure(*, rounds: int, cycles: int = 40, delays: list[float] = DELAYS) -> list[Row]:
    rows: list[Row] = []
    for delay in delays:
        say(f"latency: {delay} ms")
        rows += in_child(
            "benchmarks.latency:free",
            hiredis=parsers()[0],
            delay=delay,
            rounds=rounds,
            cycles=cycles,
        )
    return rows


class Far:
    """The server, as the relay shows it."""

    def __init__(self, port: int) -> None:
        self.tcp_port = port


def free(*, delay: float, rounds: int, cycles: int) -> list[Row]:
    rows: list[Row] = []
    numbers = count()
    with private_server() as server:
        far = Far(relay(server.tcp_port, delay / 1000))
        round_trip = ping(far)
        meter = Meter(server)
        competing = [one for one in contestants(far) if one[0] in TITLES]
        for title, cycle in turns(competing, rounds):
            meter.redis.flushdb()
            for _ in range(3):
                cycle(next(numbers))
            meter.start()
            for _ in range(cycles):
                cycle(next(numbers))
            spent = {**meter.stop(cycles), "round_trip": round_trip}
            add(rows, {"delay": delay}, title, spent)
    return rows


def ping(far: Any) -> float:
    """Seconds."""
    from redis import Redis

    redis = Redis.from_url(url(far))
    times = []
    for _ in range(50):
        begun = time.perf_counter()
        redis.ping()
        times.append(time.perf_counter() - begun)
    return round(statistics.median(times), 6)


def relay(port: int, seconds: float) -> int:
    """Start a relay to this port, in a process that ends with this one. Return the port of the
    relay."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=_relay, args=(port, seconds, theirs), daemon=True).start()
    return int(ours.recv())


def _relay(port: int, seconds: float, parent: Connection) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    parent.send(listener.getsockname()[1])
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", port))
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for way in ((client, server, seconds), (server, client, 0.0)):
            threading.Thread(target=_copy, args=way, daemon=True).start()


def _copy(source: socket.socket, target: socket.socket, seconds: float) -> None:
    while data := source.recv(65536):
        if seconds:
            time.sleep(seconds)
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)
