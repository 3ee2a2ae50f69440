"""A scheduler, step by step: what it claims, when, and how little it asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from django_redislock import redis_lock
from django_redislock.periodic import Ledger, RunOutcome
from django_redislock.periodic import job as registry
from django_redislock.periodic import runner as runners
from django_redislock.periodic.execution import JobRun, Workers, perform
from django_redislock.periodic.job import Job
from django_redislock.periodic.runner import LOOK_EVERY
from django_redislock.transport.ports import SyncPort
from tests.caches import caches, entry
from tests.operations.calling import AWAY
from tests.periodic.conftest import Make, outcomes
from tests.waiting import eventually


class Hands(Workers):
    """Workers that perform runs only when the test says so, and take a limited number."""

    def __init__(self, hands: int = 1000) -> None:
        super().__init__(1, lambda: None)
        self.hands = hands
        self.given: list[JobRun] = []

    def free(self, job: Job) -> bool:
        return len(self.given) < self.hands

    def start(self, job_run: JobRun) -> None:
        self.given.append(job_run)

    def work(self) -> list[str]:
        """Perform all runs, and return the names of their jobs."""
        given, self.given = self.given, []
        for job_run in given:
            perform(job_run)
        return sorted(job_run.job.name for job_run in given)


class Scheduler:
    def __init__(self, hands: int = 1000) -> None:
        self.workers = Hands(hands)
        self.runners = runners.runners(registry.jobs(), self.workers, stays=True)

    @property
    def runner(self) -> runners.Runner:
        """The only one."""
        [runner] = self.runners
        return runner

    def step(self) -> float:
        return min(runner.step() for runner in self.runners)

    def starts(self) -> list[str]:
        self.step()
        return self.workers.work()


@pytest.fixture
def many(make: Make, missed: Any) -> Callable[[int], list[str]]:
    """Make so many jobs that have missed ticks, and return their names."""

    def many(count: int) -> list[str]:
        names = [f"job{number:02}" for number in range(count)]
        for name in names:
            make(name=name)
        missed(*names)
        return names

    return many


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The names of the scripts that schedulers have sent."""
    sent: Counter[str] = Counter()
    script = SyncPort.script

    async def counted(self: SyncPort, name: str, *args: Any) -> Any:
        if name.startswith("ledger_"):  # and not what goes on in the background
            sent[name] += 1
        return await script(self, name, *args)

    monkeypatch.setattr(SyncPort, "script", counted)
    return sent


def test_one_of_many_gets_it(many: Any) -> None:
    """Each job is run once, by the first scheduler that asks."""
    names = many(5)
    first, second = Scheduler(), Scheduler()
    assert first.starts() == names
    assert second.starts() == []
    assert first.starts() == []


def test_it_asks_little(many: Any, sent: Counter[str]) -> None:
    """A scheduler sends one command for all due jobs and one for each of its own ticks, and none
    while nothing is due."""
    many(20)
    first, second = Scheduler(), Scheduler()
    first.step()
    assert sent == {"ledger_known": 2, "ledger_claim": 20}
    sent.clear()
    second.step()
    assert sent == {"ledger_known": 1}, "all have been claimed"
    sent.clear()
    assert 0 < first.step() <= LOOK_EVERY
    assert 0 < second.step() <= LOOK_EVERY
    assert sent == {}


def test_two_at_the_same_time(
    many: Any, sent: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler whose claim fails looks again at what is left."""
    many(20)
    first, second = Scheduler(), Scheduler()
    start = first.workers.start

    def started(job_run: JobRun) -> None:
        start(job_run)
        second.step()

    monkeypatch.setattr(first.workers, "start", started)
    first.step()
    assert (len(first.workers.given), len(second.workers.given)) == (1, 19)
    assert sent["ledger_claim"] == 1 + 19 + 1


def test_it_looks_now_and_then(
    make: Make, missed: Any, sent: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler learns from time to time what others have done, and the server's time."""
    make()
    scheduler = Scheduler()
    scheduler.step()
    monkeypatch.setattr(runners, "LOOK_EVERY", 0.0)
    scheduler.runner._look_all_at = 0.0
    missed("job")  # as if its ledger had been lost, or set back
    assert scheduler.starts() == ["job"]


def test_only_what_can_be_started(many: Any) -> None:
    """Jobs that this host can't start are left for other hosts."""
    many(5)
    small, other = Scheduler(hands=2), Scheduler()
    small.step()
    assert len(small.workers.given) == 2
    assert small.runner.due()
    assert small.step() > 0, "it waits for somebody to be free"
    assert len(other.starts()) == 3
    assert len(small.workers.work()) == 2
    assert small.starts() == []
    assert not small.runner.due()


def test_what_waits_is_run_by_who_ran_the_last_one(
    make: Make, missed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next tick is run at once by the scheduler of the last run; others ask again later."""
    monkeypatch.setattr("django_redislock.periodic.runner.WAIT_AGAIN", 600.0)
    make(overlap="wait")
    missed("job")
    first, second = Scheduler(), Scheduler()
    first.step()
    missed("job", hours=1)  # a tick later, while it runs
    for scheduler in (first, second):
        scheduler.runner._look_all_at = 0.0
        assert 0 < scheduler.step() <= LOOK_EVERY
    assert first.workers.work() == ["job"]
    assert second.starts() == []
    first.runner.run_ended()
    assert first.starts() == ["job"]
    assert outcomes() == ["done", "done"]


def test_an_orphan(make: Make, missed: Any, redis: Redis) -> None:
    """If the lease of a run is gone, the next scheduler that looks tries its tick again."""
    make(on_crash="retry")
    missed("job")
    first, second = Scheduler(), Scheduler()
    first.step()
    assert second.starts() == []
    second.runner._look_all_at = 0.0
    assert second.starts() == [], "as long as it lives"
    redis.delete("redislock:{periodic:job}")
    second.runner._look_all_at = 0.0
    assert second.starts() == ["job"]
    assert [(run.outcome, run.attempt) for run in Ledger().runs("job")] == [
        (RunOutcome.DONE, 2),
        (RunOutcome.LOST, 1),
    ]


def test_an_orphan_and_something_new(make: Make, missed: Any, redis: Redis) -> None:
    """A new tick is run and the old one is lost, unless catch_up='all'."""
    for name, options in (("a", {}), ("b", {"catch_up": "all", "overlap": "wait"})):
        make(name=name, every=1, on_crash="retry", **options)
    first = Scheduler()
    eventually(lambda: first.step() >= 0 and len(first.workers.given) == 2)
    planned = {one.info.planned for one in first.workers.given if one.info.planned}
    eventually(lambda: redis.time()[0] > max(planned).timestamp())
    for name in "ab":
        redis.delete(f"redislock:{{periodic:{name}}}")
    second = Scheduler()
    assert second.starts() == ["a", "b"]
    attempts = {name: [run.attempt for run in Ledger().runs(name)] for name in "ab"}
    assert attempts == {"a": [1, 1], "b": [2, 1]}


def test_all_that_was_missed(make: Make, missed: Any) -> None:
    """With catch_up='all', missed ticks are run one after the other."""
    make(catch_up="all", overlap="wait")
    missed("job", hours=4)
    scheduler = Scheduler()
    for _ in range(8):
        scheduler.starts()
        scheduler.runner.run_ended()
    assert outcomes() == ["done"] * 4
    planned = [run.planned for run in Ledger().runs("job") if run.planned]
    assert planned == sorted(set(planned), reverse=True)


def test_what_is_too_late(make: Make, missed: Any) -> None:
    """A tick that is too late is entered once, and is not run."""
    make(grace=0)
    missed("job")
    assert Scheduler().starts() == []
    assert Scheduler().starts() == []
    [run] = Ledger().runs("job")
    assert run.why.startswith("too late, by ")


def test_a_key_of_others(make: Make, missed: Any, redis: Redis) -> None:
    """The other jobs run."""
    names = ["bad", "good", "worse"]
    for name in names:
        make(name=name)
    missed("bad", "good")
    redis.lpush("redislock:{periodic:bad}", "x")
    redis.lpush("redislock:{periodic:worse}:ledger", "x")
    scheduler = Scheduler()
    assert scheduler.starts() == ["good"]
    assert 0 < scheduler.step() <= LOOK_EVERY, "it does not ask for it all the time"


def test_redis_is_away_and_comes_back(make: Make, missed: Any, settings: Any) -> None:
    """The scheduler waits, within limits, and goes on."""
    make()
    missed("job")
    there = settings.CACHES
    scheduler = Scheduler()
    settings.CACHES = caches(AWAY)
    assert 0 < scheduler.step() <= runners.LONGEST_BACKOFF
    assert scheduler.runner.unreachable
    settings.CACHES = there
    scheduler.runner._ask_again_at = 0.0
    assert scheduler.starts() == ["job"]
    assert not scheduler.runner.unreachable


@pytest.mark.parametrize("back", [True, False])
def test_an_answer_is_lost(make: Make, missed: Any, claim_lost: list[Any], back: bool) -> None:
    """The same claim is sent again and finds its run; if the scheduler ends, it is undone."""
    make()
    missed("job")
    scheduler = Scheduler()
    assert scheduler.starts() == []
    assert claim_lost
    assert redis_lock("periodic:job").holder() is not None
    if back:
        scheduler.runner._ask_again_at = 0.0
        assert scheduler.starts() == ["job"]
        assert outcomes() == ["done"]
    else:
        scheduler.runner.withdraw()
        assert redis_lock("periodic:job").holder() is None
        assert outcomes() == ["lost"]


def test_two_servers(make: Make, missed: Any, settings: Any) -> None:
    """If one server is away, the jobs of the other one run."""
    make(name="a")
    make(name="b")
    missed("a", "b")
    settings.CACHES = {**settings.CACHES, "other": entry(AWAY)}
    settings.REDISLOCK = {"LOCKS": {"periodic:a": {"USING": "other"}}}
    assert Scheduler().starts() == ["b"]


def test_no_jobs() -> None:
    """Without jobs, there are no runners."""
    assert Scheduler().runners == []
