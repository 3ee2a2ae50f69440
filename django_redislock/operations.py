"""What a lease asks for after it was acquired: to be extended, released, handed on.

One set of operations per primitive; what is the same for all of them is written here once.
"""

from __future__ import annotations

import logging
import weakref
from functools import partial
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from . import conf, label, transactions
from .clock import now
from .exceptions import LeaseLost, LockError, LockUnavailable
from .io import IO, AsyncIO, SyncIO, run
from .keys import Keys
from .lease import Claim, Lease, LeaseState, restorers
from .primitives import mutex
from .renewal import Withdrawal, renew, watchdog

logger = logging.getLogger("django_redislock")

# The lease that this process holds on a key, by CACHES alias and key: to notice a thread or
# task that would wait for itself. Weak, so that a dropped lease isn't kept alive.
_held: weakref.WeakValueDictionary[tuple[str, str], Lease] = weakref.WeakValueDictionary()


def held(using: str, key: str) -> Lease | None:
    """The lease that this process holds on a key, if any."""
    return _held.get((using, key))


def keep(lease: Lease) -> Lease:
    """From now on this process holds `lease`, and renews it."""
    _held[lease.using, lease.claim.keys.lock] = lease
    watchdog.watch(lease)
    return lease


async def undo(io: IO, using: str, claim: Claim) -> None:
    """Take back what an acquire or a release that was cut short has done, or may still do.

    When Redis does not answer, the watchdog goes on trying: a server that stalled may carry
    out the acquire later, and would keep the lock for nobody.
    """
    try:
        await mutex.release(io, claim)
    except LockUnavailable as error:
        logger.warning("%r may stay locked for %.3g s: %s", claim.keys.name, claim.ttl, error)
        watchdog.release_later(Withdrawal(using, claim))
    except LockError:
        pass  # a key of a wrong type: nothing is locked, and the caller is told already


async def take_back(io: IO, using: str, claim: Claim) -> None:
    """`undo` to its end; by the watchdog where an event loop ends meanwhile."""
    try:
        await io.finish(undo(io, using, claim))
    except BaseException:
        watchdog.release_later(Withdrawal(using, claim))
        raise


class MutexOperations:
    """The operations of a mutex's lease."""

    kind = "mutex"

    def extend(self, lease: Lease) -> None:
        run(renew(SyncIO(lease.using), [lease]))
        lease.check()

    async def aextend(self, lease: Lease) -> None:
        await renew(AsyncIO(lease.using), [lease])
        lease.check()

    def release(self, lease: Lease) -> None:
        run(self.release_through(SyncIO(lease.using), lease))

    async def arelease(self, lease: Lease) -> None:
        await self.release_through(AsyncIO(lease.using), lease)

    def leave(self, lease: Lease, error: BaseException | None) -> None:
        run(self._leave(SyncIO(lease.using), lease, error))

    async def aleave(self, lease: Lease, error: BaseException | None) -> None:
        await self._leave(AsyncIO(lease.using), lease, error)

    async def release_through(self, io: IO, lease: Lease) -> None:
        if lease.state == LeaseState.RELEASED or not lease.unhold():
            return
        lease.close()
        watchdog.forget(lease)
        lost = lease.lost
        try:
            # Also when it is lost: by its own deadline, it may be there for a moment yet.
            refusal = await mutex.release(io, lease.claim)
        except LockUnavailable:
            if lost is None:
                raise
        except BaseException:
            lease.claim.doubtful = True
            await take_back(io, lease.using, lease.claim)
            lease.end()
            raise
        else:
            if lost is None and refusal is not None:
                lost = refusal.error(lease.name)
        if lost is not None:
            lease.lose(lost)
            raise lost
        lease.end()

    async def _leave(self, io: IO, lease: Lease, error: BaseException | None) -> None:
        """The block that held `lease` is left, with `error` or without."""
        if lease.state == LeaseState.RELEASED:
            return
        if lease.release_at == "commit" and (pending := transactions.open_transactions()):
            if error is None:
                lease.check()  # before the commit, while it can still be rolled back
            self._release_after(pending, lease)
            return
        try:
            await self.release_through(io, lease)
        except LockUnavailable as unavailable:
            # What the block did was done under the lock: that is no reason to fail it.
            logger.warning("%r is released later: %s", lease.name, unavailable)
            watchdog.release_later(lease)
        except LockError as ours:
            if error is None:
                raise
            if error is not ours:
                error.add_note(str(ours))

    def _release_after(self, pending: list[BaseDatabaseWrapper], lease: Lease) -> None:
        """From here on each of the transactions holds the lease, in place of the block."""
        lease.defer(len(pending))
        for connection in pending:
            transactions.at_end(
                connection,
                committed=partial(self._committed, lease),
                # Called by a finalizer, perhaps in the middle of anything: no I/O there.
                dropped=partial(watchdog.release_later, lease),
            )

    def _committed(self, lease: Lease) -> None:
        try:
            run(self.release_through(SyncIO(lease.using), lease))
        except LockUnavailable:
            watchdog.release_later(lease)
        except LeaseLost as lost:
            logger.error(
                "A transaction was committed that %r should protect: %s", lease.name, lost
            )

    # A lease that travels.

    def export(self, lease: Lease) -> dict[str, Any]:
        lease.close()
        watchdog.forget(lease)
        lease.end()
        claim = lease.claim
        return {
            "kind": self.kind,
            "name": claim.keys.name,
            "lock": claim.keys.lock,
            "index": claim.keys.index,
            "using": lease.using,
            "token": claim.token,
            "ttl": claim.ttl,
            "owner": claim.owner,
            "label": claim.label,
            "doubtful": claim.doubtful,
            "fencing_token": lease.fencing_token,
            "acquired_us": lease.acquired_us,
        }

    def restore(self, fields: dict[str, Any]) -> Lease:
        lease = self._restored(**fields)
        self.extend(lease)
        return keep(lease)

    async def arestore(self, fields: dict[str, Any]) -> Lease:
        lease = self._restored(**fields)
        await self.aextend(lease)
        return keep(lease)

    def _restored(
        self,
        *,
        name: str,
        lock: str,
        index: str,
        using: str,
        fencing_token: int,
        acquired_us: int,
        **claim: Any,
    ) -> Lease:
        policy = conf.policy(name, {"using": using})
        return Lease(
            self,
            Claim(keys=Keys(name, lock, index), **claim),
            using=using,
            fencing_token=fencing_token,
            acquired_us=acquired_us,
            sent=now(),
            holder=label.holder(),
            renew=policy.renew,
            max_hold=policy.max_hold,
            release_at=policy.release,
        )


MUTEX = restorers["mutex"] = MutexOperations()
