"""Columns and durations, as people read them."""

from __future__ import annotations

import pytest

from django_redislock.inspection.sheet import Column
from django_redislock.inspection.words import duration
from django_redislock.management.output import shorten, table, width


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (61, "1 min 01 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (86399, "23 h 59 min"),
        (86400 * 3 + 3600, "3 d 01 h"),
        (86400 * 400, "400 d 00 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    """A duration has two units at most, and never 60 of one."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "columns", "short"),
    [
        ("invoice:42", 10, "invoice:42"),
        ("invoice:4200", 10, "invoic…200"),
        ("注文注文注文", 7, "注文…文"),
        ("注文注文注文", 12, "注文注文注文"),
    ],
)
def test_shortened(text: str, columns: int, short: str) -> None:
    """The beginning and the end remain, within the given columns."""
    assert shorten(text, columns) == short
    assert width(short) <= columns


Row = tuple[str, str, str]
COLUMNS: tuple[Column[Row], ...] = (
    Column("name", lambda row: row[0], shrinks=True),
    Column("n", lambda row: row[1], right=True),
    Column("who", lambda row: row[2], shrinks=True),
)


def lines(rows: list[Row], fit: int | None = None) -> list[str]:
    return list(table(COLUMNS, rows, fit=fit))


def test_as_wide_as_needed() -> None:
    """Columns are as wide as needed, without spaces at the end of a line."""
    assert lines([("a", "1", "x"), ("long", "100", "xx")]) == [
        "NAME    N  WHO",
        "a       1  x",
        "long  100  xx",
    ]


def test_to_fit() -> None:
    """The widest column shrinks, down to a width that can be told apart; numbers never shrink."""
    row = ("n" * 40, "1000", "w" * 20)
    for fit in (60, 40, 32):
        assert {len(line) for line in lines([row], fit)[1:]} == {fit}
        assert "1000" in lines([row], fit)[1]
    assert len(lines([row], 10)[1]) == 12 + 2 + 4 + 2 + 12
    assert lines([row], 200) == lines([row])
