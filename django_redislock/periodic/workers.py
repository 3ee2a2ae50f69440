"""Those who do the work: threads for functions, and one event loop for coroutines."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

from ..base.clock import now
from ..lease import claims as operations
from ..lease.lease import Lease
from ..primitives.ledger import RunInfo, RunOutcome
from ..transport.server import server_of
from .execution import Assignment, aperform, perform
from .job import Job

logger = logging.getLogger("django_redislock")

FAREWELL = 2.0
"""Seconds for connections of the event loop to be closed."""


class Crew:
    """Runs what it is given, each at once.

    `ended` is called, from any thread, when somebody has become free.
    """

    def __init__(self, threads: int, ended: Callable[[], None]) -> None:
        self._threads = threads
        self._ended = ended
        self._work: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
        self._started = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looping: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: dict[str, Assignment] = {}
        self._waiting: set[str] = set()
        """Coroutines that have not begun."""
        self._lingering: dict[Lease, float] = {}
        self.outcomes: Counter[RunOutcome | None] = Counter()
        """How its runs have ended; None: that could not be entered."""
        self._changing = threading.Lock()

    @property
    def busy(self) -> list[Assignment]:
        """What is running."""
        with self._changing:
            return list(self._busy.values())

    def free(self, job: Job) -> bool:
        """It could be started now. Coroutines need no thread."""
        busy = self.busy
        if not operations.held(server_of(job.policy.using), job.keys.lock) and any(
            one.job.name == job.name for one in busy
        ):
            return False  # it has outlived its lease: one thread that hangs is enough
        if job.asynchronous:
            # Who has not begun yet waits for a coroutine that keeps the loop.
            return not self._waiting
        return sum(not one.job.asynchronous for one in busy) < self._threads

    def start(self, assignment: Assignment) -> None:
        with self._changing:
            self._busy[assignment.run.id] = assignment
            if assignment.job.asynchronous:
                self._waiting.add(assignment.run.id)
        if assignment.job.asynchronous:
            self._running_loop().call_soon_threadsafe(self._begin, assignment)
            return
        if self._started < self._threads:
            self._started += 1
            # They don't keep the process from ending: a job that hangs must not.
            name = f"redislock-periodic-{self._started}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._work.put(assignment)

    def cancel(self) -> None:
        """Cancel the coroutines. A thread can't be stopped."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)

    def dismiss(self) -> None:
        """Nothing will be started any more: end the threads that are free, and the loop."""
        for _ in range(self._started):
            self._work.put(None)
        if self._loop is not None and self._looping is not None:
            asyncio.run_coroutine_threadsafe(self._end_loop(), self._loop)
            # One that hangs is left to the end of the process.
            self._looping.join(FAREWELL)

    def settle(self, *, all_of_them: bool = False) -> float:
        """Release the leases that were held for longer than their jobs took, if it is time.
        Returns the seconds until the next one."""
        with self._changing:
            over = [
                lease for lease, until in self._lingering.items() if all_of_them or until <= now()
            ]
            for lease in over:
                del self._lingering[lease]
            left = min(self._lingering.values(), default=float("inf")) - now()
        for lease in over:
            lease.settle()
        return max(0.0, left)

    def _linger(self, lease: Lease, seconds: float) -> None:
        with self._changing:
            self._lingering[lease] = now() + seconds

    def _over(self, assignment: Assignment, ended: RunInfo | None) -> None:
        with self._changing:
            self.outcomes[ended.outcome if ended else None] += 1
            del self._busy[assignment.run.id]
            self._waiting.discard(assignment.run.id)
        self._ended()

    # Functions.

    def _serve(self) -> None:
        while True:
            assignment = self._work.get()
            if assignment is None:
                return
            ended = None
            try:
                _close_old_connections()
                ended = perform(assignment, self._linger)
            except BaseException:
                logger.exception("A run of %r has ended in disorder", assignment.job.name)
            finally:
                _close_old_connections()
                self._over(assignment, ended)

    # Coroutines.

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._looping = threading.Thread(
                target=_drive, args=[self._loop], name="redislock-periodic-loop", daemon=True
            )
            self._looping.start()
        return self._loop

    async def _end_loop(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        asyncio.get_running_loop().stop()

    def _begin(self, assignment: Assignment) -> None:
        task = asyncio.ensure_future(self._aserve(assignment))
        task.set_name(assignment.job.name)
        self._tasks.add(task)  # the loop keeps only weak references to its tasks
        task.add_done_callback(self._tasks.discard)

    async def _aserve(self, assignment: Assignment) -> None:
        ended = None
        with self._changing:
            self._waiting.discard(assignment.run.id)
        self._ended()
        try:
            # A thread of its own for its ORM, as a request has: no job waits for another's query.
            async with ThreadSensitiveContext():
                try:
                    ended = await aperform(assignment, self._linger)
                finally:
                    await sync_to_async(connections.close_all)()
        except BaseException:
            logger.exception("A run of %r has ended in disorder", assignment.job.name)
        finally:
            self._over(assignment, ended)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


def _drive(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
            break
        except BaseException:  # SystemExit, of a task that a job has started, ends the loop
            logger.exception("A task of a job has stopped the event loop; it goes on")
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _close_old_connections() -> None:
    """As before and after a request. What is wrong with a database is the job's business."""
    try:
        close_old_connections()
    except Exception:
        logger.exception("Database connections could not be closed")
