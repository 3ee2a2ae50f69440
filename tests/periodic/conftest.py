"""Fixtures for the tests of periodic jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from django_redislock import LockUnavailable
from django_redislock.periodic import Ledger, periodic
from django_redislock.periodic import job as jobs
from django_redislock.periodic.job import Job
from django_redislock.transport.ports import SyncPort

Make = Callable[..., Job]
Now = Callable[[], int]


def outcomes(name: str = "job") -> list[str]:
    """What became of a job's runs, the newest first."""
    return [run.outcome for run in Ledger().runs(name)]


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Job]:
    """No jobs but those of the test."""
    registry: dict[str, Job] = {}
    monkeypatch.setattr(jobs, "_registry", registry)
    return registry


@pytest.fixture
def make(registry: dict[str, Job]) -> Make:
    """Make a job, by default one that does nothing every hour."""

    def make(function: Any = None, *, name: str = "job", **options: Any) -> Job:
        if "every" not in options and "schedule" not in options:
            options["every"] = 3600

        def nothing() -> None: ...

        registry.pop(name, None)
        periodic(name=name, **options)(function or nothing)
        return next(job for job in jobs.jobs() if job.name == name)

    return make


@pytest.fixture
def missed(redis: Redis) -> Callable[..., None]:
    """Let these jobs, which are planned every hour, have missed as many ticks as there are hours.
    No scheduler knows of it yet."""

    def missed(*names: str, hours: int = 2) -> None:
        claimed = (int(redis.time()[0]) - 3600 * hours) * 1_000_000
        for name in names:
            redis.hset(f"redislock:{{periodic:{name}}}:ledger", "claimed", claimed)

    return missed


@pytest.fixture
def now(redis: Redis) -> Now:
    """The server's clock, in microseconds."""

    def now() -> int:
        seconds, micro = redis.time()
        return int(seconds) * 1_000_000 + int(micro)

    return now


@pytest.fixture
def claim_lost(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The answer to the first claim of a run, which is lost on its way."""
    script = SyncPort.script
    lost: list[Any] = []

    async def loses(self: SyncPort, name: str, *args: Any) -> Any:
        answer = await script(self, name, *args)
        if name == "ledger_claim" and not lost:
            lost.append(answer)
            raise LockUnavailable("lost", doubtful=True)
        return answer

    monkeypatch.setattr(SyncPort, "script", loses)
    return lost


@pytest.fixture
def told() -> Iterator[list[Any]]:
    """What the signals have told; `settle` waits for what is still on its way."""
    from django_redislock.base import background
    from django_redislock.periodic import job_finished, job_started

    class Told(list[Any]):
        def settle(self) -> list[Any]:
            background.settle()
            return self

    found = Told()

    def hear(event: Any, **_: Any) -> None:
        found.append(event)

    for signal in (job_started, job_finished):
        signal.connect(hear)
    yield found
    for signal in (job_started, job_finished):
        signal.disconnect(hear)
