"""`manage.py redislock pause` and `resume`: skip the ticks of periodic jobs, or stop skipping."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...base import label
from ...inspection.words import clean
from ...periodic.report import Ledger
from ..arguments import USAGE, add_by, job_of_name, operator
from ..output import Printer


def _add_jobs(parser: CommandParser) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs="*", help="The jobs.")
    parser.add_argument("--all", action="store_true", help="All jobs.")


def _names(ledger: Ledger, options: dict[str, Any]) -> list[str]:
    """The names of the jobs that the options mean. All of them exist."""
    if bool(options["jobs"]) == options["all"]:
        raise CommandError("Write the names of jobs, or --all.", returncode=USAGE)
    known = ledger.jobs()
    meant = [job_of_name(name, known) for name in options["jobs"]] or known
    return [job.name for job in meant]


class Pause:
    help = "Pause periodic jobs: their ticks are skipped. Jobs that are running finish."

    def add_arguments(self, parser: CommandParser) -> None:
        _add_jobs(parser)
        parser.add_argument(
            "--reason", metavar="TEXT", type=label.clean, required=True, help="Why."
        )
        add_by(parser)

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> int:
        printer, ledger = Printer(command, options), Ledger()
        by = options["by"] or operator()
        for name in _names(ledger, options):
            ledger.pause(name, by=by, reason=options["reason"])
            printer.line(clean(f"Paused {name!r}."))
        return 0


class Resume:
    help = "Resume periodic jobs, from the next tick."

    def add_arguments(self, parser: CommandParser) -> None:
        _add_jobs(parser)

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> int:
        printer, ledger = Printer(command, options), Ledger()
        for name in _names(ledger, options):
            text = "goes on" if ledger.resume(name) else "was not paused"
            printer.line(clean(f"{name!r} {text}."))
        return 0
