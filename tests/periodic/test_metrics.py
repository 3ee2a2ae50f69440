"""`redislock metrics`: the periodic jobs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_redislock.periodic import Ledger
from tests.caches import caches
from tests.operations.calling import AWAY
from tests.periodic.conftest import Make
from tests.periodic.test_command import runperiodic
from tests.test_fleet_metrics import Samples, scraped
from tests.waiting import PATIENCE


def of_job(name: str, metric: str) -> Samples:
    return {labels[1:]: value for labels, value in scraped(metric).items() if labels[0] == name}


def one(name: str, metric: str) -> str:
    """The only state or outcome whose value is 1."""
    [(found,)] = [labels for labels, value in of_job(name, metric).items() if value == 1]
    return found


def test_jobs(make: Make, missed: Any) -> None:
    """The state of each job, when it was last done, how its last run ended, and its next tick."""

    def bad() -> None:
        raise ValueError("no paper")

    make(name="good")
    make(bad, name="bad")
    make(name="late")
    make(name="idle")
    missed("good", "bad")
    assert runperiodic("--once").code == 1
    missed("late")
    Ledger().pause("idle", by="ann", reason="no ink")
    states = {name: one(name, "redislock_job_state") for name in ("good", "bad", "late", "idle")}
    assert states == {"good": "ok", "bad": "failing", "late": "overdue", "idle": "paused"}
    assert one("good", "redislock_job_last_outcome") == "done"
    assert one("bad", "redislock_job_last_outcome") == "failed"
    assert not of_job("late", "redislock_job_last_outcome")

    success = "redislock_job_last_success_timestamp_seconds"
    assert abs(of_job("good", success)[()] - time.time()) < PATIENCE
    assert not of_job("bad", success)
    assert 0 <= of_job("good", "redislock_job_last_duration_seconds")[()] < PATIENCE
    assert of_job("good", "redislock_job_next_timestamp_seconds")[()] > time.time()
    assert not of_job("idle", "redislock_job_next_timestamp_seconds")


def test_a_server_that_is_away_is_asked_once(
    make: Make, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs costs its time-out once, not again for its jobs."""
    make(name="good")
    asked: list[str] = []
    monkeypatch.setattr(Ledger, "jobs", lambda _: asked.append("jobs") or [])
    assert scraped("redislock_up") == {(): 1}
    assert asked == ["jobs"]
    settings.CACHES = caches(AWAY)
    assert scraped("redislock_up") == {(): 0}
    assert asked == ["jobs"]
