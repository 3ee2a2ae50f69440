"""Eight processes at a mutex. All kinds of locks, at length: `make prove`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.torture.arena import Plan, judge, torture
from tests.faults.torture.checker import Verdict


def verdict_of(plan: Plan) -> Verdict:
    """Return what is to be said of a run in which the lock was granted: on a busy machine, a
    longer one."""
    verdict = judge(plan, torture(plan))
    assert verdict.granted or plan.seconds < 60, "nobody gets the lock"
    return verdict if verdict.granted else verdict_of(replace(plan, seconds=2 * plan.seconds))


@pytest.mark.parametrize("lost", [0.0, 0.1], ids=["all replies", "10 % of replies lost"])
def test_nothing_is_broken_by_kills_and_stops(lost: float) -> None:
    """Eight processes, killed and stopped at random: what they saw is what a lease would do."""
    plan = Plan(seconds=3.0, kills=0.1, stops=0.2, lost=lost)
    assert verdict_of(plan).problems == []


@pytest.mark.parametrize("late", [0.0, 1.1], ids=["messages at once", "messages up to 1.1 s late"])
def test_nothing_is_broken_by_messages(late: float) -> None:
    """Sections so short that somebody who believes in a message for too long would be inside with
    the next one; and a lease so long that a message says when it ends."""
    plan = Plan(seconds=4.0, lease=1.0, kills=0.02, stops=0.05, late=late, section=(0.0, 0.0004))
    assert verdict_of(plan).problems == []


def test_waiting_is_fair() -> None:
    """Without faults nobody waits for longer than three times the mean, counted in turns."""
    plan = Plan(seconds=2.0, kills=0.0, stops=0.0)
    assert verdict_of(plan).problems == []
