"""The columns of locks and runs: a terminal and a page show each type of value."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.utils import timezone
from django.utils.html import strip_tags

from django_redislock.admin import cells
from django_redislock.inspection import Ending, PastHolder, State, sheet
from django_redislock.inspection.words import Sentence
from django_redislock.management.output import STYLES, cell
from django_redislock.periodic.report import JobState
from django_redislock.primitives.ledger import RunInfo, RunOutcome

AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
WHEN, THERE = "2026-01-31 12:00:00 UTC", "2026-01-31 13:00:00 CET"
"""On a terminal, and in the time zone of the page."""
PAST = PastHolder(
    owner="web:1:x",
    label="here",
    fencing_token=7,
    acquired_at=AT,
    lasted=1.0,
    ending=Ending.CLEARED,
    why="by eva (it hangs)",
)
RUN = RunInfo(job="shop.report", id="1", outcome=RunOutcome.LOST, attempt=2, planned=AT)


@pytest.mark.parametrize(
    ("value", "terminal", "page"),
    [
        (None, "-", "–"),
        ("", "", "–"),
        ("a:b\n", "a:b?", "a:b?"),
        (1234567, "1234567", "1234567"),
        (AT, WHEN, THERE),
        (Sentence("%(number)s at %(at)s", number=3, at=AT), f"3 at {WHEN}", f"3 at {THERE}"),
        (sheet.Owner(""), "-", "–"),
        (sheet.Owner("web:12:MainThread"), "web · 12", "web · 12"),
        (sheet.Unusual("here"), "here", "here"),
        (sheet.Judged(State.STALE, "it died"), "stale", "staleit died"),
        (sheet.Seconds(None), "-", "–"),
        (sheet.Seconds(61.0, AT), "1 min 01 s", "1 min 01 s"),
        (sheet.Lease(None, 30.0, renewed=False), "no TTL", "no TTL"),
        (sheet.Lease(20.0, 30.0, renewed=True), "20.0 s", "20.0 s"),
        (PAST, "cleared by eva (it hangs)", "clearedby eva (it hangs)"),
        (RUN, "lost (2)", "lost (2)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values(value: Any, terminal: str, page: str) -> None:
    """A terminal and a page each have a text for a value."""
    assert cell(value).text == terminal
    with timezone.override("Europe/Paris"):
        assert strip_tags(cells.html(value)) == page


def test_states_have_styles() -> None:
    """No name in the table of styles is misspelt."""
    assert STYLES.keys() <= {*State, *JobState, *RunOutcome}


@pytest.mark.parametrize(
    "columns",
    [sheet.LOCKS, sheet.HOLDERS, sheet.WAITERS, sheet.GROUPS, sheet.PAST, sheet.RUNS],
    ids=lambda columns: columns[0].title,
)
def test_below(columns: Any) -> None:
    """A column that a page shows below another one names one that is there."""
    titles = [column.title for column in columns if not column.below]
    assert {column.below for column in columns if column.below} <= set(titles)
    assert len(set(titles)) == len(titles)
