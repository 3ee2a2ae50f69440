"""`manage.py redislock jobs`: what periodic jobs do and have done; `pause` and `resume`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ..periodic.ledger import JobInfo, JobState, Ledger
from ..primitives.ledger import Outcome, RunInfo
from . import serialising
from .asking import WRONG, add_json, answering
from .clearing import operator
from .formatting import NOTHING, clean, count, duration, instant
from .printing import Printer
from .tables import Cell, Column, Paint, table

_USAGE = 2

_JOBS = (
    Column("JOB", shrinks=True),
    Column("STATE"),
    Column("WHEN", shrinks=True),
    Column("LAST RUN"),
    Column("OUTCOME"),
    Column("TOOK", right=True),
    Column("NEXT"),
)
_RUNS = (
    Column("PLANNED"),
    Column("STARTED"),
    Column("TOOK", right=True),
    Column("OUTCOME"),
    Column("BY", shrinks=True),
    Column("WHY", shrinks=True),
)
_FILTERS = {"overdue": JobState.OVERDUE, "failing": JobState.FAILING}


def _paint(outcome: str, printer: Printer) -> Paint:
    style = printer.style
    paints: dict[str, Paint] = {
        JobState.OK: style.SUCCESS,
        JobState.RUNNING: style.SUCCESS,
        JobState.FAILING: style.ERROR,
        JobState.OVERDUE: style.ERROR,
        JobState.PAUSED: style.WARNING,
        Outcome.DONE: style.SUCCESS,
        Outcome.FAILED: style.ERROR,
        Outcome.LOST: style.ERROR,
        Outcome.SKIPPED: style.WARNING,
    }
    return paints.get(outcome, str)


class Jobs:
    help = "List the periodic jobs, or the last runs of one."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("job", metavar="JOB", nargs="?", help="The runs of this one.")
        parser.add_argument(
            "--overdue",
            action="store_true",
            help="Only jobs that no scheduler runs; if there are any, the exit code is 1.",
        )
        parser.add_argument(
            "--failing",
            action="store_true",
            help="Only jobs whose last run has failed or was lost; the exit code is the same.",
        )
        add_json(parser)

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> None:
        printer = Printer(command, options)
        wanted = {state for term, state in _FILTERS.items() if options[term]}
        with answering(command):
            found = _those(Ledger(), [options["job"]] if options["job"] else [])
            if wanted:
                found = [info for info in found if info.state in wanted]
            if options["json"]:
                printer.json({"items": [serialising.job(info) for info in found]})
            elif options["job"]:
                for info in found:
                    printer.lines(_sheet(info, printer))
            else:
                printer.lines(_listing(found, printer))
        if wanted and found:
            sys.exit(WRONG)


def _listing(found: Sequence[JobInfo], printer: Printer) -> Iterator[str]:
    if found:
        heading = printer.style.MIGRATE_HEADING
        yield from table(
            _JOBS, [_row(info, printer) for info in found], heading=heading, fit=printer.fit
        )
    yield f"{count(len(found), 'job')}."


def _row(info: JobInfo, printer: Printer) -> list[Cell]:
    last = info.last
    return [
        Cell(clean(info.name)),
        Cell(info.state, _paint(info.state, printer)),
        Cell(clean(info.plan)),
        Cell(instant(last.started if last else None)),
        Cell(last.outcome, _paint(last.outcome, printer)) if last else Cell(NOTHING),
        Cell(duration(last.duration if last else None)),
        Cell(instant(info.next)),
    ]


def _sheet(info: JobInfo, printer: Printer) -> Iterator[str]:
    facts = {
        "Job": clean(info.name),
        "Where": clean(info.where),
        "When": clean(info.plan),
        "State": _paint(info.state, printer)(info.state),
        "Last done": instant(info.done),
        "Next": instant(info.next),
    }
    if info.paused is not None:
        facts["Paused"] = clean(
            f"since {instant(info.paused.at)} by {info.paused.by}: {info.paused.why}"
        )
    for title, text in facts.items():
        yield printer.fact(title, text, 12)
    yield ""
    if not info.runs:
        yield "It has not run yet."
        return
    rows = [_run_row(run, printer) for run in info.runs]
    yield from table(_RUNS, rows, heading=printer.style.MIGRATE_HEADING, fit=printer.fit)


def _run_row(run: RunInfo, printer: Printer) -> list[Cell]:
    attempt = f" ({run.attempt})" if run.attempt > 1 else ""
    return [
        Cell("by hand" if run.planned is None else instant(run.planned)),
        Cell(instant(run.started)),
        Cell(duration(run.duration)),
        Cell(f"{run.outcome}{attempt}", _paint(run.outcome, printer)),
        Cell(clean(run.owner)),
        Cell(clean(run.why)),
    ]


def _those(ledger: Ledger, names: Sequence[str]) -> list[JobInfo]:
    """The jobs of these names; all, if there are none."""
    found = ledger.jobs()
    known = {info.name: info for info in found}
    for name in names:
        if name not in known:
            raise CommandError(
                f"There is no job {name!r}. There are: {', '.join(known) or 'none'}.",
                returncode=_USAGE,
            )
    return [known[name] for name in names] if names else found


class _Changing:
    """What pausing and resuming have in common."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("jobs", metavar="JOB", nargs="*", help="The jobs.")
        parser.add_argument("--all", action="store_true", help="All jobs.")

    def _each(
        self, command: BaseCommand, options: dict[str, Any], change: Callable[[Ledger, str], str]
    ) -> None:
        printer = Printer(command, options)
        if bool(options["jobs"]) == options["all"]:
            raise CommandError("Write the names of jobs, or --all.", returncode=_USAGE)
        with answering(command):
            ledger = Ledger()
            for info in _those(ledger, options["jobs"]):
                printer.line(clean(change(ledger, info.name)))


class Pausing(_Changing):
    help = "Pause periodic jobs: their ticks are passed over. What runs goes on to its end."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--reason", metavar="TEXT", required=True, help="Why.")
        parser.add_argument(
            "--by", metavar="WHO", help="Who; by default the user and host of this process."
        )

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> None:
        by = options["by"] or operator()

        def pause(ledger: Ledger, name: str) -> str:
            ledger.pause(name, by=by, reason=options["reason"])
            return f"Paused {name!r}."

        self._each(command, options, pause)


class Resuming(_Changing):
    help = "Let periodic jobs go on, from the next tick."

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> None:
        def resume(ledger: Ledger, name: str) -> str:
            resumed = ledger.resume(name)
            return f"{name!r} goes on." if resumed else f"{name!r} was not paused."

        self._each(command, options, resume)
