"""The tables of docs/peers.md: made here, and found there again by a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from devtools.pages import part, table
from tests.faults.torture.arena import Plan
from tests.faults.torture.checker import Verdict
from tests.faults.torture.history import History

from .adapters import Peer
from .scenarios import Outcome

PAGE = Path(__file__).parent.parent.parent / "docs" / "peers.md"

MARKS = {True: "✓", False: "✗", None: "–"}

TORTURE = [
    *("", "replies lost", "granted", "killed", "stopped", "stale writes", "let through"),
    *("valid at once", "longest wait", "passed over", "rules broken"),
]

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


def tortured(plan: Plan, history: History, verdict: Verdict) -> list[str]:
    """The row of a torture."""
    return [
        plan.peer.title,
        f"{plan.lost:.0%}",
        str(verdict.granted),
        str(history.counts.get("kill", 0)),
        str(history.counts.get("stop", 0)),
        str(verdict.stale),
        str(verdict.stale_accepted),
        str(len(verdict.of("exclusive"))),
        f"{verdict.longest_wait:.2f} s, mean {verdict.mean_wait:.2f} s",
        f"{verdict.passed_over} times",
        ", ".join(sorted({problem.rule for problem in verdict.problems})) or "none",
    ]


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
