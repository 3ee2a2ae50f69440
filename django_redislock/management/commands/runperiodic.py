"""`manage.py runperiodic`: runs the project's periodic jobs, on any number of hosts."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...base.exceptions import LockUnavailable
from ...base.holder import server_time
from ...commands import BUSY, LOST, UNAVAILABLE, Stderr
from ...inspection.sheet import Column
from ...inspection.words import NOTHING, instant
from ...periodic.execution import JobRun, aperform, perform
from ...periodic.job import SECOND, Job, discover, jobs
from ...primitives.ledger import RunInfo, RunOutcome, Wanted
from ..arguments import (
    NO_JOBS,
    WRONG,
    errors_as_exit_codes,
    job_of_name,
    number_argument,
    seconds_argument,
)
from ..output import Printer
from ..scheduler import Scheduler


def _next(job: Job) -> str:
    now = round(datetime.now(UTC).timestamp()) * SECOND
    tick = job.schedule.next(now) if job.enabled else None
    return NOTHING if tick is None else instant(server_time(tick))


_COLUMNS: Sequence[Column[Job]] = (
    Column("job", lambda job: job.name, shrinks=True),
    Column("when", Job.words, shrinks=True),
    Column("next", _next),
)


class Command(BaseCommand):
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

    def handle(self, *_args: Any, **options: Any) -> None:
        self.stderr = Stderr(self.stderr)
        code = 0
        with errors_as_exit_codes(self):
            discover()
            found = jobs()
            if options["list"]:
                printer = Printer(self, options)
                printer.lines(printer.table(_COLUMNS, found) if found else [NO_JOBS])
            elif options["job"] is not None:
                _run_by_hand(job_of_name(options["job"], found))
            else:
                code = Scheduler(found, self, options).run()
        if code:
            sys.exit(code)


def _run_by_hand(job: Job) -> None:
    """Run a job here and now, also if it is paused or disabled."""
    job_run = JobRun(job, Wanted(tick=None))
    try:
        answer = job_run.ask()
    except LockUnavailable:
        job_run.take_back()
        raise
    if answer.grant is None:
        who = answer.holder or "nobody, but others wait for it"
        raise CommandError(f"{job.lock!r} is held by {who}.", returncode=BUSY)
    kept: list[tuple[Callable[[], None], float]] = []

    def keep(release: Callable[[], None], seconds: float) -> None:
        kept.append((release, seconds))

    ended = asyncio.run(aperform(job_run, keep)) if job.asynchronous else perform(job_run, keep)
    for release, seconds in kept:
        time.sleep(seconds)
        release()
    _judge(ended)


def _judge(ended: RunInfo | None) -> None:
    if ended is None:
        raise CommandError("Its outcome could not be recorded in Redis.", returncode=UNAVAILABLE)
    if ended.outcome == RunOutcome.LOST:
        raise CommandError(f"Its lease is lost: {ended.why}.", returncode=LOST)
    if ended.outcome == RunOutcome.FAILED:
        raise CommandError(ended.why, returncode=WRONG)
