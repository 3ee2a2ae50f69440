"""Places where a worker stops, so that a test can kill it there."""

from __future__ import annotations

import os
from typing import Any

from django_redislock.primitives.work import Work
from django_redislock.tasks import guarded
from tests.tasks.events import WORKER, Event, broker, processes_of, say
from tests.waiting import PATIENCE

PLACE = "REDISLOCK_TEST_PAUSE"
"""The variable with a place: START or SEND. It is read where a worker begins."""
START = "start"
"""A task has its permit, and its function does not run yet."""
SEND = "send"
"""A task was promoted, and its message is not sent yet."""


def pause(name: str) -> None:
    """Say that a task of this name stops here, and wait to be killed."""
    worker, pid = os.environ[WORKER], os.getpid()
    broker().sadd(processes_of(worker), pid)
    say(Event(0, "pause", name, name.rpartition(":")[2], 0, "", pid, worker))
    broker().blpop([f"paused:{pid}"], timeout=PATIENCE)


def install() -> None:
    """Let this process stop at its place, if it is a worker and has one."""
    place = os.environ.get(PLACE) if WORKER in os.environ else None
    acquire, unpacked = Work.acquire, guarded.unpacked

    async def pausing_start(self: Work, port: Any, claim: Any, wait: float | None) -> Any:
        grant = await acquire(self, port, claim, wait)
        pause(claim.keys.name)
        return grant

    def pausing_send(text: bytes) -> Any:
        found = unpacked(text)
        pause(found[2][0].keys.name)
        return found

    if place == START:
        Work.acquire = pausing_start  # type: ignore[method-assign]
    elif place == SEND:
        guarded.unpacked = pausing_send
