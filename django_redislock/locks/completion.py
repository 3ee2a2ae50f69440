"""Work under a lock whose result is recorded beside the lock.

`once`, `single_flight` and `idempotent_view` do it in the same way, in two round trips:

1.  `acquire_unless_recorded` looks at the record and takes the lock, in one step. If the record
    answers the caller, no lock is taken.
2.  The lease is released when the work is certain, and the record is written in the same step.

`Completion` does that for work that may depend on database transactions (where the lock is held
until they end):

1.  Each open transaction is watched from before the work and again after it. From before, since
    Django drops the later `on_commit` functions when one raises.
2.  The record is handed to the lease when the last transaction was committed, or at once if there
    is none.
3.  If Redis is unreachable when the lease is released, the watchdog writes the record and releases
    the lease as soon as it can.
4.  Work that was rolled back is never recorded, nor is work under a lease that was lost.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from ..base.exceptions import LeaseLost, LockNotAcquired, LockReentered, LockUnavailable
from ..lease.lease import Lease
from ..lease.lock import UNSET, Lock
from ..lease.sides import beside_orm
from ..lease.transactions import at_end, open_transactions
from ..primitives import record
from ..primitives.contract import Port, Primitive
from ..primitives.recorded import Answered, Recorded, Result
from ..settings.policy import Policy
from ..transport.ports import AsyncPort, SyncPort
from ..transport.server import server_of

awaiting_commit: weakref.WeakSet[Lease] = weakref.WeakSet()
"""Leases whose work is done, but for a commit."""


class Done(Exception):
    """The record answers the caller, so there is no work to do.

    An exception, since a signal's exception may come while a return value is tested: it would
    come between a lease and its block.
    """

    def __init__(self, value: Any) -> None:
        self.value = value


class RecordedLock(Lock):
    """A lock whose mutex has a record beside it."""

    _pattern: str
    _recorded: Recorded

    def _primitive(self, policy: Policy) -> Primitive:
        self._recorded = Recorded(self._pattern, old_clients=bool(policy.timestamp_key))
        return self._recorded


async def acquire_unless_recorded(
    port_type: type[SyncPort | AsyncPort],
    lock: Lock,
    answers: Callable[[bytes | None, Lease | None], bool],
    *,
    pattern: str,
    wait: float | None = UNSET,
) -> Lease:
    """Return the lease under which to do the work.

    `answers` decides whether a record (None: there is none) makes the work needless. It is called
    first without a lease, for the record when the caller came, and then with the lease that was
    taken. A record that matches `pattern`, of Lua, makes the work needless in any case.

    Raises `Done`, `LockNotAcquired`, `LockUnavailable`, `LockReentered`.
    """
    its = lock._copy(RecordedLock, "")
    its._pattern = pattern
    try:
        lease = await its._attempt(port_type, wait)
    except Answered as answered:
        raise Done(answered.value) from None
    except LockReentered:
        # This thread or task is doing the work, unless it was done before.
        port = port_type(server_of(lock._policy().using))
        value = await record.read(port, lock._keys())
        if answers(value, None):
            raise Done(value) from None
        raise
    if isinstance(lease, LockNotAcquired):
        raise lease
    try:
        port = port_type(lease._server)
        first, found = its._recorded.first, its._recorded.found
        if lease._claim.primitive is not its._recorded:
            first = found = await _of_own_lease(port, lease)
        needless = answers(first, None)
        if not answers(found, lease) and not needless:
            return lease
        await _give_back(port, lease)
    except BaseException:
        lease._abandon()
        raise
    raise Done(found)


async def _of_own_lease(port: Port, lease: Lease) -> bytes | None:
    """Return the record of a lease that this thread or task had already, and holds once more: the
    one that its release is going to write, or the one that is there."""
    recorded = lease._claim.primitive
    if isinstance(recorded, Recorded) and recorded.result is not None:
        return recorded.result.value
    return await record.read(port, lease._claim.keys)


async def _give_back(port: Port, lease: Lease) -> None:
    """Release a lease under which nothing was done, so that its loss does not matter."""
    try:
        await lease._end_hold(port, lease._holds.unentered)
    except LeaseLost:
        pass
    except LockUnavailable:
        lease._release_later()


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
            self._record(value)

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
            self._record(self._value)

    def _rolled_back(self) -> None:
        """One step will never come, so nothing is recorded. The work may be tried again at once,
        perhaps under this same lease."""
        awaiting_commit.discard(self.lease)

    def _record(self, value: bytes) -> None:
        # Work that was committed is done even if the lease has ended since.
        write_at_release(self.lease, value, self._ttl, held=not self._transactions)
        self.lease._claim.owed = True


def write_at_release(lease: Lease, value: bytes, ttl: float | None, *, held: bool) -> None:
    """Let the release of `lease` write its record, as `record.write` says."""
    recorded = lease._claim.primitive
    assert isinstance(recorded, Recorded)
    recorded.result = Result(value, ttl, held)
