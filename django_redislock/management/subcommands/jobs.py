"""`manage.py redislock jobs`: the periodic jobs and their runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...inspection.words import (
    NOTHING,
    clean,
    count,
    duration,
    instant,
    since,
    unattended,
    until,
)
from ...periodic.report import JobInfo, JobState, Ledger, silent_for
from ...primitives.ledger import RunInfo, RunOutcome
from ..arguments import NO_JOBS, add_json, job_of_name
from ..failing import WRONG
from ..output import Cell, Column, Paint, Printer

_JOBS = (
    Column("JOB"),  # whole, to be pasted
    Column("STATE"),
    Column("LAST RUNS", right=True),
    Column("LAST RUN", right=True),
    Column("NEXT"),
    Column("WHEN", shrinks=True),
)
_RUNS = (
    Column("PLANNED"),
    Column("STARTED"),
    Column("TOOK", right=True),
    Column("OUTCOME"),
    Column("BY", shrinks=True),
    Column("WHY", shrinks=True),
)
_MARKS = {
    RunOutcome.DONE: ".",
    RunOutcome.FAILED: "F",
    RunOutcome.LOST: "L",
    RunOutcome.RUNNING: ">",
    RunOutcome.SKIPPED: "s",
    RunOutcome.UNREADABLE: "?",
}
_LEGEND = ", ".join(f"{mark} {outcome}" for outcome, mark in _MARKS.items())
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
    help = (
        "List the periodic jobs, trouble first, or the last runs of one. In the list, each run is "
        f"a mark, the newest at the end: {_LEGEND}."
    )

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
        everything = Ledger().jobs()
        found = sorted(everything, key=attrgetter("state.place"))
        if options["job"]:
            found = [job_of_name(options["job"], found)]
        if wanted:
            found = [info for info in found if info.state in wanted]
        if options["json"]:
            printer.json({"items": found})
        elif options["job"]:
            for info in found:
                printer.lines(_sheet(info, printer))
        elif not everything:
            printer.line(NO_JOBS)
        else:
            if (silence := silent_for(everything)) is not None:
                printer.line(printer.style.ERROR(unattended(silence)))
            printer.lines(_listing(found, printer))
        return WRONG if wanted and found else 0


def _listing(found: Sequence[JobInfo], printer: Printer) -> Iterator[str]:
    if found:
        heading, *rows = printer.table(_JOBS, [_row(info, printer) for info in found])
        yield heading
        for info, row in zip(found, rows, strict=True):
            yield row
            for remark in _remarks(info, printer):
                yield f"    {remark}"
    yield f"{count(len(found), 'job')}."


def _remarks(info: JobInfo, printer: Printer) -> Iterator[str]:
    """What an operator wants to know besides the row."""
    if info.error:
        yield printer.style.ERROR(info.error)
    if info.paused is not None:
        paused = since(info.paused.at, info.read_at)
        yield f"paused {paused} by {info.paused.by}: {info.paused.why}"
    if info.request is not None:
        yield f"run wanted {since(info.request.at, info.read_at)} by {info.request.by}"


def _row(info: JobInfo, printer: Printer) -> list[Cell]:
    last = info.last
    return [
        Cell(clean(info.name)),
        Cell(info.state, _paint(info.state, printer)),
        Cell("".join(_MARKS[run.outcome] for run in reversed(info.runs)) or NOTHING),
        Cell(since(last.started if last else None, info.read_at)),
        Cell(until(info.next, info.read_at)),
        Cell(clean(info.plan)),
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
    if info.next is not None:
        facts["Next"] += f", {until(info.next, info.read_at)}"
    if info.error:
        facts["Error"] = printer.style.ERROR(info.error)
    if info.paused is not None:
        facts["Paused"] = f"since {instant(info.paused.at)} by {info.paused.by}: {info.paused.why}"
    if info.request is not None:
        facts["Wanted"] = f"since {instant(info.request.at)} by {info.request.by}"
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
