"""Interpreters that end while they hold locks, in every way in which one can end."""

from __future__ import annotations

import sys
import time
from subprocess import PIPE
from typing import NamedTuple

import pytest
from redis import Redis

from tests.faults.proxy import Proxy
from tests.faults.remains import remains
from tests.processes import Start, Worker
from tests.waiting import PATIENCE, eventually

PROMPTLY = 10.0
"""Seconds: generous for a busy machine."""


class End(NamedTuple):
    code: int
    errors: str
    took: float
    """Seconds since the program said that it ends."""


@pytest.fixture
def begin(start: Start) -> Start:
    def begin(program: str, **options: str) -> Worker:
        return start(f"tests.faults.exits_programs:{program}", stderr=PIPE, **options)

    return begin


def end(worker: Worker) -> End:
    said, errors = worker.process.communicate("\n", timeout=PATIENCE)
    return End(worker.process.returncode, errors, time.monotonic() - float(said.splitlines()[-1]))


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("exit_in_a_block", 3),
        ("exit_in_a_coroutine", 3),
        ("exit_in_a_transaction", 3),
        ("error_in_a_block", 1),
        ("thread", 0),
        ("handler", 0),
    ],
)
def test_what_is_left_is_released(begin: Start, redis: Redis, program: str, code: int) -> None:
    """A block that is left on the way out has released its lock when the process has ended."""
    ended = end(begin(program))
    assert not remains(redis)
    assert ended.code == code, ended.errors
    assert ended.took < PROMPTLY
    if program == "error_in_a_block":
        assert ended.errors.endswith("RuntimeError: an error of the program\n")
        assert "django_redislock" not in ended.errors
    else:
        assert not ended.errors


@pytest.mark.parametrize(
    "program",
    [
        "first_in_a_handler",
        "second_in_a_handler",
        "coroutine_in_a_handler",
        "once_in_a_handler",
        "renewal_in_a_handler",
        "late_thread",
        pytest.param(
            "subinterpreter",
            marks=pytest.mark.skipif(
                sys.version_info < (3, 13), reason="Django can't be imported in one"
            ),
        ),
    ],
)
def test_the_last_locks(begin: Start, redis: Redis, program: str) -> None:
    """From Python 3.12 on, no thread can be started at the end, nor in an isolated subinterpreter.
    Locks that are taken there work, and the log says once what they lack."""
    ended = end(begin(program))
    assert ended.code == 0, ended.errors
    assert ended.took < PROMPTLY
    assert not remains(redis)
    assert not redis.exists("redislock:{once:job}")
    assert len(ended.errors.splitlines()) <= 1
    assert ended.errors.startswith("No thread can be started") or not ended.errors


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("never_released", 0),
        ("daemon_threads", 0),
        ("generator", 0),
        ("killed_by_itself", 3),
    ],
)
def test_what_is_not_left_ends_with_its_ttl(
    begin: Start, redis: Redis, program: str, code: int
) -> None:
    """At the latest. The end of the process waits for nobody, and nobody complains."""
    ended = end(begin(program))
    assert ended.code == code, ended.errors
    assert ended.took < PROMPTLY
    assert not ended.errors
    eventually(lambda: not redis.exists("redislock:{job}"))


def test_redis_is_away(begin: Start, redis: Redis, beside: Proxy) -> None:
    """A release that is still owed at the end does not hold it up for long."""
    process = begin("redis_away", url=beside.url)
    assert process.says() == "holding"
    beside.cut()
    ended = end(process)
    assert ended.code == 0
    assert ended.took < PROMPTLY
    assert not ended.errors
    eventually(lambda: not redis.exists("redislock:{job}"))
