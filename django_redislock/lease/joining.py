"""How a task takes a lock once more that only the transaction around it holds.

Such a lease belongs to the thread that has the transaction (transactions.py). The task asks in
that thread, in which the transaction can't end meanwhile.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from ..base import people
from ..base.exceptions import LockReentered
from ..base.people import Holding
from ..primitives.keys import Keys
from ..transport.ports import AsyncPort, keep
from .claims import beside_orm
from .lease import Lease
from .plan import Plan


async def of_transaction(lock: Any, plan: Plan, keys: Keys, me: Holding) -> Lease | None:
    """Return the lease that is held once more, or None if there is none."""
    there = [lease for its in keys.parts or [keys] for lease in plan.register.held(its.lock)]
    if all(lease._holds.blocks for lease in there):  # most of the time: no thread is asked
        return None
    asking = beside_orm(AsyncPort(plan.server), partial(_hold, lock, plan, keys, me))
    asked = keep(asyncio.ensure_future(asking))
    try:
        return await asyncio.shield(asked)
    except asyncio.CancelledError:
        asked.add_done_callback(_abandon)
        raise


def _hold(lock: Any, plan: Plan, keys: Keys, me: Holding) -> Lease | None:
    mine: Lease | None = None
    with suppress(LockReentered):  # in a block of this thread, or as a reader
        mine = lock._held(plan, keys, people.holder(), 0)
    if mine is None or mine._holds.blocks or not lock._hold_again(mine, plan.policy, me):
        return None
    return mine


def _abandon(asked: asyncio.Future[Lease | None]) -> None:
    """End the hold of a task that was cancelled."""
    if not asked.cancelled() and asked.exception() is None and (lease := asked.result()):
        lease._abandon()
