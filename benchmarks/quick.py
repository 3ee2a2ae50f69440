"""The targets of the locks, measured in three minutes, beside those that are published.

`python -m benchmarks quick` prints them and records nothing. A round is short and there are few of
them, so a figure that differs by a tenth says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from . import contended, kinds, targets
from .harness import Row, recorded, say
from .tables import Record
from .targets import Seen

PARTS: dict[str, tuple[Callable[[], list[Row]], Callable[[Record], Iterator[Seen]]]] = {
    "kinds": (lambda: kinds.measure(rounds=3, cycles=150), targets.kinds),
    "contended": (lambda: contended.quick(rounds=3, seconds=0.35), targets.crowded),
}


def show() -> None:
    """Measure, and print a line for each target."""
    lines = [("target", "wanted", "here", "published")]
    for part, (measure, seen) in PARTS.items():
        record: dict[str, Any] = {"rows": measure()}
        published = recorded(part) or {"rows": []}
        before = {(its.what, its.where): its.measured for its in seen(published)}
        for its in seen(record):
            wanted = f"{'≤' if its.bound >= 0 else '≥'} {abs(its.bound):g}"
            was = before.get((its.what, its.where))
            what = f"{its.what}, {its.where}" if its.where else its.what
            lines.append((what, wanted, f"{its.measured:.2f}", f"{was:.2f}" if was else ""))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    say("Published figures are of another machine: compare those that are ratios.")
