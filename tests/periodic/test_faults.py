"""What becomes of periodic jobs when processes die, stop and can't reach Redis."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import redis_lock
from django_redislock.periodic import RunInfo, RunOutcome
from django_redislock.primitives import ledger
from django_redislock.primitives.contract import run
from django_redislock.primitives.keys import Keys
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.faults.conftest import proxy  # noqa: F401  # a fixture
from tests.faults.proxy import Fault, Proxy, anything
from tests.faults.torture.site import LIBFAKETIME
from tests.processes import Start, Worker
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

HOUR = "3600"
FOR_EVER = 10**9


def entries() -> tuple[RunInfo, ...]:
    """All entries of the ledger, the newest first."""
    keys = Keys.of("redislock", "periodic:job")
    _, [found] = run(ledger.read(SyncPort(server_of("default")), ["job"], [keys]))
    return found.runs


def runs() -> list[RunInfo]:
    """The runs without skipped ticks, the oldest first."""
    return [run for run in reversed(entries()) if run.outcome != RunOutcome.SKIPPED]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.touch()
    return path


def lines(journal: Path) -> list[str]:
    return journal.read_text().splitlines()


@pytest.fixture
def one_of_two(start: Start, journal: Path) -> Callable[[str, str], tuple[Worker, Worker]]:
    """Two schedulers of one job: the one that runs it now, and the other."""

    def one_of_two(program: str, every: str) -> tuple[Worker, Worker]:
        both = [start(f"tests.periodic.programs:{program}", str(journal), every) for _ in "12"]
        for worker in both:
            assert worker.says() == "begins"
        line = eventually(journal.read_text).split()
        both.sort(key=lambda worker: worker.process.pid != int(line[0]))
        assert both[0].says() == f"runs {line[1]}"
        return both[0], both[1]

    return one_of_two


@pytest.mark.skipif(
    LIBFAKETIME is None and os.environ.get("REDISLOCK_REQUIRE_FAKETIME") != "1",
    reason="there is no libfaketime",
)
def test_clocks_that_differ(start: Start, redis: Redis, journal: Path) -> None:
    """Five schedulers, whose clocks are up to four seconds apart, run each tick once."""
    # A busy machine may be late by more than a second: then they are all caught up with.
    fleet = [
        start(
            *("tests.periodic.programs:fleet", str(journal), "1", str(shift), "all"),
            env={
                "LD_PRELOAD": str(LIBFAKETIME),
                "FAKETIME": f"{shift:+d}s",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            },
        )
        for shift in range(-2, 3)
    ]
    clocks = [float(worker.says().removeprefix("clock ")) for worker in fleet]
    assert max(clocks) - min(clocks) > 3, "else their clocks would not differ"
    for worker in fleet:
        assert worker.says() == "begins"
    # From the first run on, before which there may have been no scheduler yet.
    begin = eventually(entries)[0].planned.timestamp()
    eventually(lambda: redis.time()[0] > begin + 7, within=PATIENCE + 7)
    for worker in fleet:
        worker.signal(signal.SIGTERM)
    for worker in fleet:
        assert worker.ends() == 0
    planned = {run.fencing_token: run.planned.timestamp() for run in entries() if run.planned}
    ran = Counter(planned[int(line.split()[1])] for line in lines(journal))
    ticks = [begin + number for number in range(1, 7)]
    assert [ran[tick] for tick in ticks] == [1] * 6, entries()


def test_longer_than_its_period(one_of_two: Any) -> None:
    """Ticks during a run are passed over by both schedulers; then the job goes on."""
    first, _ = one_of_two("holds", "1")
    skipped = eventually(
        lambda: [run for run in entries() if run.outcome == RunOutcome.SKIPPED][1:], within=60
    )
    assert all(run.why.startswith("the lock was held by ") for run in skipped)
    assert len(runs()) == 1
    planned = [run.planned for run in entries()]
    assert len(set(planned)) == len(planned)
    first.go_on()
    eventually(lambda: runs()[1:])
    assert runs()[0].outcome == RunOutcome.DONE


def test_longer_than_its_period_and_waiting(one_of_two: Any, redis: Redis) -> None:
    """No tick is passed over, and only the last one that waits is run."""
    first, _ = one_of_two("waits", "1")
    begin = runs()[0].planned
    eventually(lambda: redis.time()[0] > begin.timestamp() + 3)
    assert len(entries()) == 1
    first.go_on()
    second = eventually(lambda: runs()[1:])[0]
    assert second.planned is not None
    assert (second.planned - begin).total_seconds() >= 3


@pytest.mark.parametrize("program", ["holds", "retried"])
def test_killed_in_a_job(program: str, one_of_two: Any, missed: Any, journal: Path) -> None:
    """The run is lost, and its tick with it; or the other scheduler tries it again."""
    missed("job")
    first, other = one_of_two(program, HOUR)
    first.signal(signal.SIGKILL)
    eventually(lambda: runs()[0].outcome == RunOutcome.LOST)
    if program == "holds":
        assert len(runs()) == 1
        # So it stays, also for who begins now and looks at all that there is.
        other.signal(signal.SIGTERM)
        assert other.ends() == 0
        assert len(lines(journal)) == 1
        return
    again = eventually(lambda: runs()[1:])[0]
    assert other.says() == f"runs {again.fencing_token}"
    assert (again.attempt, again.planned) == (2, runs()[0].planned)
    assert again.fencing_token > runs()[0].fencing_token
    other.go_on()
    eventually(lambda: runs()[1].outcome == RunOutcome.DONE)
    assert len(lines(journal)) == 2


def test_told_to_stop_in_a_job(start: Start, journal: Path, missed: Any) -> None:
    """A cancelled coroutine is tried again elsewhere, with on_crash='retry'."""
    missed("job")
    program = "tests.periodic.programs:sleeps", str(journal), HOUR, "retry"
    first = start(*program)
    assert first.says() == "begins"
    assert first.says().startswith("runs ")
    first.signal(signal.SIGTERM)
    assert first.says() == "cancelled"
    assert first.ends() == 76
    second = start(*program)
    assert second.says() == "begins"
    assert second.says().startswith("runs ")
    assert [run.attempt for run in runs()] == [1, 2]
    assert runs()[0].planned == runs()[1].planned


def test_a_signal_to_a_child_of_a_job(start: Start, journal: Path) -> None:
    """The signal does not stop the scheduler, although the child began as a copy of it."""
    worker = start("tests.periodic.programs:forks", str(journal), "1")
    assert worker.says() == "begins"
    for _ in range(2):
        assert worker.says() == f"child {int(signal.SIGTERM)}"
    assert worker.process.poll() is None


def test_stopped_in_a_job(one_of_two: Any, missed: Any) -> None:
    """A scheduler that sleeps for longer than its lease loses its run: the tick is tried again,
    and the entries stay right."""
    missed("job")
    first, other = one_of_two("retried", HOUR)
    first.signal(signal.SIGSTOP)
    again = eventually(lambda: runs()[1:])[0]
    assert other.says() == f"runs {again.fencing_token}"
    first.signal(signal.SIGCONT)
    first.go_on()
    other.go_on()
    eventually(lambda: runs()[1].outcome == RunOutcome.DONE)
    assert (runs()[0].outcome, runs()[0].attempt) == (RunOutcome.LOST, 1)
    assert len(runs()) == 2


def fell_asleep(worker: Worker) -> bool:
    """Stop a worker, but not during a run, whose lease would keep the others away."""
    pid = worker.process.pid
    worker.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    holder = redis_lock("periodic:job").holder()
    if holder is not None and f":{pid}:" in (holder.owner or ""):
        worker.signal(signal.SIGCONT)
        return False
    return True


def test_asleep_when_a_tick_is_due(
    start: Start, journal: Path, redis: Redis, redis_server: RedisServer
) -> None:
    """Other schedulers run the tick. After waking up, the sleeper runs no missed tick."""
    sleeper, other = (
        start("tests.periodic.programs:fleet", str(journal), "1", number) for number in "01"
    )
    eventually(lambda: len(lines(journal)) >= 1)
    for worker in (sleeper, other):
        assert worker.says().startswith("clock")
        assert worker.says() == "begins"
    eventually(lambda: fell_asleep(sleeper))
    seen = len(lines(journal))
    eventually(lambda: len(lines(journal)) >= seen + 4)
    assert {line[0] for line in lines(journal)[seen:]} == {"1"}
    sleeper.signal(signal.SIGCONT)
    seen = len(lines(journal))
    eventually(lambda: len(lines(journal)) >= seen + 3)
    planned = [run.planned for run in runs()]
    assert len(set(planned)) == len(planned)
    fences = [int(line.split()[1]) for line in lines(journal)]
    assert fences == [run.fencing_token for run in runs()]


def test_redis_is_away(
    start: Start,
    journal: Path,
    proxy: Proxy,  # noqa: F811
    redis: Redis,
) -> None:
    """Redis is away for several ticks. After that at most the last missed tick is run, and no tick
    twice."""
    for number in "01":
        start("tests.periodic.programs:fleet", str(journal), "1", number, url=proxy.url)
    eventually(lambda: len(lines(journal)) >= 2)
    rule = proxy.on(anything, Fault.RESET_BEFORE, times=FOR_EVER)
    rule.happened()
    begin = redis.time()[0]
    # A run that has begun may yet come to its end.
    eventually(lambda: redis.time()[0] >= begin + 5)
    seen = len(lines(journal))
    rule.let_go()
    eventually(lambda: len(lines(journal)) >= seen + 2)
    planned = [run.planned for run in runs() if run.planned]
    assert len(set(planned)) == len(planned)
    fences = [int(line.split()[1]) for line in lines(journal)]
    assert len(set(fences)) == len(fences)
    gaps = [(later - tick).total_seconds() for tick, later in itertools.pairwise(planned)]
    assert max(gaps) >= 3, "what was missed is not run one after the other"


@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.RESET_AFTER])
def test_messages_get_lost(
    start: Start,
    journal: Path,
    proxy: Proxy,  # noqa: F811
    fault: Fault,
) -> None:
    """Whether lost messages were carried out or not, no tick is run twice, and no run is left
    open."""
    rule = proxy.on(anything, fault, times=FOR_EVER, chance=0.3)
    for number in "01":
        start("tests.periodic.programs:fleet", str(journal), "1", number, url=proxy.url)
    eventually(lambda: len(lines(journal)) >= 5, within=120)
    rule.let_go()
    planned = [run.planned for run in runs()]
    assert len(set(planned)) == len(planned)
    assert rule.count
    seen = len(lines(journal))
    eventually(lambda: len(lines(journal)) >= seen + 2)
    # All that were run have their end.
    ran = {int(line.split()[1]) for line in lines(journal)}
    eventually(
        lambda: all(run.outcome == RunOutcome.DONE for run in runs() if run.fencing_token in ran)
    )
