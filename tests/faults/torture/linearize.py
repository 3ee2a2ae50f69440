"""Whether a history could be that of a plain lease, by trying the orders in which it could be.

A plain lease is free, or held by one attempt. Taking it succeeds when it is free, and is refused
when it is not. Giving it back succeeds for its holder. It becomes free by itself at some time
after the holder's own deadline, and not before. Each operation takes effect in one moment between
its call and its answer; if there are such moments for all of them, the history is linearizable.

The search is Wing and Gong's (1993) in the form of Gavin Lowe's "just in time" (2017): walk along
the calls and answers and keep the set of all states in which the lease may be. Only when an answer
comes does its operation have to have taken effect, perhaps after others that are under way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .history import Attempt

CALL, EXPIRABLE, ANSWER = range(3)
"""In this order at the same time, since an answer may be due to either of the others."""


@dataclass(eq=False)
class _Operation:
    attempt: Attempt
    kind: str
    """"take", "refused", "released" or "lost"."""
    doubtful: bool = False
    """A refusal for which somebody may be the reason of whom we know nothing."""


class State(NamedTuple):
    """The lease as it may be: who holds it, and what has taken effect of what is under way."""

    holder: Attempt | None
    done: frozenset[_Operation]


def violations(attempts: Iterable[Attempt], *, orphan: float) -> list[str]:
    """What no order explains; empty: the history is linearizable.

    `orphan` is for how long after a failed or killed attempt the lease may be held for it: its
    ttl, and what it takes to hand the lease on.
    """
    attempts = list(attempts)
    return _search(_events(attempts, orphan))


Event = tuple[float, int, "_Operation | Attempt"]


def _events(attempts: list[Attempt], orphan: float) -> list[Event]:
    events: list[Event] = []

    def operate(operation: _Operation, called: float, answered: float) -> None:
        events.append((called, CALL, operation))
        events.append((answered, ANSWER, operation))

    unknown = [
        (attempt.asked, (attempt.answered or attempt.killed or attempt.asked) + orphan)
        for attempt in attempts
        if attempt.outcome in ("", "failed")
    ]
    for attempt in attempts:
        if attempt.answered is None:
            continue  # at most, it was held for nobody
        if attempt.outcome == "refused":
            refusal = _Operation(attempt, "refused")
            refusal.doubtful = any(
                begin <= attempt.answered and attempt.asked <= end for begin, end in unknown
            )
            operate(refusal, attempt.asked, attempt.answered)
        if not attempt.granted:
            continue
        operate(_Operation(attempt, "take"), attempt.asked, attempt.answered)
        expirable = attempt.ends
        if attempt.given is None:
            expirable = attempt.valid_until
        elif attempt.returned is None or attempt.release == "unsure":
            expirable = min(expirable, attempt.given)  # nobody knows whether it was released
        else:
            operate(_Operation(attempt, attempt.release), attempt.given, attempt.returned)
        if expirable < math.inf:
            events.append((expirable, EXPIRABLE, attempt))
    return sorted(events, key=lambda event: event[:2])


def _search(events: list[Event]) -> list[str]:
    found: list[str] = []
    pending: list[_Operation] = []
    expirable: set[Attempt] = set()
    states = {State(None, frozenset())}
    for at, kind, what in events:
        if isinstance(what, Attempt):
            expirable.add(what)
            continue
        if kind == CALL:
            pending.append(what)
            continue
        reached = _reach(states, what, pending, expirable)
        pending.remove(what)
        if not reached:
            found.append(f"{_DONE[what.kind]} at {at:.6f}: {what.attempt}; {_but(states)}")
            reached = states  # go on as if it had not been said
        states = {State(state.holder, state.done - {what}) for state in reached}
    return found


_DONE = {
    "take": "was granted",
    "refused": "was refused, though nobody held it or waited for it",
    "lost": "was told that it had lost what it held",
}


def _but(states: set[State]) -> str:
    holders = {str(state.holder) for state in states if state.holder is not None}
    return "it was held by " + " or ".join(sorted(holders)) if holders else "it was free"


def _reach(
    states: set[State], wanted: _Operation, pending: list[_Operation], expirable: set[Attempt]
) -> set[State]:
    """The states in which `wanted` has taken effect, after whatever else may have."""
    reached = set()
    seen = set(states)
    todo = list(states)
    while todo:
        state = todo.pop()
        if wanted in state.done:
            reached.add(state)
            continue
        for operation in pending:
            if operation in state.done:
                continue
            for holder in _effects(operation, state.holder, pending, expirable):
                following = State(holder, state.done | {operation})
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
    return reached


def _effects(
    operation: _Operation,
    holder: Attempt | None,
    pending: list[_Operation],
    expirable: set[Attempt],
) -> list[Attempt | None]:
    """Who may hold the lease after `operation` took effect; empty: it can't, right now."""
    me = operation.attempt
    free = holder is None or holder in expirable
    if operation.kind == "take":
        return [me] if free else []
    if operation.kind == "refused":
        # A lock that is promised to a waiter is refused to others, too.
        promised = any(other.kind == "take" and other.attempt is not me for other in pending)
        return [holder] if holder is not None or promised or operation.doubtful else []
    if operation.kind == "released":
        return [None if holder is me else holder]  # else its time was over
    if me in expirable:
        return [None if holder is me else holder]
    return [] if holder is me else [holder]
