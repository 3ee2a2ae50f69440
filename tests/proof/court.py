"""Runs what a promise is about, and lets both judges decide whether it was kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.faults.torture.arena import CLAIM_WINDOW, Plan, judge
from tests.faults.torture.checker import Problem
from tests.faults.torture.history import History

from . import solver
from .nemeses import Promise

FAULTS = ("kill", "stop", "lose", "restart")
"""What the nemeses write down, by the names in the journal."""
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
        if self.verdict.solver != "fits" and not rules:
            found.append(f"z3: {self.verdict.solver}")
        return found

    @property
    def counted(self) -> int:
        """How often a rule was broken that is not promised."""
        return sum(one.rule in self.promise.breaks for one in self.verdict.checker)


def plan_of(promise: Promise, *, seconds: float, seed: int, tries: bool) -> Plan:
    """Return the plan of a run. With `tries`, nobody waits, so each refusal needs a holder."""
    plan = Plan(peer=promise.kind, seconds=seconds, seed=seed, section=SECTION)
    plan = replace(plan, **{"kills": 0.0, "stops": 0.0, **promise.nemesis.harm})
    if not tries:
        return plan
    return replace(plan, waits=(0, 1, 0), kills=plan.kills / GENTLY, stops=plan.stops / GENTLY)


def verdict(plan: Plan, history: History) -> Verdict:
    """Let both judges decide."""
    said = solver.judge(
        history.attempts,
        places=plan.peer.places,
        orphan=plan.ttl + CLAIM_WINDOW,
        lossy=plan.lossy,
    )
    return Verdict(tuple(judge(plan, history).problems), said)
