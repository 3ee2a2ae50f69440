"""A scheduler's knowledge of one job: when to claim a tick of it, and which tick."""

from __future__ import annotations

import logging

from ..primitives.ledger import Answer, JobSight, RunRequest, Wanted
from .execution import JobRun
from .job import Job
from .schedule import SECOND

logger = logging.getLogger("django_redislock")

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
        if wanted.tick is None:
            self._request_answered(answer)
        else:
            self._tick_answered(wanted.tick, answer)

    def _request_answered(self, answer: Answer) -> None:
        if answer.what == "busy":
            remaining = answer.holder and answer.holder.remaining
            wait = min(WAIT_AGAIN, (remaining or WAIT_FOR_RELEASE) + 0.01)
            self.request_at = answer.now + round(wait * SECOND)
        else:  # it is run or skipped, here or elsewhere
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
                if answer.claimed < tick:  # our own claim was taken back: wait before the next one
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

    def take_back(self) -> None:
        """Take back a claim without an answer."""
        unanswered, self.unanswered = self.unanswered, None
        if unanswered is not None:
            unanswered.take_back()
