"""A scheduler's knowledge of one job: when to claim a tick of it, and which tick."""

from __future__ import annotations

import logging

from ..primitives.ledger import Answer, JobSight
from .execution import JobRun
from .job import Job
from .schedule import SECOND

logger = logging.getLogger("django_redislock")

LOOK_EVERY = 30.0
"""Seconds after which a scheduler looks at all jobs: other processes may have claimed, paused or
crashed, and the server's clock may have been set."""
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
        return max(0 if at_once else self.tick_at, self.not_before)

    def due(self, now: int) -> bool:
        return self._due_at <= now

    @property
    def wake_at(self) -> int:
        return min(self._due_at, self.look_at)

    def tick(self, now: int) -> int | None:
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
        """Claim nothing for so many seconds."""
        self.not_before = now + round(seconds * SECOND)

    def seen(self, sight: JobSight, now: int) -> None:
        """Learn from a look at the ledger."""
        self._learn(sight.claimed)
        self.orphan, self.look_at = None, NEVER
        if self.job.retries and sight.open_tick is not None:
            if sight.left is None:
                self.orphan = sight.open_tick
            else:
                self.look_at = now + round((sight.left + 0.05) * SECOND)
        if self.job.overlap == "wait" and sight.left is not None:
            self.postpone(now, WAIT_AGAIN)

    def answered(self, tick: int, answer: Answer) -> None:
        """Learn from the answer to a claim of `tick`."""
        self.unanswered = None
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

    def take_back(self) -> None:
        """Take back a claim without an answer."""
        unanswered, self.unanswered = self.unanswered, None
        if unanswered is not None:
            unanswered.take_back()
