"""`manage.py redislock config`: the settings of a lock, and where each is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...inspection.sheet import SETTINGS
from ...settings import conf
from ..arguments import add_json, name_argument
from ..output import Printer


def settings_document(found: dict[str, conf.Setting]) -> dict[str, conf.Setting]:
    """The settings under the keys that they have in Django's settings."""
    return {term.upper(): setting for term, setting in found.items()}


def settings_table(found: dict[str, conf.Setting], printer: Printer) -> Iterator[str]:
    return printer.table(SETTINGS, settings_document(found).items())


class Config:
    help = "Show the settings of a lock, and where each comes from."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", type=name_argument, help="The lock.")
        add_json(parser)

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> int:
        printer = Printer(command, options)
        found = conf.origins(conf.written(options["name"]))
        if options["json"]:
            printer.json({"name": options["name"], "settings": settings_document(found)})
        else:
            printer.lines(settings_table(found, printer))
            printer.line()
            printer.line("Arguments in the code override these settings.")
        return 0
