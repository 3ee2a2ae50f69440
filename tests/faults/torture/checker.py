"""The rules that a history has to keep, and what else there is to say of it. Pure functions.

    exclusive     no more leases were valid at the same time than the lock has places, as their
                  holders saw it
    linearizable  a plain lease could have given the same answers (linearize.py)
    tokens        fencing tokens strictly grow in order of grant
    fence         the register refused every stale write, and no other
    fair          without faults, and once all processes have had their first turn, the longest
                  wait, counted in turns, is at most three times the mean
    starved       nobody who lived and was awake was passed over again and again
    left          no key remains

A lease is valid from the moment at which the holder was told that it has it, until it begins to
release, or until its own deadline, whichever comes first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

from . import linearize
from .history import Attempt, History, Terms

LONGEST = 3.0
"""Of the mean wait, where nothing is killed, stopped or lost."""
TURNS = 5
"""So many turns each, at each place, may the others have with younger requests, before a waiter is
starved."""


class Problem(NamedTuple):
    rule: str
    what: str


@dataclass
class Verdict:
    problems: list[Problem] = field(default_factory=list)
    granted: int = 0
    mean_wait: float = 0.0
    longest_wait: float = 0.0
    passed_over: int = 0
    """The most turns that younger requests had while one waited awake."""
    stale: int = 0
    """Writes by a holder whose successor had written already."""
    stale_accepted: int = 0

    def of(self, rule: str) -> list[str]:
        return [problem.what for problem in self.problems if problem.rule == rule]


def check(history: History, terms: Terms, *, processes: int, fair: bool = False) -> Verdict:
    """Hold a history against all rules. Where there were no faults, waiting has to be `fair`."""
    verdict = Verdict()
    granted = sorted(
        (attempt for attempt in history.attempts if attempt.granted),
        key=lambda attempt: attempt.valid_from,
    )
    verdict.granted = len(granted)
    waits = [attempt.waited for attempt in granted if attempt.patient] or [0.0]
    verdict.mean_wait, verdict.longest_wait = mean(waits), max(waits)

    def find(rule: str, problems: Iterator[str] | list[str]) -> None:
        verdict.problems += [Problem(rule, what) for what in problems]

    find("exclusive", overlaps(granted, terms.places))
    find("linearizable", linearize.violations(history.attempts, terms))
    find("tokens", misordered(granted, terms))
    find("fence", fence(history, terms, verdict))
    find("fair", unfair(granted) if fair else [])
    find("starved", starved(history, granted, terms, processes, verdict))
    find("left", left(history))
    return verdict


def overlaps(granted: list[Attempt], places: int) -> Iterator[str]:
    """Leases that were valid at the same time. `granted` is in order of `valid_from`."""
    holders: list[Attempt] = []
    for attempt in granted:
        if not attempt.valid:
            continue
        holders = [other for other in holders if other.valid_until > attempt.valid_from]
        if sum(other.places for other in holders) + attempt.places > places:
            both = min(attempt.valid_until, *(other.valid_until for other in holders))
            others = ", ".join(map(str, holders))
            seconds = both - attempt.valid_from
            yield f"{attempt} and {others} were valid together for {seconds:.6f} s"
        holders.append(attempt)


def surely_after(attempt: Attempt, other: Attempt, terms: Terms) -> bool:
    """Whether `attempt` was granted after `other`, as far as the history can tell.

    Either it asked when the other one had its answer already. Or both were valid, and then one
    after the other: writers are alone. But an answer that came too late to be valid says little of
    the order.
    """
    assert other.answered is not None
    if attempt.asked > other.answered:
        return True
    both = attempt.valid and other.valid and not terms.doubles
    return both and attempt.valid_from > other.valid_from


def misordered(granted: list[Attempt], terms: Terms) -> Iterator[str]:
    """Tokens that do not grow in order of grant. `granted` is in order of `valid_from`."""
    fenced = [attempt for attempt in granted if attempt.token is not None]
    for before, after in pairwise(sorted(fenced, key=_token)):
        if before.token == after.token:
            yield f"{before} and {after} have the same token"
    # Among those that were valid one after the other, the order is that of the answers; among
    # all, a request that came after an answer has the larger token.
    for before, after in pairwise([attempt for attempt in fenced if attempt.valid]):
        alone = before.places + after.places > terms.places and not terms.doubles
        if alone and _token(after) < _token(before):
            yield f"{after} was granted after {before} with a smaller token"
    newest: Attempt | None = None
    answered = 0
    for attempt in sorted(fenced, key=lambda attempt: attempt.asked):
        while answered < len(fenced) and fenced[answered].valid_from < attempt.asked:
            if newest is None or _token(fenced[answered]) > _token(newest):
                newest = fenced[answered]
            answered += 1
        if newest is not None and _token(attempt) < _token(newest):
            yield f"{attempt} asked after {newest} was granted, and has a smaller token"


def _token(attempt: Attempt) -> int:
    assert attempt.token is not None
    return attempt.token


def fence(history: History, terms: Terms, verdict: Verdict) -> Iterator[str]:
    """Stale writes that were accepted, and others that were refused.

    A write is stale when somebody who was granted the lock later has written already.
    """
    wrote: list[Attempt] = []  # each once, in order of its first write
    latest_asked: Attempt | None = None
    latest_valid: Attempt | None = None
    for attempt, accepted in ((write.attempt, write.accepted) for write in history.writes):
        later = next(
            (
                other
                for other in (latest_asked, latest_valid)
                if other is not None and surely_after(other, attempt, terms)
            ),
            None,
        )
        if later is not None:
            verdict.stale += 1
            if accepted:
                verdict.stale_accepted += 1
                yield f"{attempt} wrote after {later} had, and was accepted"
        elif not accepted and all(surely_after(attempt, other, terms) for other in wrote):
            yield f"{attempt} was the newest to write, and was refused"
        if attempt not in wrote[-8:]:
            wrote.append(attempt)
        if latest_asked is None or attempt.asked > latest_asked.asked:
            latest_asked = attempt
        if attempt.valid and (
            latest_valid is None or attempt.valid_from > latest_valid.valid_from
        ):
            latest_valid = attempt


def unfair(granted: list[Attempt]) -> Iterator[str]:
    """Waits that are too long, in turns, which a busy machine does not make longer, once all
    processes have had their first turn.

    Until then they connect, and begin to listen for their wake-ups.
    """
    first: dict[str, float] = {}
    for attempt in granted:
        first.setdefault(attempt.who, attempt.valid_from)
    begin = max(first.values(), default=0.0)
    answers = [attempt.valid_from for attempt in granted]
    waits = [
        1 + bisect_left(answers, attempt.valid_from) - bisect_left(answers, attempt.asked)
        for attempt in granted
        if attempt.patient and attempt.asked >= begin
    ]
    if waits and max(waits) > LONGEST * mean(waits):
        yield f"the longest wait was {max(waits)} turns, and the mean {mean(waits):.3g}"


def starved(
    history: History, granted: list[Attempt], terms: Terms, processes: int, verdict: Verdict
) -> Iterator[str]:
    """Who waited in vain while the others took turns with younger requests.

    Nobody who was killed, and not for as long as it was stopped. Where replies get lost, it may
    have to ask again before it has its place in the queue.
    """
    turns = TURNS * (processes - 1) * min(terms.places, processes)
    answers = [attempt.valid_from for attempt in granted]
    for attempt in history.attempts:
        if not attempt.patient or attempt.killed is not None:
            continue
        until = history.ended if attempt.answered is None else attempt.answered
        rivals = granted[bisect_left(answers, attempt.asked) : bisect_left(answers, until)]
        queued = attempt.asked + (terms.orphan if terms.lossy else 0)
        passed = sum(
            rival.asked > queued and not _stopped(attempt, rival.valid_from) for rival in rivals
        )
        verdict.passed_over = max(verdict.passed_over, passed)
        if passed > turns:
            yield f"{attempt} was passed over {passed} times"
        elif attempt.answered is None:
            yield f"{attempt} never had an answer"


def _stopped(attempt: Attempt, at: float) -> bool:
    return any(begin <= at <= end for begin, end in attempt.stops)


def left(history: History) -> Iterator[str]:
    if history.left is None:
        yield "nobody looked for keys at the end"
    for key in history.left or ():
        yield f"the key {key!r} remains"
