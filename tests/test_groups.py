"""Waiters by host and place in the code."""

from __future__ import annotations

from django_redislock.inspection import Kind, WaiterInfo, facts
from django_redislock.inspection.facts import groups
from tests.memory import SIGN_OF_LIFE


def test_alive() -> None:
    """A waiter counts as alive for as long as it gets the lock."""
    assert facts.PASSED_OVER_AFTER == SIGN_OF_LIFE


def test_groups() -> None:
    """The order is that of the queue; purposes are told apart."""
    asked = [
        ("web-3:1:MainThread", "a.py:1 in f", Kind.READ),
        ("web-3:2:x", "a.py:1 in f", Kind.READ),
        ("web-1:1:x", "a.py:1 in f", Kind.READ),
        ("web-3:1:y", "a.py:1 in f", Kind.WRITE),
        ("web-3:3:x", "a.py:1 in f", Kind.READ),
    ]
    waiters = [
        WaiterInfo(
            position=number, kind=kind, owner=owner, label=label, waited=9.0 - number, silent=0.0
        )
        for number, (owner, label, kind) in enumerate(asked)
    ]
    found = [(one.host, one.number, one.kind, one.oldest) for one in groups(waiters)]
    assert found == [
        ("web-3", 3, Kind.READ, 9.0),
        ("web-1", 1, Kind.READ, 7.0),
        ("web-3", 1, Kind.WRITE, 6.0),
    ]
    assert groups([]) == []
