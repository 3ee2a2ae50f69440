"""When a job is planned. A tick is a time in microseconds since the epoch.

All schedulers of a fleet have to work out the same ticks, whenever they were started.
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
        """The first tick later than `after`; None: there is none."""

    def last(self, after: int, upto: int) -> int | None:
        """The last tick later than `after` and not later than `upto`; None: there is none."""

    @property
    def words(self) -> str:
        """For people."""


@dataclass(frozen=True, slots=True)
class Every:
    """Every so many seconds, counted from 1970-01-01 00:00 UTC."""

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

    cronsim works out the ticks. As in Debian's cron, a job at a fixed time of the day runs once
    on the days on which clocks are changed: at the next valid minute when its time is left out,
    and the first time when there are two.

    Raises `ValueError` for an expression that can't be read or never comes, and
    `ImproperlyConfigured` when cronsim is not installed.
    """

    expression: str
    zone: tzinfo = field(repr=False)

    def __post_init__(self) -> None:
        cronsim = _cronsim()
        try:
            cronsim.CronSim(self.expression, datetime.now(UTC))
        except cronsim.CronSimError as error:
            raise ValueError(
                f"{self.expression!r} is no cron expression: {error}. It has five fields, "
                f"minute, hour, day of the month, month, day of the week: '*/5 * * * *'"
            ) from None
        if next(self._after(round(datetime.now(UTC).timestamp()) * SECOND), None) is None:
            raise ValueError(f"{self.expression!r} never comes")

    def next(self, after: int) -> int | None:
        return next(self._after(after), None)

    def last(self, after: int, upto: int) -> int | None:
        # Always forward: so it can be no other ticks than those of next(). From not so long ago
        # at first, since the last one may be one of very many.
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
            # Of an hour that there is twice it gives the first one, also when that is over.
            if tick > after:
                yield tick


def shortest(schedule: Schedule) -> float:
    """Seconds between two ticks, as far as the next ones tell."""
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
            "every=30 does without."
        ) from None
    return cronsim
