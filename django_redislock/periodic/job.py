"""A periodic job: its function, its schedule and its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo
from hashlib import sha256
from typing import Any, Literal, TypedDict

from ..base.callables import kind_of
from ..primitives.keys import Keys
from ..primitives.ledger import REQUEST_GOOD_FOR, RunRequest, Wanted
from ..settings import conf
from ..settings.policy import Policy
from .schedule import SECOND, Schedule

ATTEMPTS = 3
"""Runs of one tick with `on_crash="retry"`. The bound keeps a job that kills its process from
killing all schedulers."""
ON_TIME = 10.0
"""Seconds after which a tick is missed with `catch_up="none"`."""
A_DAY = 86400.0
"""Seconds for which missed ticks are caught up with `catch_up="all"`."""

LOCK_PREFIX = "periodic:"
"""The name of a job's lock is this and the name of the job."""


class JobOptions(TypedDict, total=False):
    """Options of `@periodic` besides the schedule. All times are seconds.

    All but the name can also be set in `REDISLOCK["JOBS"]`, which overrides the code.
    """

    name: str
    """The name of the job; by default the function's dotted path."""
    tz: tzinfo | str | None
    """The time zone of a cron expression; by default `TIME_ZONE`."""
    enabled: bool
    """Whether schedulers start the job."""
    at_most_for: float | None
    """The lease is not renewed beyond this time, counted from its start. None: no limit."""
    at_least_for: float
    """The lock is held for at least this time, counted from its start, unless the scheduler is
    stopped."""
    overlap: Literal["skip", "wait"]
    """Whether a tick that is due while the job runs is skipped, or waits for the run's end."""
    on_crash: Literal["lose", "retry"]
    """Whether a run whose process died is lost, or its tick is run again, up to three times in
    all."""
    catch_up: Literal["latest", "none", "all"]
    """Which of the ticks are run that were missed while no scheduler ran or Redis was unreachable:
    the last one, none, or all of them one after the other."""
    grace: float | None
    """How late a tick may be started. None: until the next tick; 10 seconds with
    `catch_up="none"`; a day with `catch_up="all"`."""
    jitter: float
    """Longest random delay of a start. The delay differs for each job and tick, and is the same
    in all schedulers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A function with its schedule and options. All times are seconds."""

    name: str
    function: Callable[[], Any]
    where: str
    """Where the function is: path, line and name."""
    schedule: Schedule
    tz: tzinfo | None = None
    enabled: bool = True
    at_most_for: float | None = None
    at_least_for: float = 0.0
    overlap: Literal["skip", "wait"] = "skip"
    on_crash: Literal["lose", "retry"] = "lose"
    catch_up: Literal["latest", "none", "all"] = "latest"
    grace: float | None = None
    jitter: float = 0.0

    @property
    def asynchronous(self) -> bool:
        return kind_of(self.function) == "coroutine"

    @property
    def retries(self) -> bool:
        """Whether a tick whose run was lost is run again."""
        return self.on_crash == "retry"

    @property
    def lock(self) -> str:
        """The name of the job's lock."""
        return f"{LOCK_PREFIX}{self.name}"

    @property
    def keys(self) -> Keys:
        return Keys.of(conf.prefix(), self.lock)

    @property
    def policy(self) -> Policy:
        """The policy of the job's lock. Raises `ImproperlyConfigured`."""
        bound = {} if self.at_most_for is None else {"max_hold": self.at_most_for}
        return conf.policy(self.lock, bound)

    # In the methods below, times are microseconds of the server's clock.

    def ready(self, tick: int) -> int:
        """Return when a tick may be started: the same time in all schedulers."""
        if not self.jitter:
            return tick
        digest = sha256(f"{self.name} {tick}".encode()).digest()
        share = int.from_bytes(digest[:8], "big") / 2**64
        return tick + round(share * self.jitter * SECOND)

    @property
    def _lateness(self) -> float | None:
        """Seconds by which a tick may be late. None: until the next tick."""
        default = {"latest": None, "none": ON_TIME, "all": A_DAY}[self.catch_up]
        return default if self.grace is None else self.grace

    def deadline(self, tick: int) -> int | None:
        """Return until when a tick may be started. None: until the next tick."""
        seconds = self._lateness
        return None if seconds is None else self.ready(tick) + round(seconds * SECOND)

    def due(self, known: int, now: int) -> int | None:
        """Return the tick to claim, of those later than `known`; None if none is ready."""
        if self.catch_up == "all":
            lateness = (self._lateness or 0.0) + self.jitter
            # Claiming the last tick that is too late skips all of them.
            late = self.schedule.last(known, now - round(lateness * SECOND) - 1)
            tick = late or self.schedule.next(known)
            return tick if tick is not None and self.ready(tick) <= now else None
        upto = now
        while (tick := self.schedule.last(known, upto)) is not None and self.ready(tick) > now:
            upto = tick - 1
        return tick

    def wanted(self, tick: int) -> Wanted:
        return Wanted(
            tick=tick,
            ready=self.ready(tick),
            deadline=self.deadline(tick),
            overlap=self.overlap,
            attempts=self._attempts,
        )

    def requested(self, request: RunRequest) -> Wanted:
        """Return the run that a request wants."""
        at = round(request.at.timestamp() * SECOND)
        return Wanted(
            tick=None,
            deadline=at + round(REQUEST_GOOD_FOR * SECOND),
            attempts=self._attempts,
            request=request.id,
        )

    @property
    def _attempts(self) -> int:
        return ATTEMPTS if self.retries else 1

    def words(self) -> str:
        """Return the schedule and the options in English."""
        said = [self.schedule.words]
        if not self.enabled:
            said.append("disabled")
        if self.jitter:
            said.append(f"up to {self.jitter:g} s later")
        if self.overlap == "wait":
            said.append("waits for its last run")
        if self.retries:
            said.append("retried after a crash")
        if self.catch_up != "latest":
            said.append(f"runs {'all' if self.catch_up == 'all' else 'no'} missed ticks")
        if self.grace is not None:
            said.append(f"at most {self.grace:g} s late")
        if self.at_most_for is not None:
            said.append(f"for {self.at_most_for:g} s at most")
        if self.at_least_for:
            said.append(f"for {self.at_least_for:g} s at least")
        return "; ".join(said)
