"""What a subcommand writes: for a terminal, a file, or a program."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.core.management.base import BaseCommand, OutputWrapper
from django.core.management.color import no_style

from .tables import Cell, Column, table


class Printer:
    """Writes lines; knows whether a terminal shows them."""

    def __init__(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        self._out: OutputWrapper = command.stdout
        self.terminal = bool(self._out.isatty())
        # Django looks at sys.stdout; what is written may go elsewhere.
        colors = self.terminal or options.get("force_color")
        self.style = command.style if colors else no_style()
        self._encoding = getattr(self._out, "encoding", None) or "utf-8"

    def _encodable(self, text: str) -> str:
        """In a locale without umlauts, names may have them nevertheless."""
        return text.encode(self._encoding, "backslashreplace").decode(self._encoding)

    def fact(self, title: str, text: str, column: int) -> str:
        """A line of a sheet, whose texts begin at a column."""
        return f"{self.style.MIGRATE_LABEL(f'{title}:')}{' ' * (column - len(title) - 1)}{text}"

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
        """Its lines."""
        fit = shutil.get_terminal_size().columns if self.terminal else None
        return table(columns, rows, heading=self.style.MIGRATE_HEADING, fit=fit)

    def line(self, text: str = "") -> None:
        self._out.write(self._encodable(text))

    def lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.line(line)

    def json(self, document: object) -> None:
        """On one line for each document; strangers' texts are escaped."""
        self._out.write(json.dumps(document))

    def raw(self, text: str) -> None:
        """Without an end of the line, and at once."""
        self._out.write(self._encodable(text), ending="")
        self._out.flush()
