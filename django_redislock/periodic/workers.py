"""The workers of a scheduler: threads for functions, and one event loop for coroutines."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

from ..base import background
from ..base.clock import now
from ..base.rlocks import rlock
from ..lease.watchdog import held
from ..primitives.ledger import RunInfo, RunOutcome
from ..transport.server import server_of
from .execution import JobRun, aperform, perform
from .job import Job

logger = logging.getLogger("django_redislock")

CLOSE_WITHIN = 2.0
"""Seconds that the event loop has to close its connections."""


class Workers:
    """Perform the runs of jobs, each at once. If no thread can be started for that, `start` ends
    with the run.

    `freed` is called, from any thread, when a worker has become free.
    """

    def __init__(self, threads: int, freed: Callable[[], None]) -> None:
        self._threads = threads
        self._freed = freed
        self._work: queue.SimpleQueue[JobRun | None] = queue.SimpleQueue()
        self._started = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looping: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: dict[str, JobRun] = {}
        self._waiting: set[str] = set()
        """Ids of coroutines that have not begun."""
        self._kept: dict[Callable[[], None], float] = {}
        """What releases a lock, and when."""
        self.outcomes: Counter[RunOutcome | None] = Counter()
        """How many runs ended in each way; `None` if the end could not be written."""
        self._changing = rlock()

    @property
    def busy(self) -> list[JobRun]:
        """The runs that have begun and not ended."""
        with self._changing:
            return list(self._busy.values())

    def free(self, job: Job) -> bool:
        """Return whether the job could be started now. Coroutines need no thread."""
        busy = self.busy
        if not held(server_of(job.policy.using), job.keys.lock) and any(
            one.job.name == job.name for one in busy
        ):
            return False  # it outlived its lease: one thread that hangs is enough
        if job.asynchronous:
            # A coroutine that has not begun waits for another one that blocks the loop.
            return not self._waiting
        return sum(not one.job.asynchronous for one in busy) < self._threads

    def start(self, job_run: JobRun) -> None:
        with self._changing:
            self._busy[job_run.id] = job_run
            if job_run.job.asynchronous:
                self._waiting.add(job_run.id)
        if job_run.job.asynchronous:
            loop = self._running_loop()
            if loop is None:
                asyncio.run(self._aserve(job_run))
            else:
                loop.call_soon_threadsafe(self._begin, job_run)
            return
        if self._started < self._threads:
            name = f"redislock-periodic-{self._started + 1}"
            self._started += background.start(self._serve, name) is not None
        if self._started:
            self._work.put(job_run)
        else:
            self._run(job_run)

    def cancel(self) -> None:
        """Cancel the coroutines. Threads can't be stopped."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)

    def close(self) -> None:
        """End the free threads and the event loop. Nothing can be started afterwards."""
        for _ in range(self._started):
            self._work.put(None)
        if self._loop is not None and self._looping is not None:
            asyncio.run_coroutine_threadsafe(self._end_loop(), self._loop)
            # A loop that hangs ends with the process.
            self._looping.join(CLOSE_WITHIN)

    def release_kept(self, *, now_all: bool = False) -> float:
        """Release the leases whose `at_least_for` is over. Returns the seconds until the next
        one."""
        with self._changing:
            over = [each for each, until in self._kept.items() if now_all or until <= now()]
            for release in over:
                del self._kept[release]
            left = min(self._kept.values(), default=float("inf")) - now()
        for release in over:
            release()
        return max(0.0, left)

    def _keep(self, release: Callable[[], None], seconds: float) -> None:
        with self._changing:
            self._kept[release] = now() + seconds

    def _ended(self, job_run: JobRun, ended: RunInfo | None) -> None:
        with self._changing:
            self.outcomes[ended.outcome if ended else None] += 1
            del self._busy[job_run.id]
            self._waiting.discard(job_run.id)
        self._freed()

    # Functions.

    def _serve(self) -> None:
        while True:
            job_run = self._work.get()
            if job_run is None:
                return
            self._run(job_run)

    def _run(self, job_run: JobRun) -> None:
        ended = None
        try:
            _close_old_connections()
            ended = perform(job_run, self._keep)
        except BaseException:
            logger.exception("A run of %r ended with an unexpected error", job_run.job.name)
        finally:
            _close_old_connections()
            self._ended(job_run, ended)

    # Coroutines.

    def _running_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop of the coroutines, or None if no thread can be started for it."""
        if self._loop is None:
            loop = asyncio.new_event_loop()
            self._looping = background.start(partial(_drive, loop), "redislock-periodic-loop")
            if self._looping is None:
                loop.close()
            else:
                self._loop = loop
        return self._loop

    async def _end_loop(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        asyncio.get_running_loop().stop()

    def _begin(self, job_run: JobRun) -> None:
        task = asyncio.ensure_future(self._aserve(job_run))
        task.set_name(job_run.job.name)
        self._tasks.add(task)  # the loop keeps only weak references to its tasks
        task.add_done_callback(self._tasks.discard)

    async def _aserve(self, job_run: JobRun) -> None:
        ended = None
        with self._changing:
            self._waiting.discard(job_run.id)
        self._freed()
        try:
            # Each job gets its own thread for the ORM, as a request does: no job waits for the
            # query of another one.
            async with ThreadSensitiveContext():
                try:
                    ended = await aperform(job_run, self._keep)
                finally:
                    await sync_to_async(connections.close_all)()
        except BaseException:
            logger.exception("A run of %r ended with an unexpected error", job_run.job.name)
        finally:
            self._ended(job_run, ended)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


def _drive(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
            break
        except BaseException:  # SystemExit in a task that a job started ends the loop
            logger.exception("A task of a job stopped the event loop; the loop goes on")
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _close_old_connections() -> None:
    """Close old connections, as before and after a request. A database error is for the job to
    find."""
    try:
        close_old_connections()
    except Exception:
        logger.exception("Database connections could not be closed")
