"""Places where a worker stops, so that a test can kill it there."""

from __future__ import annotations

import os
from typing import Any

from django_redislock.primitives.work import Started, Work
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
    start, unpacked = Work.start, guarded.unpacked

    async def pausing_start(self: Work, port: Any, claim: Any, *args: Any, **more: Any) -> Any:
        answer = await start(self, port, claim, *args, **more)
        if isinstance(answer, Started):
            pause(claim.keys.name)
        return answer

    def pausing_send(message: bytes) -> Any:
        found = unpacked(message)
        pause(found[1][0][1])
        return found

    if place == START:
        Work.start = pausing_start  # type: ignore[method-assign]
    elif place == SEND:
        guarded.unpacked = pausing_send
