"""Faults that are written into recorded histories, to see whether the judges refuse them.

Each fault is a function that changes a history, and returns whether the history had a place for
it.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.faults.torture.history import Attempt, History, Write
from tests.peers.adapters import Peer

from .court import Run, verdict
from .deeds import Limited, Notes, Once, Ticks, Unique

Kind = type[Peer]
Fault = Callable[[History, random.Random, Kind], bool]

QUICK = 0.1
"""An answer that comes so soon comes in time."""
LONG = 5.0
"""Seconds after which nothing is left of a process that was killed: longer than any ttl here."""


class Planted(NamedTuple):
    """A fault in a history, and which judges have refused that."""

    fault: str
    kind: Kind
    refused_by: list[str]


def plant(runs: Sequence[Run], seed: int) -> Iterator[Planted]:
    """Plant each fault in the smallest histories of each kind, one with waiters and one without.

    Not in those where replies got lost: these leave more in doubt, and so refuse less.
    """
    smallest: dict[tuple[Kind, object], Run] = {}
    for run in sorted(runs, key=lambda run: -run.operations):
        if not run.plan.terms.lossy and not run.violations:
            smallest[run.promise.kind, run.plan.waits] = run
    for run in smallest.values():
        yield from _planted(run, seed)


def _planted(run: Run, seed: int) -> Iterator[Planted]:
    for fault, change in DEEDS.get(run.promise.kind, FAULTS).items():
        changed = copy.deepcopy(run.history)
        if change(changed, random.Random(f"{seed} {fault}"), run.promise.kind):
            yield Planted(fault, run.promise.kind, verdict(run.plan, changed).refused_by)


def _valid(history: History) -> list[Attempt]:
    """The leases that were valid, in the order in which their holders knew."""
    valid = [attempt for attempt in history.attempts if attempt.valid]
    return sorted(valid, key=lambda attempt: attempt.valid_from)


def _in_turn(history: History, kind: Kind) -> list[tuple[Attempt, Attempt]]:
    """Two leases that exclude each other, one after the other."""
    return [
        (one, other)
        for one, other in pairwise(_valid(history))
        if one.places + other.places > kind.places
    ]


def release_later(history: History, dice: random.Random, kind: Kind) -> bool:
    """The release of one lease is moved into the validity of the next one."""
    found = [
        (one, other)
        for one, other in _in_turn(history, kind)
        if one.release == "released" and one.ends > other.valid_from
    ]
    if found:
        one, other = dice.choice(found)
        one.given = one.returned = (other.valid_from + min(one.ends, other.valid_until)) / 2
    return bool(found)


def tokens_swapped(history: History, dice: random.Random, kind: Kind) -> bool:
    """Two leases have each other's fencing tokens."""
    if found := _in_turn(history, kind):
        one, other = dice.choice(found)
        one.token, other.token = other.token, one.token
    return bool(found)


def token_twice(history: History, dice: random.Random, kind: Kind) -> bool:
    """Two leases have one fencing token."""
    if found := [*pairwise(_valid(history))]:
        one, other = dice.choice(found)
        other.token = one.token
    return bool(found)


def refused_while_free(history: History, dice: random.Random, kind: Kind) -> bool:
    """Somebody is refused while nobody holds the lock, or asks for it, or has just died."""
    begin, end = dice.choice([*_gaps(history)])
    asked, answered = begin + (end - begin) / 3, begin + (end - begin) / 2
    refusal = Attempt("planted", 1, asked, patient=False, waits=False, places=kind.places)
    refusal.answered, refusal.outcome = answered, "refused"
    history.attempts.append(refusal)
    return True


def _gaps(history: History) -> Iterator[tuple[float, float]]:
    """When nothing is under way; the last one is after the end."""
    quiet = math.inf
    for attempt in sorted(history.attempts, key=lambda attempt: attempt.asked):
        if quiet < attempt.asked:
            yield quiet, attempt.asked
        at_once = attempt.outcome == "refused" and (attempt.answered or 0) - attempt.asked < QUICK
        known = at_once or attempt.release == "released"
        last = attempt.returned or attempt.given or attempt.answered or attempt.asked
        ends = attempt.ends if attempt.granted else 0
        over = last if known else max(last, attempt.killed or 0, ends) + LONG
        quiet = over if quiet == math.inf else max(quiet, over)
    yield history.ended + LONG, history.ended + 2 * LONG


def _moments(history: History) -> Iterator[tuple[list[Attempt], float, float]]:
    """Who held it together, and from when until when at least."""
    holders: list[Attempt] = []
    for attempt in _valid(history):
        since = attempt.valid_from
        holders = [*(other for other in holders if other.valid_until > since), attempt]
        yield holders, since, min(holder.valid_until for holder in holders)


def _beside(mode: Callable[[Iterable[int]], int], *, dead: bool = False) -> Fault:
    """Somebody is granted the lock, in its largest or smallest mode, where there is no place for
    it. With `dead`, the last holder was killed, and its lease has not ended yet."""

    def plant(history: History, dice: random.Random, kind: Kind) -> bool:
        places = mode(kind.modes.values())
        found = []
        for holders, told, until in _moments(history):
            since = (holders[-1].killed or until) if dead else told
            if since < until and sum(one.places for one in holders) + places > kind.places:
                found.append((holders, since, until))
        if found:
            holders, since, until = dice.choice(found)
            quarter = (until - since) / 4
            guest = Attempt("planted", 1, since + quarter, places=places)
            guest.answered, guest.outcome = since + 2 * quarter, "granted"
            guest.token = 1 + max(holder.token or 0 for holder in holders)
            guest.ends, guest.given, guest.returned = until + 1, until - quarter, until
            guest.release = "released"
            history.attempts.append(guest)
        return bool(found)

    return plant


def reader_beside_writer(history: History, dice: random.Random, kind: Kind) -> bool:
    """A reader is granted the lock while there is a writer."""
    return len(kind.modes) > 1 and _beside(min)(history, dice, kind)


def lost_in_time(history: History, dice: random.Random, kind: Kind) -> bool:
    """A holder is told that its lease was lost, while it had time left."""
    found = [
        attempt
        for attempt in _valid(history)
        if attempt.release == "released" and (attempt.returned or 0) < attempt.ends
    ]
    if found:
        dice.choice(found).release = "lost"
    return bool(found)


def stale_write(history: History, dice: random.Random, kind: Kind) -> bool:
    """The register accepts a write by one holder after its successor has written."""
    wrote = {write.attempt for write in history.writes}
    found = [both for both in _in_turn(history, kind) if wrote.issuperset(both)]
    if found:
        history.writes.append(Write(dice.choice(found)[0], accepted=True))
    return bool(found)


def never_served(history: History, dice: random.Random, kind: Kind) -> bool:
    """A waiter has no answer until the end, and nobody has killed it."""
    waiting = [one for one in history.attempts if one.patient and one.granted and not one.killed]
    if waiting:
        waiter = dice.choice(waiting)
        waiter.outcome, waiter.answered = "", None
        history.writes = [write for write in history.writes if write.attempt is not waiter]
    return bool(waiting)


FAULTS: dict[str, Fault] = {
    "a release later than it was": release_later,
    "fencing tokens swapped": tokens_swapped,
    "a fencing token twice": token_twice,
    "a refusal while free": refused_while_free,
    "a grant while held, a permit too many": _beside(max),
    "the same, while a dead holder's lease lasts": _beside(max, dead=True),
    "a reader beside a writer": reader_beside_writer,
    "a loss while there was time left": lost_in_time,
    "a stale write that is accepted": stale_write,
    "a waiter that is never served": never_served,
}


def done_twice(history: History, dice: random.Random, kind: Kind) -> bool:
    """What is done is done once more, later."""
    done = [one for one in history.attempts if one.release == "released"]
    if done:
        again = copy.copy(dice.choice(done))
        later = 1 + history.attempts[-1].asked - again.asked
        again.asked += later
        again.answered, again.ends = (again.answered or 0) + later, again.ends + later
        again.given, again.returned = (again.given or 0) + later, (again.returned or 0) + later
        history.attempts.append(again)
    return bool(done)


def older_note(history: History, dice: random.Random, kind: Kind) -> bool:
    """A holder finds a note that is not the last one."""
    granted = sorted((one for one in history.attempts if one.granted), key=lambda one: one.token)
    if len(granted) > 1:
        dice.choice(granted[1:]).about["inherited"] = 1
    return len(granted) > 1


def _runs(history: History) -> list[History]:
    """The runs of the tasks of each name, as a history of their own."""
    items: dict[int, list[Attempt]] = {}
    for attempt in history.attempts:
        if "run" in attempt.about:
            items.setdefault(attempt.about["item"], []).append(attempt)
    return [History(runs, []) for runs in items.values()]


def run_beside(history: History, dice: random.Random, kind: Kind) -> bool:
    """A task begins while as many of its name run as may."""
    runs = _runs(history)
    for its in dice.sample(runs, len(runs)):
        if _beside(max)(its, dice, kind):
            guest = its.attempts[-1]
            guest.about = {**its.attempts[0].about}
            history.attempts.append(guest)
            return True
    return False


def _queued(history: History) -> list[Attempt]:
    """The calls that have queued a task."""
    return [one for one in history.attempts if one.about.get("got", "") == one.about.get("call")]


def call_lost(history: History, dice: random.Random, kind: Kind) -> bool:
    """A call queues a task that never begins, or gets the handle of one that has begun before."""
    queued = _queued(history)
    if queued:
        lost = copy.copy(dice.choice(queued))
        lost.asked, lost.answered = history.ended + LONG, history.ended + LONG + QUICK
        lost.about = lost.about | {"call": "planted"}
        if kind is Limited:
            lost.about["got"] = "planted"
        history.attempts.append(lost)
    return bool(queued)


def killed_once(history: History, dice: random.Random, kind: Kind) -> bool:
    """The worker of a task is killed, and the task does not come again."""
    runs: dict[str, list[Attempt]] = {one.about["got"]: [] for one in _queued(history)}
    for one in history.attempts:
        if one.about.get("run") in runs:
            runs[one.about["run"]].append(one)
    ran = [its for its in runs.values() if any(one.granted for one in its)]
    for one in dice.choice(ran) if ran else []:
        if one.granted:
            one.given, one.returned, one.release = None, None, ""
            one.killed = one.valid_from + QUICK
    return bool(ran)


def two_wait(history: History, dice: random.Random, kind: Kind) -> bool:
    """A call queues a task although another one of its name waits."""
    found = [
        (one, other, run)
        for one, other in pairwise(_queued(history))
        if one.about["item"] == other.about["item"]
        for run in [run for run in history.attempts if run.about.get("run") == one.about["got"]][
            :1
        ]
        if run.asked > one.valid_from
    ]
    if found:
        one, other, run = dice.choice(found)
        third = (run.asked - one.valid_from) / 3
        other.asked, other.answered = one.valid_from + third, run.asked - third
    return bool(found)


DEEDS: dict[Kind, dict[str, Fault]] = {
    Once: {"a work that is done twice": done_twice},
    Ticks: {"a tick that is run twice": done_twice},
    Notes: {"a note that is not the last one": older_note},
    Unique: {
        "a second task of a name that runs": run_beside,
        "a call that no task follows": call_lost,
        "a killed task that does not come again": killed_once,
        "a second task of a name that waits": two_wait,
    },
    Limited: {
        "a task more than the limit": run_beside,
        "a call whose task is lost": call_lost,
        "a killed task that is lost": killed_once,
    },
}
"""Those of kinds that are more than a lock."""
ALL = [*FAULTS, *(fault for faults in DEEDS.values() for fault in faults)]
