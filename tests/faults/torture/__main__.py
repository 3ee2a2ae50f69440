"""Torture a lock and say what came of it: `python -m tests.faults.torture --seconds 30 --lost 3`.

Ends with 1 when a rule is broken by a lock that is meant to keep it: ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from devtools import pages
from tests.peers import report
from tests.peers.adapters import PEERS, Ours

from .arena import Plan, judge, torture
from .checker import Verdict
from .history import History

COLUMNS = (
    "",
    "replies lost",
    "granted",
    "killed",
    "stopped",
    "stale writes",
    "let through",
    "valid at once",
    "longest wait",
    "passed over",
    "rules broken",
)


def row(plan: Plan, history: History, verdict: Verdict) -> list[str]:
    broken = sorted({problem.rule for problem in verdict.problems})
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
        ", ".join(broken) or "none",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    names = {peer.title: peer for peer in PEERS}
    parser = argparse.ArgumentParser(prog="python -m tests.faults.torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--lease", type=float, default=0.2, help="seconds")
    parser.add_argument("--kills", type=float, default=5, help="per cent of the rounds")
    parser.add_argument("--stops", type=float, default=5, help="per cent of the rounds")
    parser.add_argument("--lost", type=float, nargs="*", default=[0], help="per cent of replies")
    parser.add_argument("--peers", nargs="*", choices=names, default=[Ours.title])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="put the table into docs/peers.md")
    given = parser.parse_args(arguments)
    rows: list[Sequence[str]] = [COLUMNS]
    ours_broken = False
    for peer in given.peers or names:
        for lost in given.lost:
            plan = Plan(
                peer=names[peer],
                processes=given.processes,
                seconds=given.seconds,
                lease=given.lease,
                kills=given.kills / 100,
                stops=given.stops / 100,
                lost=lost / 100,
                seed=given.seed,
            )
            history = torture(plan)
            verdict = judge(plan, history)
            rows.append(row(plan, history, verdict))
            sys.stderr.write(f"{peer}, {lost:g} % of replies lost: {rows[-1][-1]}\n")
            if names[peer] is Ours:
                ours_broken |= bool(verdict.problems)
                for problem in verdict.problems:
                    sys.stderr.write(f"  {problem.rule}: {problem.what}\n")
    text = pages.table(rows)
    if given.write:
        page = report.PAGE.read_text(encoding="utf-8")
        report.PAGE.write_text(pages.replace(page, "torture", text), encoding="utf-8")
    else:
        sys.stdout.write(text + "\n")
    return int(ours_broken)


if __name__ == "__main__":
    sys.exit(main())
