"""One run of a job: from its claim to the end that is written to the ledger.

The job runs under its lock, as the body of a `with` statement does: `current_lease()` returns its
lease. The end of the run is written while the lease is still held, if Redis can be reached.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections
from django.dispatch import Signal

from .. import signals
from ..base import background, people, tokens
from ..base.callables import call
from ..base.clock import now
from ..base.exceptions import LeaseLost, LockUnavailable, TooManyResumptions
from ..base.people import log_extra
from ..base.process import SIGNALLED, Ended, rlock
from ..lease import claims, notes
from ..lease.holds import Cancellation, Hold
from ..lease.lease import Lease
from ..lease.register import register
from ..primitives import ledger, mutex
from ..primitives.contract import Claim, Grant, Port, run
from ..primitives.ledger import Answer, RunInfo, RunOutcome, Wanted
from ..primitives.waiting import backoff
from ..transport.ports import AsyncPort, SyncPort
from ..transport.server import Server, server_of
from .job import Job

# Events of periodic jobs: each is a signal and a line in the log.
#
# @receiver(job_finished) def alert(event: RunInfo, **kwargs): ...
#
# A receiver can never break a job: receivers are called in another thread, and Django logs what
# they raise.


job_started = Signal()
"""Sent when a run begins; `event` is its `RunInfo`."""
job_finished = Signal()
"""Sent when a run has ended; `event.outcome` is done, failed, lost or skipped."""

_LEVELS = {
    RunOutcome.RUNNING: (logging.DEBUG, "The job %(job)r starts; it was planned for %(planned)s."),
    RunOutcome.DONE: (logging.INFO, "The job %(job)r is done after %(duration).3f s."),
    RunOutcome.FAILED: (logging.ERROR, "The job %(job)r failed: %(why)s"),
    RunOutcome.LOST: (logging.WARNING, "A run of the job %(job)r was lost: %(why)s."),
    RunOutcome.SKIPPED: (logging.INFO, "The job %(job)r skipped its tick %(planned)s: %(why)s."),
}


def send_event(event: RunInfo, error: BaseException | None = None) -> None:
    """Log an event, with the error that the job raised, and send its signal."""
    level, message = _LEVELS[event.outcome]
    if logger.isEnabledFor(level):
        fields = asdict(event) | {"duration": event.duration}
        words = fields | {"duration": event.duration or 0.0}
        logger.log(level, message, words, extra=log_extra("job", fields), exc_info=error)
    signal = job_started if event.outcome == RunOutcome.RUNNING else job_finished
    signals.deliver_later(signal, event, event.outcome, event.job)


logger = logging.getLogger("django_redislock")

WRITE_END_WITHIN = 60.0
"""Seconds after the end of its lease during which a run tries to write its end to the ledger."""

STOPPED = "its scheduler was stopped"


class JobRun:
    """A run of a job. It may be claimed several times, until the answer is known."""

    grant: Grant
    """The lock. Set when the run was granted."""
    info: RunInfo
    """The run as the ledger has it. Set when the run was granted."""
    cancellation: Cancellation | None = None
    """Of a coroutine that runs."""
    kept: tuple[Callable[[], None], float] | None = None
    """What releases the lock, and when: `at_least_for` is not over."""

    def __init__(self, job: Job, wanted: Wanted) -> None:
        self.job = job
        self.wanted = wanted
        self.policy = policy = job.policy
        self.id = tokens.new()[-16:]
        self.claim = Claim(
            keys=job.keys,
            token=tokens.new(),
            ttl=policy.ttl if policy.max_hold is None else min(policy.ttl, policy.max_hold),
            owner=people.owner(people.holder()),
            label=people.clean(job.where),
            primitive=mutex,
        )

    @property
    def server(self) -> Server:
        return server_of(self.policy.using)

    def ask(self) -> Answer:
        """Claim the tick, and with it the lock.

        Raises `LockUnavailable`; then ask again, or undo the claim.
        """
        port = SyncPort(self.server, terms=self.policy.terms())
        try:
            answer = run(ledger.claim(port, self.claim, self.job.name, self.id, self.wanted))
        except LockUnavailable as error:
            self.claim.doubtful |= error.doubtful
            raise
        if answer.closed is not None:
            send_event(answer.closed)
        if answer.run is not None:
            send_event(answer.run)
        if answer.grant is not None and answer.run is not None:
            self.grant, self.info, self.claim.found = answer.grant, answer.run, answer.note
        return answer

    def undo(self) -> None:
        """Free the lock that a claim without an answer may have taken."""
        if self.claim.sent:
            run(claims.undo(SyncPort(self.server), self.server, self.claim))

    async def hold(self, port_type: type[SyncPort] | type[AsyncPort]) -> Lease:
        """Return the granted lease, held by this thread or task.

        Raises `LeaseLost` if it has ended meanwhile, `TooManyResumptions`, and `LockUnavailable`.
        """
        server = self.server
        try:
            me, policy = people.holder(), self.policy._replace(release="exit")
            notes.refuse_poisoned(self.claim, policy)
            hold = Hold(me)
            lease = Lease(server, self.claim, self.grant, policy, hold)
            lease.check()
            if isinstance(me, asyncio.Task):
                self.cancellation = hold.cancellation = Cancellation(me)
            await claims.report(port_type(server), "acquired", self.claim, server, waited=0.0)
            return lease
        except BaseException as error:
            await claims.cut_short(error, port_type, server, self.claim)
            raise

    @property
    def _tried_again(self) -> bool:
        """Whether another scheduler runs the tick again if this run does not finish. No end is
        written then, as after a crash: the other scheduler finds a run without a lease."""
        return self.job.retries and self.info.planned is not None

    async def end(
        self, port: Port, lease: Lease | None, error: BaseException | None
    ) -> RunInfo | None:
        """Write the end of a run whose function returned, or raised `error`. Without a lease it
        could not be called, and the error says why.

        Returns None if the tick is tried again, if the ledger has forgotten the run, or if it
        could not be reached.
        """
        if lease is None:
            (outcome, why), left = (RunOutcome.LOST, people.clean(str(error))), 0.0
        else:
            (outcome, why), left = _outcome(lease, error), lease.remaining()
            if error is not None and lease._lifetime.notes is not None:
                lease._lifetime.notes.failed = True
        if outcome == RunOutcome.LOST and error is not None and self._tried_again:
            return None
        give_up = port.now() + left + WRITE_END_WITHIN
        failures = 0
        while True:
            try:
                ended = await ledger.finish(port, self.claim.keys, self.info, outcome, why)
                break
            except LockUnavailable as away:
                failures += 1
                if not away.passing or port.now() > give_up:
                    logger.error(
                        "The outcome of a run of the job %r could not be recorded: %s",
                        self.job.name,
                        away,
                    )
                    return None
                await port.sleep(backoff(failures))
        if ended is not None:
            send_event(ended, error if outcome == RunOutcome.FAILED else None)
        return ended

    def abandon(self) -> None:
        """Write the end of a run whose thread ends with the process."""
        if not self._tried_again:
            with suppress(LockUnavailable):
                port = SyncPort(self.server)
                run(ledger.finish(port, self.claim.keys, self.info, RunOutcome.LOST, STOPPED))

    def keep(self, lease: Lease) -> None:
        """Hold the lock until `at_least_for` is over, if the job took less."""
        until = lease._grant.sent + self.job.at_least_for
        if until > now() and lease._lifetime.lost is None:
            hold = Hold(None, outlives=True)
            lease._add(hold)
            self.kept = partial(lease._settle, hold), until


def _outcome(lease: Lease, error: BaseException | None) -> tuple[RunOutcome, str]:
    if lease._lifetime.lost is not None:
        return RunOutcome.LOST, people.clean(lease._lifetime.lost.why)
    if error is None:
        return RunOutcome.DONE, ""
    cancelled = isinstance(error, asyncio.CancelledError) and people.cancelled()
    if cancelled or isinstance(error, Ended):
        return RunOutcome.LOST, STOPPED
    return RunOutcome.FAILED, people.clean(f"{type(error).__name__}: {people.message(error)}")


def perform(job_run: JobRun) -> RunInfo | None:
    """Run a function in this thread. Returns what was written to the ledger, if anything was."""
    # Nothing is called before the lease is held: a signal's exception could come there.
    ended = error = None
    try:
        lease = run(job_run.hold(SyncPort))
        with lease:
            try:
                call(job_run.job.function, (), {})
            except BaseException as raised:
                error = raised
            ended = run(job_run.end(SyncPort(lease._server), lease, error))
            job_run.keep(lease)
    except (LeaseLost, TooManyResumptions) as lost:
        ended = ended or run(job_run.end(SyncPort(job_run.server), None, lost))
    if isinstance(error, SIGNALLED):
        raise error
    return ended


async def aperform(job_run: JobRun) -> RunInfo | None:
    """Run a coroutine in this task, which is cancelled if the lease is lost."""
    port = AsyncPort(job_run.server)
    ended = error = None
    try:
        lease = await job_run.hold(AsyncPort)
        async with lease:
            try:
                await job_run.job.function()
            except BaseException as raised:
                error = raised
            if job_run.cancellation is not None:
                job_run.cancellation.disarm()  # the job has ended: nothing is left to cancel
            ended = await job_run.end(port, lease, error)
            job_run.keep(lease)
    except (LeaseLost, TooManyResumptions) as lost:
        ended = ended or await job_run.end(port, None, lost)
    if isinstance(error, Ended):
        raise error
    return ended


# The workers of a scheduler: threads for functions, and one event loop for coroutines.


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
        if not register(server_of(job.policy.using)).held(job.keys.lock) and any(
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

    def _ended(self, job_run: JobRun, ended: RunInfo | None) -> None:
        with self._changing:
            self.outcomes[ended.outcome if ended else None] += 1
            if job_run.kept is not None:
                self._kept.update([job_run.kept])
            del self._busy[job_run.id]
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
            ended = perform(job_run)
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
                    ended = await aperform(job_run)
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
