"""Record histories under all nemeses, judge them twice, and plant faults in them.

    python -m tests.proof                             ten minutes
    python -m tests.proof --seconds 120 --seed 7      a slice, with the dice of an earlier run
    python -m tests.proof --only mutex kill           what has all of these words in its name
    python -m tests.proof --export history.edn        writes the histories, too: .edn or .json
    python -m tests.proof --write                     puts the page into docs/proof.md
    python -m tests.proof --peers                     the mutexes of other libraries, and no more

Ends with 0 if nothing happened that was not promised and each fault was refused, and else with 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from devtools import pages
from tests.faults.torture.site import possible
from tests.peers.adapters import Ours

from . import export
from .court import Run, drawn, record
from .nemeses import PEERS, PROMISES
from .page import name, page, peers, promises
from .planted import ALL, plant

PAGE = Path(__file__).parents[2] / "docs" / "proof.md"
PLANTING = 0.85
"""The share of the time in which histories are recorded; the rest is for planted faults."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--jobs", type=int, default=2, help="histories at the same time")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--export", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--peers", action="store_true")
    given = parser.parse_args(arguments)
    if given.export and given.export.suffix not in (".edn", ".json"):
        parser.error(f"--export {given.export}: the name has to end with .edn or .json")
    promised = PEERS if given.peers else PROMISES
    chosen = [one for one in promised if all(word in name(one) for word in given.only)]
    if not chosen:
        parser.error(f"--only {' '.join(given.only)}: nothing has such a name")

    missing = sorted({its.kind.title for its in chosen if find_spec(its.kind.module) is None})
    if missing:
        parser.error(
            f"--peers: not installed: {', '.join(missing)}. Write: make prove ARGS=--peers"
        )

    for one in [one for one in chosen if not possible(one.nemesis.harm.get("outage", ""))]:
        sys.stderr.write(f"{name(one)}: not run, since there is no libfaketime\n")
        chosen.remove(one)
    recording = PLANTING * given.seconds
    chosen = drawn(chosen, recording, given.seed, given.jobs)
    began = time.monotonic()
    runs: list[Run] = []
    for run in record(chosen, recording, given.seed, given.jobs):
        runs.append(run)
        sys.stderr.write(f"{name(run.promise)}: {run.operations} operations\n")
    if given.peers:
        return _peers(runs, write=given.write)
    planted = [*plant(runs, given.seed)]
    text = page(runs, planted, given.seed, time.monotonic() - began)
    sys.stdout.write(f"{text}\n\n")
    if given.export:
        export.write_all(runs, given.export)
    if given.write:
        before = pages.replace(PAGE.read_text(encoding="utf-8"), "promises", promises())
        PAGE.write_text(pages.replace(before, "proof", text), encoding="utf-8")

    wrong = [f"{name(run.promise)}: {what}" for run in runs for what in run.violations]
    wrong += [
        f"{one.fault}, {one.kind.title}: not refused" for one in planted if not one.refused_by
    ]
    for promise in chosen:
        if not any(run.faults for run in runs if run.promise is promise):
            wrong.append(f"{name(promise)}: no fault was injected")
    if not given.only:
        nowhere = set(ALL) - {one.fault for one in planted}
        wrong += [f"{fault}: there was no place for it" for fault in sorted(nowhere)]
    sys.stdout.writelines(f"- {what}\n" for what in wrong)
    sys.stdout.write(
        f'NOT AS PROMISED. The same dice: make prove ARGS="--seed {given.seed}"\n'
        if wrong
        else "As promised, and each planted fault was refused.\n"
    )
    return int(bool(wrong))


def _peers(runs: Sequence[Run], *, write: bool) -> int:
    """Show what came of each library. Returns 1 if this one broke something."""
    text = peers(runs)
    sys.stdout.write(f"{text}\n")
    if write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(pages.replace(page, "peers", text), encoding="utf-8")
    return int(any(run.violations for run in runs if issubclass(run.promise.kind, Ours)))


if __name__ == "__main__":
    sys.exit(main())
