"""Two names at a time, which many processes want: a `MultiLock`, beside blocks in a fixed order.

Each process takes two of a few names, other ones each time, works for a millisecond, gives them
back and asks again at once. The floor is what one writes without `MultiLock`: two `redis_lock`
blocks, one inside the other, in the order of the names, so that they can't block each other.
"""

from __future__ import annotations

import random
import time
from typing import Any, NamedTuple

from .crowd import SECTION, Processes
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

MULTI = "MultiLock of two names"
NESTED = "nested locks"
NAMES = [3, 10, 100]


class Turn(NamedTuple):
    """The description of a turn, for the processes."""

    title: str
    prefix: str
    names: int
    start: float
    end: float


def measure(*, rounds: int, seconds: float, processes: int = 20) -> list[Row]:
    return in_child(
        "benchmarks.pairs:all_cases",
        hiredis=parsers()[0],
        rounds=rounds,
        seconds=seconds,
        processes=processes,
    )


def all_cases(*, rounds: int, seconds: float, processes: int) -> list[Row]:
    rows: list[Row] = []
    with private_server() as server:
        django_project(default=url(server))
        meter = Meter(server)
        with Processes(processes) as workers:
            for names in NAMES:
                say(f"pairs of {names} names, {processes} processes")
                case = {"processes": processes, "names": names}
                for title in (MULTI, NESTED):
                    play(workers, meter, title, case, 0.1)  # Connects and imports.
                for title in turns([MULTI, NESTED], rounds):
                    add(rows, case, title, play(workers, meter, title, case, seconds))
    return rows


def play(
    workers: Processes, meter: Meter, title: str, case: dict[str, Any], seconds: float
) -> dict[str, float]:
    """Return the figures of one turn."""
    number = case["processes"]
    meter.start()
    start = time.monotonic() + 0.02 + 0.001 * number
    prefix = f"pairs:{random.getrandbits(64):x}"
    turn = Turn(title, prefix, case["names"], start, start + seconds)
    answers = workers.do(*((take_turns, (turn, seed)) for seed in range(number)))
    spent = meter.stop()
    sections = sum(answer["sections"] for answer in answers)
    in_time = sum(answer["in_time"] for answer in answers)
    squares = sum(answer["in_time"] ** 2 for answer in answers)
    return {
        "sections_per_second": round(in_time / seconds, 2),
        "jain": round(in_time**2 / (number * squares), 5) if squares else 0.0,
        "requests": round(spent["round_trips"] / sections, 3),
        "client_cpu": round(sum(answer["cpu"] for answer in answers) / sections, 7),
        "server_cpu": round(spent["server_cpu"] / sections, 7),
    }


def take_turns(turn: Turn, seed: int) -> dict[str, float]:
    """Do the work of one process."""
    from django_redislock import MultiLock, redis_lock

    def multi(pair: list[str]) -> None:
        with MultiLock(pair, wait=None):
            work()

    def nested(pair: list[str]) -> None:
        with redis_lock(pair[0], wait=None), redis_lock(pair[1], wait=None):
            work()

    def work() -> None:
        if time.monotonic() < turn.end:
            time.sleep(SECTION)

    cycle = {MULTI: multi, NESTED: nested}[turn.title]
    names = [f"{turn.prefix}:{number:03}" for number in range(turn.names)]
    die = random.Random(seed)
    cpu = time.process_time()
    sections = in_time = 0
    time.sleep(max(0.0, turn.start - time.monotonic()))
    while not sections or time.monotonic() < turn.end:
        cycle(sorted(die.sample(names, 2)))
        sections += 1
        in_time += time.monotonic() < turn.end
    return {"sections": sections, "in_time": in_time, "cpu": time.process_time() - cpu}
