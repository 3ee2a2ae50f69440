"""A lock with many waiters: who gets it next, how soon, and at what cost.

Each waiter asks for the one lock, works in it for a millisecond, gives it back and asks again: at
once, or after a random time to think, of as much as a round of all waiters takes on average.
Waiters are threads of one process, tasks of one event loop, or processes; "lone" is one process
with a single waiter beside another with all the rest. The floor is a token in a list, which is all
that Redis needs for this: BLPOP takes it, RPUSH puts it back, and who dies with it takes it along.

The floor goes over plain sockets, all others through django-redis, or redis.asyncio. Each has a
database of its own: so the server can tell whose connections are whose. The clock is one that all
processes share.
"""

from __future__ import annotations

import random
import statistics
import time
from itertools import pairwise
from operator import itemgetter
from typing import Any

from redis import Redis

from .crowd import (
    ASYNC,
    EXPIRES,
    FLOOR,
    HANDOFF,
    LIBRARY,
    OURS,
    PEER,
    POLLING,
    SECTION,
    SYNC,
    Processes,
    Span,
    Turn,
    available,
    crowd,
    hold,
    idle,
)
from .harness import (
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

DATABASES = {FLOOR: 1, OURS: 2, PEER: 3, POLLING: 4, LIBRARY: 5}


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
        _project(server)
        for kind in ("threads", "processes", "tasks"):
            for thinking in (False, True):
                for waiters in crowds:
                    case = {"kind": kind, "waiters": waiters, "thinking": thinking}
                    measure_case(rows, server, case, rounds, seconds)
        lone = {"kind": "lone", "waiters": 32, "thinking": False}
        measure_case(rows, server, lone, rounds, seconds)
        measure_expiry(rows, rounds)
    return rows


def quick(*, rounds: int, seconds: float) -> list[Row]:
    """Measure the cases for whose handoff there is a target."""
    return in_child(
        "benchmarks.contended:quick_cases",
        hiredis=parsers()[0],
        rounds=rounds,
        seconds=seconds,
    )


def quick_cases(*, rounds: int, seconds: float) -> list[Row]:
    rows: list[Row] = []
    with private_server() as server:
        _project(server)
        for kind, waiters in HANDOFF:
            case = {"kind": kind, "waiters": waiters, "thinking": False}
            measure_case(rows, server, case, rounds, seconds)
    return rows


def _project(server: Any) -> None:
    django_project(default=url(server), **{t: url(server, d) for t, d in DATABASES.items()})


def measure_case(
    rows: list[Row], server: Any, case: dict[str, Any], rounds: int, seconds: float
) -> None:
    kind, waiters, thinking = case["kind"], case["waiters"], case["thinking"]
    say(f"contended, {waiters:3} {kind}{', thinking' if thinking else ''}")
    one_process = {"threads": [waiters], "tasks": [waiters], "lone": [1, waiters - 1]}
    shares = one_process.get(kind, [1] * waiters)
    contestants = [title for title in (ASYNC if kind == "tasks" else SYNC) if available(title)]
    if thinking or kind == "lone" or waiters not in (8, 128):
        # The waiters of one starve, which soon shows; the other is the floor with more overhead.
        contestants = [one for one in contestants if one not in (POLLING, LIBRARY)]
    think = 2 * SECTION * waiters if thinking else 0.0
    seconds *= max(1.0, waiters / 50)  # Enough for several turns of each.
    meter = Meter(server)
    served: dict[str, list[list[int]]] = {title: [] for title in contestants}
    with Processes(len(shares)) as processes:
        for title in contestants:
            play(processes, meter, shares, title, kind, think, 0.1)  # Connects and imports.
        for title in turns(contestants, rounds):
            spent, times = play(processes, meter, shares, title, kind, think, seconds)
            add(rows, case, title, spent)
            served[title].append(times)
    # How often each waiter is served is counted over all rounds, since a turn ends in mid-round.
    for title, rounds_of in served.items():
        times = [sum(of_waiter) for of_waiter in zip(*rounds_of, strict=True)]
        mean = statistics.mean(times)
        spent = {"jain": round(mean**2 / statistics.mean(x * x for x in times), 5)}
        if kind == "lone":
            spent["lone"] = round(times[0] / statistics.mean(times[1:]), 4)
        add(rows, case, title, spent)


def play(
    processes: Processes,
    meter: Meter,
    shares: list[int],
    title: str,
    kind: str,
    think: float,
    seconds: float,
) -> tuple[dict[str, float], list[int]]:
    """Return one turn of a contestant: its figures, and how often each waiter was served."""
    name = f"crowd:{random.getrandbits(64):x}"
    if title in (FLOOR, LIBRARY):
        with Redis.from_url(url(meter.server, DATABASES[title])) as redis:
            redis.rpush(name, "token")
    meter.start()
    start = time.monotonic() + 0.02 + 0.001 * len(shares)
    turn = Turn(title, kind, name, start, start + seconds, think)
    firsts = [sum(shares[:number]) for number in range(len(shares))]
    answers = processes.do(*((crowd, (turn, *who)) for who in zip(firsts, shares, strict=True)))
    spent = meter.stop()
    spans: list[list[Span]] = [waiter for answer in answers for waiter in answer["spans"]]
    order = sorted((span for waiter in spans for span in waiter), key=itemgetter(1))
    served = [sum(got <= turn.end for _, got, _ in waiter) for waiter in spans]
    # The first waits are left out: all waiters come at the same time, and wait for less than
    # later.
    waits = [got - asked for waiter in spans for asked, got, _ in waiter[1:] if got <= turn.end]
    # A waiter that is not served before the end has waited for at least this long.
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


def connections(redis: Any, database: int) -> int:
    return sum(int(client["db"]) == database for client in redis.client_list())


def measure_expiry(rows: list[Row], rounds: int) -> None:
    """Measure the time from the end of a dead holder's lease until the next holder has the
    lock."""
    say("contended, a holder that is gone")
    case = {"kind": "expiry"}
    with Processes(2) as processes:
        contestants = [title for title in (OURS, PEER, POLLING) if available(title)]
        for number, title in enumerate(turns(contestants, rounds)):
            name = f"gone:{number}"
            [(asked, _)] = processes.do((hold, (title, name)))
            # At a random time in the lease, so that it does not coincide with a rhythm of polling.
            time.sleep(0.1 + 0.5 * random.Random(number).random())
            [_, (_, got)] = processes.do((idle, ()), (hold, (title, name)))
            add(rows, case, title, {"late": round(got - asked - EXPIRES, 6)})
