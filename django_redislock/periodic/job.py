"""What a periodic job is: when it runs, and how."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo
from hashlib import sha256
from typing import Any, Literal, TypedDict

from ..primitives.keys import Keys
from ..primitives.ledger import Wanted
from ..settings import conf
from ..settings.policy import Policy
from .schedule import SECOND, Schedule

ATTEMPTS = 3
"""So many runs of one tick with `on_crash="retry"`: a job that kills its process must not go on
to kill one after the other."""
ON_TIME = 10.0
"""Seconds after which a tick has been missed, when nothing is to be caught up with."""
A_DAY = 86400.0
"""Seconds back, when everything is to be caught up with."""


class JobOptions(TypedDict, total=False):
    """What `@periodic` takes besides the schedule. All times are seconds.

    All but the name can be set in `REDISLOCK["JOBS"]`, too, which beats what the code says.
    """

    name: str
    """By default the function's dotted path."""
    tz: tzinfo | str | None
    """The time zone of a cron expression; by default `TIME_ZONE`."""
    enabled: bool
    at_most_for: float | None
    """When the job's lease ends, counted from its start, however long it lives; None: never."""
    at_least_for: float
    """For how long its lock is held at least, counted from its start, unless its scheduler is
    stopped."""
    overlap: Literal["skip", "wait"]
    """A tick that comes due while the job runs is passed over, or waits for its end."""
    on_crash: Literal["lose", "retry"]
    """A run whose process dies is lost; or its tick is tried again, three times in all."""
    catch_up: Literal["latest", "none", "all"]
    """Of the ticks that were missed, while no scheduler ran or Redis was away, only the last one
    is run; or none; or each of them, one after the other."""
    grace: float | None
    """How late a tick may still be started. None: until the next one; with `catch_up="none"` for
    10 seconds, with "all" for a day."""
    jitter: float
    """Start up to so much later: by how much differs for each job and tick, and is the same for
    all schedulers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A function, when it runs, and how. All times are seconds."""

    name: str
    function: Callable[[], Any]
    where: str
    """Where in the code it is."""
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
        return inspect.iscoroutinefunction(self.function)

    @property
    def retries(self) -> bool:
        """A tick whose run was lost is tried again."""
        return self.on_crash == "retry"

    @property
    def lock(self) -> str:
        """The name of its lock."""
        return f"periodic:{self.name}"

    @property
    def keys(self) -> Keys:
        return Keys.of(conf.prefix(), self.lock)

    @property
    def policy(self) -> Policy:
        """How its lock behaves. Raises `ImproperlyConfigured`."""
        bound = {} if self.at_most_for is None else {"max_hold": self.at_most_for}
        return conf.policy(self.lock, bound)

    # From here on times are microseconds, by the server's clock.

    def ready(self, tick: int) -> int:
        """When a tick may be started: all schedulers agree."""
        if not self.jitter:
            return tick
        digest = sha256(f"{self.name} {tick}".encode()).digest()
        share = int.from_bytes(digest[:8], "big") / 2**64
        return tick + round(share * self.jitter * SECOND)

    @property
    def _lateness(self) -> float | None:
        """How late a tick may be started; None: until the next one."""
        default = {"latest": None, "none": ON_TIME, "all": A_DAY}[self.catch_up]
        return default if self.grace is None else self.grace

    def deadline(self, tick: int) -> int | None:
        """Until when it may be started; None: until the next one."""
        seconds = self._lateness
        return None if seconds is None else self.ready(tick) + round(seconds * SECOND)

    def due(self, known: int, now: int) -> int | None:
        """The tick to claim, of those later than `known`; None: there is none yet."""
        if self.catch_up == "all":
            lateness = (self._lateness or 0.0) + self.jitter
            # Those that are too late are passed over at once, by the last of them.
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
            attempts=ATTEMPTS if self.retries else 1,
        )

    def words(self) -> str:
        """When and how it runs, for people."""
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
            said.append(f"{'all' if self.catch_up == 'all' else 'nothing'} is caught up with")
        if self.grace is not None:
            said.append(f"at most {self.grace:g} s late")
        if self.at_most_for is not None:
            said.append(f"for {self.at_most_for:g} s at most")
        if self.at_least_for:
            said.append(f"for {self.at_least_for:g} s at least")
        return "; ".join(said)
