"""The record of work that was done under a lock, on its way to Redis.

It is written when the work is certain, and before the lock is released:

1.  Before the work, and again after it, each open transaction is watched (where the lock is held
    until they end). Before, since Django drops the later `on_commit` functions when one raises.
2.  When the last one was committed, or there is none, the record is written.
3.  Redis may be away just then. The work is done, and must not be done again; so the lease is
    renewed and the record written by the watchdog when Redis is back, and then it is released.
4.  What is rolled back is never written. Nor is what was done under a lease that was lost.
"""

from __future__ import annotations

import logging
import weakref
from functools import partial

from django.db.backends.base.base import BaseDatabaseWrapper

from ..base.exceptions import LeaseLost, LockUnavailable
from ..lease.lease import Lease
from ..lease.transactions import at_end, open_transactions
from ..primitives import record
from ..primitives.contract import Port
from ..transport.ports import SyncPort, run

logger = logging.getLogger("django_redislock")

awaiting_commit: weakref.WeakSet[Lease] = weakref.WeakSet()
"""Leases whose work is done, but for a commit."""


class Completion:
    """The work under `lease`, whose record is to be kept for `ttl` seconds (None: for good)."""

    def __init__(self, lease: Lease, ttl: float | None) -> None:
        self.lease = lease
        self._ttl = ttl
        self._value: bytes | None = None
        self._transactions: list[BaseDatabaseWrapper] = []
        self._steps = 0

    @property
    def name(self) -> str:
        return self.lease.name

    async def begin(self, port: Port, value: bytes) -> None:
        """Write a first record, before the work. Raises `LeaseLost`, `LockUnavailable`."""
        refusal = await record.write(port, self.lease.claim, value, self._ttl, held=True)
        if refusal is not None:
            raise refusal.error(self.name)

    def watch_transactions(self) -> None:
        """Each that is open has to be committed first. Raises `TransactionManagementError`."""
        for connection in open_transactions():
            if connection not in self._transactions:
                self._transactions.append(connection)
                at_end(connection, committed=self._step, dropped=self._rolled_back)

    async def complete(self, port: Port, value: bytes) -> None:
        """The work has succeeded. Raises `LeaseLost`, while that can still be told."""
        if self.lease.release_at == "commit":
            await port.beside_orm(partial(self.when_committed, value))
        else:
            self.lease.check()
            await self._write(port, value)

    def when_committed(self, value: bytes) -> None:
        """`complete` in the thread that has the transactions."""
        self.lease.check()  # while all can still be rolled back
        self._value = value
        self.watch_transactions()
        awaiting_commit.add(self.lease)
        self._step()

    def _step(self) -> None:
        """A transaction was committed, or the work is done."""
        self._steps += 1
        if self._value is not None and self._steps > len(self._transactions):
            awaiting_commit.discard(self.lease)
            run(self._write(SyncPort(self.lease.server), self._value))

    def _rolled_back(self) -> None:
        """A step is undone for ever, so nothing is written; and it may be tried again at once,
        perhaps under this very lease."""
        awaiting_commit.discard(self.lease)

    async def _write(self, port: Port, value: bytes) -> None:
        lease = self.lease
        try:
            # What was committed is done, also when the lease has ended since. Where the record is
            # refused, so is the release that follows, and says why.
            held = not self._transactions
            await record.write(port, lease.claim, value, self._ttl, held=held)
        except LockUnavailable as error:
            logger.error("The record of %s is written later: %s", self.name, error)
            self._value = value
            lease.outlive()
            lease.watchdog.release_later(self)

    async def release_through(self, port: Port) -> None:
        """For the watchdog, which tries until it can."""
        assert self._value is not None
        refusal = await record.write(port, self.lease.claim, self._value, self._ttl, held=False)
        if refusal is not None:
            logger.error(
                "The record of %s is not written: %s", self.name, refusal.error(self.name)
            )
        await self.lease.release_through(port)


async def give_back(port: Port, lease: Lease) -> None:
    """Release a lease under which nothing is to be done; so nobody cares whether it was lost."""
    try:
        await lease.give_back(port)
    except LeaseLost:
        pass
    except LockUnavailable:
        lease.abandon()
