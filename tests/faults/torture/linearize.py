"""Whether a history could be that of a plain lease, by trying the orders in which it could be.

A plain lease has places: a mutex has one. Taking it succeeds when as many places are free as the
taker wants, and is refused when there are fewer. Giving it back succeeds for its holder. It
becomes free by itself at some time after the holder's own deadline, and not before; and at the
latest a ttl after the last moment at which somebody could renew it. Each operation takes effect in
one moment between its call and its answer; if there are such moments for all of them, the history
is linearizable.

The search is Wing and Gong's (1993) in the form of Gavin Lowe's "just in time" (2017): walk along
the calls and answers and keep the set of all states in which the lease may be. Only when an answer
comes does its operation have to have taken effect, perhaps after others that are under way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from .history import Attempt, Terms, excused

CALL, EXPIRABLE, ANSWER, GONE = range(4)
"""In this order at the same time, since an answer may be due to any of the others."""

Holders = frozenset[Attempt]


@dataclass(eq=False)
class _Operation:
    attempt: Attempt
    kind: str
    """"take", "refused", "released" or "lost"."""


class State(NamedTuple):
    """The lease as it may be: who holds it, and what has taken effect of what is under way."""

    holders: Holders
    done: frozenset[_Operation]


def violations(attempts: Iterable[Attempt], terms: Terms) -> list[str]:
    """What no order explains; empty: the history is linearizable."""
    return _Search(terms.places).run(_events(list(attempts), terms))


Event = tuple[float, int, "_Operation | Attempt"]


def _events(attempts: list[Attempt], terms: Terms) -> list[Event]:
    events: list[Event] = []

    def operate(operation: _Operation, called: float, answered: float) -> None:
        events.append((called, CALL, operation))
        events.append((answered, ANSWER, operation))

    without_reason = excused(attempts, terms)
    for attempt in attempts:
        if attempt.answered is None:
            continue  # at most, it was held for nobody
        if attempt.outcome == "refused" and attempt not in without_reason:
            operate(_Operation(attempt, "refused"), attempt.asked, attempt.answered)
        if not attempt.granted:
            continue
        operate(_Operation(attempt, "take"), attempt.asked, attempt.answered)
        if attempt.release in ("released", "lost"):
            assert attempt.given is not None
            assert attempt.returned is not None
            operate(_Operation(attempt, attempt.release), attempt.given, attempt.returned)
            expirable = attempt.ends
        else:
            expirable = attempt.over_from
            gone = max(attempt.over_by(terms), attempt.answered)
            if gone < math.inf:
                events.append((gone, GONE, attempt))
        if expirable < math.inf:
            events.append((expirable, EXPIRABLE, attempt))
    return sorted(events, key=lambda event: event[:2])


class _Search:
    def __init__(self, places: int) -> None:
        self._places = places
        self._pending: list[_Operation] = []
        self._expirable: set[Attempt] = set()

    def run(self, events: list[Event]) -> list[str]:
        found: list[str] = []
        states = {State(frozenset(), frozenset())}
        for at, kind, what in events:
            if isinstance(what, Attempt):
                if kind == EXPIRABLE:
                    self._expirable.add(what)
                else:
                    states = {State(state.holders - {what}, state.done) for state in states}
                continue
            if kind == CALL:
                self._pending.append(what)
                continue
            reached = self._reach(states, what)
            self._pending.remove(what)
            if not reached:
                found.append(f"{_DONE[what.kind]} at {at:.6f}: {what.attempt}; {_but(states)}")
                # Go on as if its lease were over, so that one mistake counts once.
                reached = {State(its.holders - {what.attempt}, its.done) for its in states}
            states = {State(state.holders, state.done - {what}) for state in reached}
        return found

    def _reach(self, states: set[State], wanted: _Operation) -> set[State]:
        """The states in which `wanted` has taken effect, after whatever else may have."""
        reached = set()
        seen = set(states)
        todo = list(states)
        while todo:
            state = todo.pop()
            if wanted in state.done:
                reached.add(state)
                continue
            for operation in self._pending:
                if operation in state.done:
                    continue
                for holders in self._effects(operation, state.holders):
                    following = State(holders, state.done | {operation})
                    if following not in seen:
                        seen.add(following)
                        todo.append(following)
        return reached

    def _effects(self, operation: _Operation, holders: Holders) -> Iterator[Holders]:
        """Who may hold the lease after `operation` took effect; nothing: it can't, right now."""
        me = operation.attempt
        if operation.kind == "take":
            yield from (left | {me} for left in self._with_room(holders, me.places))
        elif operation.kind == "refused":
            if _taken(holders) + me.places > self._places:
                yield holders
        elif operation.kind == "released" or me in self._expirable or me not in holders:
            yield holders - {me}  # if it is not there, its time was over

    def _with_room(self, holders: Holders, places: int) -> Iterator[Holders]:
        """The holders that may be left, as few gone as make room. Those that may have expired
        count as long as they are in nobody's way, since they may be the reason of a refusal."""
        expired = [holder for holder in holders if holder in self._expirable]
        for number in range(len(expired) + 1):
            rooms = [
                left
                for gone in combinations(expired, number)
                if _taken(left := holders.difference(gone)) + places <= self._places
            ]
            if rooms:
                yield from rooms
                return


def _taken(holders: Collection[Attempt]) -> int:
    return sum(holder.places for holder in holders)


_DONE = {
    "take": "was granted",
    "refused": "was refused, though nobody held it or waited for it",
    "lost": "was told that it had lost what it held",
}


def _but(states: set[State]) -> str:
    holders = {str(holder) for state in states for holder in state.holders}
    return "it was held by " + " or ".join(sorted(holders)) if holders else "it was free"
