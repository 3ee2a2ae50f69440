"""The lifetime of a lease: its renewals, of which one request has many, and its end."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from math import ceil
from typing import Any

from ..base.clock import deadline, now
from ..base.exceptions import LeaseLost, LockUnavailable
from ..primitives import mutex
from ..primitives.contract import Claim, Grant, Port, Refusal, Renewals
from ..settings.policy import Policy
from .holds import Held, Holds

NEVER = float("inf")
A_SECOND = 1.0
"""Seconds after which a lease is written down for people; nobody could read of a shorter one."""
TOGETHER = 0.5
"""They are written down at multiples of this, so that one request has many of them."""


CLOSING, RELEASED = 1, 2
"""How far the end of a young lease has come."""


class LeaseState(StrEnum):
    HELD = "held"
    UNKNOWN = "unknown"
    """The last renewal got no answer. The lease is not lost: it has time left."""
    LOST = "lost"
    RELEASED = "released"
    UNLOCKED = "unlocked"
    """There is no lock: Redis could not be reached, and `unavailable` is `"run"`."""


class Times:
    """When a lease is renewed next, and when it ends. Leases that one answer has renewed share
    their times: they are a cohort, which is renewed by one request again."""

    __slots__ = ("at", "deadline", "due", "in_doubt", "term")

    def __init__(self, deadline: float, due: float, term: float, *, in_doubt: bool = False):
        self.deadline = deadline
        self.due = due
        """When the watchdog has to look: to renew the lease, or to see that it is lost."""
        self.term = term
        """Seconds from the last renewal to the end."""
        self.in_doubt = in_doubt
        """The last renewal got no answer."""
        self.at = NEVER
        """When the watchdog looks at these leases."""

    @classmethod
    def since(cls, sent: float, ttl: float) -> Times:
        """Return those after a renewal to `ttl` that was sent at `sent`."""
        return cls(deadline(sent, ttl), sent + ttl / 3, ttl)


class Lifetime:
    """How long one lease lives, and how it ended.

    The watchdog keeps the lifetimes of all leases. A lifetime has only a weak reference to its
    lease, so that the watchdog sees when nobody has the lease any more.
    """

    holds: Holds
    hold_until = NEVER
    """When renewal ends."""
    closing = False
    """Nobody holds the lease any more: it is being released, and what others than its release
    learn from now on is no loss."""
    released = False
    error: LeaseLost | None = None
    times = Times(0.0, 0.0, 0.0)
    tracked = False
    """The server says at once if somebody else changes the lock."""
    notes: Any = None
    """The `Notes` of its holder; None: there are none yet."""

    def __init__(self, lease: Held, claim: Claim, grant: Grant, policy: Policy) -> None:
        self.lease = weakref.ref(lease)
        self.claim = claim
        self.terms = policy.terms()
        """The conditions of each renewal beyond its answer."""
        if policy.max_hold is not None:
            self.hold_until = grant.sent + policy.max_hold
        self.renew = policy.renew
        sent, term = grant.sent, grant.term(claim.ttl)
        self.write_at = ceil((sent + A_SECOND) / TOGETHER) * TOGETHER
        """When the watchdog writes it down in the index and in the history."""
        self.renewed(sent, Times.since(sent, term))

    # The state. Nothing here asks the server, and reading a property changes nothing.

    @property
    def deadline(self) -> float:
        return self.times.deadline

    @property
    def due(self) -> float:
        return self.times.due

    @due.setter
    def due(self, time: float) -> None:
        its = self.times
        self.times = Times(its.deadline, time, its.term, in_doubt=its.in_doubt)

    @property
    def over(self) -> bool:
        """Whether it was released, or has ended while it was being released."""
        ended = self.closing and self.error is None and now() >= self.deadline
        return self.released or ended

    @property
    def state(self) -> LeaseState:
        if self.over:
            return LeaseState.RELEASED
        if self.lost is not None:
            return LeaseState.LOST
        return LeaseState.UNKNOWN if self.times.in_doubt else LeaseState.HELD

    @property
    def lost(self) -> LeaseLost | None:
        """Why it is lost, or None."""
        # Events after the release began, if it began in time, are no loss.
        over = self.closing or self.released
        if self.error is None and not over and now() >= self.deadline:
            ttl = self.claim.ttl
            why = f"its ttl of {ttl:g} s passed before it was renewed"
            if self.hold_until - self.deadline < ttl / 10:  # a deadline has a margin
                why = "its max_hold has passed"
            return LeaseLost(self.claim.keys.name, why)
        return self.error

    def intact(self, time: float) -> bool:
        """Return whether at this time nothing has ended it, and nobody is releasing it: the common
        case of `over` and `expire`."""
        alive = time < self.times.deadline and self.error is None
        return alive and not self.closing and not self.released

    def kept(self, time: float) -> bool:
        """Return whether it is intact, and somebody has the lease, who can go on."""
        there = self.intact(time) and self.lease() is not None
        return there and self.holds.orphan is None

    @property
    def alive(self) -> bool:
        """Whether its holder may hold the lease once more."""
        return self.intact(now())

    def remaining(self) -> float:
        """Return the seconds until the deadline, or 0 when the lease is no longer held."""
        if self.released or self.error is not None:
            return 0.0
        return max(0.0, self.deadline - now())

    def next_ttl(self, time: float, ttl: float | None = None) -> float:
        """Return the ttl of a renewal sent at `time`: it ends no later than `max_hold` does."""
        return min(ttl or self.claim.ttl, max(self.hold_until - time, 0.001))

    # Events.

    def renewed(self, sent: float, times: Times) -> None:
        """Note that a renewal, sent at `sent`, got its answer: its times from now on, which it
        shares with all that this answer has renewed."""
        if sent + times.term > self.hold_until - 0.001:
            self.renew = False  # it was the last one
        # No command shortens what another one has promised, whatever order they arrive in.
        ends = max(times.deadline, self.deadline)
        if not self.renew or ends != times.deadline:
            times = Times(ends, times.due if self.renew else ends, times.term)
        self.times = times

    def unknown(self) -> None:
        """Note that a renewal got no answer. The next one comes soon."""
        its = self.times
        soon = now() + min(self.claim.ttl / 10, 1.0) if self.renew else NEVER
        self.times = Times(its.deadline, min(soon, its.deadline), its.term, in_doubt=True)
        if not its.in_doubt and self.alive and (lease := self.lease()) is not None:
            lease._announce_unknown()

    def expire(self) -> LeaseLost | None:
        """Return `lost`. If the deadline has passed, call everybody who asked for it."""
        if self.error is None and (error := self.lost) is not None:
            self.lose(error)
        return self.error

    def lose(self, error: LeaseLost, *, at_release: bool = False) -> None:
        """Note that the lease is lost, and call everybody who asked for it, once."""
        if self.error is not None or self.released or (self.closing and not at_release):
            return
        self.error = error
        lease = self.lease()
        if lease is not None:
            lease._announce_lost(error)

    def told(self, refusal: Refusal | None) -> None:
        """Note what the server says of a request that only a holder may send."""
        if refusal is not None:
            self.lose(refusal.error(self.claim.keys.name))

    def end(self) -> bool:
        """Mark the lease as released. Return False if it was before."""
        before, self.released = self.released, True
        return not before


async def renew(port: Port, leases: Sequence[Lifetime], ttl: float | None = None) -> None:
    """Extend leases of one primitive and index in one request, and note the result for each. With
    `ttl`, their ttl is changed for later renewals, too.

    Raises `LockUnavailable`; then all are unknown.
    """
    sent = port.now()
    ttls = [
        ttl or its.claim.ttl if its.hold_until == NEVER else its.next_ttl(sent, ttl)
        for its in leases
    ]
    try:
        primitive = leases[0].claim.primitive
        refusals = await primitive.extend(port, [lease.claim for lease in leases], ttls)
    except LockUnavailable:
        for lease in leases:
            lease.unknown()
        raise
    if any(refusals):
        refusals = await _reinstate(port, leases, ttls, refusals)
    heard = port.now()
    times = {its_ttl: Times.since(sent, its_ttl) for its_ttl in set(ttls)}
    for lease, its_ttl, refusal in zip(leases, ttls, refusals, strict=True):
        if refusal is None:
            # If the deadline came before the answer, that is final: others may have held the
            # lock since.
            if lease.intact(heard) or lease.expire() is None:
                if ttl is not None:
                    lease.claim.ttl = its_ttl
                lease.renewed(sent, times[its_ttl])
        elif isinstance(refusal, LockUnavailable) or lease.closing:
            lease.unknown()  # closing: its release has overtaken this renewal
        else:
            lease.told(refusal)
    for lease in leases:
        if lease.notes is not None:
            with suppress(LockUnavailable):  # the next renewal does it
                lease.told(await lease.notes.write(port))
    errors = [error for error in filter(None, refusals) if isinstance(error, LockUnavailable)]
    if len(errors) == len(leases):
        raise errors[0]


async def _reinstate(
    port: Port, leases: Sequence[Lifetime], ttls: Sequence[float], refusals: Renewals
) -> Renewals:
    """Reinstate the guarded leases that the server has forgotten. Return what is known of all
    leases then."""
    forgotten = []
    for number, (lease, refusal) in enumerate(zip(leases, refusals, strict=True)):
        if isinstance(refusal, Refusal) and refusal.forgotten and lease.claim.guarded:
            # First, since its release may begin now: either it leaves a tombstone, or we see it.
            lease.claim.doubtful = True
            if not lease.closing:
                forgotten.append(number)
    if not forgotten:
        return refusals
    found = list(refusals)
    try:
        answers: Renewals = await mutex.reinstate(
            port,
            [leases[each].claim for each in forgotten],
            [ttls[each] for each in forgotten],
            [leases[each].deadline for each in forgotten],
        )
    except LockUnavailable as error:
        answers = [error] * len(forgotten)
    for number, answer in zip(forgotten, answers, strict=True):
        found[number] = answer
    return found
