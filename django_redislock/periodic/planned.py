"""What a scheduler knows of one job: when it has to ask for it, and for which tick."""

from __future__ import annotations

import logging

from ..primitives.ledger import Answer, JobSight
from .execution import Request
from .job import Job
from .schedule import SECOND

logger = logging.getLogger("django_redislock")

LOOK_EVERY = 30.0
"""Seconds after which all jobs are looked at: somebody else may have claimed, paused or crashed,
and the server's clock may have been set."""
WAIT_AGAIN = 5.0
"""Seconds after which a tick that waits for the last run is asked for again; sooner where that
run ends in this process."""
GIVING_BACK = 0.25
"""The same for a job that does not wait, while its lock is being given back."""
NEVER = 2**63


class Planned:
    """What is known of one job. Times are microseconds, by the server's clock."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.known = NEVER
        """Ticks up to here have been claimed or passed over."""
        self.tick_at = NEVER
        """When the next tick is ready."""
        self.not_before = 0
        """Until then it is not claimed."""
        self.look_at = NEVER
        """When to look whether its run has lost its lease."""
        self.orphan: int | None = None
        """The tick of a run that has lost its lease."""
        self.request: Request | None = None
        """A claim whose answer is not known."""

    def _knows(self, claimed: int | None) -> None:
        if claimed is None:
            ledger_key = self.job.keys.ledger
            logger.error("%r is not run: what is at %r can't be read", self.job.name, ledger_key)
            self.known = self.tick_at = NEVER
            return
        if claimed == self.known:
            return
        self.known = claimed
        tick = self.job.schedule.next(claimed)
        self.tick_at = NEVER if tick is None else self.job.ready(tick)

    @property
    def _due_at(self) -> int:
        at_once = self.orphan is not None or self.request is not None
        return max(0 if at_once else self.tick_at, self.not_before)

    def due(self, now: int) -> bool:
        return self._due_at <= now

    @property
    def wake(self) -> int:
        return min(self._due_at, self.look_at)

    def tick(self, now: int) -> int | None:
        """What to claim: something new rather than an old tick once more, unless all count."""
        new = self.job.due(self.known, now)
        old = self._unanswered(now) or self.orphan
        if old is None or (new is not None and self.job.catch_up != "all"):
            return new
        return old

    def _unanswered(self, now: int) -> int | None:
        """The tick of a claim whose answer is not known, unless it is too late for it by now."""
        if self.request is None:
            return None
        deadline = self.request.wanted.deadline
        return self.request.wanted.tick if deadline is None or now <= deadline else None

    def postpone(self, now: int, seconds: float) -> None:
        """Claim nothing for so long."""
        self.not_before = now + round(seconds * SECOND)

    def seen(self, sight: JobSight, now: int) -> None:
        """A look at the ledger."""
        self._knows(sight.claimed)
        self.orphan, self.look_at = None, NEVER
        if self.job.retries and sight.open_tick is not None:
            if sight.left is None:
                self.orphan = sight.open_tick
            else:
                self.look_at = now + round((sight.left + 0.05) * SECOND)
        if self.job.overlap == "wait" and sight.left is not None:
            self.postpone(now, WAIT_AGAIN)

    def answered(self, tick: int, answer: Answer) -> None:
        """What came of its claim of `tick`."""
        self.request = None
        self.orphan = None
        match answer.what:
            case "run":
                self._knows(max(tick, self.known))
                self.look_at = NEVER
            case "skipped":
                self._knows(tick)
            case "taken":
                self._knows(max(self.known, answer.claimed))
                # It runs elsewhere, and may crash.
                self.look_at = answer.now if self.job.retries else NEVER
                if answer.claimed < tick:  # ours was taken back: not at once again
                    self.postpone(answer.now, 1.0)
            case "early":
                self.postpone(answer.now, answer.early)
            case "paused":
                self.postpone(answer.now, LOOK_EVERY)
            case "busy":
                remaining = answer.holder and answer.holder.remaining
                longest = WAIT_AGAIN if self.job.overlap == "wait" else GIVING_BACK
                self.postpone(answer.now, min(longest, (remaining or longest) + 0.01))

    def give_up(self) -> None:
        """Take back a claim whose answer is not known."""
        request, self.request = self.request, None
        if request is not None:
            request.take_back()
