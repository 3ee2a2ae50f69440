"""A scheduler: claims ticks when they are due, by the server's clock.

There is no leader. All schedulers of a fleet ask for each tick, and one of them gets it. What a
host's own clock says does not matter: each answer of the server tells its time, and from one to
the next a clock is used that nobody sets.

It asks little: once per tick for all jobs that are due at the same time, and besides that twice a
minute. It claims only what can be started at once, so that a tick for which it has nobody free
goes to another host.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from ..clock import now as clock
from ..exceptions import LockError, LockUnavailable
from ..io import SyncIO, run
from ..primitives import ledger
from ..waiting import backoff, own
from .execution import Assignment, Request
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
LONGEST_BACKOFF = 5.0
"""Seconds between two questions while Redis is away."""
NEVER = 2**63


class Crew(Protocol):
    """Those who do the work."""

    def free(self, job: Job) -> bool: ...
    def start(self, assignment: Assignment) -> None: ...


class _Planned:
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

    @property
    def retries(self) -> bool:
        return self.job.on_crash == "retry"

    def knows(self, claimed: int | None) -> None:
        if claimed is None:
            ledger_key = self.job.keys.ledger
            logger.error("%r is not run: something else is at %r", self.job.name, ledger_key)
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


class Planner:
    """The jobs whose locks are on one alias of CACHES."""

    def __init__(self, using: str, jobs: Iterable[Job], crew: Crew) -> None:
        self._using = using
        self._planned = [_Planned(job) for job in jobs]
        self._crew = crew
        self._offset = 0
        """What the server's clock is ahead of ours, µs."""
        self._look_all_at = 0.0
        """By our clock, as are the next ones."""
        self._failures = 0
        self._ask_again_at = 0.0

    def step(self) -> float:
        """Claim what is due. Returns the seconds until there is something to do again."""
        left = self._ask_again_at - clock()
        if left > 0:
            return left
        try:
            wake = self._step()
        except LockUnavailable as error:
            self._failures += 1
            level = logging.WARNING if self._failures == 1 else logging.DEBUG
            logger.log(level, "Periodic jobs wait for Redis: %s", error)
            pause = backoff(max(2, self._failures), LONGEST_BACKOFF)
            self._ask_again_at = clock() + pause
            self._look_all_at = 0.0  # whatever was known is old when it is back
            return pause
        if self._failures:
            logger.warning("Periodic jobs go on: Redis is back")
        self._failures = 0
        return wake

    def due(self) -> bool:
        """Something could be claimed, as soon as somebody is free for it."""
        now = self._now()
        return not self.away and any(one.due(now) for one in self._planned)

    @property
    def away(self) -> bool:
        """Redis has not answered."""
        return self._failures > 0

    def ended(self) -> None:
        """A run has ended here: a tick that waits for it need not wait any longer."""
        for one in self._planned:
            if one.job.overlap == "wait":
                one.not_before = 0

    def withdraw(self) -> None:
        """Nothing more is claimed: take back what is doubtful."""
        for one in self._planned:
            self._give_up(one)

    def _now(self) -> int:
        return round(clock() * SECOND) + self._offset

    def _step(self) -> float:
        if clock() >= self._look_all_at:
            self._look(self._planned)
            self._look_all_at = clock() + LOOK_EVERY
        else:
            now = self._now()
            self._look([one for one in self._planned if one.look_at <= now])
        due = self._due(self._planned)
        if len(due) > 1:
            self._look(due)
        # Not all schedulers in the same order.
        own.shuffle(due)
        while due := self._due(due):
            if self._claim(due.pop()) == "taken" and len(due) > 1:
                self._look(due)
        now = self._now()
        left = self._look_all_at - clock()
        return max(0.0, min([left, *(self._idle(one, now) for one in self._planned)]))

    def _idle(self, one: _Planned, now: int) -> float:
        """Seconds until there is something to do for a job."""
        # Who is busy will tell when that is over.
        waits = one.due(now) and not self._crew.free(one.job)
        return ((one.look_at if waits else one.wake) - now) / SECOND

    def _due(self, planned: Iterable[_Planned]) -> list[_Planned]:
        now = self._now()
        return [one for one in planned if one.due(now) and self._crew.free(one.job)]

    def _look(self, planned: Sequence[_Planned]) -> None:
        if not planned:
            return
        io = SyncIO(self._using)
        now, sights = run(ledger.look(io, [one.job.keys for one in planned]))
        self._set(now)
        for one, sight in zip(planned, sights, strict=True):
            one.knows(sight.claimed)
            one.orphan, one.look_at = None, NEVER
            if one.retries and sight.open_tick is not None:
                if sight.left is None:
                    one.orphan = sight.open_tick
                else:
                    one.look_at = now + round((sight.left + 0.05) * SECOND)
            if one.job.overlap == "wait" and sight.left is not None:
                one.not_before = now + round(WAIT_AGAIN * SECOND)

    def _set(self, now: int) -> None:
        # From when the answer came: so we are never early, which would cost another question.
        self._offset = now - round(clock() * SECOND)

    def _claim(self, one: _Planned) -> str:
        tick = one.tick(self._now())
        if one.request is not None and one.request.wanted.tick != tick:
            self._give_up(one)
        if tick is None:
            one.not_before = self._now() + SECOND
            return "nothing"
        request = one.request or Request.of(one.job, one.job.wanted(tick))
        one.request = request
        try:
            answer = request.send()
        except LockUnavailable:
            raise
        except LockError as error:
            # A key that is not ours: an operator's business, and no reason to stop.
            logger.error("The job %r can't be claimed: %s", one.job.name, error)
            one.request = None
            one.not_before = self._now() + round(LOOK_EVERY * SECOND)
            return "refused"
        one.request = None
        one.orphan = None
        self._set(answer.now)
        match answer.what:
            case "run":
                one.knows(max(tick, one.known))
                one.look_at = NEVER
                self._crew.start(Assignment.of(request, answer))
            case "skipped":
                one.knows(tick)
            case "taken":
                one.knows(max(one.known, answer.claimed))
                # It runs elsewhere, and may crash.
                one.look_at = answer.now if one.retries else NEVER
                if answer.claimed < tick:  # ours was taken back: not at once again
                    one.not_before = answer.now + SECOND
            case "early":
                one.not_before = answer.now + round(answer.early * SECOND)
            case "paused":
                one.not_before = answer.now + round(LOOK_EVERY * SECOND)
            case "busy":
                remaining = answer.holder and answer.holder.remaining
                longest = WAIT_AGAIN if one.job.overlap == "wait" else GIVING_BACK
                seconds = min(longest, (remaining or longest) + 0.01)
                one.not_before = answer.now + round(seconds * SECOND)
        return answer.what

    def _give_up(self, one: _Planned) -> None:
        request, one.request = one.request, None
        if request is not None:
            request.take_back()


class Runner:
    """The planners of all jobs."""

    def __init__(self, jobs: Iterable[Job], crew: Crew) -> None:
        aliases: dict[str, list[Job]] = {}
        for job in jobs:
            if job.enabled:
                aliases.setdefault(job.policy.using, []).append(job)
        self._planners = [Planner(using, its, crew) for using, its in aliases.items()]

    def step(self) -> float:
        """Claim what is due. Returns the seconds until there is something to do again."""
        return min((planner.step() for planner in self._planners), default=LOOK_EVERY)

    def due(self) -> bool:
        """Something could be claimed, as soon as somebody is free for it."""
        return any(planner.due() for planner in self._planners)

    @property
    def away(self) -> bool:
        """One Redis, or the only one, has not answered."""
        return any(planner.away for planner in self._planners)

    def ended(self) -> None:
        """A run has ended here."""
        for planner in self._planners:
            planner.ended()

    def withdraw(self) -> None:
        """Nothing more is claimed."""
        for planner in self._planners:
            planner.withdraw()
