"""Runs what a promise is about, and lets both judges decide whether it was kept."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing import get_context

from tests.faults.torture.arena import Plan, judge, torture
from tests.faults.torture.checker import Problem
from tests.faults.torture.history import History
from tests.peers.forkserver import CONTEXT

from . import solver
from .deeds import RULES
from .nemeses import Promise

FAULTS = {
    "kill": "kills",
    "stop": "stops",
    "lose": "lost replies",
    "restart": "restarts",
    "pause": "server stops",
    "empty": "empty restarts",
    "old_file": "old files",
    "clock_forward": "clocks set forward",
    "clock_back": "clocks set back",
    "failover": "failovers",
    "promotion": "failovers in a cluster",
    "move": "slot moves",
    "slow": "slow members",
    "slow_majority": "slow majorities",
}
"""What the nemeses do, by its name in the journal."""
LONGEST = 6.0
"""Seconds of one run: more runs have more beginnings, and short histories are judged sooner."""
SHORTEST = 4.0
AROUND = 2.5
"""Seconds that a run takes besides: for the server, and until the last leases have ended."""
SECTION = (0.002, 0.012)
"""Seconds that most sections last. Others last for several leases."""
GENTLY = 5
"""Tries come so many times as often as turns in a queue, so each of them is struck less often."""


@dataclass(frozen=True)
class Verdict:
    """What the judges say of one history."""

    checker: tuple[Problem, ...]
    solver: str
    """"fits", "refused" or "undecided"."""

    @property
    def refused_by(self) -> list[str]:
        names = {"checker": bool(self.checker), "z3": self.solver == "refused"}
        return [name for name, refused in names.items() if refused]


@dataclass(frozen=True)
class Run:
    """One recorded history, and what was said of it."""

    promise: Promise
    plan: Plan
    history: History
    verdict: Verdict

    @property
    def operations(self) -> int:
        """Calls of acquire and release."""
        return sum(1 + (one.given is not None) for one in self.history.attempts)

    @property
    def faults(self) -> int:
        return sum(self.history.counts.get(fault, 0) for fault in FAULTS)

    @property
    def violations(self) -> list[str]:
        """What should not be."""
        rules = self.promise.breaks
        found = [
            f"{one.rule}: {one.what}" for one in self.verdict.checker if one.rule not in rules
        ]
        if self.verdict.solver != "fits" and "linearizable" not in rules:
            found.append(f"z3: {self.verdict.solver}")
        return found

    @property
    def counted(self) -> int:
        """How often a rule was broken that is not promised."""
        return sum(one.rule in self.promise.breaks for one in self.verdict.checker)


def plan_of(promise: Promise, *, seconds: float, seed: int, tries: bool) -> Plan:
    """Return the plan of a run. With `tries`, nobody waits, so each refusal needs a holder."""
    plan = Plan(peer=promise.kind, seconds=seconds, seed=seed, section=SECTION)
    plan = replace(plan, doubles="exclusive" in promise.breaks)
    plan = replace(plan, **{"kills": 0.0, "stops": 0.0, **promise.nemesis.harm})
    if not tries:
        return plan
    return replace(plan, waits=(0, 1, 0), kills=plan.kills / GENTLY, stops=plan.stops / GENTLY)


def verdict(plan: Plan, history: History) -> Verdict:
    """Let both judges decide. z3 knows nothing of what is done under a lock."""
    rules = RULES.get(plan.peer)
    if rules is not None:
        return Verdict(tuple(rules(history, plan.terms)), "fits")
    said = solver.judge(history.attempts, plan.terms)
    return Verdict(tuple(judge(plan, history).problems), said)


def _cost(promise: Promise, seconds: float = SHORTEST) -> float:
    """Seconds that a run of this promise takes."""
    return max(seconds, promise.nemesis.seconds) + AROUND + promise.nemesis.harm.get("lease", 0.0)


def drawn(promises: Sequence[Promise], seconds: float, seed: int, jobs: int) -> list[Promise]:
    """Return as many as there is time for, drawn by lot; at least those in whose histories faults
    can be planted."""
    left = seconds * jobs
    chosen = set()
    dice = random.Random(seed)
    for promise in sorted(promises, key=lambda one: (one.nemesis.lossy, dice.random())):
        if not promise.nemesis.lossy or left >= _cost(promise):
            chosen.add(promise)
            left -= _cost(promise)
    return [promise for promise in promises if promise in chosen]


def record(promises: Sequence[Promise], seconds: float, seed: int, jobs: int) -> Iterator[Run]:
    """Go through all promises, at least once, and again until the time is up."""
    until = time.monotonic() + seconds
    spare = seconds * jobs - sum(map(_cost, promises))
    each = min(LONGEST, SHORTEST + max(0.0, spare) / len(promises))
    under_way: deque[tuple[Promise, Plan, Future[History]]] = deque()
    # Most of the time is spent asleep, in leases, so there is room for two at a time.
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_warm_up) as pool:
        for turn, number, promise in (
            (turn, number, promise) for turn in count() for number, promise in enumerate(promises)
        ):
            if turn and time.monotonic() + _cost(promise, each) > until:
                break
            # In every other run nobody waits. Then nobody can be refused because of a waiter.
            tries = (number + turn) % 2 == 1
            long = max(each, promise.nemesis.seconds)
            plan = plan_of(promise, seconds=long, seed=seed + turn, tries=tries)
            under_way.append((promise, plan, pool.submit(torture, plan)))
            if len(under_way) > jobs:
                yield _judged(*under_way.popleft())
        while under_way:
            yield _judged(*under_way.popleft())


def _judged(promise: Promise, plan: Plan, history: Future[History]) -> Run:
    return Run(promise, plan, history.result(), verdict(plan, history.result()))


def _warm_up() -> None:
    """Start a process: the first one waits until all is imported."""
    process = CONTEXT.Process(target=time.time)
    process.start()
    process.join()
