"""A part of the terminal that is drawn again and again, and given back as it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress

from .printing import Printer

# The escape sequences that all terminals of today know.
_OPEN = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The other screen, without a cursor; lines that are too long end at its edge."""
_CLOSE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_TO_END_OF_LINE = "\x1b[K"
_TO_END_OF_SCREEN = "\x1b[J"


class Screen:
    """The whole terminal."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._shown: Sequence[str] = ()

    @property
    def rows(self) -> int | None:
        return shutil.get_terminal_size().lines

    def open(self) -> None:
        self._printer.raw(_OPEN)

    def draw(self, lines: Iterable[str]) -> None:
        """In one write and without clearing it first, so that it doesn't flicker."""
        self._shown = list(lines)[: self.rows]
        text = f"{_TO_END_OF_LINE}\n".join(self._shown)
        self._printer.raw(f"{_HOME}{text}{_TO_END_OF_LINE}{_TO_END_OF_SCREEN}")

    def close(self) -> None:
        """What was shown last stays in sight."""
        with suppress(OSError):  # the terminal may be gone
            self._printer.raw(_CLOSE)
            self._printer.lines(self._shown)


class Paper:
    """What can't be drawn twice: a file, a pipe, a terminal that knows nothing."""

    rows = None

    def __init__(self, printer: Printer) -> None:
        self._printer = printer

    def open(self) -> None:
        pass

    def draw(self, lines: Iterable[str]) -> None:
        self._printer.raw("".join(f"{line}\n" for line in [*lines, ""]))

    def close(self) -> None:
        pass


def screen(printer: Printer) -> Screen | Paper:
    drawn = printer.terminal and os.environ.get("TERM", "dumb") != "dumb"
    return Screen(printer) if drawn else Paper(printer)
