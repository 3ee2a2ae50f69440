"""Play all scenarios for each library, torture each, and print tables: `python -m tests.peers`.

It takes a quarter of an hour. With --write the tables go into docs/peers.md. Ends with 1 when ours
has an outcome that is not good, or breaks a rule.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from devtools import pages
from devtools.redis_server import find_server
from tests.faults.torture.arena import Plan, judge, torture

from . import report
from .adapters import PEERS, Ours, Peer
from .scenarios import SCENARIOS, Outcome, play

LOST = (0.0, 0.03, 0.1)
"""The shares of replies that are lost, each for half a minute."""


def played(peers: Sequence[type[Peer]], only: str) -> tuple[str, bool]:
    """Return the tables of the scenarios, and whether ours came well out of them."""
    results: dict[str, list[Outcome]] = {}
    for title in SCENARIOS:
        if only in title:
            sys.stderr.write(f"{title}\n")
            results[title] = [play(peer, title) for peer in peers]
    measured = f"Measured on {find_server().description}, with leases of 2 s."
    text = "\n\n".join([measured, report.uses(peers), report.outcomes(peers, results)])
    return text, not report.worse(peers, results)


def tortured(peers: Sequence[type[Peer]]) -> tuple[str, bool]:
    """Return the table of the torture, and whether ours broke no rule."""
    rows, good = [report.TORTURE], True
    for plan in [Plan(peer=peer, lost=lost) for peer in peers for lost in LOST]:
        history = torture(plan)
        verdict = judge(plan, history)
        rows.append(report.tortured(plan, history, verdict))
        sys.stderr.write(f"{plan.peer.title}, {plan.lost:.0%} of replies lost: {rows[-1][-1]}\n")
        if plan.peer is Ours:
            good &= not verdict.problems
            sys.stderr.writelines(f"  {its.rule}: {its.what}\n" for its in verdict.problems)
    return pages.table(rows), good


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("--only", default="", help="scenarios whose title contains this")
    parser.add_argument("--peers", nargs="*", choices=[peer.title for peer in PEERS])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/peers.md")
    given = parser.parse_args(arguments)
    if given.write and (given.only or given.peers):
        parser.error("--write needs all scenarios and libraries")
    peers = [peer for peer in PEERS if not given.peers or peer.title in given.peers]
    tables = {"scenarios": played(peers, given.only)}
    if not given.only:
        tables["torture"] = tortured(peers)
    for name, (text, _) in tables.items():
        if given.write:
            page = report.PAGE.read_text(encoding="utf-8")
            report.PAGE.write_text(pages.replace(page, name, text), encoding="utf-8")
        else:
            sys.stdout.write(f"{text}\n\n")
    return int(not all(good for _, good in tables.values()))


if __name__ == "__main__":
    sys.exit(main())
