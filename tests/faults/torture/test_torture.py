"""The torture in its short form. The long one: `python -m tests.faults.torture --help`."""

from __future__ import annotations

import pytest

from tests.faults.torture.arena import Plan, judge, torture


@pytest.mark.parametrize("lost", [0.0, 0.1], ids=["all replies", "10 % of replies lost"])
def test_nothing_is_broken_by_kills_and_stops(lost: float) -> None:
    """Eight processes, killed and stopped at random: what they saw is what a lease would do."""
    plan = Plan(seconds=3.0, kills=0.1, stops=0.2, lost=lost)
    verdict = judge(plan, torture(plan))
    assert verdict.problems == []
    assert verdict.granted


@pytest.mark.parametrize("late", [0.0, 1.1], ids=["messages at once", "messages up to 1.1 s late"])
def test_nothing_is_broken_by_messages(late: float) -> None:
    """Sections so short that somebody who believes in a message for too long would be inside with
    the next one; and a lease so long that a message says when it ends."""
    plan = Plan(seconds=4.0, lease=1.0, kills=0.02, stops=0.05, late=late, section=(0.0, 0.0004))
    verdict = judge(plan, torture(plan))
    assert verdict.problems == []
    assert verdict.granted


def test_waiting_is_fair() -> None:
    """Without faults nobody waits for longer than three times the mean, counted in turns."""
    plan = Plan(seconds=2.0, kills=0.0, stops=0.0)
    verdict = judge(plan, torture(plan), unit="turns")
    assert verdict.problems == []
    assert verdict.granted
