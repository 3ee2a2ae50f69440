"""`manage.py redislock`: what operators do with locks, one subcommand each."""

from __future__ import annotations

from argparse import SUPPRESS
from typing import Any, Protocol

from django.core.management.base import CommandParser

from ...base.servers import MEMORY
from ...settings.conf import aliases
from ..arguments import HELP, Formatter, OperatorCommand, Parser
from ..output import Printer
from ..subcommands import (
    clear,
    completion,
    doctor,
    fence,
    jobs,
    metrics,
    records,
    run,
    show,
    tasks,
)
from ..subcommands import list as listing


class Subcommand(Protocol):
    help: str

    def add_arguments(self, parser: Parser) -> None: ...
    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        """Do it, and return the exit code."""


SUBCOMMANDS: dict[str, Subcommand] = {
    "list": listing.List(),
    "show": show.Show(),
    "clear": clear.Clear(),
    "forget-note": show.ForgetNote(),
    "watch": listing.Watch(),
    "fence": fence.Fence(),
    "config": show.Config(),
    "doctor": doctor.Doctor(),
    "run": run.Run(),
    "jobs": jobs.Jobs(),
    "pause": jobs.Pause(),
    "resume": jobs.Resume(),
    "metrics": metrics.Metrics(),
    "tasks": tasks.Tasks(),
    "sweep": tasks.Sweep(),
    "records": records.Records(),
    "completion": completion.Completion(),
}


_NO_LOOK = {"completion", "config", "doctor", "records"}
"""Subcommands that look at no lock, or say themselves where the locks are."""
_ALONE = f"USING is {MEMORY!r}: each process has locks of its own, and so has this command."


class Command(OperatorCommand):
    help = "Inspects, clears and explains the locks of django-redislock."
    # It has to work even if the rest of the project is broken.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(
            dest="subcommand", required=True, metavar="subcommand", parser_class=Parser
        )
        for name, subcommand in SUBCOMMANDS.items():
            subcommand.add_arguments(
                subparsers.add_parser(
                    name,
                    help=subcommand.help,
                    description=subcommand.help,
                    epilog=HELP[name].epilog(),
                    formatter_class=Formatter,
                    parents=[_base_options()],
                )
            )

    def carry_out(self, options: dict[str, Any]) -> int:
        name: str = options["subcommand"]
        if name not in _NO_LOOK and MEMORY in aliases():
            self.stderr.write(_ALONE)
        return SUBCOMMANDS[name].handle(Printer(self, options), options)


def _base_options() -> Parser:
    """The options of every Django command, also accepted after the subcommand."""
    parser = Parser(add_help=False, argument_default=SUPPRESS)
    parser.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], help=SUPPRESS)
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name, help=SUPPRESS)
    for name in ("--traceback", "--no-color", "--force-color"):
        parser.flag(name, SUPPRESS)
    return parser
