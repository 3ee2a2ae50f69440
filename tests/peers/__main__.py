"""Play all scenarios for each library, and print the table: `python -m tests.peers`.

It takes some minutes. With --write the table goes into docs/peers.md. Ends with 1 when ours has
an outcome that is not good.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from devtools import pages
from devtools.redis_server import find_server

from . import report
from .adapters import PEERS
from .scenarios import SCENARIOS, Outcome, play


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("--only", default="", help="scenarios whose title contains this")
    parser.add_argument("--peers", nargs="*", choices=[peer.title for peer in PEERS])
    parser.add_argument("--write", action="store_true", help="put the table into docs/peers.md")
    given = parser.parse_args(arguments)
    if given.write and (given.only or given.peers):
        parser.error("--write needs all scenarios and libraries")
    peers = [peer for peer in PEERS if not given.peers or peer.title in given.peers]
    results: dict[str, list[Outcome]] = {}
    for title in SCENARIOS:
        if given.only in title:
            sys.stderr.write(f"{title}\n")
            results[title] = [play(peer, title) for peer in peers]
    text = "\n\n".join(
        [
            f"Measured on {find_server().description}, with leases of 2 s.",
            report.uses(peers),
            report.outcomes(peers, results),
        ]
    )
    if given.write:
        page = report.PAGE.read_text(encoding="utf-8")
        report.PAGE.write_text(pages.replace(page, "scenarios", text), encoding="utf-8")
    else:
        sys.stdout.write(text + "\n")
    return int(bool(report.worse(peers, results)))


if __name__ == "__main__":
    sys.exit(main())
