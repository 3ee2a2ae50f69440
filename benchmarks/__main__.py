"""Measure, record, and make tables and pictures.

    python -m benchmarks                       what docs/benchmarks.md shows, then report
    python -m benchmarks contended             only this part, then report
    python -m benchmarks report                tables and pictures of what is recorded, no more
    python -m benchmarks contended --smoke     does it run at all? Prints, and records nothing
    python -m benchmarks quick                 the targets of the locks, in three minutes; prints
    python -m benchmarks recovery              the times in docs/promises.md, by tests of faults

Without hiredis, matplotlib or the other libraries (the dependency groups `peers` and `bench`), it
leaves out what needs them. The options make it shorter, or more exact.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from .harness import ROUNDS, Row, median, record, say

# Modules whose `measure` takes these of the options by name, and returns rows.
PARTS = {
    "uncontended": ["rounds", "cycles"],
    "contended": ["rounds", "seconds", "waiters"],
    "kinds": ["rounds", "cycles"],
    "pairs": ["rounds", "seconds"],
    "inspection": ["rounds"],
    "server": ["rounds"],
    "leases": ["rounds"],
    "latency": ["rounds"],
    "fleet": ["rounds", "seconds"],
    "startup": ["rounds"],
    "periodic": [],
}
SHOWN = [part for part in PARTS if part != "periodic"]
"""Those that the docs have tables of."""
SMOKE = {
    "uncontended": {"rounds": 1, "cycles": 20},
    "contended": {"rounds": 1, "seconds": 0.2, "waiters": [2]},
    "kinds": {"rounds": 1, "cycles": 20},
    "pairs": {"rounds": 1, "seconds": 0.1, "processes": 3},
    "inspection": {"rounds": 1, "locks": 100, "others": 1000, "pages": [100, 200]},
    "server": {"rounds": 1, "cycles": 50},
    "leases": {"rounds": 1, "leases": 20, "ttls": [3], "waiting": [5], "pile": 100},
    "latency": {"rounds": 1, "cycles": 3, "delays": [0.2]},
    "fleet": {"rounds": 1, "seconds": 0.1, "processes": [2]},
    "startup": {"rounds": 1},
    "periodic": {"seconds": 2.0, "every": 1.0},
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; report; quick; recovery")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--cycles", type=int, default=500, help="of a free lock, in each turn")
    parser.add_argument("--seconds", type=float, default=0.35, help="of a turn of few who wait")
    parser.add_argument("--waiters", type=int, nargs="+", default=[2, 8, 32, 128])
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args(arguments)
    if given.parts == ["recovery"]:
        from . import recovery

        recovery.write()
        return
    if given.parts == ["quick"]:
        from . import quick

        quick.show()
        return
    unknown = set(given.parts) - {*PARTS, "report"}
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    for part in given.parts or SHOWN:
        if part != "report":
            options = {name: getattr(given, name) for name in PARTS[part]}
            run(part, SMOKE[part] if given.smoke else options, keep=not given.smoke)
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
    for row in rows if part not in SHOWN or not keep else []:
        figures = {name: float(f"{median(row, name):.4g}") for name in row["values"]}
        print(row["case"], row["contestant"], figures)


if __name__ == "__main__":
    main()
