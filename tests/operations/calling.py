"""The subcommands, called here or run as a process, and locks in all states."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from io import StringIO
from typing import Any, NamedTuple

import pytest
from django.core.management import CommandError, call_command
from redis import Redis

from django_redislock.inspection import Inspector, LockInfo
from tests.manage import PROGRAM, environ
from tests.processes import ROOT
from tests.waiting import PATIENCE

AWAY = "unix:///nowhere"


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output, which is one line."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)


def call(*arguments: str) -> Done:
    """`manage.py redislock …` in this process."""
    out = StringIO()
    code, err = 0, ""
    try:
        call_command("redislock", *arguments, stdout=out, no_color=True)
    except CommandError as error:
        code, err = error.returncode, str(error)
    except SystemExit as error:
        code = int(error.code or 0)
    return Done(code, out.getvalue(), err)


def run(*arguments: str, url: str = "", env: Mapping[str, str] | None = None) -> Done:
    """`manage.py redislock …` as a process."""
    done = subprocess.run(
        [*PROGRAM, "redislock", *arguments],
        cwd=ROOT,
        env={**environ(url), **(env or {})},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def cut_off(*arguments: str) -> Done:
    """`manage.py redislock … | head -n 1`"""
    with subprocess.Popen(
        [*PROGRAM, "redislock", *arguments],
        cwd=ROOT,
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
    return Done(process.returncode, line.decode(), err.decode())


def granted(
    redis: Redis,
    name: str,
    *,
    silent: float = 900,
    ttl: float = 3600,
    left: float | None = None,
    owner: str = "web3:1:x",
    label: str = "its/job.py:1 in job",
    fence: int | None = None,
    process: str = "dead0000",
    places: int = 0,
) -> None:
    """A lock that a process got and that died so many seconds ago, as the server has it then; or,
    with `left`, that was renewed since. With `places`, it is one of the places of a semaphore."""
    token = process + f"{int(silent):024d}"
    now = time.time()
    began = int((now - silent) * 1e6)
    ends = int((now + (ttl - silent if left is None else left)) * 1000)
    record = f"{token}+{fence or began}|{began}|{int(ttl * 1000)}|{owner}|{label}"
    key = f"redislock:{{{name}}}"
    if places:
        redis.zadd(key, {token: ends})
        redis.hset(f"{key}:holders", token, f"{record}\tsemaphore|{places}")
        redis.pexpireat(key, ends)
        redis.pexpireat(f"{key}:holders", ends)
    else:
        redis.set(key, record, pxat=ends)
    redis.zadd("redislock:index", {key: ends})


def write_down() -> None:
    """Enter what this process holds into the index and the history, as each reader of the index
    does. Otherwise that is done when it has been held for a second."""
    Inspector().counts()


def before_clearing(monkeypatch: pytest.MonkeyPatch, do: Callable[[LockInfo], object]) -> None:
    """Call `do` whenever a lock is about to be cleared; what it raises comes out of that."""
    clear = Inspector.clear

    def then_clear(self: Inspector, lock: LockInfo, **options: Any) -> bool:
        do(lock)
        return clear(Inspector(self.using), lock, **options)  # `do` may have changed CACHES

    monkeypatch.setattr(Inspector, "clear", then_clear)


def strangers(redis: Redis) -> None:
    """What others have written below our prefix."""
    redis.set("redislock:{legacy}", "\x1b[31mred", px=60_000)
    redis.set("redislock:{old}", str(time.time() - 60))
    redis.set("redislock:{odd\x1b[2J}", "x")
