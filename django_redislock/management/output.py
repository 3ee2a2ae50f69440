"""The output of subcommands: tables and screens for terminals, lines for files, JSON for programs.

The keys of the JSON are the names of the fields of what is written. docs/operations.md has them
all; a test compares. Fields without a `repr` are left out: tokens, which would prove to hold the
lock, and internals.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from types import NoneType
from typing import Any, NamedTuple, TypeVar
from unicodedata import combining, east_asian_width

from django.core.management.base import BaseCommand, OutputWrapper
from django.core.management.color import no_style
from django.utils.text import capfirst

from ..base.callables import of_function
from ..inspection import HolderInfo, LockInfo, PastHolder
from ..inspection.sheet import Column, Judged, Lease, Owner, Seconds, Unusual
from ..inspection.story import holder
from ..inspection.words import NOTHING, clean, duration, instant, process_name
from ..primitives.ledger import RunInfo

T = TypeVar("T")


class Printer:
    """Writes lines, or JSON; knows whether a terminal shows lines."""

    def __init__(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        self.command = command
        self._json = bool(options.get("json"))
        self._out: OutputWrapper = command.stdout
        self.terminal = bool(self._out.isatty()) and not self._json
        # Django looks at sys.stdout, but the output may go elsewhere.
        colors = self.terminal or options.get("force_color")
        self.style = command.style if colors else no_style()
        self._encoding = getattr(self._out, "encoding", None) or "utf-8"

    def _encodable(self, text: str) -> str:
        """Escape what the locale can't encode: names may have any character."""
        return text.encode(self._encoding, "backslashreplace").decode(self._encoding)

    def paint(self, text: str, style: str) -> str:
        """Paint a text in one of Django's styles; "": in none."""
        painted: str = getattr(self.style, style)(text) if style else text
        return painted

    def facts(self, facts: Iterable[tuple[str, Any]], column: int) -> Iterator[str]:
        """A line for each fact that is known. The texts begin at a column."""
        for title, value in facts:
            if value is not None and value != "":
                shown = cell(value)
                before = self.style.MIGRATE_LABEL(f"{capfirst(title)}:")
                yield f"{before}{' ' * (column - len(title) - 1)}{self.paint(*shown[:2])}"

    def table(
        self, columns: Sequence[Column[T]], rows: Sequence[T], *, wide: bool = False
    ) -> Iterator[str]:
        """The lines of a table that fits the terminal, unless it may be wide."""
        columns = [
            column
            for column in columns
            if (wide or not column.wide) and (not column.sparse or any(map(column.value, rows)))
        ]
        fit = shutil.get_terminal_size().columns if self.terminal and not wide else None
        return table(columns, rows, paint=self.paint, fit=fit)

    def line(self, text: str = "") -> None:
        """Write a line for people: none with `--json`."""
        if not self._json:
            self._out.write(self._encodable(text))

    def lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.line(line)

    def write(self, document: object, lines: Iterable[str] = ()) -> None:
        """Write the answer to a command: for programs with `--json`, else for people."""
        if self._json:
            self.json(document)
        else:
            self.lines(lines)

    def complain(self, text: str) -> None:
        """Write an error on stderr."""
        self.command.stderr.write(self.command.style.ERROR(clean(text)))

    def json(self, document: object) -> None:
        """Write a document on one line; json.dumps escapes control characters in foreign texts."""
        self._out.write(json.dumps(as_json(document)))

    def raw(self, text: str) -> None:
        """Write without an end of the line, and flush."""
        self._out.write(self._encodable(text), ending="")
        self._out.flush()


# JSON.


def as_json(value: Any) -> Any:
    """The same value, made of dicts, lists and plain values."""
    if callable(value):
        return of_function(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value):
        return as_json(_fields(value))
    if hasattr(value, "_asdict"):
        return as_json(value._asdict())
    if isinstance(value, Mapping):
        return {key: as_json(its) for key, its in value.items()}
    return [as_json(one) for one in value] if isinstance(value, list | tuple) else value


def _fields(thing: Any) -> dict[str, Any]:
    found = {field.name: getattr(thing, field.name) for field in fields(thing) if field.repr}
    found |= {name: found[name] or None for name in ("why", "error") if name in found}
    if isinstance(thing, LockInfo | HolderInfo):
        found.pop("holder", None)
        found |= {**thing.holder._asdict(), "ttl": thing.ttl}
    if isinstance(thing, RunInfo):
        del found["job"]
        found |= {"duration": thing.duration, "delay": thing.delay}
    return found


# Tables.

_GAP = "  "
_NARROWEST = 12
"""The least width to which a column shrinks: narrower texts can't be told from each other."""


class Cell(NamedTuple):
    text: str
    style: str = ""
    """The name of one of Django's styles."""
    whole: int = 0
    """The width of its beginning that is never cut."""


STYLES = {
    **dict.fromkeys(("held", "ok", "running", "done"), "SUCCESS"),
    **dict.fromkeys(("unknown", "paused", "skipped"), "WARNING"),
    **dict.fromkeys(("stale", "broken", "failing", "overdue", "failed", "lost"), "ERROR"),
}
"""The styles of the states of locks and jobs, and of the outcomes of runs."""


def _holder(lock: LockInfo) -> Cell:
    text = holder(lock)  # host and process are never cut, and a thread may follow
    return Cell(text, whole=width(" · ".join(text.split(" · ", 2)[:2])))


def _run(run: RunInfo) -> Cell:
    attempt = f" ({run.attempt})" if run.attempt > 1 else ""
    return Cell(f"{run.outcome}{attempt}", STYLES.get(run.outcome, ""))


_LOOKS: Sequence[tuple[type, Callable[[Any], Cell]]] = (
    (Cell, lambda its: its),
    (NoneType, lambda _: Cell(NOTHING)),
    (Owner, lambda its: Cell(process_name(its) or NOTHING)),
    (Unusual, lambda its: Cell(clean(its), "WARNING")),
    (StrEnum, lambda its: Cell(its, STYLES.get(its, ""))),
    (LockInfo, _holder),
    (Judged, lambda its: cell(its.state)),
    (PastHolder, lambda its: Cell(f"{its.ending} {its.why}".rstrip())),
    (RunInfo, _run),
    (Lease, lambda its: Cell("no TTL" if its.left is None else duration(its.left))),
    (Seconds, lambda its: Cell(duration(its.number))),
    (datetime, lambda its: Cell(instant(its))),
    (tuple, lambda its: Cell(clean(", ".join(filter(None, its))))),
    (object, lambda its: Cell(clean(str(its)))),
)
"""How a terminal shows each type of value of a column. The first one that fits counts."""


def cell(value: Any) -> Cell:
    """Return how a terminal shows a value of a column."""
    return next(look(value) for kind, look in _LOOKS if isinstance(value, kind))


def table(
    columns: Sequence[Column[T]],
    rows: Sequence[T],
    *,
    paint: Callable[[str, str], str] = lambda text, _style: text,
    fit: int | None = None,
) -> Iterator[str]:
    """The lines of a table, its titles first; none if it has no rows. `fit`: the width of the
    terminal."""
    if not rows:
        return
    lines = [[Cell(column.title.upper(), "MIGRATE_HEADING") for column in columns]]
    lines += [[cell(column.value(thing)) for column in columns] for thing in rows]
    widths = [max(width(line[i].text) for line in lines) for i in range(len(columns))]
    shown: Sequence[int] = range(len(columns))
    if fit is not None:
        # One more than what stays whole, for the ellipsis.
        least = [max(_NARROWEST, *(line[i].whole + 1 for line in lines)) for i in shown]
        shown = _fitting(columns, widths, least, fit)
    for line in lines:
        texts = []
        for i in shown:
            text = shorten(line[i].text, widths[i], whole=line[i].whole)
            # The space stays unpainted: a style that underlines would show there.
            space, painted = " " * (widths[i] - width(text)), paint(text, line[i].style)
            texts.append(space + painted if columns[i].right else painted + space)
        yield _GAP.join(texts).rstrip()


def _fitting(
    columns: Sequence[Column[Any]], widths: list[int], least: Sequence[int], fit: int
) -> Sequence[int]:
    """Narrow the widest columns until the table fits, or else leave columns out. Return those that
    stay."""
    shown = [*range(len(columns))]
    wished = widths.copy()
    while (too_much := sum(widths[i] for i in shown) + len(_GAP) * (len(shown) - 1) - fit) > 0:
        narrowed = [i for i in shown if columns[i].shrinks and widths[i] > least[i]]
        dropped = [i for i in shown if columns[i].drops]
        if narrowed:
            widest = max(narrowed, key=lambda i: widths[i])
            others = [widths[i] for i in narrowed if i != widest]
            narrower = max([least[widest], widths[widest] - too_much, *others])
            widths[widest] = min(narrower, widths[widest] - 1)
        elif dropped:
            shown.remove(max(dropped, key=lambda i: columns[i].drops))
            widths[:] = wished  # there is room again
        else:
            break
    return shown


def width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def shorten(text: str, columns: int, *, whole: int = 0) -> str:
    """The beginning and the end of a text: names often differ at the end."""
    if width(text) <= columns:
        return text
    head, tail = text, ""
    while width(head) > max((columns - 1) * 2 // 3, whole):
        head = head[:-1]
    for char in reversed(text):
        if width(f"{head}…{char}{tail}") > columns:
            break
        tail = char + tail
    return f"{head}…{tail}"


# Screens: what is drawn again and again.

# Escape sequences that all of today's terminals know.
_OPEN = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Switch to the alternate screen, hide the cursor, cut long lines at the edge."""
_CLOSE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_ERASE_LINE = "\x1b[2K"
_TO_END_OF_SCREEN = "\x1b[J"


class Screen:
    """The whole terminal, given back as it was; or paper: a file, a pipe, or a terminal without
    escape sequences, where each picture follows the last."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._paper = not printer.terminal or os.environ.get("TERM", "dumb") == "dumb"
        self._drawn: Sequence[str] = ()

    @property
    def rows(self) -> int | None:
        """The lines of the terminal; None: a picture may have any number of lines."""
        return None if self._paper else shutil.get_terminal_size().lines

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show what the block draws, and leave the last picture in sight."""
        if self._paper:
            yield
            return
        try:
            self._printer.raw(_OPEN)
            yield
        finally:
            with suppress(OSError):  # the terminal may be gone
                self._printer.raw(_CLOSE)
                self._printer.lines(self._drawn)

    def draw(self, lines: Iterable[str]) -> None:
        """Draw over the last picture, in one write: a cleared screen would flicker.

        Each line is erased before it is written. Behind a line that fills the terminal, the cursor
        stands on its last character, and erasing from there would take that with it. So the last
        row stays empty, too.
        """
        rows = self.rows
        if rows is None:
            self._printer.raw("".join(f"{line}\n" for line in [*lines, ""]))
            return
        self._drawn = list(lines)[: rows - 1]
        text = "".join(f"{_ERASE_LINE}{line}\n" for line in self._drawn)
        self._printer.raw(f"{_HOME}{text}{_TO_END_OF_SCREEN}")
