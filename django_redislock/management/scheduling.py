"""`manage.py runperiodic`: a scheduler, and what else is done with periodic jobs by hand."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ..commands import BUSY, LOST, UNAVAILABLE, Stderr
from ..exceptions import LockError, LockUnavailable, server_time
from ..lease import Lease
from ..periodic.execution import STOPPED, Assignment, Request, aperform, perform
from ..periodic.job import Job
from ..periodic.registry import discover, jobs
from ..periodic.runner import Runner
from ..periodic.schedule import SECOND
from ..periodic.workers import Crew
from ..primitives.ledger import Outcome, RunInfo, Wanted
from .asking import MISCONFIGURED, WRONG
from .child import ENDING, NUDGE, Events, Interrupted
from .formatting import NOTHING, count, instant
from .printing import Printer
from .run import seconds_argument
from .tables import Cell, Column, table

LAST_WORDS = 5.0
"""Seconds that coroutines have to end when they were cancelled."""

_COLUMNS = (Column("JOB", shrinks=True), Column("WHEN", shrinks=True), Column("NEXT"))


def workers_argument(text: str) -> int:
    """For argparse: how many threads."""
    if not (text.isdecimal() and 1 <= int(text) <= 1000):
        raise ArgumentTypeError(f"write a number from 1 to 1000, not {text!r}")
    return int(text)


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "job", metavar="JOB", nargs="?", help="Run this one now, under its lock, and nothing else."
    )
    parser.add_argument(
        "--workers",
        type=workers_argument,
        default=4,
        metavar="NUMBER",
        help="So many functions run at the same time; coroutines all; by default 4.",
    )
    parser.add_argument(
        "--grace",
        type=seconds_argument,
        default=30.0,
        metavar="SECONDS",
        help="After SIGTERM or Ctrl-C jobs have so long to end; by default 30.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--once", action="store_true", help="Run what is due now, and end.")
    what.add_argument("--list", action="store_true", help="Tell the plan in words; ask nobody.")


def handle(command: BaseCommand, options: dict[str, Any]) -> None:
    command.stderr = Stderr(command.stderr)
    code = 0
    with _failing():
        discover()
        found = jobs()
        if options["list"]:
            printer = Printer(command, options)
            printer.lines(_plan(found, printer))
        elif options["job"] is not None:
            _by_hand(_find(found, options["job"]))
        else:
            code = _Scheduler(found, command, options).run()
    if code:
        sys.exit(code)


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except LockUnavailable as error:
        raise CommandError(str(error), returncode=UNAVAILABLE) from error
    except LockError as error:
        raise CommandError(str(error), returncode=WRONG) from error
    except ImproperlyConfigured as error:
        raise CommandError(str(error), returncode=MISCONFIGURED) from error


def _plan(found: Sequence[Job], printer: Printer) -> Iterator[str]:
    if not found:
        yield "There are no jobs: nothing in a periodic.py of an installed app is @periodic."
        return
    now = round(datetime.now(UTC).timestamp()) * SECOND
    rows = []
    for job in found:
        tick = job.schedule.next(now) if job.enabled else None
        when = NOTHING if tick is None else instant(server_time(tick))
        rows.append([Cell(job.name), Cell(job.words()), Cell(when)])
    yield from table(_COLUMNS, rows, heading=printer.style.MIGRATE_HEADING, fit=printer.fit)


def _find(found: Sequence[Job], name: str) -> Job:
    job = next((job for job in found if job.name == name), None)
    if job is None:
        names = ", ".join(job.name for job in found) or "none"
        raise CommandError(f"There is no job {name!r}. There are: {names}.", returncode=2)
    return job


def _by_hand(job: Job) -> None:
    """Run it here and now, also when it is paused or disabled: somebody knows what he wants."""
    request = Request.of(job, Wanted(tick=None))
    try:
        answer = request.send()
    except LockUnavailable:
        request.take_back()
        raise
    if answer.grant is None:
        who = answer.holder or "others, who wait for it"
        raise CommandError(f"{job.lock!r} is held by {who}.", returncode=BUSY)
    assignment = Assignment.of(request, answer)
    lingering: list[tuple[Lease, float]] = []

    def linger(lease: Lease, seconds: float) -> None:
        lingering.append((lease, seconds))

    if job.asynchronous:
        ended = asyncio.run(aperform(assignment, linger))
    else:
        ended = perform(assignment, linger)
    for lease, seconds in lingering:
        time.sleep(seconds)
        lease.settle()
    _judge(ended)


def _judge(ended: RunInfo | None) -> None:
    if ended is None:
        raise CommandError("How it ended could not be written down.", returncode=UNAVAILABLE)
    if ended.outcome == Outcome.LOST:
        raise CommandError(f"Its lease is lost: {ended.why}.", returncode=LOST)
    if ended.outcome == Outcome.FAILED:
        raise CommandError(ended.why, returncode=WRONG)


class _Scheduler:
    """Runs jobs until it is told to stop."""

    def __init__(
        self, found: Sequence[Job], command: BaseCommand, options: dict[str, Any]
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise CommandError("runperiodic works in the main thread, where signals arrive.")
        self._command = command
        self._options = options
        self._jobs = found
        self._events = Events()

    def run(self) -> int:
        """Returns the exit code."""
        try:
            with self._events as events:
                events.collect()
                self._crew = Crew(self._options["workers"], events.nudge)
                self._runner = Runner(self._jobs, self._crew)
                try:
                    return self._once() if self._options["once"] else self._serve()
                finally:
                    self._crew.dismiss()
        except Interrupted as interrupted:
            return 128 + interrupted.number

    def _serve(self) -> int:
        running = sum(job.enabled for job in self._jobs)
        self._say(f"{count(running, 'job')}, {count(self._options['workers'], 'worker')}.")
        while True:
            seconds = min(self._runner.step(), self._crew.settle())
            if self._stopped_within(seconds):
                return self._stop()

    def _once(self) -> int:
        seconds: float = self._runner.step()
        while (due := self._runner.due()) or self._crew.busy:
            if self._stopped_within(seconds if due else None):
                return self._stop()
            if due:
                seconds = self._runner.step()
        while (seconds := self._crew.settle()) != float("inf"):
            if self._stopped_within(seconds):
                return self._stop()
        self._runner.withdraw()
        if self._runner.away:
            return UNAVAILABLE
        outcomes = self._crew.outcomes
        if outcomes[Outcome.LOST] or outcomes[None]:
            return LOST
        return WRONG if outcomes[Outcome.FAILED] else 0

    def _stopped_within(self, seconds: float | None) -> bool:
        """Wait for something to happen. True: we are asked to end."""
        until = None if seconds is None else time.monotonic() + seconds
        event = self._events.next(until)
        if event == NUDGE:
            self._runner.ended()
        return event in ENDING

    def _stop(self) -> int:
        """Claim nothing more; let what runs come to its end, if it does so in time."""
        self._say(f"Stopping; {count(len(self._crew.busy), 'job')} running.")
        self._wait(self._options["grace"], lambda: bool(self._crew.busy))
        cut_short = self._crew.busy
        if cut_short:
            self._crew.cancel()
            self._wait(LAST_WORDS, self._coroutines_run)
        for assignment in self._crew.busy:
            assignment.abandon()
        self._crew.settle(all_of_them=True)
        self._runner.withdraw()
        for assignment in cut_short:
            self._command.stderr.write(f"{assignment.job.name}: {STOPPED}.")
        return LOST if cut_short else 0

    def _wait(self, seconds: float, goes_on: Any) -> None:
        """Until it goes on no more, the time is over, or we are told to end once more."""
        until = time.monotonic() + seconds
        while goes_on():
            event = self._events.next(until)
            if event is None or event in ENDING:
                return

    def _coroutines_run(self) -> bool:
        return any(one.job.asynchronous for one in self._crew.busy)

    def _say(self, text: str) -> None:
        if self._options["verbosity"]:
            self._command.stderr.write(text)
