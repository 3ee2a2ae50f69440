"""A scheduler: it claims ticks when they are due by the server's clock.

There is no leader. All schedulers of a fleet ask for each tick, and one of them gets it. The
clocks of the hosts do not matter: each answer of the server contains its time, and between two
answers a scheduler uses a clock that nobody sets.

A scheduler asks little: once per tick for all jobs that are due at the same time, and every ten
seconds for all jobs. It claims only what it can start at once. A tick for which it has no free
worker goes to another host.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from ..base.clock import now as clock
from ..base.exceptions import LockError, LockUnavailable
from ..primitives import ledger
from ..primitives.contract import run
from ..primitives.waiting import backoff, own
from ..transport.ports import SyncPort
from ..transport.server import server_of
from .execution import JobRun
from .job import Job
from .plan import LOOK_EVERY, NEVER, JobPlan
from .schedule import SECOND
from .workers import Workers

logger = logging.getLogger("django_redislock")

LONGEST_BACKOFF = 5.0
"""Seconds between two attempts while Redis is unreachable."""


def runners(jobs: Iterable[Job], workers: Workers, *, stays: bool) -> list[Runner]:
    """Return a runner for each alias of CACHES that has locks of enabled jobs.

    `stays` says that they will be stepped until the process is told to stop.
    """
    aliases: dict[str, list[Job]] = {}
    for job in jobs:
        if job.enabled:
            aliases.setdefault(job.policy.using, []).append(job)
    return [Runner(using, its, workers, stays) for using, its in aliases.items()]


class Runner:
    """Claims ticks of the jobs whose locks are on one alias of CACHES."""

    def __init__(self, using: str, jobs: Iterable[Job], workers: Workers, stays: bool) -> None:
        self._using = using
        self._stays = stays
        self._plans = [JobPlan(job) for job in jobs]
        self._workers = workers
        self._offset = 0
        """Microseconds by which the server's clock is ahead of this host's."""
        self._look_all_at = 0.0
        """By this host's clock, as `_ask_again_at`."""
        self._failures = 0
        self._ask_again_at = 0.0

    def step(self) -> float:
        """Claim what is due. Returns the seconds until the next step."""
        left = self._ask_again_at - clock()
        if left > 0:
            return left
        try:
            wake = self._step()
        except LockUnavailable as error:
            self._failures += 1
            level = logging.WARNING if self._failures == 1 else logging.DEBUG
            logger.log(level, "Periodic jobs wait for Redis %r: %s", self._using, error)
            pause = backoff(max(2, self._failures), LONGEST_BACKOFF)
            self._ask_again_at = clock() + pause
            self._look_all_at = 0.0  # what is known now is outdated when Redis is back
            return pause
        if self._failures:
            logger.warning("Periodic jobs go on: Redis %r is back", self._using)
        self._failures = 0
        return wake

    def due(self) -> bool:
        """Whether a tick could be claimed if there were a free worker."""
        now = self._now()
        return not self.unreachable and any(plan.due(now) for plan in self._plans)

    @property
    def unreachable(self) -> bool:
        """Whether Redis did not answer."""
        return self._failures > 0

    def run_ended(self) -> None:
        """Claim what waits for a job's last run: a run has ended in this process."""
        for plan in self._plans:
            plan.run_ended()

    def next(self) -> tuple[float, str] | None:
        """Return the seconds until the next tick, and the name of its job."""
        plans = [plan for plan in self._plans if plan.tick_at != NEVER and not plan.paused]
        first = min(plans, key=lambda plan: plan.tick_at, default=None)
        return None if first is None else ((first.tick_at - self._now()) / SECOND, first.job.name)

    def withdraw(self) -> None:
        """Take back the claims without an answer."""
        for plan in self._plans:
            plan.take_back()

    def _now(self) -> int:
        return round(clock() * SECOND) + self._offset

    def _step(self) -> float:
        if clock() >= self._look_all_at:
            self._look(self._plans)
            self._look_all_at = clock() + LOOK_EVERY
        else:
            now = self._now()
            self._look([plan for plan in self._plans if plan.look_at <= now])
        due = self._startable(self._plans)
        if len(due) > 1:
            self._look(due)
        # Schedulers claim in different orders, so that each gets some.
        own.shuffle(due)
        while due := self._startable(due):
            if self._claim(due.pop()) == "taken" and len(due) > 1:
                self._look(due)
        now = self._now()
        left = self._look_all_at - clock()
        return max(0.0, min([left, *(self._idle(plan, now) for plan in self._plans)]))

    def _idle(self, plan: JobPlan, now: int) -> float:
        """Seconds until a job needs attention."""
        # A worker that becomes free ends the sleep.
        waits = plan.due(now) and not self._workers.free(plan.job)
        return ((plan.look_at if waits else plan.wake_at) - now) / SECOND

    def _startable(self, plans: Iterable[JobPlan]) -> list[JobPlan]:
        now = self._now()
        return [plan for plan in plans if plan.due(now) and self._workers.free(plan.job)]

    def _look(self, plans: Sequence[JobPlan]) -> None:
        if not plans:
            return
        port = SyncPort(server_of(self._using))
        now, sights = run(ledger.known(port, [plan.job.keys for plan in plans], stays=self._stays))
        self._set_clock(now)
        for plan, sight in zip(plans, sights, strict=True):
            plan.seen(sight, now)

    def _set_clock(self, now: int) -> None:
        # Counted from when the answer came: a scheduler that asks too early asks twice.
        self._offset = now - round(clock() * SECOND)

    def _claim(self, plan: JobPlan) -> str:
        wanted = plan.wanted(self._now())
        if plan.unanswered is not None and plan.unanswered.wanted != wanted:
            plan.take_back()
        if wanted is None:
            plan.postpone(self._now(), 1.0)
            return "nothing"
        if plan.unanswered is None:
            plan.unanswered = JobRun(plan.job, wanted)
        job_run = plan.unanswered
        try:
            answer = job_run.ask()
        except LockUnavailable:
            raise
        except LockError as error:
            # A foreign key, for example: an operator has to look, and the other jobs go on.
            logger.error("The job %r can't be claimed: %s", plan.job.name, error)
            plan.refused(self._now())
            return "refused"
        self._set_clock(answer.now)
        plan.answered(wanted, answer)
        if answer.what == "run":
            self._workers.start(job_run)
        return answer.what
