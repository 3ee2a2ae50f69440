"""What a free cycle and a renewal cost the server: CPU, commands, memory, bytes for replicas.

All requests go over one raw socket, many in flight, so that reading and writing sockets is a small
part: what is left is what the server does for a lock. They are the very words that our client
sends. Beside ours stand two plain commands, and a batch of renewals that is written by hand.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

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
from .leases import BATCH, EXTEND, HAND
from .uncontended import COMPARE_AND_DELETE, FLOOR, OURS

MILLIS = TTL * 1000
TOKEN = "t" * 32
OWNER, LABEL = "web-1·2080", "shop/views.py:42 in pay"
SEMAPHORE, MULTI, PERMITS = "Semaphore", "MultiLock of two names", "Semaphore, renewed"
PERMITS_BY_HAND = "places, written by hand"
BY_HAND = {OURS: HAND, PERMITS: PERMITS_BY_HAND, HAND: HAND, PERMITS_BY_HAND: PERMITS_BY_HAND}
"""What each renewal is compared with."""
IN_FLIGHT = 50
TIMES = 20
"""How often a batch is renewed in a turn."""

EXTEND_PERMITS = """
for i = 1, #KEYS - 1, 2 do
  local lock, holders, token = KEYS[i], KEYS[i + 1], ARGV[(i + 5) / 2]
  local ends = redis.call('ZSCORE', lock, token)
  if ends and tonumber(ends) > 0 then
    redis.call('ZADD', lock, ARGV[2], token)
    redis.call('PEXPIRE', lock, ARGV[1])
    redis.call('PEXPIRE', holders, ARGV[1])
    redis.call('ZADD', KEYS[#KEYS], ARGV[2], lock)
  end
end
return 1
"""

Words = tuple[str | int, ...]
Cycle = Callable[[int], list[Words]]


def measure(*, rounds: int, cycles: int = 2000) -> list[Row]:
    say("server: free cycles")
    rows: list[Row] = in_child("benchmarks.server:free", rounds=rounds, cycles=cycles)
    say("server: renewals")
    rows += in_child("benchmarks.server:renewals", rounds=rounds)
    say("server: round trips")
    rows += in_child("benchmarks.server:round_trips")
    return rows


class Raw:
    """A connection without a client library."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answers = self.socket.makefile("rb")

    def send(self, packed: bytes, number: int = 1) -> Any:
        """Return the last of so many answers."""
        self.socket.sendall(packed)
        answer: Any = None
        for _ in range(number):
            answer = self._read()
        return answer

    def _read(self) -> Any:
        line = self.answers.readline()
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise SystemExit(f"benchmarks: {line.decode()}")
        if kind == b"$" and int(rest) >= 0:
            return self.answers.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._read() for _ in range(max(0, int(rest)))]
        return rest


def packed(words: Words) -> bytes:
    sent = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(sent) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in sent)


def contestants(redis: Any) -> list[tuple[str, Cycle]]:
    from django_redislock.primitives import mutex, scripts
    from django_redislock.primitives.contract import Claim
    from django_redislock.primitives.keys import Keys, KeysTogether
    from django_redislock.primitives.permits import Permits

    script = redis.script_load(COMPARE_AND_DELETE)
    for name in scripts.AT_ONCE:
        redis.script_load(scripts.load(name).source)

    def plain(number: int) -> list[Words]:
        key = f"redislock:{{invoice:{number}}}"
        return [("SET", key, TOKEN, "NX", "PX", MILLIS), ("EVALSHA", script, 1, key, TOKEN)]

    def lock(primitive: Any, *kinds: str) -> Cycle:
        """Taken and dropped by the short requests of a lock that is free."""

        def cycle(number: int) -> list[Words]:
            its = tuple(Keys.of("redislock", f"{kind}:{number}") for kind in kinds)
            keys = its[0]
            if len(its) > 1:
                keys = KeysTogether.of("redislock", ", ".join(part.name for part in its))
                keys.parts = its
            claim = Claim(keys, TOKEN, TTL, OWNER, LABEL, primitive)
            return [
                ("EVALSHA", scripts.load(name).sha, len(keys), *keys, *args)
                for name, keys, args in (primitive.taking(claim), primitive.dropping(claim))
            ]

        return cycle

    ours, several = lock(mutex, "invoice"), lock(mutex, "invoice", "order")
    semaphore = lock(Permits("semaphore", 3), "invoice")
    return [(FLOOR, plain), (OURS, ours), (SEMAPHORE, semaphore), (MULTI, several)]


def free(*, rounds: int, cycles: int) -> list[Row]:
    rows: list[Row] = []
    with private_server() as server:
        meter, raw = Meter(server), Raw(server.tcp_port)
        competing = contestants(meter.redis)
        requests = {title: list(batches(cycle, cycles)) for title, cycle in competing}
        for title, cycle in turns(competing, rounds):
            meter.redis.flushdb()
            meter.start()
            for batch in requests[title]:
                raw.send(batch, 2 * IN_FLIGHT)
            spent = meter.stop(len(requests[title]) * IN_FLIGHT)
            add(rows, {"kind": "free"}, title, {k: spent[k] for k in ("server_cpu", "commands")})
            raw.send(packed(cycle(0)[0]))
            held = memory(meter.redis)
            raw.send(packed(cycle(0)[1]))
            add(rows, {"kind": "free"}, title, {"held": held, "left": memory(meter.redis)})
        replica(server.tcp_port, meter.redis)
        for title, _ in turns(competing, rounds):
            before = offset(meter.redis)
            for batch in requests[title]:
                raw.send(batch, 2 * IN_FLIGHT)
            sent = offset(meter.redis) - before
            found = {"stream": round(sent / len(requests[title]) / IN_FLIGHT, 2)}
            add(rows, {"kind": "free"}, title, found)
    return rows


def batches(cycle: Cycle, cycles: int) -> Iterator[bytes]:
    for start in range(0, max(cycles, IN_FLIGHT), IN_FLIGHT):
        numbers = range(start, start + IN_FLIGHT)
        yield b"".join(packed(words) for number in numbers for words in cycle(number % 500))


def memory(redis: Any) -> int:
    """Bytes of all keys but the one that all locks share."""
    keys = (key for key in redis.scan_iter(count=1000) if key != b"redislock:clock")
    return sum(redis.memory_usage(key) or 0 for key in keys)


def replica(port: int, redis: Any) -> None:
    """Follow the server as a replica does, and return when it sends what it writes."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(b"REPLCONF capa eof capa psync2\r\n")
    connection.recv(100)  # PSYNC is refused while an answer is unread
    connection.sendall(b"PSYNC ? -1\r\n")

    def drain() -> None:
        with suppress(OSError):
            while connection.recv(1 << 16):
                pass

    threading.Thread(target=drain, daemon=True).start()
    before = offset(redis)
    until = time.monotonic() + 30
    while offset(redis) == before:  # the server waits some seconds for more replicas
        assert time.monotonic() < until, "the server sends nothing to its replica"
        time.sleep(0.1)
        redis.set("written", "1")


def offset(redis: Any) -> int:
    return int(redis.info("replication")["master_repl_offset"])


def renewals(*, rounds: int) -> list[Row]:
    """One request that extends 250 leases, all of which are listed."""
    rows: list[Row] = []
    with private_server() as server:
        from django_redislock.primitives import mutex, scripts
        from django_redislock.primitives.keys import Keys

        meter, raw = Meter(server), Raw(server.tcp_port)
        redis = meter.redis
        tokens = [f"{number:032d}" for number in range(BATCH)]
        locks = [Keys.of("redislock", f"job:{number}") for number in range(BATCH)]
        places = [Keys.of("redislock", f"place:{number}") for number in range(BATCH)]

        def call(name: str, keys: Sequence[str], args: Sequence[Any]) -> Words:
            return "EVALSHA", redis.script_load(scripts.load(name).source), len(keys), *keys, *args

        for its, place, token in zip(locks, places, tokens, strict=True):
            claim = (token, MILLIS, f"{OWNER}|{LABEL}", "", "")
            raw.send(packed(call("mutex_acquire", its.mutex(token), claim)))
            wants = (*claim, "semaphore", 3)
            raw.send(packed(call("permits_acquire", place.permits(token), wants)))
        raw.send(packed(call(*mutex.record_of([*zip(locks, tokens, strict=True)]))))
        keys = [key for its in places for key in (its.lock, its.holders)]
        listed = call("permits_write_down", [*keys, locks[0].index], ["word", *tokens])
        raw.send(packed(listed))
        held = [(its, token, TTL) for its, token in zip(locks, tokens, strict=True)]
        taken = [(its, token, TTL) for its, token in zip(places, tokens, strict=True)]
        ends = int((time.time() + TTL) * 1000)

        def by_hand(script: str, keys: list[str]) -> Words:
            sha, listed = redis.script_load(script), [*keys, locks[0].index]
            return "EVALSHA", sha, len(listed), *listed, MILLIS, ends, *tokens

        competing = [
            (OURS, call(*mutex.extension(held, store=False))),
            (PERMITS, call(*mutex.extension(taken, store=False, permits=True))),
            (HAND, by_hand(EXTEND, [its.lock for its in locks])),
            (PERMITS_BY_HAND, by_hand(EXTEND_PERMITS, keys)),
        ]
        for title, words in turns(competing, rounds):
            request = packed(words)
            answer = raw.send(request)
            assert BY_HAND[title] == title or isinstance(answer, bytes), answer  # not refused
            meter.start()
            raw.send(TIMES * request, TIMES)
            spent = meter.stop(TIMES)
            add(rows, {"kind": "renewals"}, title, {"server_cpu": spent["server_cpu"]})
    return rows


def round_trips() -> list[Row]:
    rows: list[Row] = []
    with private_server() as server:
        django_project(default=url(server))
        from django_redislock import once, single_flight

        def the_first(name: str) -> None:
            with once(name) as first:
                assert first

        def a_miss(name: str) -> None:
            single_flight(name, ttl=TTL)(lambda: 1)()

        meter = Meter(server)
        for title, call in [("once, the first", the_first), ("single_flight, a miss", a_miss)]:
            for number in range(6):  # a sign of life, or the first connection, may come beside it
                meter.start()
                call(f"{title}, {number}")
                spent = {"round_trips": meter.stop()["round_trips"]}
                add(rows, {"kind": "round trips"}, title, spent)
    return rows
