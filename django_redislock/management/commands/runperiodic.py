"""`manage.py runperiodic`: runs the project's periodic jobs, on any number of hosts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...base.background import start
from ...base.clock import now
from ...base.exceptions import LockUnavailable
from ...base.people import server_time
from ...base.process import SIGNALLED, ended_by_signals
from ...commands import BUSY, LOST, UNAVAILABLE
from ...inspection.sheet import Column
from ...inspection.waiting_line import TerminalLine
from ...inspection.words import NOTHING, clean, count, instant, rounded
from ...periodic.execution import STOPPED, JobRun, Workers, aperform, perform
from ...periodic.job import SECOND, Job, discover, jobs
from ...periodic.runner import LOOK_EVERY, runners
from ...primitives.ledger import RunOutcome, Wanted
from ..arguments import (
    NO_JOBS,
    WRONG,
    OperatorCommand,
    job_of_name,
    number_argument,
    seconds_argument,
)
from ..events import ENDING, NUDGE, Events
from ..output import Printer
from ..subcommands.tasks import keep_swept


def _next(job: Job) -> str:
    now = round(datetime.now(UTC).timestamp()) * SECOND
    tick = job.schedule.next(now) if job.enabled else None
    return NOTHING if tick is None else instant(server_time(tick))


_COLUMNS: Sequence[Column[Job]] = (
    Column("job", lambda job: job.name, shrinks=True),
    Column("when", Job.words, shrinks=True),
    Column("next", _next),
)


class Command(OperatorCommand):
    help = "Runs the periodic jobs of this project. Each tick is run once, by one host."

    def add_arguments(self, parser: CommandParser) -> None:
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "job",
            metavar="JOB",
            nargs="?",
            help="Run only this job, now and under its lock, and exit.",
        )
        what.add_argument(
            "--once", action="store_true", help="Run the jobs that are due, and exit."
        )
        what.add_argument(
            "--list", action="store_true", help="List the jobs with their schedules, and exit."
        )
        parser.add_argument(
            "--workers",
            type=number_argument(1, 1000),
            default=4,
            metavar="NUMBER",
            help="How many jobs run at the same time, not counting coroutines; by default 4.",
        )
        parser.add_argument(
            "--grace",
            type=seconds_argument,
            default=30.0,
            metavar="SECONDS",
            help="How long jobs may continue after SIGTERM or Ctrl-C; by default 30.",
        )

    def carry_out(self, options: dict[str, Any]) -> int:
        discover()
        found = jobs()
        if options["list"]:
            printer = Printer(self, options)
            printer.lines(printer.table(_COLUMNS, found) if found else [NO_JOBS])
        elif options["job"] is not None:
            with ended_by_signals():
                _run_by_hand(job_of_name(options["job"], found))
        else:
            return Scheduler(found, self, options).run()
        return 0


def _run_by_hand(job: Job) -> None:
    """Run a job here and now, also if it is paused or disabled."""
    job_run = JobRun(job, Wanted(tick=None))
    try:
        answer = job_run.ask()
    except LockUnavailable:
        job_run.undo()
        raise
    if answer.grant is None:
        who = answer.holder or "nobody, but others wait for it"
        raise CommandError(f"{job.lock!r} is held by {who}.", returncode=BUSY)
    ended = asyncio.run(aperform(job_run)) if job.asynchronous else perform(job_run)
    if job_run.kept is not None:
        release, until = job_run.kept
        with suppress(*SIGNALLED):  # the job itself has ended
            time.sleep(max(0.0, until - now()))
        release()
    if ended is None:
        raise CommandError("Its outcome could not be recorded in Redis.", returncode=UNAVAILABLE)
    if ended.outcome == RunOutcome.LOST:
        raise CommandError(f"Its lease is lost: {ended.why}.", returncode=LOST)
    if ended.outcome == RunOutcome.FAILED:
        raise CommandError(ended.why, returncode=WRONG)


CANCELLED_END_WITHIN = 5.0
"""Seconds that cancelled coroutines have to end."""


class Scheduler:
    """Runs jobs until a signal stops it."""

    def __init__(
        self, found: Sequence[Job], command: BaseCommand, options: dict[str, Any]
    ) -> None:
        self._command = command
        self._options = options
        self._jobs = found
        self._line = TerminalLine(command.stderr)
        self._events = Events("runperiodic")

    def run(self) -> int:
        """Run jobs, and return the exit code."""
        with self._events as events:
            events.collect()
            if not self._jobs:
                self._say(NO_JOBS)
            self._workers = Workers(self._options["workers"], events.nudge)
            self._runners = runners(self._jobs, self._workers, stays=not self._options["once"])
            try:
                return self._once() if self._options["once"] else self._serve()
            finally:
                self._workers.close()

    def _serve(self) -> int:
        start(keep_swept, "redislock-sweep")
        running = sum(job.enabled for job in self._jobs)
        self._say(f"{count(running, 'job')}, {count(self._options['workers'], 'worker')}.")
        while True:
            self._line.erase()  # what a step or a job writes begins a line of its own
            seconds = min(self._step(), self._workers.release_kept(), self._announce())
            if self._stopped_within(seconds):
                self._line.erase()
                return self._stop()

    def _announce(self) -> float:
        """Say on a terminal what comes next, unless jobs run, which may write there themselves.
        Returns the seconds until the line is out of date."""
        if not self._line.terminal or not self._options["verbosity"] or self._workers.busy:
            return float("inf")
        comes = min(filter(None, (runner.next() for runner in self._runners)), default=None)
        if any(runner.unreachable for runner in self._runners):
            self._line.show("Waiting for Redis.")
        elif comes is None:
            self._line.show("No job is planned.")
        else:
            seconds, name = comes
            self._line.show(clean(f"next: {name} in {rounded(max(0.0, seconds))}"))
        return 1.0

    def _once(self) -> int:
        seconds: float = self._step()
        while (due := any(runner.due() for runner in self._runners)) or self._workers.busy:
            if self._stopped_within(seconds if due else None):
                return self._stop()
            if due:
                seconds = self._step()
        while (seconds := self._workers.release_kept()) != float("inf"):
            if self._stopped_within(seconds):
                return self._stop()
        self._withdraw()
        if any(runner.unreachable for runner in self._runners):
            return UNAVAILABLE
        outcomes = self._workers.outcomes
        if outcomes[RunOutcome.LOST] or outcomes[None]:
            return LOST
        return WRONG if outcomes[RunOutcome.FAILED] else 0

    def _step(self) -> float:
        """Claim what is due. Returns the seconds until the next step."""
        return min((runner.step() for runner in self._runners), default=LOOK_EVERY)

    def _withdraw(self) -> None:
        for runner in self._runners:
            runner.withdraw()

    def _stopped_within(self, seconds: float | None) -> bool:
        """Wait for an event. Returns True for a signal to stop."""
        until = None if seconds is None else time.monotonic() + seconds
        event = self._events.next(until)
        if event == NUDGE:
            for runner in self._runners:
                runner.run_ended()
        return event in ENDING

    def _stop(self) -> int:
        """Claim nothing more, and give the running jobs time to end."""
        self._say(f"Stopping; {count(len(self._workers.busy), 'job')} running.")
        self._wait(self._options["grace"], lambda: self._workers.busy)
        cut_short = self._workers.busy
        if cut_short:
            self._workers.cancel()
            self._wait(CANCELLED_END_WITHIN, self._coroutines_run)
        for job_run in self._workers.busy:
            job_run.abandon()
        self._workers.release_kept(now_all=True)
        self._withdraw()
        for job_run in cut_short:
            self._command.stderr.write(f"{job_run.job.name}: {STOPPED}.")
        return LOST if cut_short else 0

    def _wait(self, seconds: float, running: Callable[[], object]) -> None:
        """Wait until nothing runs, the time is over, or another signal to stop comes."""
        until = time.monotonic() + seconds
        while running():
            event = self._events.next(until)
            if event is None or event in ENDING:
                return

    def _coroutines_run(self) -> bool:
        return any(one.job.asynchronous for one in self._workers.busy)

    def _say(self, text: str) -> None:
        if self._options["verbosity"]:
            self._command.stderr.write(text, str)  # Django would paint it red
