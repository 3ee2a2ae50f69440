"""What a lease asks for after it was acquired: to be extended, released, handed on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db.transaction import TransactionManagementError

from .. import signals
from ..base import tokens
from ..base.clock import now
from ..base.exceptions import LeaseLost, LockError, LockUnavailable
from ..base.label import Holding
from ..base.label import holder as current_holder
from ..base.label import owner as owner_of
from ..primitives import permits
from ..primitives.contract import Claim, Port, Primitive, Refusal, Sight, Terms
from ..primitives.keys import Keys
from ..primitives.waiting import LEAST
from ..settings import kinds
from ..signals import LockEvent
from ..transport.ports import AsyncPort, SyncPort, run
from ..transport.server import Server, server_of
from . import transactions
from .lease import Lease
from .travel import Exported
from .watchdog import Withdrawal, renew, watchdog

logger = logging.getLogger("django_redislock")


def held(server: Server, key: str, me: Holding | None = None) -> list[Lease]:
    """The leases that this process holds on a key, or one thread or task of it, to notice that it
    would wait for itself. The last one is the newest."""
    return watchdog(server).held(key, me)


async def tell(
    port: Port, outcome: signals.EventKind, claim: Claim, server: Server, **more: Any
) -> None:
    """What became of a claim, to the log and to whoever listens."""
    if signals.wanted(outcome):
        await port.tell(event(outcome, claim, server, **more))


def event(outcome: signals.EventKind, claim: Claim, server: Server, **more: Any) -> LockEvent:
    """What became of a claim."""
    return LockEvent(
        outcome=outcome,
        name=claim.keys.name,
        using=server.using,
        owner=claim.owner,
        label=claim.label,
        key=claim.keys.lock,
        **more,
    )


async def acquired(port: Port, lease: Lease, began: float) -> Lease:
    """From now on this process holds `lease`, which it has asked for since `began`; renews it, and
    says so."""
    watchdog(lease.server).watch(lease)
    if not signals.wanted("acquired"):
        return lease
    fence, waited = lease.fence, port.now() - began
    await tell(port, "acquired", lease.claim, lease.server, fencing_token=fence, waited=waited)
    return lease


async def clear(
    port: Port,
    primitive: Primitive,
    keys: Keys,
    server: Server,
    seen: Sequence[Sight],
    by: str,
    reason: str,
) -> bool:
    """Take a lock away from the holders that an operator saw. False: it changed hands."""
    tokens = [sight.token for sight in seen]
    done = await primitive.clear(port, keys, tokens, by, reason)
    cleared = [sight for sight, was in zip(seen, done, strict=True) if was]
    for sight in cleared if signals.wanted("cleared") else ():
        await port.tell(
            LockEvent(
                outcome="cleared",
                name=keys.name,
                key=keys.lock,
                using=server.using,
                owner=sight.holder.owner,
                label=sight.holder.label,
                fencing_token=sight.holder.fencing_token,
                held=sight.holder.held,
                holder=sight.holder,
                by=by,
                why=reason,
            )
        )
    return bool(cleared)


def withdraw(server: Server, claim: Claim) -> None:
    """Take back in the background what an acquire may have done, or may still do: a server that
    stalled may carry it out later, and would keep the lock for nobody."""
    logger.warning("%r may stay locked for %.3g s", claim.keys.name, claim.ttl)
    watchdog(server).release_later(Withdrawal(claim))


async def undo(port: Port, server: Server, claim: Claim) -> None:
    """Take back what an acquire or a release that was cut short has done, or may still do."""
    try:
        await claim.primitive.release(port, claim)
    except LockUnavailable:
        withdraw(server, claim)
    except LockError:
        pass  # a key of a wrong type: nothing is locked, and the caller is told already


async def take_back(port: Port, server: Server, claim: Claim) -> None:
    """`undo` to its end; by the watchdog where an event loop ends meanwhile."""
    try:
        await port.finish(undo(port, server, claim))
    except BaseException:
        watchdog(server).release_later(Withdrawal(claim))
        raise


async def interrupted(error: BaseException, port: Port, server: Server, claim: Claim) -> None:
    """An acquire or a release ended with an exception from elsewhere. A task that is cancelled
    takes back what it did. What a signal's handler raises goes through at once, even where the
    server hangs: the watchdog takes it back."""
    if isinstance(error, asyncio.CancelledError):
        await take_back(port, server, claim)
    else:
        watchdog(server).release_later(Withdrawal(claim))


async def cut_short(
    error: BaseException,
    port_type: Callable[..., Port],
    server: Server,
    claim: Claim,
    until: float = float("inf"),
) -> None:
    """An acquire ended with `error`: cancelled, interrupted, or Redis did not answer. Leave
    nothing half-acquired; in the background what can't be done until then, which is when the
    caller's time is over."""
    answered = isinstance(error, LockError) and not isinstance(error, LockUnavailable)
    claim.doubtful |= not answered
    watchdog(server).forget(claim)
    if claim.sent and not isinstance(error, LockError):
        await interrupted(error, port_type(server), server, claim)
    elif claim.sent:
        # A server that has just answered takes it back at once, also when the time is over.
        silent = isinstance(error, LockUnavailable) and error.silent
        await settle(port_type, server, claim, now() if silent else max(until, now() + LEAST))


async def settle(
    port_type: Callable[..., Port], server: Server, claim: Claim, until: float
) -> None:
    """Take back what an acquire may have done, until then; in the background what is left."""
    left = until - now()
    if left > 0:
        within = None if left == float("inf") else left
        await take_back(port_type(server, terms=Terms(within)), server, claim)
    else:
        withdraw(server, claim)


def _terms(lease: Lease) -> Terms:
    return Terms(None, lease.replicas, lease.replicas_timeout)


class LeaseOperations:
    """What leases of every kind ask for; what differs is their claim's primitive."""

    def extend(self, lease: Lease, ttl: float | None = None) -> None:
        port = SyncPort(lease.server, terms=_terms(lease))
        run(self._extend(port, lease, ttl))

    async def aextend(self, lease: Lease, ttl: float | None = None) -> None:
        port = AsyncPort(lease.server, terms=_terms(lease))
        await self._extend(port, lease, ttl)

    async def _extend(self, port: Port, lease: Lease, ttl: float | None) -> None:
        try:
            await renew(port, [lease], ttl)
        finally:
            lease.watchdog.reconsider(lease)
        lease.check()

    def downgrade(self, lease: Lease) -> None:
        run(self._downgrade(SyncPort(lease.server), lease))

    async def adowngrade(self, lease: Lease) -> None:
        await self._downgrade(AsyncPort(lease.server), lease)

    async def _downgrade(self, port: Port, lease: Lease) -> None:
        claim = lease.claim
        if claim.primitive not in (permits.READ, permits.WRITE):
            raise TypeError(
                f"the lease on {lease.name!r} is that of a {claim.primitive.kind}; what can be "
                f"downgraded is the lease of ReadWriteLock(…).write()"
            )
        if claim.primitive is permits.WRITE:
            await self._refuse_downgrade(port, lease)
        # From here on it is for reading only, whatever becomes of the answer.
        claim.primitive = permits.READ
        refusal = await permits.READ.downgrade(port, claim)
        if refusal is not None:
            lease.lose(refusal.error(lease.name))
        lease.check()

    async def _refuse_downgrade(self, port: Port, lease: Lease) -> None:
        """Where somebody else counts on being alone."""
        if lease.blocks > 1:
            raise LockError(
                f"The lease on {lease.name!r} is held by {lease.blocks} blocks, and the outer "
                f"ones count on being alone. Write lease.downgrade() in the outermost block, when "
                f"the inner ones are left.",
                lease.name,
            )
        if lease.release_at != "commit":
            return
        pending = await port.beside_orm(transactions.open_transactions)
        if pending:
            raise LockError(
                f"The lease on {lease.name!r} is kept until the database transaction is committed "
                f"(release='commit'): readers who were let in now would read what was there "
                f"before. Write lease.downgrade() after the atomic block, or leave it out.",
                lease.name,
            )

    def release(self, lease: Lease) -> None:
        run(self.release_through(SyncPort(lease.server), lease))

    async def arelease(self, lease: Lease) -> None:
        await self.release_through(AsyncPort(lease.server), lease)

    def leave(self, lease: Lease, error: BaseException | None) -> None:
        run(self._leave(SyncPort(lease.server), lease, error))

    async def aleave(self, lease: Lease, error: BaseException | None) -> None:
        await self._leave(AsyncPort(lease.server), lease, error)

    def move(self, lease: Lease, me: Holding) -> None:
        lease.watchdog.move(lease, me)

    def abandon(self, lease: Lease) -> None:
        if not lease.ended:  # by a test, which leaves no server to ask either
            lease.watchdog.release_later(lease)

    def lost(self, lease: Lease, error: LeaseLost) -> None:
        # From any thread, and perhaps in an event loop: so whoever is told, it is elsewhere.
        fence, held = lease.fence, now() - lease.began
        lost = event(
            "lost", lease.claim, lease.server, fencing_token=fence, held=held, why=error.why
        )
        signals.log(lost)
        signals.send_later(lost)

    async def release_through(self, port: Port, lease: Lease) -> None:
        if lease.over:
            return
        lost = lease.expire()
        if not lease.unhold():
            return
        lease.close()
        lease.watchdog.forget(lease.claim)
        try:
            # Also when it is lost: by its own deadline, it may be there for a moment yet.
            refusal = await lease.claim.primitive.release(port, lease.claim)
            if lost is None and refusal is not None:
                lost = refusal.error(lease.name)
                lease.lose(lost)
            elif lost is None:
                lease.end()
        except LockUnavailable:
            if lost is None:
                raise
        except BaseException as error:
            lease.claim.doubtful = True
            lease.end()  # whatever comes in between: this one holds nothing any more
            await interrupted(error, port, lease.server, lease.claim)
            raise
        if lost is not None:
            raise lost
        if signals.wanted("released"):
            fence, held = lease.fence, now() - lease.began
            await tell(port, "released", lease.claim, lease.server, fencing_token=fence, held=held)

    async def _leave(self, port: Port, lease: Lease, error: BaseException | None) -> None:
        """The block that held `lease` is left, with `error` or without."""
        by_hand = None
        if lease.release_at == "commit" and not lease.over:
            try:
                if await port.beside_orm(partial(self._defer, lease, error)):
                    return
            except TransactionManagementError as raised:
                by_hand = raised  # since somewhere in the block
        elif lease.release_at == "warn" and error is None and lease.holds[0] == 1:
            await port.beside_orm(partial(transactions.warn_if_open, lease.label))
        try:
            await self.release_through(port, lease)
            if by_hand is not None:
                raise by_hand
        except LockUnavailable as unavailable:
            # What the block did was done under the lock: that is no reason to fail it.
            logger.warning("%r is released later: %s", lease.name, unavailable)
            lease.watchdog.release_later(lease)
        except (LockError, TransactionManagementError) as ours:
            if error is None:
                raise
            if error is not ours:
                error.add_note(str(ours))

    def _defer(self, lease: Lease, error: BaseException | None) -> bool:
        """From here on each open transaction holds the lease, in place of the block."""
        pending = transactions.open_transactions()
        if not pending:
            return False
        if error is None:
            lease.check()  # before the commit, while it can still be rolled back
        lease.defer(len(pending))
        for connection in pending:
            transactions.at_end(
                connection,
                committed=lease.settle,
                # Called by a finalizer, perhaps in the middle of anything: no I/O there.
                dropped=partial(self.abandon, lease),
            )
        return True

    def settle(self, lease: Lease) -> None:
        try:
            run(self.release_through(SyncPort(lease.server), lease))
        except LockUnavailable:
            self.abandon(lease)
        except LeaseLost as lost:
            logger.error(
                "%r should have been held until its transaction was committed, or its response "
                "sent: %s",
                lease.name,
                lost,
            )

    # A lease that travels.

    def export(self, lease: Lease) -> str:
        text = Exported.of(lease).signed()
        lease.close()
        lease.watchdog.forget(lease.claim)
        lease.end()
        return text

    def restore(self, text: str) -> Lease:
        return run(self._restore(SyncPort, text))

    async def arestore(self, text: str) -> Lease:
        return await self._restore(AsyncPort, text)

    async def _restore(self, port_type: type[SyncPort | AsyncPort], text: str) -> Lease:
        exported = Exported.read(text)
        me, policy = current_holder(), exported.policy
        claim = Claim(
            keys=exported.keys,
            token=tokens.new(),
            ttl=min(policy.ttl, policy.max_hold or policy.ttl),
            owner=owner_of(me),
            label=exported.label,
            primitive=kinds.primitive(policy),
        )
        server = server_of(policy.using)
        try:
            port = port_type(server, terms=policy.terms())
            got = await claim.primitive.adopt(port, exported.token, claim)
            if isinstance(got, Refusal):
                claim.sent = False  # there is nothing to take back
                raise got.error(claim.keys.name)
            lease = Lease(self, server, claim, got, policy, me)
            lease.check()  # the answer may have taken longer than it lives
            watchdog(server).watch(lease)
        except BaseException as error:
            await cut_short(error, port_type, server, claim)
            raise
        return lease


LEASES = LeaseOperations()
Lease.restorer = LEASES
