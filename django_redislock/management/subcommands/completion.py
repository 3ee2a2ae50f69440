"""`manage.py redislock completion bash`: a script that completes the command in a shell."""

from __future__ import annotations

from argparse import SUPPRESS, _SubParsersAction
from importlib.resources import files
from typing import Any

from django.core.management.base import BaseCommand

from ..arguments import Parser
from ..output import Printer

_FILES = files("django_redislock.management").joinpath("completion")
"""`words.sh` says what can be completed; each shell has a file that asks it."""


class Completion:
    help = "Print a script that completes this command in bash or zsh."

    def add_arguments(self, parser: Parser) -> None:
        parser.add_argument("shell", choices=["bash", "zsh"], help="The shell.")

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        known = _options(printer.command)
        lines = [
            f"        {name}) printf '%s\\n' {' '.join(its)} ;;" for name, its in known.items()
        ]
        shell = options["shell"]
        script, asks = (
            _FILES.joinpath(f"{one}.sh").read_text(encoding="utf-8") for one in ("words", shell)
        )
        script = script.replace("@SHELL@", shell).replace("@SUBCOMMANDS@", " ".join(known))
        printer.raw(script.replace("@OPTIONS@", "\n".join(lines)) + asks)
        return 0


def _options(command: BaseCommand) -> dict[str, list[str]]:
    """The options of each subcommand."""
    parser = command.create_parser("manage.py", "redislock")
    (subparsers,) = (one for one in parser._actions if isinstance(one, _SubParsersAction))
    return {
        name: [
            text
            for text, one in its._option_string_actions.items()
            if text.startswith("--") and one.help != SUPPRESS
        ]
        for name, its in subparsers.choices.items()
    }
