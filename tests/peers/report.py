"""The tables of docs/peers.md: made here, and found there again by a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from devtools.pages import part, table

from .adapters import Peer
from .scenarios import Outcome

PAGE = Path(__file__).parent.parent.parent / "docs" / "peers.md"

MARKS = {True: "✓", False: "✗", None: "–"}

Results = Mapping[str, Sequence[Outcome]]
"""For each scenario, the outcomes in the order of the peers."""


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


def titles(page: str, name: str) -> list[str]:
    """The first cells of all rows between the markers of `name`, without the heads of tables."""
    lines = part(page, name).splitlines()
    cells = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    following = [*cells[1:], ""]
    return [
        cell
        for cell, next_cell in zip(cells, following, strict=True)
        if "---" not in (cell, next_cell)
    ]


def worse(peers: Sequence[type[Peer]], results: Results) -> list[str]:
    """The scenarios in which the first library has a bad outcome."""
    return [title for title, row in results.items() if row[0].good is not True]
