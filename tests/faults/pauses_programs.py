"""What the processes of test_pauses.py run."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from pathlib import Path

from django_redislock import LeaseLost, redis_lock
from tests.faults.torture.register import Writer
from tests.waiting import PATIENCE
from tests.worker import say, told


def keep_the_interpreter() -> None:
    """Wait for a line from the test in a call to C that lets no other thread run.

    PyDLL keeps the interpreter's lock where CDLL would let it go: so does a regular expression
    that backtracks for minutes, or an extension that computes.
    """
    word = ctypes.create_string_buffer(1)
    ctypes.PyDLL(None).read(0, word, 1)


def work(ttl: str, path: str, pause: str) -> None:
    """Hold the lock and pause; then say what each thing that a holder may do has come to."""
    register = Writer(Path(path), "first")
    noticed = threading.Event()
    try:
        with redis_lock("job", ttl=float(ttl), on_lost=lambda lease: noticed.set()) as lease:
            assert register.write(1, lease.fencing_token)
            say("holding", lease.fencing_token)
            if pause == "stopped":
                told()
            else:
                keep_the_interpreter()
            try:
                lease.check()
                say("check: held")
            except LeaseLost:
                say("check: lost")
            late = register.write(2, lease.fencing_token)
            say("write:", "accepted" if late else "refused")
            try:
                lease.extend()
                say("extend: held")
            except LeaseLost:
                say("extend: lost")
            if lease.state == "lost":
                assert noticed.wait(PATIENCE)
                say("on_lost: called")
    except LeaseLost:
        say("exit: lost")
    else:
        say("exit: released")


def follow(ttl: str) -> None:
    """Hold the lock in a task that waits for something else."""

    async def main() -> None:
        try:
            async with redis_lock("job", ttl=float(ttl), cancel_on_lost=True) as lease:
                say("holding", lease.fencing_token)
                await asyncio.Event().wait()
        except LeaseLost:
            say("exit: lost")

    asyncio.run(main())
