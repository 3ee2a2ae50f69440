"""The one page that a proof prints."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version

from devtools import pages
from devtools.redis_server import find_server

from .court import FAULTS, Run
from .nemeses import NOT_RUN, PROMISES, Promise
from .planted import Planted


def name(promise: Promise) -> str:
    return f"{promise.kind.title} / {promise.nemesis.name}"


def promises() -> str:
    """Return the table of what is promised, which is written before anything runs."""
    kinds = dict.fromkeys(promise.kind for promise in PROMISES)
    rows = [["nemesis", "what it does", *(kind.title for kind in kinds)]]
    for nemesis in dict.fromkeys(promise.nemesis for promise in PROMISES):
        its = {one.kind: one.why or "no violation" for one in PROMISES if one.nemesis is nemesis}
        row = (its.get(kind) or NOT_RUN.get((nemesis, kind), "not run") for kind in kinds)
        rows.append([nemesis.name, nemesis.does, *row])
    return pages.table(rows)


def outcomes(runs: Sequence[Run]) -> str:
    """Return a row for each promise."""
    rows = [["lock", "nemesis", "runs", "operations", "faults", "violations", "promised to break"]]
    for promise in dict.fromkeys(run.promise for run in runs):
        its = [run for run in runs if run.promise is promise]
        counted = sum(run.counted for run in its)
        rows.append(
            [
                promise.kind.title,
                promise.nemesis.name,
                str(len(its)),
                f"{sum(run.operations for run in its):,}",
                f"{sum(run.faults for run in its):,}",
                str(sum(len(run.violations) for run in its)),
                f"{counted} times: {promise.why}" if promise.breaks else "nothing",
            ]
        )
    return pages.table(rows)


def peers(runs: Sequence[Run]) -> str:
    """Return what each library broke under each nemesis, and how often."""
    nemeses = dict.fromkeys(run.promise.nemesis for run in runs)
    rows = [["library", *(nemesis.name for nemesis in nemeses)]]
    for kind in dict.fromkeys(run.promise.kind for run in runs):
        row = [f"{kind.distribution} {kind.version()}"]
        for nemesis in nemeses:
            its = [
                run for run in runs if (run.promise.kind, run.promise.nemesis) == (kind, nemesis)
            ]
            broken = Counter(what.partition(":")[0] for run in its for what in run.violations)
            said = ", ".join(f"{rule} {times}" for rule, times in sorted(broken.items()))
            row.append(f"{sum(run.operations for run in its):,} operations: {said or 'none'}")
        rows.append(row)
    return pages.table(rows)


def refusals(planted: Sequence[Planted]) -> str:
    """Return a row for each planted fault."""
    rows = [["planted into a history", "histories of", "refused by the checker", "by z3"]]
    for fault in dict.fromkeys(one.fault for one in planted):
        its = [one for one in planted if one.fault == fault]
        kinds = dict.fromkeys(one.kind.title for one in its)
        judges = Counter(judge for one in its for judge in one.refused_by)
        counts = [f"{judges[judge]} of {len(its)}" for judge in ("checker", "z3")]
        rows.append([fault, ", ".join(kinds), *counts])
    return pages.table(rows)


def summary(runs: Sequence[Run], seed: int, seconds: float) -> str:
    """Return what was run, on what, and how much of it."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.history.counts)
    faults = ", ".join(f"{counts[what]:,} {words}" for what, words in FAULTS.items())
    violations = sum(len(run.violations) for run in runs)
    return (
        f"Seed {seed}, {seconds:.0f} s, {len({run.promise for run in runs})} of"
        f" {len(PROMISES)} promises, {len(runs)} histories,"
        f" {sum(run.operations for run in runs):,} operations, {faults}: "
        f"**{violations} violations**.\n"
        f"{find_server().description.partition(' at ')[0]}, Python {platform.python_version()},"
        f" redis-py {version('redis')}, z3 {version('z3-solver')}."
    )


def page(runs: Sequence[Run], planted: Sequence[Planted], seed: int, seconds: float) -> str:
    """Return all of it, as Markdown."""
    return "\n\n".join([summary(runs, seed, seconds), outcomes(runs), refusals(planted)])
