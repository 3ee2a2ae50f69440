"""Measure, record, and make tables and plots.

    python -m benchmarks                       all parts of the record, then report
    python -m benchmarks uncontended contended only these, then report
    python -m benchmarks report                tables and plots from what is recorded, no measuring
    python -m benchmarks uncontended --smoke   does it run at all? Prints; records nothing

`--rounds`, `--cycles` and `--seconds` make it shorter or more exact.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from .harness import ROUNDS, Row, median, record, say

# Each is a module whose `measure` takes some of the options by name, and returns rows.
PARTS = {
    "uncontended": ["rounds", "cycles"],
    "contended": ["rounds", "seconds", "waiters"],
}
SMOKE = {"rounds": 1, "cycles": 20, "seconds": 0.2, "waiters": [2]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; or report")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--cycles", type=int, default=1000, help="of a free lock, in each turn")
    parser.add_argument("--seconds", type=float, default=0.4, help="of a turn of 8 who wait")
    parser.add_argument("--waiters", type=int, nargs="+", default=[2, 8, 32, 128])
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args(arguments)
    unknown = set(given.parts) - {*PARTS, "report"}
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    options = {**vars(given), **(SMOKE if given.smoke else {})}
    for part in given.parts or PARTS:
        if part != "report":
            run(part, {name: options[name] for name in PARTS[part]}, keep=not given.smoke)
    if not given.smoke:
        from . import report

        report.write()


def run(part: str, options: dict[str, Any], *, keep: bool) -> None:
    measure: Callable[..., list[Row]] = import_module(f"benchmarks.{part}").measure
    begun = time.monotonic()
    rows = measure(**options)
    say(f"{part}: {time.monotonic() - begun:.0f} s")
    if keep:
        record(part, rows, **options)
    else:
        for row in rows:
            figures = {name: float(f"{median(row, name):.4g}") for name in row["values"]}
            print(row["case"], row["contestant"], figures)


if __name__ == "__main__":
    main()
