"""The crowds of tests/faults/test_restart.py: many waiters in a process of their own."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable

from tests.waiting import PATIENCE
from tests.worker import say, told


def threads(journal: str, door: str) -> None:
    """For each "name count" that it is told, so many threads wait for that lock."""
    from django_redislock import redis_lock

    note = _notes(journal)

    def enter(name: str) -> None:
        try:
            with redis_lock(name, wait=4 * PATIENCE) as lease:
                begin = time.monotonic()
                while _closed(door):
                    time.sleep(0.005)
                note(name, lease.token, lease.fencing_token, begin, time.monotonic())
        except Exception as error:
            note(name, "error", repr(error))

    def crowd(name: str, count: int) -> None:
        waiters = [threading.Thread(target=enter, args=(name,)) for _ in range(count)]
        for waiter in waiters:
            waiter.start()
        for waiter in waiters:
            waiter.join()

    _serve(crowd)


def tasks(journal: str, door: str) -> None:
    """The same with asyncio tasks on one event loop."""
    from django_redislock import redis_lock

    note = _notes(journal)

    async def enter(name: str) -> None:
        try:
            async with redis_lock(name, wait=4 * PATIENCE) as lease:
                begin = time.monotonic()
                while _closed(door):
                    await asyncio.sleep(0.005)
                note(name, lease.token, lease.fencing_token, begin, time.monotonic())
        except Exception as error:
            note(name, "error", repr(error))

    async def crowd(name: str, count: int) -> None:
        await asyncio.gather(*(enter(name) for _ in range(count)))

    _serve(lambda name, count: asyncio.run(crowd(name, count)))


def _serve(crowd: Callable[[str, int], object]) -> None:
    say("ready")
    while line := told():
        name, count = line.split()
        crowd(name, int(count))
        say("done", name)


def _closed(door: str) -> bool:
    return os.path.exists(door)


def _notes(journal: str) -> Callable[..., object]:
    """Write a line to the journal, which all processes share: one write, so that none is torn."""
    descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND)
    return lambda *words: os.write(descriptor, f"{' '.join(map(str, words))}\n".encode())
