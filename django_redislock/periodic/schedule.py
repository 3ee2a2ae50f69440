"""Schedules of jobs. A tick is a time in microseconds since the epoch.

All schedulers of a fleet compute the same ticks, whenever they were started.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from itertools import islice, pairwise
from types import ModuleType
from typing import Protocol

from django.core.exceptions import ImproperlyConfigured

SECOND = 1_000_000
_FIRST_SPAN = 60 * SECOND


class Schedule(Protocol):
    def next(self, after: int) -> int | None:
        """Return the first tick later than `after`, or None."""

    def last(self, after: int, upto: int) -> int | None:
        """Return the last tick later than `after` and not later than `upto`, or None."""

    @property
    def words(self) -> str:
        """The schedule in English."""


@dataclass(frozen=True, slots=True)
class Every:
    """A schedule of every so many seconds, counted from 1970-01-01 00:00 UTC."""

    seconds: float

    @property
    def _period(self) -> int:
        return round(self.seconds * SECOND)

    def next(self, after: int) -> int | None:
        return (after // self._period + 1) * self._period

    def last(self, after: int, upto: int) -> int | None:
        tick = upto // self._period * self._period
        return tick if tick > after else None

    @property
    def words(self) -> str:
        for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
            if self.seconds % size == 0:
                number = round(self.seconds / size)
                return f"every {unit}" if number == 1 else f"every {number} {unit}s"
        return "every second" if self.seconds == 1 else f"every {self.seconds:g} seconds"


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression, in a time zone.

    cronsim computes the ticks. As in Debian's cron, a job at a fixed time of the day runs once on
    the days on which clocks are changed: at the next valid minute if the clock skips its time, and
    at the first time if the clock shows it twice.

    Raises `ValueError` for an expression that can't be parsed or never matches, and
    `ImproperlyConfigured` if cronsim is not installed.
    """

    expression: str
    zone: tzinfo = field(repr=False)

    def __post_init__(self) -> None:
        cronsim = _cronsim()
        try:
            cronsim.CronSim(self.expression, datetime.now(UTC))
        except cronsim.CronSimError as error:
            raise ValueError(
                f"{self.expression!r} is not a cron expression: {error}. Write five fields, "
                f"minute, hour, day of the month, month, day of the week: '*/5 * * * *'"
            ) from None
        if next(self._after(round(datetime.now(UTC).timestamp()) * SECOND), None) is None:
            raise ValueError(f"{self.expression!r} never matches")

    def next(self, after: int) -> int | None:
        return next(self._after(after), None)

    def last(self, after: int, upto: int) -> int | None:
        # Always forward, so that the ticks are the same as those of next(). The first span is
        # short, since there may be very many ticks since `after`.
        span = _FIRST_SPAN
        while True:
            begin = max(after, upto - span)
            found = None
            for tick in self._after(begin):
                if tick > upto:
                    break
                found = tick
            if found is not None or begin >= upto or begin == after:
                return found
            span *= 4

    @property
    def words(self) -> str:
        words = _cronsim().CronSim(self.expression, datetime.now(UTC)).explain()
        return f"{words[:1].lower()}{words[1:]}, {self.zone}"

    def _after(self, after: int) -> Iterator[int]:
        begin = datetime.fromtimestamp(after // SECOND, UTC).astimezone(self.zone)
        for time in _cronsim().CronSim(self.expression, begin):
            tick = round(time.timestamp()) * SECOND
            # cronsim returns the first of two equal hours, even if that one is over.
            if tick > after:
                yield tick


def shortest(schedule: Schedule) -> float:
    """Return the shortest time in seconds between two of the next ten ticks."""
    ticks = list(islice(_ticks(schedule, round(datetime.now(UTC).timestamp()) * SECOND), 10))
    gaps = [later - tick for tick, later in pairwise(ticks)]
    return min(gaps, default=0) / SECOND or float("inf")


def _ticks(schedule: Schedule, after: int) -> Iterator[int]:
    while (tick := schedule.next(after)) is not None:
        yield tick
        after = tick


def _cronsim() -> ModuleType:
    try:
        import cronsim
    except ImportError:
        raise ImproperlyConfigured(
            "Cron expressions need cronsim: python -m pip install 'django-redislock[periodic]'. "
            "every=30 does not need it."
        ) from None
    return cronsim
