"""The base of all benchmarks: a private server, cores, rounds, counters of the server, records.

A part of the benchmarks is a function that measures and returns rows, as plain data:

    {"case": {"hiredis": True, "cores": "one"}, "contestant": "redis_lock",
     "values": {"seconds": [0.00011, …], "round_trips": [2.0, …]}}

with one value for each round. Contestants take turns within a round, in an order that is rotated
from one round to the next, so that whatever else the machine does hits all of them alike; figures
are compared within a run, and never between two. `record` writes the rows of a part into
`results/`, with all that they depend on; tables and plots are made from these files alone.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Row = dict[str, Any]

RESULTS = Path(__file__).parent / "results"
ROUNDS = 5
LOAD = os.getloadavg()[0]
"""The load of the machine in the minute before the start."""
TTL = 30
"""Seconds; the lease of every contestant."""

PACKAGES = [
    "django",
    "django-redis",
    "redis",
    "hiredis",
    "python-redis-lock",
    "pottery",
    "sherlock",
]


# The server, and who runs where.


@contextmanager
def private_server(cores: str = "free") -> Iterator[Any]:
    """A server on a TCP port of 127.0.0.1, which is what most projects have; `.url` is its URL.

    `cores` is "one": this process and the server share a core; "two": each has one of its own;
    or "free": the kernel decides.
    """
    from devtools.redis_server import RedisServer

    with RedisServer(tcp_port=0) as server:
        if cores != "free":
            here, *others = sorted(os.sched_getaffinity(0))
            if cores == "two" and not others:
                raise SystemExit("benchmarks: two cores are wanted, and there is one only")
            pin(os.getpid(), here)
            pin(server.pid, here if cores == "one" else others[0])
        yield server


def pin(pid: int | None, core: int) -> None:
    """Keep a process, with the threads that it has and will have, on a core."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {core})


def url(server: Any, database: int = 0) -> str:
    return f"redis://127.0.0.1:{server.tcp_port}/{database}"


def django_project(*, with_admin: bool = False, **locations: str) -> None:
    """Make this process a Django project with these CACHES: aliases, and their URLs.

    All are reached through django-redis as it comes, but for the bound on connections, or a
    hundred would be all that there are; the alias "dropin" has our client class.
    """
    import logging

    import django
    from django.conf import settings

    logging.getLogger("django_redislock").addHandler(logging.NullHandler())
    cache: dict[str, Any] = {
        "BACKEND": "django_redis.cache.RedisCache",
        "OPTIONS": {"CONNECTION_POOL_KWARGS": {"max_connections": 1000}},
    }
    caches = {alias: {**cache, "LOCATION": where} for alias, where in locations.items()}
    if "dropin" in caches:
        client = {"CLIENT_CLASS": "django_redislock.client.LockingClient"}
        caches["dropin"]["OPTIONS"] = {**cache["OPTIONS"], **client}
    contrib = ("admin", "auth", "contenttypes", "sessions", "messages") if with_admin else ()
    processors = [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]
    settings.configure(
        CACHES=caches,
        INSTALLED_APPS=[*(f"django.contrib.{name}" for name in contrib), "django_redislock"],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": processors},
            }
        ],
        USE_TZ=True,
    )
    django.setup()


def in_child(function: str, *, hiredis: bool = True, **arguments: Any) -> Any:
    """Return what `module:function(**arguments)` returns in a fresh process.

    With `hiredis=False` that process can't import hiredis, so redis-py works as it does where
    hiredis is not installed; nothing else differs.
    """
    command = [sys.executable, "-m", "benchmarks.child", function, json.dumps(hiredis)]
    done = subprocess.run(
        [*command, json.dumps(arguments)],
        stdout=subprocess.PIPE,
        cwd=RESULTS.parent.parent,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"benchmarks: {function}({arguments}) has failed, see above")
    return json.loads(done.stdout)


def parsers() -> list[bool]:
    """Run with hiredis, if it is installed, and without."""
    try:
        version("hiredis")
    except PackageNotFoundError:
        say("hiredis is not installed: measuring without it only")
        return [False]
    return [True, False]


# Rounds.


def turns(contestants: Sequence[T], rounds: int) -> Iterator[T]:
    """Run all contestants in each round, each time beginning with the next one."""
    for number in range(rounds):
        first = number % len(contestants)
        yield from contestants[first:]
        yield from contestants[:first]


class Meter:
    """The cost between two looks: by the clock, by this process, and by the server.

    Round trips are the reads that the server has made: a pipeline is one. Commands are all that
    the server has run, including those that scripts call.
    """

    def __init__(self, server: Any) -> None:
        from redis import Redis

        self.server = server
        self.redis = Redis.from_url(url(server))
        self.start()

    def start(self) -> None:
        self._server = self._look()
        self._cpu = time.process_time()
        self._time = time.perf_counter()

    def stop(self, cycles: int = 1) -> dict[str, float]:
        """Return the cost since `start()`, per cycle; times are seconds."""
        seconds = time.perf_counter() - self._time
        cpu = time.process_time() - self._cpu
        before, after = self._server, self._look()
        spent = {name: after[name] - before[name] for name in after}
        spent["round_trips"] -= 1  # the command of this look
        spent["commands"] -= 1
        return {
            name: round(value / cycles, 9)
            for name, value in {"seconds": seconds, "client_cpu": cpu, **spent}.items()
        }

    def _look(self) -> dict[str, float]:
        info = self.redis.info("everything")
        return {
            "server_cpu": info["used_cpu_user"] + info["used_cpu_sys"],
            "round_trips": info["total_reads_processed"],
            "commands": sum(
                stats["calls"] for name, stats in info.items() if name.startswith("cmdstat_")
            ),
        }


def add(rows: list[Row], case: dict[str, Any], contestant: str, spent: dict[str, Any]) -> None:
    """Add a round of a contestant in this case."""
    for row in rows:
        if row["case"] == case and row["contestant"] == contestant:
            break
    else:
        row = {"case": case, "contestant": contestant, "values": {}}
        rows.append(row)
    for name, value in spent.items():
        row["values"].setdefault(name, []).append(value)


# Records.


def record(part: str, rows: list[Row], **options: Any) -> None:
    """Write what a part has measured, and with what, into `results/<part>.json`."""
    RESULTS.mkdir(exist_ok=True)
    content = {"part": part, **environment(), "load": round(LOAD, 2), "options": options}
    lines = json.dumps({**content, "rows": []}, indent=1, ensure_ascii=False).removesuffix("[]\n}")
    # One row is one line, so that differences can be read.
    body = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (RESULTS / f"{part}.json").write_text(f"{lines}[\n  {body}\n ]\n}}\n")
    say(f"recorded {part}.json")


def recorded(part: str) -> dict[str, Any] | None:
    """Return what `record` wrote, or None."""
    with suppress(FileNotFoundError):
        return json.loads((RESULTS / f"{part}.json").read_text())
    return None


def environment() -> dict[str, Any]:
    """Return what the figures depend on: versions and hardware."""
    from devtools.redis_server import find_server

    packages = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    git = ["git", "-C", str(RESULTS.parent), "log", "-1", "--format=%h"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "recorded": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit or None,
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "server": find_server().description.partition(" at ")[0],
        "packages": packages,
    }


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# Figures of a row.


def median(row: Row, value: str) -> float:
    return statistics.median(row["values"][value])


def quartiles(row: Row, value: str) -> tuple[float, float, float]:
    """Return the least, and the quartiles of the rounds."""
    values = sorted(row["values"][value])
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return values[0], low, high


def ratio(row: Row, floor: Row, value: str = "seconds") -> float:
    """Return the median of the ratios of two contestants in the same round."""
    pairs = zip(row["values"][value], floor["values"][value], strict=True)
    return statistics.median(ours / theirs for ours, theirs in pairs)


def find(rows: list[Row], contestant: str, **case: Any) -> Row | None:
    """Return the row of a contestant whose case contains these values."""
    for row in rows:
        if row["contestant"] == contestant and case.items() <= row["case"].items():
            return row
    return None


def say(text: str) -> None:
    """Progress, for people: what a child prints on standard output is its result."""
    print(text, file=sys.stderr, flush=True)
