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

from ..base.clock import now as clock
from ..base.exceptions import LockError, LockUnavailable
from ..primitives import ledger
from ..primitives.waiting import backoff, own
from ..transport.ports import SyncPort, run
from ..transport.server import server_of
from .execution import Assignment, Request
from .job import Job
from .planned import LOOK_EVERY, Planned
from .schedule import SECOND

logger = logging.getLogger("django_redislock")

LONGEST_BACKOFF = 5.0
"""Seconds between two questions while Redis is away."""


class Crew(Protocol):
    """Those who do the work."""

    def free(self, job: Job) -> bool: ...
    def start(self, assignment: Assignment) -> None: ...


class Planner:
    """The jobs whose locks are on one alias of CACHES."""

    def __init__(self, using: str, jobs: Iterable[Job], crew: Crew) -> None:
        self._using = using
        self._planned = [Planned(job) for job in jobs]
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
            one.give_up()

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

    def _idle(self, one: Planned, now: int) -> float:
        """Seconds until there is something to do for a job."""
        # Who is busy will tell when that is over.
        waits = one.due(now) and not self._crew.free(one.job)
        return ((one.look_at if waits else one.wake) - now) / SECOND

    def _due(self, planned: Iterable[Planned]) -> list[Planned]:
        now = self._now()
        return [one for one in planned if one.due(now) and self._crew.free(one.job)]

    def _look(self, planned: Sequence[Planned]) -> None:
        if not planned:
            return
        port = SyncPort(server_of(self._using))
        now, sights = run(ledger.look(port, [one.job.keys for one in planned]))
        self._set(now)
        for one, sight in zip(planned, sights, strict=True):
            one.seen(sight, now)

    def _set(self, now: int) -> None:
        # From when the answer came: so we are never early, which would cost another question.
        self._offset = now - round(clock() * SECOND)

    def _claim(self, one: Planned) -> str:
        tick = one.tick(self._now())
        if one.request is not None and one.request.wanted.tick != tick:
            one.give_up()
        if tick is None:
            one.postpone(self._now(), 1.0)
            return "nothing"
        one.request = request = one.request or Request.of(one.job, one.job.wanted(tick))
        try:
            answer = request.send()
        except LockUnavailable:
            raise
        except LockError as error:
            # A key that is not ours: an operator's business, and no reason to stop.
            logger.error("The job %r can't be claimed: %s", one.job.name, error)
            one.request = None
            one.postpone(self._now(), LOOK_EVERY)
            return "refused"
        self._set(answer.now)
        one.answered(tick, answer)
        if answer.what == "run":
            self._crew.start(Assignment.of(request, answer))
        return answer.what


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
