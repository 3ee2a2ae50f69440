"""`manage.py redislock config`: what the settings say of a lock, and where they say it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils.translation import gettext_noop as _

from .. import conf
from ..sentences import Sentence
from . import serialising
from .asking import add_json, answering, name_argument
from .formatting import clean
from .printing import Printer
from .tables import Cell, Column, table

_COLUMNS = (Column("SETTING"), Column("VALUE", shrinks=True), Column("FROM", shrinks=True))


def settings_table(found: dict[str, conf.Setting], printer: Printer) -> Iterator[str]:
    rows = [
        [
            Cell(term.upper()),
            Cell(clean(value_text(setting.value))),
            Cell(clean(place_text(term.upper(), setting)), _emphasis(setting, printer)),
        ]
        for term, setting in found.items()
    ]
    return table(_COLUMNS, rows, heading=printer.style.MIGRATE_HEADING, fit=printer.fit)


def value_text(value: Any) -> str:
    """As it would be written in the settings."""
    if isinstance(value, float):
        return f"{value:.15g}"
    told = serialising.setting_value(value)
    return str(told) if callable(value) else repr(told)


def place_text(term: str, setting: conf.Setting) -> str:
    """Where it is written."""
    if setting.source == "default":
        return Sentence(_("the default"))
    entry = "" if setting.entry is None else f"['LOCKS'][{setting.entry!r}]"
    return f"REDISLOCK{entry}['{term}']"


def _emphasis(setting: conf.Setting, printer: Printer) -> Any:
    return str if setting.source == "default" else printer.style.WARNING


class Config:
    help = "Show the settings of a lock, and where each comes from."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", type=name_argument, help="The lock.")
        add_json(parser)

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> None:
        printer = Printer(command, options)
        with answering(command):
            found = conf.origins(options["name"])
            if options["json"]:
                printer.json({"name": options["name"], "settings": serialising.settings(found)})
                return
            printer.lines(settings_table(found, printer))
            printer.line()
            printer.line("What the code says where it takes the lock beats these.")
