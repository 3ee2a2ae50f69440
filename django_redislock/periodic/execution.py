"""One run of a job: from its claim to the end that is written to the ledger.

The job runs under its lock, as the body of a `with` statement does: `current_lease()` returns its
lease. The end of the run is written while the lease is still held, if Redis can be reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ..base import label, tokens
from ..base.clock import now
from ..base.exceptions import LeaseLost, LockError, LockUnavailable
from ..lease import claims
from ..lease.cancellation import Cancellation
from ..lease.holds import Hold
from ..lease.lease import Lease
from ..lease.lock import call
from ..primitives import ledger, mutex
from ..primitives.contract import Claim, Grant, Port, run
from ..primitives.ledger import Answer, RunInfo, RunOutcome, Wanted
from ..primitives.waiting import backoff
from ..transport.ports import AsyncPort, SyncPort
from ..transport.server import Server, server_of
from . import events
from .job import Job

logger = logging.getLogger("django_redislock")

WRITE_END_WITHIN = 60.0
"""Seconds after the end of its lease during which a run tries to write its end to the ledger."""

STOPPED = "its scheduler was stopped"

HoldOn = Callable[[Callable[[], None], float], None]
"""Called with what releases a lock, which must be held for so many seconds more."""


class JobRun:
    """A run of a job. It may be claimed several times, until the answer is known."""

    grant: Grant
    """The lock. Set when the run was granted."""
    info: RunInfo
    """The run as the ledger has it. Set when the run was granted."""
    cancellation: Cancellation | None = None
    """Of a coroutine that runs."""

    def __init__(self, job: Job, wanted: Wanted) -> None:
        self.job = job
        self.wanted = wanted
        self.policy = policy = job.policy
        self.id = tokens.new()[-16:]
        self.claim = Claim(
            keys=job.keys,
            token=tokens.new(),
            ttl=policy.ttl if policy.max_hold is None else min(policy.ttl, policy.max_hold),
            owner=label.owner(label.holder()),
            label=label.clean(job.where),
            primitive=mutex,
        )

    @property
    def server(self) -> Server:
        return server_of(self.policy.using)

    def ask(self) -> Answer:
        """Claim the tick, and with it the lock.

        Raises `LockUnavailable`; then ask again, or take the claim back.
        """
        port = SyncPort(self.server, terms=self.policy.terms())
        try:
            answer = run(ledger.claim(port, self.claim, self.job.name, self.id, self.wanted))
        except LockUnavailable as error:
            self.claim.doubtful |= error.doubtful
            raise
        if answer.closed is not None:
            events.send(answer.closed)
        if answer.run is not None:
            events.send(answer.run)
        if answer.grant is not None and answer.run is not None:
            self.grant, self.info = answer.grant, answer.run
        return answer

    def take_back(self) -> None:
        """Free the lock that a claim without an answer may have taken."""
        if self.claim.sent:
            run(claims.take_back(SyncPort(self.server), self.server, self.claim))

    async def hold(self, port_type: type[SyncPort] | type[AsyncPort]) -> Lease:
        """Return the granted lease, held by this thread or task.

        Raises `LeaseLost` if it has ended meanwhile, and `LockUnavailable`.
        """
        server = self.server
        try:
            me, policy = label.holder(), self.policy._replace(release="exit")
            hold = Hold(me)
            lease = Lease(server, self.claim, self.grant, policy, hold)
            lease.check()
            if isinstance(me, asyncio.Task):
                self.cancellation = hold.cancellation = Cancellation(me)
            lease._watched()
            fence, port = self.grant.fencing_token, port_type(server)
            await claims.report(
                port, "acquired", self.claim, server, fencing_token=fence, waited=0.0
            )
            return lease
        except BaseException as error:
            await claims.cut_short(error, port_type, server, self.claim)
            raise

    @property
    def _tried_again(self) -> bool:
        """Whether another scheduler runs the tick again if this run does not finish. No end is
        written then, as after a crash: the other scheduler finds a run without a lease."""
        return self.job.retries and self.info.planned is not None

    async def end(self, port: Port, lease: Lease, error: BaseException | None) -> RunInfo | None:
        """Write the end of a run whose function returned, or raised `error`.

        Returns None if the ledger has forgotten the run, or if its tick is tried again.
        """
        outcome, why = _outcome(lease, error)
        if outcome == RunOutcome.LOST and error is not None and self._tried_again:
            return None
        raised = error if outcome == RunOutcome.FAILED else None
        return await self._write_end(port, outcome, why, lease.remaining(), raised)

    async def missed(self, error: LockError, port: Port) -> RunInfo | None:
        """Write the end of a run that has no lease to run under."""
        if self._tried_again:
            return None
        return await self._write_end(port, RunOutcome.LOST, label.clean(str(error)), 0.0)

    async def _write_end(
        self,
        port: Port,
        outcome: RunOutcome,
        why: str,
        remaining: float,
        raised: BaseException | None = None,
    ) -> RunInfo | None:
        give_up = port.now() + remaining + WRITE_END_WITHIN
        failures = 0
        while True:
            try:
                ended = await ledger.finish(port, self.claim.keys, self.info, outcome, why)
                break
            except LockUnavailable as error:
                failures += 1
                if not error.passing or port.now() > give_up:
                    logger.error(
                        "The outcome of a run of the job %r could not be recorded: %s",
                        self.job.name,
                        error,
                    )
                    return None
                await port.sleep(backoff(failures))
        if ended is not None:
            events.send(ended, raised)
        return ended

    def abandon(self) -> None:
        """Write the end of a run whose thread ends with the process."""
        if not self._tried_again:
            with suppress(LockUnavailable):
                port = SyncPort(self.server)
                run(ledger.finish(port, self.claim.keys, self.info, RunOutcome.LOST, STOPPED))

    def hold_on(self, lease: Lease, hold_on: HoldOn) -> None:
        """Hold the lock until `at_least_for` is over, if the job took less."""
        left = lease._grant.sent + self.job.at_least_for - now()
        if left > 0 and lease._lifetime.lost is None:
            hold = Hold(None, outlives=True)
            lease._add(hold)
            hold_on(partial(lease._settle, hold), left)


def _outcome(lease: Lease, error: BaseException | None) -> tuple[RunOutcome, str]:
    if lease._lifetime.lost is not None:
        return RunOutcome.LOST, label.clean(lease._lifetime.lost.why)
    if error is None:
        return RunOutcome.DONE, ""
    if isinstance(error, asyncio.CancelledError):
        return RunOutcome.LOST, STOPPED
    return RunOutcome.FAILED, label.clean(f"{type(error).__name__}: {label.message(error)}")


def perform(job_run: JobRun, hold_on: HoldOn) -> RunInfo | None:
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
            job_run.hold_on(lease, hold_on)
    except LeaseLost as lost:
        ended = ended or run(job_run.missed(lost, SyncPort(job_run.server)))
    if isinstance(error, KeyboardInterrupt):
        raise error
    return ended


async def aperform(job_run: JobRun, hold_on: HoldOn) -> RunInfo | None:
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
            job_run.hold_on(lease, hold_on)
    except LeaseLost as lost:
        ended = ended or await job_run.missed(lost, port)
    return ended
