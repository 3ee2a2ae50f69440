"""The tables of docs/peers.md: made here, and found there again by a test."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .adapters import Peer
from .scenarios import Outcome

PAGE = Path(__file__).parent.parent.parent / "docs" / "peers.md"

MARKS = {True: "✓", False: "✗", None: "–"}

Results = Mapping[str, Sequence[Outcome]]
"""For each scenario, the outcomes in the order of the peers."""


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "| " + " | ".join("---" for _ in rows[0]) + " |")
    return "\n".join(lines)


def uses(peers: Iterable[type[Peer]]) -> str:
    """Which libraries, in which version, and used how."""
    head = ("library", "version", "used as")
    return table([head, *((peer.title, peer.version(), peer.use) for peer in peers)])


def outcomes(peers: Iterable[type[Peer]], results: Results) -> str:
    rows = [["", *(peer.title for peer in peers)]]
    rows += [
        [title, *(f"{MARKS[outcome.good]} {outcome.fact}" for outcome in row)]
        for title, row in results.items()
    ]
    return table(rows)


def _section(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)


def replace(page: str, name: str, text: str) -> str:
    """The page with `text` between the markers of `name`."""
    page, count = _section(name).subn(lambda _: f"\n{text}\n\n", page)
    if count != 1:
        raise ValueError(f"the page needs the markers of {name!r} exactly once")
    return page


def titles(page: str, name: str) -> list[str]:
    """The first cells of all rows between the markers of `name`, without the heads of tables."""
    [section] = _section(name).findall(page)
    cells = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
    following = [*cells[1:], ""]
    return [
        cell
        for cell, next_cell in zip(cells, following, strict=True)
        if "---" not in (cell, next_cell)
    ]


def worse(peers: Sequence[type[Peer]], results: Results) -> list[str]:
    """The scenarios in which the first library has a bad outcome."""
    return [title for title, row in results.items() if row[0].good is not True]
