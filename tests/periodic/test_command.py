"""`manage.py runperiodic`, and what operators do with jobs."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from redis import Redis

from django_redislock import current_lease, redis_lock
from django_redislock.management.commands import runperiodic as command
from django_redislock.periodic import JobState, Ledger, RunOutcome
from tests.caches import caches
from tests.lines import opened
from tests.operations.calling import AWAY, Done, call
from tests.operations.terminal import Terminal
from tests.periodic.conftest import Make, outcomes
from tests.processes import Start, Worker
from tests.test_decorators import held_elsewhere
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

LEDGER = "redislock:{periodic:%s}:ledger"
DOCS = Path(__file__).parent.parent.parent / "docs" / "periodic.md"


def runperiodic(*arguments: str, **options: Any) -> Done:
    out, err = StringIO(), StringIO()
    code, complaint = 0, ""
    try:
        call_command("runperiodic", *arguments, stdout=out, stderr=err, no_color=True, **options)
    except CommandError as error:
        code, complaint = error.returncode, str(error)
    except SystemExit as error:
        code = int(error.code or 0)
    return Done(code, out.getvalue(), complaint or err.getvalue())


class TestList:
    def test_the_plan_in_words(self, make: Make, settings: Any) -> None:
        """Redis is not asked for the plan."""
        settings.CACHES = caches(AWAY)
        make(name="b", every=300)
        make(name="a", enabled=False)
        done = runperiodic("--list")
        assert done.code == 0
        lines = done.out.splitlines()
        assert re.fullmatch(r"JOB +WHEN +NEXT", lines[0])
        assert re.fullmatch(r"a +every hour; disabled +-", lines[1])
        assert re.fullmatch(r"b +every 5 minutes +\S+ \d\d:\d[05]:00 UTC", lines[2])

    @pytest.mark.parametrize(
        "ask",
        [
            lambda: runperiodic("--list").out,
            lambda: runperiodic("--once").err,
            lambda: runperiodic("report").err,
            lambda: call("jobs").out,
            lambda: call("jobs", "report").err,
            lambda: call("pause", "report", "--reason", "why").err,
        ],
        ids=["--list", "--once", "JOB", "jobs", "jobs JOB", "pause JOB"],
    )
    def test_no_jobs(self, make: Make, ask: Callable[[], str]) -> None:
        """Each command says where it looked for jobs."""
        assert "no periodic.py of an installed app" in ask()

    def test_no_jobs_to_run(self, manage: Callable[..., Any]) -> None:
        """The scheduler says so as well, and goes on: a fleet may begin before its jobs."""
        scheduler = manage("runperiodic")
        assert "no periodic.py of an installed app" in scheduler.process.stderr.readline()
        assert scheduler.process.stderr.readline() == "0 jobs, 4 workers.\n"
        scheduler.process.terminate()
        assert scheduler.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("which", ["--once", "--list", "job"])
@pytest.mark.parametrize("skip_checks", [False, True])
def test_wrong_settings(which: str, skip_checks: bool, make: Make, settings: Any) -> None:
    """No job runs, and the exit code is not that of a job that fails."""
    make()
    settings.REDISLOCK = {"TTL": "30"}
    done = runperiodic(which, skip_checks=skip_checks)
    assert (done.code, done.out) == (78, "")
    assert "REDISLOCK['TTL']: ttl must be a number" in done.err


class TestByHand:
    """`runperiodic JOB`."""

    def test_it_runs_under_its_lock(self, make: Make) -> None:
        """The job runs even if it is paused or disabled."""
        fences = []
        make(lambda: fences.append(current_lease().fencing_token), enabled=False)
        Ledger().pause("job", by="ann", reason="why")
        assert runperiodic("job").code == 0
        [run] = Ledger().runs("job")
        assert [run.fencing_token] == fences
        assert (run.planned, run.outcome) == (None, RunOutcome.DONE)

    def test_a_coroutine(self, make: Make) -> None:
        """A coroutine runs in an event loop of its own."""
        fences = []

        async def job() -> None:
            await asyncio.sleep(0)
            fences.append(current_lease().fencing_token)

        make(job)
        assert runperiodic("job").code == 0
        assert fences == [Ledger().runs("job")[0].fencing_token]

    def test_busy(self, make: Make) -> None:
        """The error names the holder, and the exit code is that of all commands."""
        make()
        with held_elsewhere("periodic:job"):
            done = runperiodic("job")
        assert done.code == 75
        assert done.err.startswith("'periodic:job' is held by ")

    def test_it_fails(self, make: Make) -> None:
        """The error has the exception's type and message."""

        def job() -> None:
            raise ValueError("no paper")

        make(job)
        assert runperiodic("job") == Done(1, "", "ValueError: no paper")

    def test_it_loses_its_lease(self, make: Make) -> None:
        """The error says who cleared the lock."""

        def job() -> None:
            redis_lock("periodic:job").clear(by="ann", reason="stuck")
            with pytest.raises(Exception, match="cleared by ann"):
                current_lease().extend()

        make(job)
        done = runperiodic("job")
        assert done.code == 76
        assert "cleared by ann (stuck)" in done.err

    @pytest.mark.parametrize("which", ["job", "--once"])
    def test_redis_is_away(self, which: str, make: Make, settings: Any) -> None:
        """No job runs."""
        ran: list[int] = []
        make(lambda: ran.append(1))
        settings.CACHES = caches(AWAY)
        assert runperiodic(which).code == 69
        assert ran == []

    @pytest.mark.parametrize("other", ["--once", "--list"])
    def test_one_thing_at_a_time(self, make: Make, other: str) -> None:
        """A job's name can't be combined with options that ignore it."""
        ran: list[int] = []
        make(lambda: ran.append(1))
        done = runperiodic("job", other)
        assert (done.code, ran) == (1, [])
        assert "not allowed with argument" in done.err

    def test_at_least_for(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        """The lock is held for the rest of the time."""
        seen = []

        def sleep(seconds: float) -> None:
            seen.append((seconds, redis_lock("periodic:job").holder() is not None))

        monkeypatch.setattr(command.time, "sleep", sleep)
        make(at_least_for=60)
        assert runperiodic("job").code == 0
        [(seconds, held)] = seen
        assert 50 < seconds <= 60
        assert held
        assert redis_lock("periodic:job").holder() is None

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    @pytest.mark.parametrize("kind", ["function", "coroutine"])
    def test_a_signal(self, kind: str, number: signal.Signals, start: Start, make: Make) -> None:
        """The run ends, as that of a scheduler does, and its lock is free at once."""
        make(name=kind)
        worker = start("tests.periodic.programs:by_hand", kind)
        assert worker.says() == "runs"
        worker.signal(number)
        assert worker.ends() == 128 + number
        assert redis_lock(f"periodic:{kind}").holder() is None
        [run] = Ledger().runs(kind)
        assert (run.outcome, run.why) == (RunOutcome.LOST, "its scheduler was stopped")

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_after_the_job(
        self, number: signal.Signals, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The rest of at_least_for is cut short."""
        monkeypatch.setattr(command.time, "sleep", lambda _seconds: signal.raise_signal(number))
        make(at_least_for=60)
        assert runperiodic("job").code == 0
        assert outcomes("job") == ["done"]
        assert redis_lock("periodic:job").holder() is None


class TestOnce:
    """`runperiodic --once`, for cron."""

    def test_what_is_due(self, make: Make, missed: Any, redis: Redis) -> None:
        """Only due jobs run; a job that is new to the ledger begins now."""
        make(name="due")
        make(name="new")
        missed("due")
        assert runperiodic("--once").code == 0
        assert outcomes("due") == ["done"]
        assert outcomes("new") == []
        assert runperiodic("--once").code == 0
        assert outcomes("due") == ["done"], "it was run"

    def test_more_than_there_are_workers(self, make: Make, missed: Any) -> None:
        """Functions run one after the other; coroutines need no worker."""
        together = [0, 0]

        def job() -> None:
            together[0] += 1
            together[1] = max(together)
            threading.Event().wait(0.01)
            together[0] -= 1

        async def other() -> None: ...

        names = [f"job{number}" for number in range(6)]
        for name in names:
            make(job, name=name)
        make(other, name="other")
        missed(*names, "other")
        assert runperiodic("--once", "--workers=2").code == 0
        assert [outcomes(name) for name in [*names, "other"]] == [["done"]] * 7
        assert 1 <= together[1] <= 2

    def test_nothing_goes_on(self, make: Make, missed: Any) -> None:
        """The command ends its threads, its event loop and their connections, since a program may
        call it again and again."""

        async def other() -> None: ...

        make(name="job")
        make(other, name="other")
        missed("job", "other")
        assert runperiodic("--once").code == 0
        assert outcomes("other") == ["done"]
        assert not [its for its in opened() if its.loop.is_running()]
        eventually(
            lambda: (
                not any(
                    thread.name.startswith("redislock-periodic")
                    for thread in threading.enumerate()
                )
            )
        )

    def test_a_bad_job_does_not_stop_the_others(self, make: Make, missed: Any) -> None:
        """The exit code says that a job has failed."""

        def bad() -> None:
            raise ValueError

        async def worse() -> None:
            raise SystemExit

        make(bad, name="bad")
        make(worse, name="worse")
        make(name="good")
        missed("bad", "worse", "good")
        assert runperiodic("--once").code == 1
        assert outcomes("good") == ["done"]
        assert outcomes("bad") == outcomes("worse") == ["failed"]

    def test_at_least_for(self, make: Make, missed: Any) -> None:
        """It ends when the lock is free."""
        make(at_least_for=0.3)
        missed("job")
        assert runperiodic("--once").code == 0
        assert redis_lock("periodic:job").holder() is None


class TestStopping:
    """SIGTERM and Ctrl-C."""

    @pytest.fixture
    def begun(self, start: Start, tmp_path: Path, make: Make) -> Callable[[str], Worker]:
        """Start a scheduler whose job has begun to run."""
        make()

        def begun(program: str) -> Worker:
            worker = start(f"tests.periodic.programs:{program}", str(tmp_path / "journal"), "1")
            assert worker.says() == "begins"
            assert worker.says().startswith("runs ")
            return worker

        return begun

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_what_runs_comes_to_its_end(self, number: signal.Signals, begun: Any) -> None:
        """The job that runs comes to its end, and no new one begins."""
        worker = begun("holds")
        worker.signal(number)
        eventually(lambda: len(Ledger().runs("job")))
        worker.go_on()
        assert worker.ends() == 0
        last = Ledger().job("job")
        assert last.last.outcome == RunOutcome.DONE
        assert redis_lock("periodic:job").holder() is None

    def test_a_coroutine_is_cancelled(self, begun: Any) -> None:
        """After the grace period, a coroutine is cancelled. Its lock is free at once, and the
        entry says why."""
        worker = begun("sleeps")
        worker.signal(signal.SIGTERM)
        assert worker.says() == "cancelled"
        assert worker.ends() == 76
        assert redis_lock("periodic:job").holder() is None
        run = next(run for run in Ledger().runs("job") if run.outcome != RunOutcome.SKIPPED)
        assert (run.outcome, run.why) == (RunOutcome.LOST, "its scheduler was stopped")

    def test_a_thread_ends_with_the_process(self, begun: Any) -> None:
        """The lease is left to expire, since the thread may still work."""
        worker = begun("hangs")
        worker.signal(signal.SIGTERM)
        assert worker.ends() == 76
        assert redis_lock("periodic:job").holder() is not None
        run = next(run for run in Ledger().runs("job") if run.outcome != RunOutcome.SKIPPED)
        assert (run.outcome, run.why) == (RunOutcome.LOST, "its scheduler was stopped")

    def test_a_lock_that_outlives_its_job(self, start: Start, tmp_path: Path, make: Make) -> None:
        """A lock that is kept for at_least_for is released when the scheduler stops."""
        make()
        worker = start("tests.periodic.programs:lingers", str(tmp_path / "journal"), "1")
        eventually(lambda: "done" in outcomes())
        assert redis_lock("periodic:job").holder() is not None
        worker.signal(signal.SIGTERM)
        assert worker.ends() == 0
        assert redis_lock("periodic:job").holder() is None


class TestComesNext:
    """What the scheduler says on a terminal, and what in a log."""

    @pytest.fixture
    def terminal(self) -> Iterator[Callable[..., Terminal]]:
        """Start a scheduler on a terminal."""
        terminals: list[Terminal] = []

        def terminal(every: str, **options: Any) -> Terminal:
            program = (sys.executable, "-m", "tests.worker", "tests.periodic.programs:announces")
            terminals.append(Terminal(every, program=program, **options))
            return terminals[-1]

        yield terminal
        for one in terminals:
            one.close()

    def test_on_a_terminal(self, terminal: Callable[..., Terminal]) -> None:
        """One line says which job is next, and is written anew in its place."""
        screen = terminal("36000")
        screen.says("1 job, 4 workers.")
        said = re.compile(r"\r\x1b\[2Knext: job in (\d+ h \d\d min|\d+ min \d\d s|\d+ s)")
        eventually(lambda: len(said.findall(screen.text)) > 2)
        screen.process.send_signal(signal.SIGTERM)
        assert screen.ends() == 0
        before, after = screen.text.split("Stopping;")
        assert before.endswith("\r\x1b[2K")
        assert "next:" not in after
        assert before.count("\n") == 1

    def test_what_a_job_writes(self, terminal: Callable[..., Terminal]) -> None:
        """Its lines are lines of their own."""
        screen = terminal("2")
        eventually(lambda: screen.text.count("here I am") > 1)
        for text in screen.text.split("here I am")[:-1]:
            assert text.endswith(("\n", "\x1b[2K"))

    def test_a_narrow_one(self, terminal: Callable[..., Terminal]) -> None:
        """The line is cut, since one that wraps could not be written anew."""
        screen = terminal("36000", columns=12)
        screen.says("next: job …")

    def test_in_a_log(self, start: Start) -> None:
        """There is the line of the start alone."""
        worker = start("tests.periodic.programs:announces", "2", stderr=subprocess.PIPE)
        for _ in range(2):
            assert worker.says() == "here I am"
        worker.signal(signal.SIGTERM)
        assert worker.ends() == 0
        assert worker.process.stderr is not None
        said = worker.process.stderr.read()
        assert re.fullmatch(r"1 job, 4 workers\.\nStopping; \d jobs? running\.\n", said)


class TestOperators:
    """`redislock jobs`, `pause` and `resume`."""

    def test_jobs(self, make: Make, missed: Any) -> None:
        """Each job has a line."""
        make(name="a", every=300)
        make(name="b")
        runperiodic("--once")
        missed("b")
        done = call("jobs")
        assert done.code == 0
        alarm, head, b, a, total = done.out.splitlines()
        assert alarm == "No scheduler asks for ticks. Start one: manage.py runperiodic"
        assert re.fullmatch(r"JOB +STATE +LAST RUNS +LAST RUN +NEXT +WHEN", head)
        assert re.fullmatch(r"a +new +- +- +in \d.*s +every 5 minutes", a)
        assert re.fullmatch(r"b +overdue +- +- +due for 1 h .*min +every hour", b)
        assert total == "2 jobs."

    def test_what_is_wrong_is_below_the_row(self, make: Make, missed: Any) -> None:
        """So it is read without another command: the error, the pause, and a wanted run."""

        def bad() -> None:
            raise ValueError("no | paper")

        make(bad, name="bad")
        make(name="idle")
        missed("bad")
        runperiodic("--once")
        Ledger().request_run("bad", by="eva")
        Ledger().pause("idle", by="ann", reason="no ink")
        _, bad_row, error, wanted, idle_row, paused, total = call("jobs").out.splitlines()
        assert re.fullmatch(r"bad +failing +F +\d+ s ago +in \d.* every hour", bad_row)
        assert error == "    ValueError: no | paper"
        assert re.fullmatch(r"    run wanted \d+ s ago by eva", wanted)
        assert idle_row.startswith("idle ")
        assert re.fullmatch(r"    paused \d+ s ago by ann: no ink", paused)
        assert total == "2 jobs."
        assert "Error:      ValueError: no | paper" in call("jobs", "bad").out

    def test_for_monitoring(self, make: Make, missed: Any) -> None:
        """The exit code says whether there are such jobs."""

        def bad() -> None:
            raise ValueError("no | paper")

        make(name="good")
        make(bad, name="bad")
        make(name="late")
        missed("bad")
        runperiodic("--once")
        assert call("jobs", "--overdue").code == 0
        assert call("jobs", "--overdue").out == "0 jobs.\n"
        failing = call("jobs", "--failing", "--json")
        assert failing.code == 1
        [job] = failing.json["items"]
        assert (job["name"], job["state"]) == ("bad", "failing")
        assert job["runs"][0]["why"] == "ValueError: no | paper"
        missed("late")
        overdue = call("jobs", "--overdue", "--failing")
        assert overdue.code == 1
        assert overdue.out.endswith("2 jobs.\n")

    def test_one_job(self, make: Make, missed: Any) -> None:
        """The runs of one job are shown."""
        make()
        assert "It has not run yet." in call("jobs", "job").out
        missed("job")
        runperiodic("--once")
        runperiodic("job")
        call("pause", "job", "--reason", "no paper", "--by", "ann")
        lines = call("jobs", "job").out.splitlines()
        assert lines[0] == "Job:        job"
        assert lines[2] == "When:       every hour"
        assert re.fullmatch(r"Paused:     since .* UTC by ann: no paper", lines[6])
        assert re.fullmatch(r"by hand +\S+ \S+ UTC +0\.\d s +done +\S+", lines[9])
        assert re.fullmatch(r"\S+ \d\d:00:00 UTC +\S+ \S+ UTC +0\.\d s +done +\S+", lines[10])

    def test_pause_and_resume(self, make: Make, missed: Any) -> None:
        """One job or all are paused, and a paused job is passed over."""
        make(name="a")
        make(name="b")
        runperiodic("--once")
        assert call("pause", "a", "--reason", "r").out == "Paused 'a'.\n"
        missed("a", "b")
        runperiodic("--once")
        assert (outcomes("a"), outcomes("b")) == (["skipped"], ["done"])
        assert call("resume", "--all").out == "'a' goes on.\n'b' was not paused.\n"
        assert call("pause", "--all", "--reason", "r").out == "Paused 'a'.\nPaused 'b'.\n"
        assert [info.state for info in Ledger().jobs()] == [JobState.PAUSED] * 2
        paused = Ledger().jobs()[0].paused
        assert "@" in paused.by, "the user and the host"

    @pytest.mark.parametrize(
        "arguments", [("pause", "--reason", "r"), ("resume",), ("resume", "a", "--all")]
    )
    def test_which_ones(self, arguments: tuple[str, ...]) -> None:
        """Names or --all must be given, and not both."""
        done = call(*arguments)
        assert (done.code, done.err) == (2, "Write the names of jobs, or --all.")

    @pytest.mark.parametrize(
        "arguments", [("jobs", "x"), ("pause", "x", "--reason", "r"), ("resume", "x")]
    )
    def test_no_such_job(self, make: Make, arguments: tuple[str, ...]) -> None:
        """The error says which jobs there are."""
        make(name="a")
        assert call(*arguments) == Done(2, "", "There is no job 'x'. There are: a.")

    def test_redis_is_away(self, make: Make, settings: Any) -> None:
        """Each command exits with 69."""
        make()
        settings.CACHES = caches(AWAY)
        for arguments in (("jobs",), ("pause", "job", "--reason", "r"), ("resume", "job")):
            assert call(*arguments).code == 69


def test_json_is_what_the_docs_say(make: Make, missed: Any) -> None:
    """The documentation has a row for each key."""
    make()
    missed("job")
    runperiodic("--once")
    call("pause", "job", "--reason", "r")
    page = DOCS.read_text(encoding="utf-8")
    [job] = call("jobs", "--json").json["items"]
    for kind, found in (("A job", job), ("A run", job["runs"][0])):
        section = page.partition(f"### {kind}\n")[2].partition("\n#")[0]
        assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(found)
    assert json.dumps(job["paused"])
