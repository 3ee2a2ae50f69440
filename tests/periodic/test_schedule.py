"""Ticks: the same for all schedulers, and right on the days on which clocks are changed."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given, settings
from hypothesis import strategies as st

from django_redislock.periodic.job import SECOND, Cron, Every, Schedule, shortest

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")

# Clocks go forward, and back.
BERLIN_DAYS = (2026, 3, 29), (2026, 10, 25)
NEW_YORK_DAYS = (2026, 3, 8), (2026, 11, 1)


def us(*date: int, zone: Any = UTC) -> int:
    return round(datetime(*date, tzinfo=zone).timestamp()) * SECOND  # type: ignore[misc]


def ticks(schedule: Schedule, begin: int, end: int) -> list[int]:
    found = []
    tick = schedule.next(begin)
    while tick is not None and tick <= end:
        found.append(tick)
        tick = schedule.next(tick)
    return found


def day(expression: str, zone: ZoneInfo, date: tuple[int, int, int]) -> list[str]:
    """The ticks of that day, as its clocks show them."""
    begin = us(*date, zone=zone) - SECOND
    end = round((datetime(*date, tzinfo=zone) + timedelta(days=1)).timestamp()) * SECOND
    found = ticks(Cron(expression, zone), begin, end - SECOND)
    return [
        f"{datetime.fromtimestamp(tick / SECOND, UTC).astimezone(zone):%H:%M %Z}" for tick in found
    ]


def test_every_counts_from_the_epoch() -> None:
    """All hosts agree, whenever they were started. The next tick is later than the given time."""
    every = Every(30)
    assert every.next(0) == 30 * SECOND
    assert every.next(30 * SECOND - 1) == 30 * SECOND
    assert every.next(30 * SECOND) == 60 * SECOND
    assert every.last(0, 29 * SECOND) is None
    assert every.last(0, 65 * SECOND) == 60 * SECOND
    assert every.last(60 * SECOND, 65 * SECOND) is None
    assert Every(1.5).next(0) == 1_500_000


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Every(1), "every second"),
        (Every(90), "every 90 seconds"),
        (Every(1.5), "every 1.5 seconds"),
        (Every(60), "every minute"),
        (Every(300), "every 5 minutes"),
        (Every(7200), "every 2 hours"),
        (Every(86400), "every day"),
        (Cron("30 2 * * *", BERLIN), "at 02:30 every day, Europe/Berlin"),
    ],
)
def test_in_words(schedule: Schedule, words: str) -> None:
    """A schedule has words for people."""
    assert schedule.words == words


@pytest.mark.parametrize(
    ("zone", "expression", "date", "expected"),
    [
        (BERLIN, "30 2 * * *", BERLIN_DAYS[0], ["03:00 CEST"]),
        (BERLIN, "30 2 * * *", BERLIN_DAYS[1], ["02:30 CEST"]),
        (BERLIN, "0 2-4 * * *", BERLIN_DAYS[1], ["02:00 CEST", "03:00 CET", "04:00 CET"]),
        (NEW_YORK, "30 2 * * *", NEW_YORK_DAYS[0], ["03:00 EDT"]),
        (NEW_YORK, "30 1 * * *", NEW_YORK_DAYS[1], ["01:30 EDT"]),
        (NEW_YORK, "0 12 * * *", NEW_YORK_DAYS[0], ["12:00 EDT"]),
        (NEW_YORK, "0 12 * * *", NEW_YORK_DAYS[1], ["12:00 EST"]),
    ],
)
def test_a_fixed_time_comes_once(
    zone: ZoneInfo, expression: str, date: tuple[int, int, int], expected: list[str]
) -> None:
    """A fixed time comes once even on a day that leaves it out or has it twice."""
    assert day(expression, zone, date) == expected


@pytest.mark.parametrize(
    ("zone", "dates"), [(BERLIN, BERLIN_DAYS), (NEW_YORK, NEW_YORK_DAYS)], ids=str
)
def test_an_interval_goes_on(zone: ZoneInfo, dates: tuple[tuple[int, int, int], ...]) -> None:
    """Days with 23 and 25 hours have as many hourly ticks."""
    assert [len(day("0 * * * *", zone, date)) for date in dates] == [23, 25]
    assert [len(day("*/20 * * * *", zone, date)) for date in dates] == [69, 75]


def test_the_hour_that_there_is_twice_when_it_has_begun_again() -> None:
    """A scheduler that starts in the repeated hour does not run again what ran in the first
    one."""
    cron = Cron("30 2 * * *", BERLIN)
    again = us(2026, 10, 25, 1, 10)  # 02:10 CET
    assert cron.next(again) == us(2026, 10, 26, 1, 30)
    assert cron.last(again - SECOND, again) is None


EXPRESSIONS = (
    "*/5 * * * *",
    "30 2 * * *",
    "0 * * * *",
    "15 1-3 * * SUN",
    "0 0 1 * *",
    "59 1 * * *",
)


@settings(max_examples=60, deadline=None)
@given(
    expression=st.sampled_from(EXPRESSIONS),
    zone=st.sampled_from((BERLIN, NEW_YORK, ZoneInfo("UTC"))),
    around=st.sampled_from((*BERLIN_DAYS, *NEW_YORK_DAYS)),
    begin=st.integers(-86400, 86400),
    length=st.integers(0, 3 * 86400),
)
def test_wherever_one_begins(
    expression: str, zone: ZoneInfo, around: tuple[int, int, int], begin: int, length: int
) -> None:
    """From any starting point, the ticks are the same and grow, and the last one is the last of
    them."""
    cron = Cron(expression, zone)
    first = us(*around) - 2 * 86400 * SECOND
    start = us(*around) + begin * SECOND
    end = start + length * SECOND
    found = ticks(cron, first, end)
    assert found == sorted(set(found))
    inside = [tick for tick in found if tick > start]
    assert ticks(cron, start, end) == inside
    assert cron.last(start, end) == (inside[-1] if inside else None)


def test_the_last_of_very_many_is_found_at_once() -> None:
    """The last tick of a year is found without counting them all."""
    cron = Cron("* * * * *", BERLIN)
    assert cron.last(us(2025, 1, 1), us(2026, 1, 1)) == us(2026, 1, 1)
    yearly = Cron("0 0 1 1 *", ZoneInfo("UTC"))
    assert yearly.last(us(2024, 6, 1), us(2025, 12, 31)) == us(2025, 1, 1)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("* * * *", "Wrong number of fields"),
        ("61 * * * *", "Bad minute"),
        ("every day", "Wrong number of fields"),
        ("0 0 30 2 *", "Bad day-of-month"),
    ],
)
def test_what_cannot_be_read(expression: str, message: str) -> None:
    """The error says what is wrong, and shows an expression."""
    with pytest.raises(ValueError, match=message) as raised:
        Cron(expression, BERLIN)
    assert "*/5 * * * *" in str(raised.value)


def test_without_cronsim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how to install it."""
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'django-redislock\[periodic\]'"):
        Cron("* * * * *", BERLIN)


def test_the_time_between_two_ticks() -> None:
    """The shortest time between the next ticks counts."""
    assert shortest(Every(30)) == 30
    assert shortest(Cron("0,10 * * * *", BERLIN)) == 600
