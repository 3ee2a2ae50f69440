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

from django_redislock import redis_lock
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
