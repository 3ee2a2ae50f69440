"""The second judge: z3 is asked for moments at which the server could have answered as it did.

It gets numbers and rules, and shares no search with the first judge (tests/faults/torture). For
each lease there is a moment g at which it was granted and a moment e at which it ended; for each
refusal a moment t:

    asked <= g <= answered                 the grant lies between the request and its answer
    over_from <= e <= over_by, g <= e      the lease did not end earlier, or later, than it may
    g < g'                                 for each lease and the one with the next fencing token
    e <= g'                                for each lease and a later one that it excludes; without
                                           tokens, either of both may be the later one
    never more places taken than there are, at each g
    asked <= t <= answered, and at t       for each refusal: too few places were free

If z3 finds no such moments ("unsat"), nothing that keeps the rules can have given these answers.
"""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import z3

from tests.faults.torture.history import Attempt, Terms, excused

SECONDS = 60
"""So long z3 may think about one history."""


def judge(attempts: list[Attempt], terms: Terms) -> str:
    """Return "fits", "refused", or "undecided" if z3 finds no answer in time."""
    solver = z3.Solver()
    solver.set("timeout", SECONDS * 1000)
    leases = [_Lease(solver, attempt, terms) for attempt in attempts if attempt.granted]
    if all(lease.token is not None for lease in leases):
        _in_order_of_tokens(solver, leases, terms.places)
    else:
        _in_any_order(solver, leases)
    free_of_blame = excused(attempts, terms)
    for attempt in attempts:
        if attempt.outcome == "refused" and attempt not in free_of_blame:
            _refusal(solver, attempt, leases, terms.places)
    return {"sat": "fits", "unsat": "refused"}.get(str(solver.check()), "undecided")


def _in_order_of_tokens(solver: z3.Solver, leases: list[_Lease], places: int) -> None:
    leases.sort(key=lambda lease: lease.token or 0)
    for lease, following in pairwise(leases):
        solver.add(lease.token != following.token, lease.granted < following.granted)
    for number, lease in enumerate(leases):
        # Grants are in order, so the next one that is excluded stands for all.
        later = leases[number + 1 :]
        excluded = (other for other in later if lease.places + other.places > places)
        if (first := next(excluded, None)) is not None:
            solver.add(lease.ended <= first.granted)
        before = [
            (other.ended > lease.granted, other.places)
            for other in leases[:number]
            if other.may_last_until >= lease.earliest and other.places + lease.places <= places
        ]
        if sum(taken for _, taken in before) + lease.places > places:
            solver.add(z3.PbLe(before, places - lease.places))


def _in_any_order(solver: z3.Solver, leases: list[_Lease]) -> None:
    """Of a lock that only one can have."""
    for lease, other in combinations(leases, 2):
        solver.add(z3.Or(lease.ended <= other.granted, other.ended <= lease.granted))


class _Lease:
    def __init__(self, solver: z3.Solver, attempt: Attempt, terms: Terms) -> None:
        assert attempt.answered is not None
        self.token, self.places = attempt.token, attempt.places
        self.granted, self.ended = z3.FreshInt("g"), z3.FreshInt("e")
        self.earliest = _floor(attempt.asked)
        solver.add(self.earliest <= self.granted, self.granted <= _ceil(attempt.answered))
        solver.add(self.granted <= self.ended)
        if attempt.over_from < math.inf:  # else its library tells no deadline
            solver.add(self.ended >= _floor(attempt.over_from))
        self.may_last_until = attempt.over_by(terms)
        if self.may_last_until < math.inf:
            self.may_last_until = _ceil(self.may_last_until)
            solver.add(self.ended <= self.may_last_until)


def _refusal(solver: z3.Solver, attempt: Attempt, leases: list[_Lease], places: int) -> None:
    assert attempt.answered is not None
    asked, answered = _floor(attempt.asked), _ceil(attempt.answered)
    moment = z3.FreshInt("t")
    solver.add(asked <= moment, moment <= answered)
    held = [
        (z3.And(lease.granted <= moment, moment <= lease.ended), lease.places)
        for lease in leases
        if lease.earliest <= answered and lease.may_last_until >= asked
    ]
    solver.add(z3.PbGe(held, places - attempt.places + 1) if held else z3.BoolVal(False))


def _floor(seconds: float) -> int:
    """In microseconds. What is rounded is rounded in favour of the lock."""
    return math.floor(seconds * 1e6)


def _ceil(seconds: float) -> int:
    return math.ceil(seconds * 1e6)
