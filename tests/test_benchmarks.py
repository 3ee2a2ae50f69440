"""The benchmarks run, cost what is promised, and the pages show what was recorded.

No figure of time is looked at: those belong to a quiet machine.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import contended, crowd, leases, report, uncontended
from benchmarks.__main__ import SMOKE
from benchmarks.harness import find, median
from devtools import pages
from devtools.redis_server import find_server

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _private_server() -> None:
    if find_server().url is not None:
        pytest.skip("a server of somebody else is not ours to count on")


@pytest.mark.skipif(
    len(getattr(os, "sched_getaffinity", lambda _: [])(0)) < 2, reason="wants two cores"
)
def test_a_free_lock_costs_two_round_trips() -> None:
    """As block, as decorator, as `cache.lock` and in coroutines, with hiredis and without."""
    rows = uncontended.measure(rounds=1, cycles=20)
    ours = [row for row in rows if "redis_lock" in row["contestant"]]
    assert {row["case"]["kind"] for row in ours} == {"sync", "async"}
    for row in ours:
        # A sign of life may fall into the turn; and the requests of many tasks go out together.
        least = 2 if row["case"].get("tasks", 1) == 1 else 0
        assert least <= median(row, "round_trips") < 2.5, row


def test_a_section_costs_three_requests_where_others_wait() -> None:
    """To ask, to find that it is given, and to give it back; and a waiter more is no more."""
    rows = contended.measure(rounds=1, seconds=0.1, waiters=[4])
    for kind in ("threads", "processes", "tasks"):
        ours = find(rows, crowd.OURS, kind=kind)
        assert ours is not None
        assert median(ours, "requests") < 4, ours
        assert find(rows, crowd.FLOOR, kind=kind)
    assert find(rows, crowd.OURS, kind="expiry")


@pytest.mark.parametrize(
    "part", ["server", "leases", "latency", "fleet", "startup", "kinds", "pairs"]
)
def test_what_growth_is_measured_by_runs(part: str) -> None:
    """As far as that can be seen in a moment."""
    rows = import_module(f"benchmarks.{part}").measure(**SMOKE[part])
    assert rows
    for row in rows:
        assert all(isinstance(median(row, value), float | int) for value in row["values"])
        if row["case"].get("kind") == "held" and row["contestant"] == leases.OURS:
            assert median(row, "threads") == 2, (
                "the watchdog and its deadlines, for all leases together: so short ones need no "
                "inbox, since they are not followed"
            )


@pytest.mark.parametrize(("page", "name"), report.SECTIONS)
def test_the_pages_show_what_was_recorded(page: Path, name: str) -> None:
    """`python -m benchmarks report` would change nothing."""
    wanted = report.text(page, name)
    assert wanted is not None
    assert pages.part(page.read_text(encoding="utf-8"), name) == wanted.strip()


def test_the_pictures_are_there() -> None:
    """All that the page shows, as text that can be read on any ground."""
    names = re.findall(r"\((images/benchmark-[^)]+)\)", report.PAGE.read_text(encoding="utf-8"))
    assert names
    for name in names:
        assert "<text" in (report.PAGE.parent / name).read_text(encoding="utf-8")
