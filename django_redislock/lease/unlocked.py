"""What a lock does when Redis is away, if its `unavailable` is not to raise.

1.  Redis is away if it could not be reached for all of `wait` (`LockUnavailable.away`). A server
    that answers with an error is not away, nor one that has said who holds the lock.
2.  With "run" the block runs under a lease that holds nothing, and says so: its state is
    *unlocked*. No request is sent for it.
3.  With "skip" the error is returned, not raised. A decorated function then returns None.
"""

from __future__ import annotations

import logging
import time
from typing import Never

from ..base import people
from ..base.clock import now
from ..base.exceptions import LockError, LockUnavailable
from ..primitives.contract import Claim, Grant, Port
from ..primitives.keys import Keys
from . import claims
from .holds import Hold, enclosing
from .lease import Lease
from .lifetime import RELEASED, LeaseState
from .plan import Plan

logger = logging.getLogger("django_redislock")


class Unlocked(Lease):
    """The lease of a block that runs without its lock."""

    __slots__ = ()

    def __init__(self, plan: Plan, claim: Claim, me: people.Holding) -> None:
        grant = Grant(None, time.time_ns() // 1000, now())
        super().__init__(plan.server, claim, grant, plan.policy, Hold(me), young=True)
        # To all that finds, renews or releases leases, it has been released.
        self._ended = RELEASED
        self._complete()

    @property
    def state(self) -> LeaseState:
        return LeaseState.UNLOCKED

    def check(self) -> None:
        """Do nothing: there is no lock to lose."""

    @property
    def fencing_token(self) -> Never:
        self._refuse("has no fencing token")

    def export(self) -> Never:
        self._refuse("can't be exported")

    async def _extend(self, *_: object) -> Never:
        self._refuse("can't be extended")

    async def _downgrade(self, *_: object) -> Never:
        self._refuse("can't be downgraded")

    def _noting(self) -> Never:
        self._refuse("has no notes")

    def _refuse(self, what: str) -> Never:
        raise LockError(
            f"The lease on {self.name!r} {what}: Redis could not be reached, so its block runs "
            f"without the lock, as unavailable='run' says.",
            self.name,
        )


async def instead(
    port: Port, plan: Plan, claim: Claim, me: people.Holding, error: LockUnavailable
) -> Unlocked | LockUnavailable:
    """Return what `unavailable` gives for a lock that could not be asked for."""
    error.skips = plan.policy.unavailable == "skip"
    if error.skips:
        logger.warning("%r was not acquired: %s", claim.keys.name, error)
        return error
    await claims.report(port, "unlocked", claim, plan.server, waited=error.waited, why=str(error))
    return Unlocked(plan, claim, me)


def unlocked_here(plan: Plan, keys: Keys, me: people.Holding) -> Unlocked | None:
    """Return the unlocked lease on these keys of a block around this code, if there is one."""
    its = plan.server, keys.lock, people.owner(me)
    for lease in enclosing(Unlocked):
        if its == (lease._server, lease._claim.keys.lock, lease.owner):
            return lease
    return None
