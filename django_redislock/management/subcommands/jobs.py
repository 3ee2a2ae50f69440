"""`manage.py redislock jobs`, `pause` and `resume`: the periodic jobs, and their runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

from django.core.management.base import CommandError

from ...base import people
from ...commands import USAGE
from ...inspection.sheet import RUNS, Column
from ...inspection.words import NOTHING, clean, count, instant, since, unattended, until
from ...periodic.report import JobInfo, JobState, Ledger, silent_for
from ...primitives.ledger import RunOutcome
from ..arguments import NO_JOBS, WRONG, Parser, job_of_name, operator
from ..output import Cell, Printer

_MARKS = {
    RunOutcome.DONE: ".",
    RunOutcome.FAILED: "F",
    RunOutcome.LOST: "L",
    RunOutcome.RUNNING: ">",
    RunOutcome.SKIPPED: "s",
    RunOutcome.UNREADABLE: "?",
}
_LEGEND = ", ".join(f"{mark} {outcome}" for outcome, mark in _MARKS.items())


def _marks(info: JobInfo) -> str:
    return "".join(_MARKS[run.outcome] for run in reversed(info.runs)) or NOTHING


def _last(info: JobInfo) -> str:
    return since(info.last.started if info.last else None, info.read_at)


_JOBS: Sequence[Column[JobInfo]] = (
    Column("job", lambda info: info.name),  # whole, to be pasted
    Column("state", lambda info: info.state),
    Column("last runs", _marks, right=True),
    Column("last run", _last, right=True),
    Column("next", lambda info: until(info.next, info.read_at)),
    Column("when", lambda info: info.plan, shrinks=True),
)


class Jobs:
    help = (
        "List the periodic jobs, trouble first, or the last runs of one. In the list, each run is "
        f"a mark, the newest at the end: {_LEGEND}."
    )

    def add_arguments(self, parser: Parser) -> None:
        parser.add_argument("job", metavar="JOB", nargs="?", help="Show the runs of this job.")
        parser.flag(
            "--overdue", "Only jobs that no scheduler runs; if there are any, the exit code is 1."
        )
        parser.flag(
            "--failing",
            "Only jobs whose last run failed or was lost; the exit code is 1 then, too.",
        )
        parser.json()

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        wanted = {state for state in (JobState.OVERDUE, JobState.FAILING) if options[state]}
        everything = Ledger().jobs()
        found = sorted(everything, key=attrgetter("state.place"))
        if options["job"]:
            found = [job_of_name(options["job"], found)]
        if wanted:
            found = [info for info in found if info.state in wanted]
        lines = _listing(found, everything, printer)
        if options["job"]:
            lines = chain.from_iterable(_sheet(info, printer) for info in found)
        printer.write({"items": found}, lines)
        return WRONG if wanted and found else 0


def _listing(
    found: Sequence[JobInfo], everything: Sequence[JobInfo], printer: Printer
) -> Iterator[str]:
    if not everything:
        yield NO_JOBS
        return
    if (silence := silent_for(everything)) is not None:
        yield printer.style.ERROR(unattended(silence))
    if found:
        heading, *rows = printer.table(_JOBS, found)
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


def _sheet(info: JobInfo, printer: Printer) -> Iterator[str]:
    paused, wanted, coming = info.paused, info.request, until(info.next, info.read_at)
    facts = {
        "job": info.name,
        "where": info.where,
        "when": info.plan,
        "state": info.state,
        "last done": instant(info.done),
        "next": f"{instant(info.next)}, {coming}" if info.next else NOTHING,
        "error": info.error and Cell(info.error, "ERROR"),
        "paused": paused and f"since {instant(paused.at)} by {paused.by}: {paused.why}",
        "wanted": wanted and f"since {instant(wanted.at)} by {wanted.by}",
    }
    yield from printer.facts(facts.items(), 12)
    yield ""
    if not info.runs:
        yield "It has not run yet."
        return
    yield from printer.table(RUNS, info.runs)


class _OfJobs:
    """What is done to some jobs, or to all."""

    def add_arguments(self, parser: Parser) -> None:
        parser.add_argument("jobs", metavar="JOB", nargs="*", help="The jobs.")
        parser.flag("--all", "All jobs.")

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        if bool(options["jobs"]) == options["all"]:
            raise CommandError("Write the names of jobs, or --all.", returncode=USAGE)
        ledger = Ledger()
        known = ledger.jobs()
        for job in [job_of_name(name, known) for name in options["jobs"]] or known:
            printer.line(clean(self.do(ledger, job.name, options)))
        return 0

    def do(self, ledger: Ledger, name: str, options: dict[str, Any]) -> str:
        """Do it to one job, and say so."""
        raise NotImplementedError


class Pause(_OfJobs):
    help = "Pause periodic jobs: their ticks are skipped. Jobs that are running finish."

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--reason", metavar="TEXT", type=people.clean, required=True, help="Why."
        )
        parser.by()

    def do(self, ledger: Ledger, name: str, options: dict[str, Any]) -> str:
        ledger.pause(name, by=options["by"] or operator(), reason=options["reason"])
        return f"Paused {name!r}."


class Resume(_OfJobs):
    help = "Resume periodic jobs, from the next tick."

    def do(self, ledger: Ledger, name: str, _options: dict[str, Any]) -> str:
        return f"{name!r} {'goes on' if ledger.resume(name) else 'was not paused'}."
