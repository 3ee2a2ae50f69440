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
from ..primitives.ledger import Answer, JobSight, RunRequest, Wanted
from ..primitives.waiting import backoff, chance
from ..transport.ports import SyncPort
from ..transport.server import server_of
from .execution import JobRun, Workers
from .job import SECOND, Job

# A scheduler's knowledge of one job: when to claim a tick of it, and which tick.


LOOK_EVERY = 10.0
"""Seconds after which a scheduler looks at all jobs: an operator may have requested a run, other
processes may have claimed, paused or crashed, and the server's clock may have been set."""
WAIT_AGAIN = 5.0
"""Seconds after which a tick that waits for the job's last run is claimed again. If that run ends
in this process, the tick is claimed at once."""
WAIT_FOR_RELEASE = 0.25
"""The same for a job that does not wait, while its lock is being released."""
NEVER = 2**63


class JobPlan:
    """When to claim the next tick of a job. Times are microseconds of the server's clock."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.known = NEVER
        """The last tick that is known to be claimed or skipped."""
        self.tick_at = NEVER
        """When the next tick is ready."""
        self.not_before = 0
        """No tick is claimed before this time."""
        self.look_at = NEVER
        """When to look whether a run elsewhere has lost its lease."""
        self.orphan: int | None = None
        """The tick of a run that has lost its lease."""
        self.unanswered: JobRun | None = None
        """A run that was claimed, without an answer so far."""

        self.request: RunRequest | None = None
        """A run that an operator wants."""
        self.request_at = 0
        """The request is not claimed before this time."""
        self.paused = False

    def _learn(self, claimed: int | None) -> None:
        if claimed is None:
            logger.error(
                "The job %r is not run: its ledger at %r can't be read",
                self.job.name,
                self.job.keys.ledger,
            )
            self.known = self.tick_at = NEVER
            return
        if claimed == self.known:
            return
        self.known = claimed
        tick = self.job.schedule.next(claimed)
        self.tick_at = NEVER if tick is None else self.job.ready(tick)

    @property
    def _due_at(self) -> int:
        at_once = self.orphan is not None or self.unanswered is not None
        due_at = max(0 if at_once else self.tick_at, self.not_before)
        return min(due_at, self.request_at) if self._request_first else due_at

    @property
    def _request_first(self) -> bool:
        """Whether a request is to be claimed. It comes before a tick, unless something else was
        claimed and has no answer, or a lost run is to be tried again."""
        return self.request is not None and self.unanswered is None and self.orphan is None

    def due(self, now: int) -> bool:
        return self._due_at <= now

    @property
    def wake_at(self) -> int:
        return min(self._due_at, self.look_at)

    def wanted(self, now: int) -> Wanted | None:
        """Return what to claim."""
        if self.unanswered is not None and self.unanswered.wanted.request:
            return self.unanswered.wanted
        if self.request is not None and self._request_first and self.request_at <= now:
            return self.job.requested(self.request)
        tick = self._tick(now) if self.not_before <= now else None
        return None if tick is None else self.job.wanted(tick)

    def _tick(self, now: int) -> int | None:
        """Return the tick to claim: rather a new one than an old one again, unless all count."""
        new = self.job.due(self.known, now)
        old = self._unanswered_tick(now) or self.orphan
        if old is None or (new is not None and self.job.catch_up != "all"):
            return new
        return old

    def _unanswered_tick(self, now: int) -> int | None:
        """Return the tick that was claimed without an answer, unless it is too late for it."""
        if self.unanswered is None:
            return None
        wanted = self.unanswered.wanted
        return wanted.tick if wanted.deadline is None or now <= wanted.deadline else None

    def postpone(self, now: int, seconds: float) -> None:
        """Claim no tick for so many seconds."""
        self.not_before = now + round(seconds * SECOND)

    def refused(self, now: int) -> None:
        """The ledger or the lock can't be used: claim nothing until the next look."""
        self.unanswered = None
        self.postpone(now, LOOK_EVERY)
        self.request_at = self.not_before

    def seen(self, sight: JobSight, now: int) -> None:
        """Learn from a look at the ledger."""
        self._learn(sight.claimed)
        if sight.request != self.request:
            self.request, self.request_at = sight.request, 0
        self.paused = sight.paused
        self.orphan, self.look_at = None, NEVER
        if self.job.retries and sight.open_tick is not None:
            if sight.left is None:
                self.orphan = sight.open_tick
            else:
                self.look_at = now + round((sight.left + 0.05) * SECOND)
        if self.job.overlap == "wait" and sight.left is not None:
            self.postpone(now, WAIT_AGAIN)

    def answered(self, wanted: Wanted, answer: Answer) -> None:
        """Learn from the answer to a claim."""
        self.unanswered = None
        if wanted.tick is not None:
            self._tick_answered(wanted.tick, answer)
        elif answer.what == "busy":
            remaining = answer.holder and answer.holder.remaining
            wait = min(WAIT_AGAIN, (remaining or WAIT_FOR_RELEASE) + 0.01)
            self.request_at = answer.now + round(wait * SECOND)
        else:  # the request is run or skipped, here or elsewhere
            self.request = None

    def _tick_answered(self, tick: int, answer: Answer) -> None:
        self.orphan = None
        match answer.what:
            case "run":
                self._learn(max(tick, self.known))
                self.look_at = NEVER
            case "skipped":
                self._learn(tick)
            case "taken":
                self._learn(max(self.known, answer.claimed))
                # the job runs elsewhere, and may crash
                self.look_at = answer.now if self.job.retries else NEVER
                if answer.claimed < tick:  # our own claim was undone: wait before the next one
                    self.postpone(answer.now, 1.0)
            case "early":
                self.postpone(answer.now, answer.early)
            case "paused":
                self.postpone(answer.now, LOOK_EVERY)
            case "busy":
                remaining = answer.holder and answer.holder.remaining
                longest = WAIT_AGAIN if self.job.overlap == "wait" else WAIT_FOR_RELEASE
                self.postpone(answer.now, min(longest, (remaining or longest) + 0.01))

    def run_ended(self) -> None:
        """A run has ended in this process: claim what waits for the job's last run."""
        self.request_at = 0
        if self.job.overlap == "wait":
            self.not_before = 0

    def undo(self) -> None:
        """Undo a claim without an answer."""
        unanswered, self.unanswered = self.unanswered, None
        if unanswered is not None:
            unanswered.undo()


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
        """Undo the claims without an answer."""
        for plan in self._plans:
            plan.undo()

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
        chance.shuffle(due)
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
            plan.undo()
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
