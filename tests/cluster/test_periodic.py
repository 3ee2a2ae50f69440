"""Periodic jobs whose ledgers are on different nodes."""

from __future__ import annotations

import pytest

from devtools.redis_cluster import RedisCluster
from django_redislock.periodic import JobState, Ledger, RunOutcome, periodic
from django_redislock.periodic import job as registry
from django_redislock.periodic.execution import JobRun
from django_redislock.periodic.job import Job
from django_redislock.primitives import ledger
from django_redislock.primitives.contract import run
from django_redislock.primitives.ledger import Wanted
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of


@pytest.fixture
def planned(cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Some jobs, spread over all nodes."""
    monkeypatch.setattr(registry, "_registry", {})

    def nothing() -> None: ...

    for number in range(8):
        periodic(name=f"job-{number}", every=3600)(nothing)
    found = registry.jobs()
    assert len({cluster.owner(job.keys.lock).tcp_port for job in found}) == 3
    return found


def test_looked_at_claimed_and_written_down(planned: list[Job]) -> None:
    """As a scheduler does it, and as people see it; in the order in which they were asked for."""
    port = SyncPort(server_of("default"))
    _, sights = run(ledger.known(port, [job.keys for job in planned]))
    assert all(sight.claimed for sight in sights)
    for job in planned[::2]:
        answer = JobRun(job, Wanted(tick=None, overlap="skip")).ask()
        assert answer.run is not None
        run(ledger.finish(port, job.keys, answer.run, RunOutcome.DONE, ""))
    Ledger().pause("job-1", by="ann", reason="a move")

    found = Ledger().jobs()
    assert [info.name for info in found] == [job.name for job in planned]
    for at, info in enumerate(found):
        assert [its.outcome for its in info.runs] == [RunOutcome.DONE] * (at % 2 == 0)
        assert info.state == (
            JobState.PAUSED if at == 1 else (JobState.OK if at % 2 == 0 else JobState.NEW)
        )


def test_a_tick_is_claimed_once(planned: list[Job]) -> None:
    """On each node."""
    now, _ = run(ledger.known(SyncPort(server_of("default")), [job.keys for job in planned]))
    for job in planned:
        wanted = Wanted(tick=now + 1_000_000, overlap="skip")
        first, second = (JobRun(job, wanted).ask() for _ in range(2))
        assert (first.what, second.what) == ("run", "taken")
