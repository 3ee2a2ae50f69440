"""What the processes of test_exits.py run: each of them ends in another way.

The last thing that each of them says is the time, on the clock that all processes share.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from django.db import transaction
from redis import Redis

from django_redislock import once, redis_lock, single_flight
from tests.worker import say

TTL = 1
"""For what nobody releases: so long the test has to wait."""

kept: Any = None
"""What lives until the interpreter takes its modules down."""


def ends() -> None:
    say(time.monotonic())


def exit_in_a_block() -> None:
    with redis_lock("job"):
        ends()
        sys.exit(3)


def error_in_a_block() -> None:
    with redis_lock("job"):
        ends()
        raise RuntimeError("an error of the program")


def exit_in_a_coroutine() -> None:
    async def main() -> None:
        async with redis_lock("job"):
            ends()
            sys.exit(3)

    asyncio.run(main())


def exit_in_a_transaction() -> None:
    with transaction.atomic(), redis_lock("job", release="commit"):
        ends()
        sys.exit(3)


def thread() -> None:
    """A thread that the interpreter waits for."""
    holding = threading.Event()

    def hold() -> None:
        with redis_lock("job") as lease:
            holding.set()
            threading.main_thread().join()
            lease.check()
            with redis_lock("another"):
                ends()

    threading.Thread(target=hold).start()
    holding.wait()


def handler() -> None:
    """A function that is called at exit."""
    lease = redis_lock("job").acquire()
    assert lease is not None
    atexit.register(lease.release)
    ends()


def first_in_a_handler() -> None:
    """From Python 3.12 on, no thread can be started any more, and this one needs the first."""

    def bye() -> None:
        with redis_lock("job") as lease:
            lease.check()
            ends()

    atexit.register(bye)


def second_in_a_handler() -> None:
    """The thread of the first lock goes on."""
    with redis_lock("another"):
        pass
    first_in_a_handler()


def coroutine_in_a_handler() -> None:
    async def bye() -> None:
        async with redis_lock("job") as lease:
            lease.check()
            ends()

    atexit.register(lambda: asyncio.run(bye()))


def once_in_a_handler() -> None:
    def bye() -> None:
        with once("job") as first:
            assert first
            ends()

    atexit.register(bye)


def renewal_in_a_handler() -> None:
    """An old result at the end: a thread makes the new one, or else the caller does."""
    rates = single_flight("job", ttl=60, stale=300)(lambda: 1)
    rates()
    with Redis.from_url(os.environ["REDISLOCK_TEST_URL"]) as redis:
        redis.pexpire("redislock:{single_flight:job}:record", 200_000)

    def bye() -> None:
        assert rates() == 1
        ends()

    atexit.register(bye)


def late_thread() -> None:
    """A thread that the interpreter waits for, and that takes its first lock then."""

    def work() -> None:
        threading.main_thread().join()
        with redis_lock("job") as lease:
            lease.check()
            ends()

    threading.Thread(target=work).start()


def subinterpreter() -> None:
    """An isolated one, which may start no threads that outlive it."""
    import _interpreters

    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        """
import django
from tests.faults.exits_programs import *
django.setup()
with redis_lock("job") as lease:
    lease.check()
    ends()
"""
    )
    _interpreters.exec(_interpreters.create("isolated"), code)


def never_released() -> None:
    global kept
    kept = redis_lock("job", ttl=TTL).acquire()
    ends()


def daemon_threads() -> None:
    """One that holds, and one that waits."""
    holding = threading.Event()

    def hold() -> None:
        with redis_lock("job", ttl=TTL):
            holding.set()
            time.sleep(3600)

    for _ in range(2):
        threading.Thread(target=hold, daemon=True).start()
    holding.wait()
    ends()


@redis_lock("job", ttl=TTL)
def _steps() -> Iterator[int]:
    yield 1


def generator() -> None:
    """One that is in the middle of its steps."""
    global kept
    kept = _steps()
    next(kept)
    ends()


def killed_by_itself() -> None:
    with redis_lock("job", ttl=TTL):
        ends()
        os._exit(3)


def redis_away() -> None:
    """A block that is left when Redis does not answer any more."""
    with redis_lock("job", ttl=3):
        say("holding")
        sys.stdin.readline()
    ends()
