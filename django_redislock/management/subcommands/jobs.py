"""`manage.py redislock jobs`: the periodic jobs and their runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...inspection.words import NOTHING, clean, count, duration, instant
from ...periodic.report import JobInfo, JobState, Ledger
from ...primitives.ledger import RunInfo, RunOutcome
from ..arguments import add_json, job_of_name
from ..failing import WRONG
from ..output import Cell, Column, Paint, Printer

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
        RunOutcome.DONE: style.SUCCESS,
        RunOutcome.FAILED: style.ERROR,
        RunOutcome.LOST: style.ERROR,
        RunOutcome.SKIPPED: style.WARNING,
    }
    return paints.get(outcome, str)


class Jobs:
    help = "List the periodic jobs, or the last runs of one."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("job", metavar="JOB", nargs="?", help="Show the runs of this job.")
        parser.add_argument(
            "--overdue",
            action="store_true",
            help="Only jobs that no scheduler runs; if there are any, the exit code is 1.",
        )
        parser.add_argument(
            "--failing",
            action="store_true",
            help="Only jobs whose last run failed or was lost; the exit code is 1 then, too.",
        )
        add_json(parser)

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> int:
        printer = Printer(command, options)
        wanted = {state for term, state in _FILTERS.items() if options[term]}
        found = Ledger().jobs()
        if options["job"]:
            found = [job_of_name(options["job"], found)]
        if wanted:
            found = [info for info in found if info.state in wanted]
        if options["json"]:
            printer.json({"items": found})
        elif options["job"]:
            for info in found:
                printer.lines(_sheet(info, printer))
        else:
            printer.lines(_listing(found, printer))
        return WRONG if wanted and found else 0


def _listing(found: Sequence[JobInfo], printer: Printer) -> Iterator[str]:
    if found:
        yield from printer.table(_JOBS, [_row(info, printer) for info in found])
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
        since, by = instant(info.paused.at), info.paused.by
        facts["Paused"] = f"since {since} by {by}: {info.paused.why}"
    for title, text in facts.items():
        yield printer.fact(title, text, 12)
    yield ""
    if not info.runs:
        yield "It has not run yet."
        return
    yield from printer.table(_RUNS, [_run_row(run, printer) for run in info.runs])


def _run_row(run: RunInfo, printer: Printer) -> list[Cell]:
    attempt = f" ({run.attempt})" if run.attempt > 1 else ""
    return [
        Cell("by hand" if run.planned is None else instant(run.planned)),
        Cell(instant(run.started)),
        Cell(duration(run.duration)),
        Cell(f"{run.outcome}{attempt}", _paint(run.outcome, printer)),
        Cell(run.owner),
        Cell(run.why),
    ]
