"""Columns that stand below each other, and fit the terminal if there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..inspection.words import shorten, width

_GAP = "  "
_NARROWEST = 12
"""Columns of a text that was shortened, and can still be told from others."""

Paint = Callable[[str], str]
"""One of Django's styles."""


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    """Numbers stand below each other by their ends."""
    shrinks: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    paint: Paint = str


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    heading: Paint = str,
    fit: int | None = None,
) -> Iterator[str]:
    """Its lines, the titles first; `fit`: the columns of the terminal."""
    lines = [[Cell(column.title, heading) for column in columns], *rows]
    widths = [max(width(line[i].text) for line in lines) for i in range(len(columns))]
    if fit is not None:
        _shrink(widths, [column.shrinks for column in columns], fit)
    for line in lines:
        cells = zip(line, columns, widths, strict=True)
        yield _GAP.join(_aligned(*cell) for cell in cells).rstrip()


def _aligned(cell: Cell, column: Column, columns: int) -> str:
    text = shorten(cell.text, columns)
    space = " " * (columns - width(text))
    # A colour that underlines would be seen in the space.
    return space + cell.paint(text) if column.right else cell.paint(text) + space


def _shrink(widths: list[int], shrinks: list[bool], fit: int) -> None:
    """Take what is too much from the widest ones."""
    too_much = sum(widths) + len(_GAP) * (len(widths) - 1) - fit
    while too_much > 0:
        widest = max((i for i, may in enumerate(shrinks) if may), key=lambda i: widths[i])
        if widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1
        too_much -= 1
