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
from ..primitives.contract import Claim, Grant, Port, Refusal
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
    deadline = 0.0
    at = NEVER
    """The time under which the watchdog keeps it. An entry with another time is outdated."""
    early = 0.0
    """Seconds by which the renewal may come before that time."""
    in_doubt = False
    """The last renewal got no answer."""
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
        self.due: float
        """When the watchdog has to look: to renew the lease, or to see that it is lost."""
        self.term: float
        """Seconds from the last renewal to the end."""
        self.renewed(sent, term)

    # The state. Nothing here asks the server, and reading a property changes nothing.

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
        return LeaseState.UNKNOWN if self.in_doubt else LeaseState.HELD

    @property
    def lost(self) -> LeaseLost | None:
        """Why it is lost, or None."""
        # Events after the release began, if it began in time, are no loss.
        over = self.closing or self.released
        if self.error is None and not over and now() >= self.deadline:
            why = f"its ttl of {self.claim.ttl:g} s passed before it was renewed"
            return LeaseLost(self.claim.keys.name, why)
        return self.error

    def sound(self, time: float) -> bool:
        """Return whether at this time nothing has ended it, and nobody is releasing it. This is
        the common case of `over` and `expire`, which the watchdog asks for each of many leases."""
        return (
            time < self.deadline and not self.closing and not self.released and self.error is None
        )

    @property
    def alive(self) -> bool:
        """Whether its holder may hold the lease once more."""
        return self.sound(now())

    @property
    def next(self) -> float:
        """When the watchdog has something to do with it."""
        return min(self.due, self.write_at)

    def remaining(self) -> float:
        """Return the seconds until the deadline, or 0 when the lease is no longer held."""
        if self.released or self.error is not None:
            return 0.0
        return max(0.0, self.deadline - now())

    def next_ttl(self, time: float, ttl: float | None = None) -> float:
        """Return the ttl of a renewal sent at `time`: it ends no later than `max_hold` does."""
        return min(ttl or self.claim.ttl, max(self.hold_until - time, 0.001))

    # Events.

    def renewed(self, sent: float, ttl: float) -> None:
        """Note that a renewal to `ttl`, sent at `sent`, got its answer."""
        if sent + ttl > self.hold_until - 0.001:
            self.renew = False  # it was the last one
        # No command shortens what another one has promised, whatever order they arrive in.
        self.deadline = max(deadline(sent, ttl), self.deadline)
        self.due = sent + ttl / 3 if self.renew else self.deadline
        self.term = ttl
        self.in_doubt = False

    def unknown(self) -> None:
        """Note that a renewal got no answer. The next one comes soon."""
        before, self.in_doubt = self.in_doubt, True
        soon = now() + min(self.claim.ttl / 10, 1.0)
        self.due = min(soon, self.deadline) if self.renew else self.deadline
        if not before and self.alive and (lease := self.lease()) is not None:
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
    ttls = [lease.next_ttl(sent, ttl) for lease in leases]
    try:
        primitive = leases[0].claim.primitive
        refusals = await primitive.extend(port, [lease.claim for lease in leases], ttls)
    except LockUnavailable:
        for lease in leases:
            lease.unknown()
        raise
    if any(refusals):
        refusals = await _put_back(port, leases, ttls, refusals)
    heard = port.now()
    for lease, its_ttl, refusal in zip(leases, ttls, refusals, strict=True):
        if refusal is None:
            # If the deadline came before the answer, that is final: others may have held the
            # lock since.
            if lease.sound(heard) or lease.expire() is None:
                lease.claim.ttl = its_ttl if ttl is not None else lease.claim.ttl
                lease.renewed(sent, its_ttl)
        elif isinstance(refusal, LockUnavailable) or lease.closing:
            lease.unknown()  # closing: its release has overtaken this renewal
        else:
            lease.told(refusal)
    for lease in leases:
        if lease.notes is not None:
            with suppress(LockUnavailable):  # the next renewal does it
                lease.told(await lease.notes.write(port))
    errors = [refusal for refusal in refusals if isinstance(refusal, LockUnavailable)]
    if len(errors) == len(leases):
        raise errors[0]


async def _put_back(
    port: Port,
    leases: Sequence[Lifetime],
    ttls: Sequence[float],
    refusals: Sequence[Refusal | LockUnavailable | None],
) -> Sequence[Refusal | LockUnavailable | None]:
    """Put back the guarded leases that the server has forgotten. Return what is known of all
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
        answers: Sequence[Refusal | LockUnavailable | None] = await mutex.put_back(
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
