"""A fleet of real schedulers whose clocks are shifted against each other.

    python -m tests.periodic.fleet --times 10

runs it on a private Redis, and prints how often each of 9 ticks in 27 seconds was run: once, if
all is well. Debian's libfaketime shifts the clocks: `apt-get install libfaketime`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from redis import Redis

from devtools.redis_server import RedisServer
from tests.processes import Worker
from tests.waiting import PATIENCE, eventually

LIBRARIES = "*/faketime/libfaketimeMT.so.1"
SHIFTS = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""Seconds, of each scheduler's clock."""


def library() -> Path | None:
    return next(Path("/usr/lib").glob(LIBRARIES), None)


@dataclass(frozen=True)
class Result:
    """What came of one time. `runs`: tick → how often it was run."""

    ticks: int
    runs: Counter[float]
    workers: Counter[str]
    others: list[str]
    """What else was entered of these ticks."""
    spread: float
    """Seconds between the earliest and the latest of the schedulers' clocks."""

    @property
    def exact(self) -> bool:
        return len(self.runs) == self.ticks and set(self.runs.values()) == {1}


def run(
    url: str, path: Path, faketime: Path, *, every: float, ticks: int, catch_up: str = "latest"
) -> Result:
    """Start the schedulers, let them run so many ticks, and count."""
    from django_redislock.primitives import ledger
    from django_redislock.primitives.contract import run
    from django_redislock.primitives.keys import Keys
    from django_redislock.transport.ports import SyncPort
    from django_redislock.transport.server import server_of

    keys = Keys.of("redislock", "periodic:job")
    with Redis.from_url(url) as redis:
        redis.delete(keys.ledger)  # of the time before

    def look() -> tuple[float, list[ledger.RunInfo]]:
        time.sleep(0.05)  # it is the schedulers' processors that we use
        now, [entries] = run(ledger.read(SyncPort(server_of("default")), ["job"], [keys]))
        return now.timestamp(), list(entries.runs)

    fleet = [
        Worker(
            *("tests.periodic.programs:fleet", str(path), str(every), str(number), catch_up),
            url=url,
            env={
                "LD_PRELOAD": str(faketime),
                "FAKETIME": f"{shift:+g}s",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            },
        )
        for number, shift in enumerate(SHIFTS)
    ]
    try:
        clocks = []
        for worker in fleet:
            word, clock = worker.says().split()
            assert word == "clock"
            clocks.append(float(clock))
        for worker in fleet:
            assert worker.says() == "begins"
        # From the first run on, before which there may have been no scheduler yet.
        first = eventually(lambda: look()[1])[0].planned
        assert first is not None
        begin = first.timestamp()
        end = begin + ticks * every
        eventually(lambda: look()[0] > end + 0.7 * every, within=PATIENCE + ticks * every)
        for worker in fleet:
            worker.signal(signal.SIGTERM)
        for worker in fleet:
            assert worker.ends() == 0
    finally:
        for worker in fleet:
            worker.close()
    _, entries = look()
    planned = {run.fencing_token: run.planned.timestamp() for run in entries if run.planned}
    lines = [line.split() for line in path.read_text().splitlines()]
    inside = [
        (number, planned[int(fence)])
        for number, fence in lines
        if begin < planned.get(int(fence), 0.0) <= end
    ]
    assert all(int(fence) in planned for _, fence in lines), "more were run than are kept"
    return Result(
        ticks,
        Counter(tick for _, tick in inside),
        Counter(number for number, _ in inside),
        [
            f"{run.planned:%M:%S} {run.outcome}: {run.why}"
            for run in entries
            if run.planned and run.outcome != "done" and begin < run.planned.timestamp() <= end
        ],
        max(clocks) - min(clocks),
    )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--every", type=float, default=3.0)
    parser.add_argument("--ticks", type=int, default=9)
    options = parser.parse_args()
    faketime = library()
    if faketime is None:
        sys.exit("There is no libfaketime: apt-get install libfaketime")
    exact = True
    with RedisServer() as server, tempfile.TemporaryDirectory() as directory:
        os.environ["REDISLOCK_TEST_URL"] = server.url
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        import django

        django.setup()
        shifts = ", ".join(f"{shift:+g}" for shift in SHIFTS)
        say(f"{len(SHIFTS)} schedulers, clocks shifted by {shifts} s; {server.description}")
        seconds = options.ticks * options.every
        say(f"{options.ticks} ticks in {seconds:g} s, a job every {options.every:g} s")
        say("time  ticks run   runs  twice  missed  by scheduler")
        for number in range(1, options.times + 1):
            result = run(
                server.url,
                Path(directory) / f"journal-{number}",
                faketime,
                every=options.every,
                ticks=options.ticks,
            )
            exact &= result.exact
            ran, runs = len(result.runs), sum(result.runs.values())
            twice = sum(count > 1 for count in result.runs.values())
            workers = " ".join(str(result.workers[str(n)]) for n in range(len(SHIFTS)))
            missed = options.ticks - ran
            say(f"{number:>4} {ran:>10} {runs:>6} {twice:>6} {missed:>7}  {workers}")
            for other in result.others:
                say(f"      {other}")
    sys.exit(0 if exact else "Not every tick was run exactly once.")


if __name__ == "__main__":
    main()
