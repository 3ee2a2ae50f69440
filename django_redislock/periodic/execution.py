"""One run of a job: from its claim to the end that is written in the ledger.

The job runs under its lock, as the body of a `with` does: `current_lease()` is its lease. Its end
is entered while it still has the lease, if Redis can be reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ..base import label, tokens
from ..base.clock import now
from ..base.exceptions import LeaseLost, LockError, LockUnavailable
from ..lease import claims as operations
from ..lease.cancellation import Cancellation
from ..lease.lease import Lease
from ..lease.lock import call
from ..primitives import ledger, mutex
from ..primitives.contract import Claim, Grant, Port
from ..primitives.ledger import Answer, RunInfo, RunOutcome, Wanted
from ..primitives.waiting import backoff
from ..settings.policy import Policy
from ..transport.ports import AsyncPort, SyncPort, run
from ..transport.server import server_of
from . import events
from .job import Job

logger = logging.getLogger("django_redislock")

PATIENCE = 60.0
"""Seconds after its lease for which a run tries to enter its end, while Redis is away."""

STOPPED = "its scheduler was stopped"

PortType = type[SyncPort] | type[AsyncPort]

Lingers = Callable[[Lease, float], None]
"""Is given a lease that has to be held for so many seconds more."""


@dataclass(frozen=True, slots=True)
class Request:
    """A claim that may be sent more than once, until its answer is known."""

    job: Job
    wanted: Wanted
    policy: Policy
    claim: Claim
    run_id: str

    @classmethod
    def of(cls, job: Job, wanted: Wanted) -> Request:
        policy = job.policy
        ttl = policy.ttl if policy.max_hold is None else min(policy.ttl, policy.max_hold)
        claim = Claim(
            keys=job.keys,
            token=tokens.new(),
            ttl=ttl,
            owner=label.owner(label.holder()),
            label=label.clean(job.where),
            primitive=mutex,
        )
        return cls(job, wanted, policy, claim, tokens.new()[-16:])

    def send(self) -> Answer:
        """Raises `LockUnavailable`; then it may be sent again, or is to be taken back."""
        port = SyncPort(server_of(self.policy.using), terms=self.policy.terms())
        try:
            answer = run(ledger.claim(port, self.claim, self.job.name, self.run_id, self.wanted))
        except LockUnavailable as error:
            self.claim.doubtful |= error.doubtful
            raise
        if answer.closed is not None:
            events.tell(answer.closed)
        if answer.run is not None:
            events.tell(answer.run)
        return answer

    def take_back(self) -> None:
        """Nobody will run it: what it may have locked is free again."""
        if self.claim.sent:
            server = server_of(self.policy.using)
            run(operations.take_back(SyncPort(server), server, self.claim))


@dataclass(frozen=True, slots=True)
class Assignment:
    """A run that is ours, and that has to be performed here."""

    job: Job
    policy: Policy
    claim: Claim
    grant: Grant
    run: RunInfo

    @classmethod
    def of(cls, request: Request, answer: Answer) -> Assignment:
        assert answer.grant is not None
        assert answer.run is not None
        return cls(request.job, request.policy, request.claim, answer.grant, answer.run)

    async def hold(self, port_type: PortType) -> Lease:
        """The lease that came with the run, held by this thread or task.

        Raises `LeaseLost` when it has ended meanwhile, `LockUnavailable`.
        """
        server = server_of(self.policy.using)
        try:
            me, policy = label.holder(), self.policy._replace(release="exit")
            lease = Lease(operations.LEASES, server, self.claim, self.grant, policy, me)
            lease.check()
            if isinstance(me, asyncio.Task):
                lease.cancellation = Cancellation(me, depth=1)
            port = port_type(server)
            return await operations.acquired(port, lease, port.now())
        except BaseException as error:
            await operations.cut_short(error, port_type, server, self.claim)
            raise

    @property
    def _tried_again(self) -> bool:
        """If it does not come to its end, none is entered, as after a crash: another scheduler
        finds the run without its lease."""
        return self.job.retries and self.run.planned is not None

    async def end(self, port: Port, lease: Lease, error: BaseException | None) -> RunInfo | None:
        """Its function has returned, or raised `error`. None: that is not known any more, or it
        is tried again."""
        outcome, why = _outcome(lease, error)
        if outcome == RunOutcome.LOST and error is not None and self._tried_again:
            return None
        raised = error if outcome == RunOutcome.FAILED else None
        return await self._entered(port, outcome, why, lease.remaining(), raised)

    async def missed(self, error: LockError, port: Port) -> RunInfo | None:
        """It has no lease to run under."""
        if self._tried_again:
            return None
        return await self._entered(port, RunOutcome.LOST, label.clean(str(error)), 0.0)

    async def _entered(
        self,
        port: Port,
        outcome: RunOutcome,
        why: str,
        remaining: float,
        raised: BaseException | None = None,
    ) -> RunInfo | None:
        """Write down how it ended, for as long as Redis is away; None: it is forgotten already,
        or could not be written."""
        give_up = port.now() + remaining + PATIENCE
        failures = 0
        while True:
            try:
                ended = await ledger.finish(port, self.claim.keys, self.run, outcome, why)
                break
            except LockUnavailable as error:
                failures += 1
                if not error.passing or port.now() > give_up:
                    logger.error("The end of %r could not be entered: %s", self.job.name, error)
                    return None
                await port.sleep(backoff(failures))
        if ended is not None:
            events.tell(ended, raised)
        return ended

    def abandon(self) -> None:
        """Its process ends, and its thread with it: as a crash, but one of which we can tell."""
        if not self._tried_again:
            with suppress(LockUnavailable):
                port = SyncPort(server_of(self.policy.using))
                run(ledger.finish(port, self.claim.keys, self.run, RunOutcome.LOST, STOPPED))

    def linger(self, lease: Lease, lingers: Lingers) -> None:
        """Hold the lock for longer than the job took, if that was asked for."""
        left = lease.began + self.job.at_least_for - now()
        if left > 0 and lease.lost is None:
            lease.outlive()
            lingers(lease, left)


def _outcome(lease: Lease, error: BaseException | None) -> tuple[RunOutcome, str]:
    if lease.lost is not None:
        return RunOutcome.LOST, label.clean(lease.lost.why)
    if error is None:
        return RunOutcome.DONE, ""
    if isinstance(error, asyncio.CancelledError):
        return RunOutcome.LOST, STOPPED
    return RunOutcome.FAILED, label.clean(f"{type(error).__name__}: {label.message(error)}")


def perform(assignment: Assignment, lingers: Lingers) -> RunInfo | None:
    """Run it in this thread. Returns what was entered; None: nothing was."""
    # Nothing is called before it is held, after which a signal's exception could come.
    ended = error = None
    try:
        lease = run(assignment.hold(SyncPort))
        with lease:
            try:
                call(assignment.job.function, (), {})
            except BaseException as raised:
                error = raised
            ended = run(assignment.end(SyncPort(lease.server), lease, error))
            assignment.linger(lease, lingers)
    except LeaseLost as lost:
        ended = ended or run(assignment.missed(lost, SyncPort(server_of(assignment.policy.using))))
    if isinstance(error, KeyboardInterrupt):
        raise error
    return ended


async def aperform(assignment: Assignment, lingers: Lingers) -> RunInfo | None:
    """Run it in this task, which is cancelled when its lease is lost."""
    port = AsyncPort(server_of(assignment.policy.using))
    ended = error = None
    try:
        lease = await assignment.hold(AsyncPort)
        async with lease:
            try:
                await assignment.job.function()
            except BaseException as raised:
                error = raised
            if lease.cancellation is not None:
                lease.cancellation.disarm()  # it has ended: now nothing is left to cut short
            ended = await assignment.end(port, lease, error)
            assignment.linger(lease, lingers)
    except LeaseLost as lost:
        ended = ended or await assignment.missed(lost, port)
    return ended
