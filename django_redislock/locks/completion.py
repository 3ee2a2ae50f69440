"""Work under a lock whose result is recorded beside the lock.

`once`, `single_flight` and `idempotent_view` do it in the same way:

1.  `acquire_unless_recorded` reads the record. If the record answers the caller, no lock is taken.
2.  Otherwise it takes the lock and reads the record again, since the previous holder may just have
    written it.
3.  The record is written when the work is certain, and before the lock is released.

`Completion` writes it for work that may depend on database transactions (where the lock is held
until they end):

1.  Each open transaction is watched from before the work and again after it. From before, since
    Django drops the later `on_commit` functions when one raises.
2.  The record is written when the last transaction was committed, or at once if there is none.
3.  If Redis is unreachable then, the work is done and must not be repeated. So the lease is
    renewed until the watchdog can write the record, and released afterwards.
4.  Work that was rolled back is never recorded, nor is work under a lease that was lost.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from ..base.clock import now
from ..base.exceptions import LeaseLost, LockNotAcquired, LockUnavailable
from ..lease.lease import Lease
from ..lease.lock import UNSET, Lock
from ..lease.sides import beside_orm
from ..lease.transactions import at_end, open_transactions
from ..primitives import record
from ..primitives.contract import Port, run
from ..primitives.waiting import Deadline
from ..transport.ports import AsyncPort, SyncPort
from ..transport.server import server_of

logger = logging.getLogger("django_redislock")

awaiting_commit: weakref.WeakSet[Lease] = weakref.WeakSet()
"""Leases whose work is done, but for a commit."""


class Recorded(Exception):
    """The record answers the caller, so there is no work to do.

    An exception, since a signal's exception may come while a return value is tested: it would
    come between a lease and its block.
    """

    def __init__(self, value: Any) -> None:
        self.value = value


async def acquire_unless_recorded(
    port_type: type[SyncPort | AsyncPort],
    lock: Lock,
    answers: Callable[[bytes | None, Lease | None], bool],
    *,
    wait: float | None = UNSET,
) -> Lease:
    """Return the lease under which to do the work.

    `answers` decides whether a record (None: there is none) makes the work needless. It is called
    first without a lease, and then with the lease that was taken. The first call is left out if
    Redis was unreachable for a moment.

    Raises `Recorded`, `LockNotAcquired`, `LockUnavailable`, `LockReentered`.
    """
    policy, keys = lock._policy(), lock._keys()
    port = port_type(server_of(policy.using))
    deadline = Deadline(now(), policy.wait if wait is UNSET else wait)
    port.limit(deadline.left(now()))
    try:
        value = await record.read(port, keys)
    except LockUnavailable as error:
        if not error.passing or deadline.over(now()):
            raise
        # Acquiring the lock waits until Redis is back.
    else:
        if answers(value, None):
            raise Recorded(value)
    port.limit(float("inf"))
    lease = await lock._attempt(port_type, deadline.left(now()))
    if isinstance(lease, LockNotAcquired):
        raise lease
    try:
        value = await record.read(port, keys)
        if not answers(value, lease):
            return lease
        await _give_back(port, lease)
    except BaseException:
        lease._abandon()
        raise
    raise Recorded(value)


async def _give_back(port: Port, lease: Lease) -> None:
    """Release a lease under which nothing was done, so that its loss does not matter."""
    try:
        await lease._give_back(port)
    except LeaseLost:
        pass
    except LockUnavailable:
        lease._abandon()


class Completion:
    """Work under `lease`, to be recorded for `ttl` seconds (None: without end)."""

    def __init__(self, lease: Lease, ttl: float | None) -> None:
        self.lease = lease
        self._ttl = ttl
        self._value: bytes | None = None
        self._transactions: list[BaseDatabaseWrapper] = []
        self._steps = 0
        """Transactions that were committed, and one for the work when it is done."""

    async def begin(self, port: Port, value: bytes) -> None:
        """Write a first record, before the work. Raises `LeaseLost`, `LockUnavailable`."""
        refusal = await record.write(port, self.lease._claim, value, self._ttl, held=True)
        if refusal is not None:
            raise refusal.error(self.lease.name)

    def watch_transactions(self) -> None:
        """Wait for the commit of each open transaction. Raises `TransactionManagementError`."""
        for connection in open_transactions():
            if connection not in self._transactions:
                self._transactions.append(connection)
                at_end(connection, committed=self._step, dropped=self._rolled_back)

    async def complete(self, port: Port, value: bytes) -> None:
        """Record the work, which has succeeded. Raises `LeaseLost` if it is known in time."""
        if self.lease._policy.release == "commit":
            await beside_orm(port, partial(self.when_committed, value))
        else:
            self.lease.check()
            await self._write(port, value)

    def when_committed(self, value: bytes) -> None:
        """`complete`, called in the thread that has the transactions."""
        self.lease.check()  # while everything can still be rolled back
        self._value = value
        self.watch_transactions()
        awaiting_commit.add(self.lease)
        self._step()

    def _step(self) -> None:
        """A transaction was committed, or the work is done."""
        self._steps += 1
        if self._value is not None and self._steps > len(self._transactions):
            awaiting_commit.discard(self.lease)
            run(self._write(SyncPort(self.lease._server), self._value))

    def _rolled_back(self) -> None:
        """One step will never come, so nothing is recorded. The work may be tried again at once,
        perhaps under this same lease."""
        awaiting_commit.discard(self.lease)

    async def _write(self, port: Port, value: bytes) -> None:
        lease = self.lease
        try:
            # Work that was committed is done even if the lease has ended since. If the record is
            # refused, the release that follows is refused as well, and raises the reason.
            held = not self._transactions
            await record.write(port, lease._claim, value, self._ttl, held=held)
        except LockUnavailable as error:
            logger.error("The record of %s is written later: %s", lease.name, error)
            self._value = value
            lease._holds.outlive()
            lease._watchdog.release_later(self.name, self._write_and_release)

    @property
    def name(self) -> str:
        return self.lease.name

    async def _write_and_release(self, port: Port) -> None:
        """Write the record and release the lease. The watchdog calls this until it succeeds."""
        assert self._value is not None
        refusal = await record.write(port, self.lease._claim, self._value, self._ttl, held=False)
        if refusal is not None:
            logger.error(
                "The record of %s is not written: %s", self.name, refusal.error(self.name)
            )
        await self.lease._release_in_background(port)
