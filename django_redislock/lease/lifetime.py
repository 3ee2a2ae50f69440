"""The lifetime of a lease, and its end."""

from __future__ import annotations

import math
import weakref
from enum import StrEnum
from typing import Protocol

from ..base.clock import deadline, now
from ..base.exceptions import LeaseLost
from ..primitives.contract import Claim, Grant
from ..settings.policy import Policy
from .holds import Hold, Holds

NEVER = float("inf")
A_SECOND = 1.0
"""Seconds after which a lease is written down for people; nobody could read of a shorter one."""
TOGETHER = 0.5
"""They are written down at multiples of this, so that one request has many of them."""


class LeaseState(StrEnum):
    HELD = "held"
    UNKNOWN = "unknown"
    """The last renewal got no answer. The lease is not lost: it has time left."""
    LOST = "lost"
    RELEASED = "released"


class Renewable(Protocol):
    """A lease, as its lifetime and the watchdog know it."""

    _holds: Holds

    @property
    def name(self) -> str: ...

    def _announce_lost(self, error: LeaseLost) -> None:
        """Call everybody who asked to know that the lease is lost."""

    def _announce_unknown(self) -> None:
        """Call everybody who asked to know that the state of the lease is unknown."""

    def _abandon(self, hold: Hold) -> None:
        """End a hold; if it is the last one, let the watchdog release the lease."""


class Lifetime:
    """How long one lease lives, and how it ended.

    The watchdog keeps the lifetimes of all leases. A lifetime has only a weak reference to its
    lease, so that the watchdog sees when nobody has the lease any more.
    """

    __slots__ = (
        "at",
        "claim",
        "closing",
        "deadline",
        "due",
        "early",
        "error",
        "hold_until",
        "in_doubt",
        "lease",
        "released",
        "renew",
        "terms",
        "tracked",
        "write_at",
    )

    def __init__(self, lease: Renewable, claim: Claim, grant: Grant, policy: Policy) -> None:
        self.lease = weakref.ref(lease)
        self.claim = claim
        self.renew = policy.renew
        self.terms = policy.terms()
        """The conditions of each renewal beyond its answer."""
        self.hold_until = grant.sent + (policy.max_hold or NEVER)
        """When renewal ends."""
        self.closing = False
        """Nobody holds the lease any more: it is being released, and what others than its release
        learn from now on is no loss."""
        self.released = False
        self.error: LeaseLost | None = None
        self.deadline = 0.0
        self.due = 0.0
        """When the watchdog has to look: to renew the lease, or to see that it is lost."""
        self.at = NEVER
        """The time under which the watchdog keeps it. An entry with another time is outdated."""
        self.early = 0.0
        """Seconds by which the renewal may come before that time."""
        self.write_at = math.ceil((grant.sent + A_SECOND) / TOGETHER) * TOGETHER
        """When the watchdog writes it down in the index and in the history."""
        self.tracked = False
        """The server says at once if somebody else changes the lock."""
        self.renewed(grant.sent, claim.ttl)

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
            why = f"its ttl of {self.claim.ttl:g} s passed unrenewed"
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
        return not self.closing and self.state in (LeaseState.HELD, LeaseState.UNKNOWN)

    @property
    def next(self) -> float:
        """When the watchdog has something to do with it."""
        return min(self.due, self.write_at)

    def remaining(self) -> float:
        """Return the seconds until the deadline, or 0 when the lease is no longer held."""
        if self.released or self.error is not None:
            return 0.0
        return max(0.0, self.deadline - now())

    def hold_left(self, time: float) -> float | None:
        """Return the seconds until renewal ends. None: it does not end."""
        left = self.hold_until - time
        return None if left == NEVER else max(left, 0.001)

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

    def end(self) -> bool:
        """Mark the lease as released. Return False if it was before."""
        before, self.released = self.released, True
        return not before
