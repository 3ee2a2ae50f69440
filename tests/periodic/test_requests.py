"""A run that an operator wants: one scheduler takes the request, and runs the job once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from django_redislock import redis_lock
from django_redislock.base import tokens
from django_redislock.periodic import JobState, Ledger, RunOutcome, RunRequest
from django_redislock.periodic.report import SILENT_AFTER, silent_for
from django_redislock.primitives import ledger
from django_redislock.primitives.contract import run
from django_redislock.primitives.keys import Keys
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.faults.conftest import proxy  # noqa: F401  # a fixture
from tests.faults.proxy import Fault, Proxy, anything
from tests.periodic.conftest import Make, Now, outcomes
from tests.periodic.test_ledger import LEDGER, LOCK, claim, finish
from tests.periodic.test_runner import Scheduler
from tests.processes import Start, Worker
from tests.waiting import eventually

HOUR = "3600"
KEYS = Keys.of("redislock", "periodic:job")


def pending() -> RunRequest | None:
    info = Ledger().job("job")
    assert info is not None
    return info.request


def wanted(by: str = "eva") -> RunRequest:
    found = Ledger().request_run("job", by=by)
    assert found is not None
    return found


def looks(scheduler: Scheduler) -> list[str]:
    """What a scheduler starts when it looks at all jobs the next time."""
    scheduler.runner._look_all_at = 0.0
    scheduler.runner._ask_again_at = 0.0
    return scheduler.starts()


class TestTaking:
    def test_once(self, make: Make) -> None:
        """Of two schedulers one takes it. The run has no tick."""
        make()
        first, second = Scheduler(), Scheduler()
        assert first.starts() == second.starts() == []
        request = wanted()
        assert pending() == request
        assert looks(first) == ["job"]
        assert looks(second) == looks(first) == []
        assert pending() is None
        [info] = Ledger().runs("job")
        assert (info.planned, info.outcome) == (None, RunOutcome.DONE)

    def test_both_know_of_it(self, make: Make) -> None:
        """A scheduler that comes second, with what it has learnt before, gets nothing."""
        make()
        first, second = Scheduler(hands=0), Scheduler(hands=0)
        wanted()
        for scheduler in (first, second):
            scheduler.step()
            assert scheduler.runner.due(), "it has no free worker"
            scheduler.workers.hands = 1
        assert [first.starts(), second.starts()] == [["job"], []]
        assert outcomes() == ["done"]

    def test_two_are_one(self, make: Make) -> None:
        """As long as a request waits, another one is the same; later it is a new one."""
        make()
        request = wanted("eva")
        assert wanted("ron") == request
        assert looks(Scheduler()) == ["job"]
        assert looks(Scheduler()) == []
        wanted("ron")
        assert looks(Scheduler()) == ["job"]
        assert outcomes() == ["done", "done"]

    def test_its_message_comes_twice(self, make: Make) -> None:
        """A request that was sent again after it was taken has no effect."""
        make()
        port = SyncPort(server_of("default"))
        for _ in range(2):
            args: list[str | int] = [tokens.word(), "its-id", "eva", 3_600_000_000]
            run(port.script("ledger_request", [KEYS.ledger], args))
            looks(Scheduler())
        assert outcomes() == ["done"]

    def test_ticks_are_as_without_it(self, make: Make, missed: Any) -> None:
        """The tick that is due is run as well, once."""
        make(overlap="wait")
        missed("job")
        wanted()
        scheduler = Scheduler()
        for _ in range(4):
            looks(scheduler)
            scheduler.runner.run_ended()
        assert outcomes() == ["done", "done"]
        assert [info.planned is None for info in Ledger().runs("job")] == [False, True]

    def test_while_the_job_runs(self, make: Make, now: Now, redis: Redis) -> None:
        """It waits for the end of that run; schedulers don't ask all the time."""
        job = make()
        answer = claim(job, now())
        wanted()
        scheduler = Scheduler()
        assert looks(scheduler) == []
        assert scheduler.step() > 0.1
        assert pending() is not None
        finish(job, answer)
        redis.delete(LOCK)
        scheduler.runner.run_ended()
        assert scheduler.starts() == ["job"]
        assert outcomes() == ["done", "done"]

    def test_a_lost_run_is_tried_again_first(self, make: Make, now: Now, redis: Redis) -> None:
        """Else the request would take the attempt away."""
        job = make(on_crash="retry")
        tick = now()
        claim(job, tick, attempts=3)
        redis.delete(LOCK)
        wanted()
        scheduler = Scheduler()
        assert looks(scheduler) == ["job"]
        scheduler.runner.run_ended()
        assert looks(scheduler) == ["job"]
        assert [info.attempt for info in Ledger().runs("job")] == [1, 2, 1]

    def test_a_key_of_others(self, make: Make, redis: Redis) -> None:
        """A scheduler that can't have the lock does not ask all the time."""
        make()
        redis.lpush(LOCK, "x")
        wanted()
        scheduler = Scheduler()
        assert looks(scheduler) == []
        assert scheduler.step() > 1


class TestWhichJobs:
    def test_a_paused_one(self, make: Make) -> None:
        """An operator wants it although it is paused; it stays paused."""
        make()
        Ledger().pause("job", by="ann", reason="why")
        wanted()
        assert looks(Scheduler()) == ["job"]
        info = Ledger().job("job")
        assert info is not None
        assert info.state == JobState.PAUSED

    def test_paused_after_the_request(self, make: Make) -> None:
        """The later order counts: a pause drops the request."""
        make()
        wanted()
        Ledger().pause("job", by="ann", reason="why")
        assert pending() is None
        assert looks(Scheduler()) == []

    def test_a_disabled_one(self, make: Make) -> None:
        """No scheduler knows it."""
        make(enabled=False)
        assert Ledger().request_run("job", by="eva") is None
        assert Ledger().request_run("nix", by="eva") is None


def test_nobody_takes_it_for_an_hour(make: Make, now: Now, redis: Redis) -> None:
    """The job is not run, and an entry says so."""
    make()
    wanted()
    at, rest = redis.hget(LEDGER, "request").split(b"|", 1)
    redis.hset(LEDGER, "request", b"%d|%b" % (int(at) - 3_601_000_000, rest))
    assert pending() is None
    assert looks(Scheduler()) == []
    [info] = Ledger().runs("job")
    assert info.outcome == RunOutcome.SKIPPED
    assert info.why.startswith("too late, by ")
    assert looks(Scheduler()) == []
    assert outcomes() == ["skipped"]
    wanted()
    assert looks(Scheduler()) == ["job"]


@pytest.mark.parametrize("text", ["", "x", "|", "1|", "1|id", "9" * 30 + "|id|eva", "\xff|\xff|"])
def test_a_broken_request(make: Make, redis: Redis, text: str) -> None:
    """The job goes on, and can be requested again."""
    make()
    redis.hset(LEDGER, "request", text.encode("latin-1"))
    looks(Scheduler())
    before = len(outcomes())
    assert wanted().by == "eva"
    assert looks(Scheduler()) == ["job"]
    assert len(outcomes()) == before + 1


class TestSignOfLife:
    def test_it_is_seldom_written(self, make: Make, redis: Redis) -> None:
        """However often schedulers look, so that looking costs no more."""
        make()
        looks(Scheduler())
        first = redis.hget(LEDGER, "seen")
        looks(Scheduler())
        assert redis.hget(LEDGER, "seen") == first is not None
        redis.hset(LEDGER, "seen", int(first) - round(ledger.SIGN_EVERY * 1e6))
        looks(Scheduler())
        assert int(redis.hget(LEDGER, "seen")) >= int(first)

    def test_a_clock_that_was_wrong(self, make: Make, redis: Redis, now: Now) -> None:
        """A time in the future is corrected."""
        make()
        redis.hset(LEDGER, "seen", now() + 10**12)
        looks(Scheduler())
        assert int(redis.hget(LEDGER, "seen")) <= now()

    def test_no_scheduler_runs(self, make: Make, redis: Redis, now: Now) -> None:
        """After a minute of silence, the jobs are unattended, unless all are disabled."""
        make()
        looks(Scheduler())
        assert silent_for(Ledger().jobs()) is None
        redis.hset(LEDGER, "seen", now() - round((SILENT_AFTER + 5) * 1e6))
        silence = silent_for(Ledger().jobs())
        assert silence is not None
        assert SILENT_AFTER < silence.total_seconds() < SILENT_AFTER + 60
        make(enabled=False)
        assert silent_for(Ledger().jobs()) is None

    def test_run_by_cron(self, make: Make, redis: Redis, now: Now) -> None:
        """Between two starts of `--once` nobody is missed, before a tick is overdue."""
        make()
        assert silent_for(Ledger().jobs()) is not None, "nobody has ever looked"
        looks(Scheduler())
        redis.hset(LEDGER, "seen", now() - 10**12)
        run(ledger.known(SyncPort(server_of("default")), [KEYS]))
        assert redis.hget(LEDGER, "seen") is None
        assert silent_for(Ledger().jobs()) is None
        redis.hset(LEDGER, "claimed", now() - 2 * 3_600_000_000)
        assert silent_for(Ledger().jobs()) is not None


@pytest.mark.slow
class TestProcesses:
    """With real schedulers."""

    @pytest.fixture
    def two(self, start: Start, tmp_path: Path, make: Make) -> Callable[..., list[Worker]]:
        """Start two schedulers of a job that is due in an hour."""
        make()
        self.journal = tmp_path / "journal"
        self.journal.touch()

        def two(program: str = "holds", url: str = "") -> list[Worker]:
            name, path = f"tests.periodic.programs:{program}", str(self.journal)
            both = [start(name, path, HOUR, url=url) for _ in range(2)]
            for worker in both:
                assert worker.says() == "begins"
            return both

        return two

    def lines(self) -> list[str]:
        return self.journal.read_text().splitlines()

    def runner_of(self, both: list[Worker]) -> Worker:
        """Wait for a new line of the journal, and return the scheduler that has written it."""
        line = eventually(self.lines)[-1].split()
        [worker] = [one for one in both if one.process.pid == int(line[0])]
        assert worker.says() == f"runs {line[1]}"
        return worker

    def test_one_request_one_run(self, two: Any) -> None:
        """Requests before the run are one; one that is made during the run makes another."""
        both = two()
        request = wanted()
        assert wanted("ron") == request
        worker = self.runner_of(both)
        assert pending() is None
        wanted()
        assert outcomes() == ["running"]
        worker.go_on()
        eventually(lambda: len(self.lines()) == 2)
        self.runner_of(both).go_on()
        eventually(lambda: outcomes() == ["done", "done"])
        for worker in both:
            worker.signal(signal.SIGTERM)
            assert worker.ends() == 0
        assert len(self.lines()) == 2

    @pytest.mark.parametrize("program", ["holds", "retried"])
    def test_killed_in_a_requested_run(self, two: Any, program: str) -> None:
        """The run is lost, and nobody repeats it but the operator."""
        both = two(program)
        wanted()
        killed = self.runner_of(both)
        killed.signal(signal.SIGKILL)
        [other] = [one for one in both if one is not killed]
        eventually(lambda: outcomes() == ["lost"])
        wanted()
        eventually(lambda: len(self.lines()) == 2)
        assert self.runner_of([other]) is other
        other.go_on()
        eventually(lambda: outcomes() == ["done", "lost"])
        assert len(self.lines()) == 2

    def test_killed_before_it_looks(self, two: Any, start: Start) -> None:
        """The request waits for the next scheduler."""
        for worker in two():
            worker.signal(signal.SIGKILL)
            worker.ends()
        wanted()
        later = start("tests.periodic.programs:holds", str(self.journal), HOUR)
        assert later.says() == "begins"
        self.runner_of([later]).go_on()
        eventually(lambda: outcomes() == ["done"])

    @pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.RESET_AFTER])
    def test_messages_get_lost(
        self,
        two: Any,
        proxy: Proxy,  # noqa: F811
        fault: Fault,
    ) -> None:
        """Whether lost messages were carried out or not, the job is run once."""
        both = two(url=proxy.url)
        wanted()
        rule = proxy.on(anything, fault, times=10**9, chance=0.3)
        worker = self.runner_of(both)
        worker.go_on()
        eventually(lambda: rule.count)
        rule.let_go()
        eventually(lambda: outcomes() == ["done"])
        assert redis_lock("periodic:job").holder() is None or eventually(
            lambda: redis_lock("periodic:job").holder() is None
        )
        for worker in both:
            worker.signal(signal.SIGTERM)
            assert worker.ends() == 0
        assert len(self.lines()) == 1
