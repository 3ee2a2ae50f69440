"""A lease: what acquiring returns, the proof of holding a name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from django.db.transaction import TransactionManagementError

from .. import signals
from ..base import fork, tokens
from ..base.background import start_or_call
from ..base.clock import now
from ..base.exceptions import LeaseLost, LockError, LockUnavailable
from ..base.holder import server_time
from ..base.label import Holding
from ..base.label import holder as current_holder
from ..base.label import owner as owner_of
from ..primitives import guard, permits
from ..primitives.contract import Claim, Grant, Port, Refusal, run
from ..settings import kinds
from ..settings.policy import Policy
from ..settings.validators import validate_on_lost, validate_ttl
from ..transport.ports import AsyncPort, SyncPort
from ..transport.server import Server, clustered, server_of
from . import claims, transactions
from .cancellation import Cancellation
from .holds import Entered, Hold, Holds, innermost, last
from .lifetime import LeaseState, Lifetime
from .sides import beside_orm
from .travel import Exported
from .watchdog import renew, watchdog

logger = logging.getLogger("django_redislock")


class Lease(Entered):
    """The proof of holding a name. All times are seconds.

    A lease is `held` until it is `released`, or `lost`: expired without a renewal, taken by
    somebody else, or cleared by an operator. While Redis does not answer it is `unknown`
    until its own deadline, which counts from the time at which it was last asked for.
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_claim",
        "_grant",
        "_holds",
        "_lifetime",
        "_policy",
        "_releasing",
        "_server",
        "_unknown_callbacks",
        "_watchdog",
    )

    def __init__(
        self,
        server: Server,
        claim: Claim,
        grant: Grant,
        policy: Policy,
        hold: Hold,
    ) -> None:
        self._server = server
        self._claim = claim
        self._grant = claim.granted = grant
        self._policy = policy
        self._holds = Holds(hold)
        self._lifetime = Lifetime(self, claim, grant, policy)
        self._callbacks: list[Callable[[Lease], object]] = []
        """The callbacks for a loss that were not called yet, besides those of its holds."""
        self._unknown_callbacks: tuple[Callable[[Lease], object], ...] = ()
        self._releasing = 0
        """The number of requests to release it that have no answer yet."""
        self._watchdog = watchdog(server)

    @property
    def name(self) -> str:
        """The locked name."""
        return self._claim.keys.name

    @property
    def using(self) -> str:
        """The alias of `CACHES` through which it was acquired."""
        return self._server.using

    @property
    def token(self) -> str:
        """The secret proof of ownership."""
        return str(self._claim.token)

    @property
    def fencing_token(self) -> int:
        """An integer that only grows per name: let the database refuse a smaller one.

        Raises `LockError` with the reason if this kind of lock has none.
        """
        fencing_token = self._grant.fencing_token
        if fencing_token is None:
            raise LockError(self._claim.primitive.unfenced, self.name)
        return fencing_token

    @property
    def fencing_tokens(self) -> dict[str, int]:
        """The fencing token of each of its names, as the code writes them. A `MultiLock` has
        several names."""
        tokens = self._claim.fencing_tokens or {self.name: self.fencing_token}
        its = self._claim.parts or (self._claim.keys,)
        return {keys.unscoped or keys.name: tokens[keys.name] for keys in its}

    @property
    def owner(self) -> str:
        """The holder: host, process, and thread or task."""
        return self._claim.owner

    @property
    def label(self) -> str:
        """The place where it was taken."""
        return self._claim.label

    @property
    def ttl(self) -> float:
        """The seconds that it lives without renewal."""
        return self._claim.ttl

    @property
    def acquired_at(self) -> datetime:
        """The time when it was acquired, by the server's clock; an aware datetime in UTC."""
        return server_time(self._grant.acquired_us)

    @property
    def state(self) -> LeaseState:
        """The state as it is known right now. No request is sent."""
        return self._lifetime.state

    def remaining(self) -> float:
        """Seconds until its own deadline; 0 when it is no longer held."""
        return self._lifetime.remaining()

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is held. Costs nothing: no request is sent."""
        fork.look()
        lifetime = self._lifetime
        if lifetime.released or lifetime.closing:
            raise LeaseLost(self.name, "it was released, or given to another process")
        if (error := lifetime.expire()) is not None:
            raise error

    def __repr__(self) -> str:
        return f"<Lease on {self.name!r}: {self.state}, {self.remaining():.1f} s left>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "A lease can't be copied or pickled, since it would have two owners. To continue "
            "it in another process, send lease.export() and call Lease.restore() there."
        )

    # Loss.

    def on_lost(self, callback: Callable[[Lease], object]) -> None:
        """Call `callback(lease)` in a thread of its own when the lease is lost."""
        self._callbacks.append(validate_on_lost(callback))
        if self._lifetime.error is not None:
            self._call_back()

    def on_unknown(self, callback: Callable[[Lease], object]) -> None:
        """Call `callback(lease)` in a thread of its own when a renewal got no answer: the lease is
        not lost yet. It is called again if that happens again after a renewal."""
        validate_on_lost(callback, "on_unknown")
        self._unknown_callbacks += (callback,)
        if self.state == LeaseState.UNKNOWN:
            self._start(callback)

    def _announce_lost(self, error: LeaseLost) -> None:
        # Any thread may run this, perhaps one with an event loop: so receivers and callbacks are
        # called in other threads.
        claim, grant = self._claim, self._grant
        fence, held = grant.fencing_token, now() - grant.sent
        lost = claims.event(
            "lost", claim, self._server, fencing_token=fence, held=held, why=error.why
        )
        signals.log(lost)
        signals.send_later(lost)
        self._call_back()

    def _call_back(self) -> None:
        """Call who asked for a loss: each once, even if several threads come here."""
        for hold in self._holds.copy():
            if hold.cancellation is not None:
                hold.cancellation.request()
            callback, hold.on_lost = hold.on_lost, None
            if callback is not None:
                self._start(callback)
        while self._callbacks:
            with suppress(IndexError):  # another thread has taken it
                self._start(self._callbacks.pop(0))

    def _announce_unknown(self) -> None:
        if signals.wanted("unknown"):
            claim, held = self._claim, now() - self._grant.sent
            fence = self._grant.fencing_token
            unknown = claims.event("unknown", claim, self._server, fencing_token=fence, held=held)
            signals.log(unknown)
            signals.send_later(unknown)
        for callback in self._unknown_callbacks:
            self._start(callback)

    def _start(self, callback: Callable[[Lease], object]) -> None:
        # A thread for each callback: one that hangs must not keep the watchdog from the other
        # leases.
        start_or_call(partial(self._call, callback), "redislock-lost")

    def _call(self, callback: Callable[[Lease], object]) -> None:
        try:
            callback(self)
        except Exception:
            logger.exception("A callback of the lease on %r raised", self.name)

    # Extension.

    def extend(self, ttl: float | None = None) -> None:
        """Let it live for `ttl` seconds from now, and from each later renewal.

        A shorter `ttl` counts from when the present one has run down to it. Raises `LeaseLost`,
        or `LockUnavailable`: then it is unknown for the time being.
        """
        run(self._extend(SyncPort, ttl))

    async def aextend(self, ttl: float | None = None) -> None:
        """`extend` for coroutines."""
        await self._extend(AsyncPort, ttl)

    async def _extend(self, port_type: type[SyncPort | AsyncPort], ttl: float | None) -> None:
        self.check()
        ttl = None if ttl is None else validate_ttl(ttl)
        port = port_type(self._server, terms=self._lifetime.terms)
        try:
            await renew(port, [self._lifetime], ttl)
        finally:
            self._watchdog.reconsider(self._lifetime)
        self.check()

    # Downgrade.

    def downgrade(self) -> None:
        """Turn this write lock into a read lock, without a gap: nobody writes in between.

        Readers that have waited behind it go in. The only way back is to release it. Raises
        `TypeError` for any lease but that of a `ReadWriteLock`; `LockError` if an outer block, or
        an open transaction with `release="commit"`, relies on exclusive access; `LeaseLost`; and
        `LockUnavailable`: then the lock may still keep readers out, the holder may only read, and
        the call may be repeated.
        """
        run(self._downgrade(SyncPort))

    async def adowngrade(self) -> None:
        """`downgrade` for coroutines."""
        await self._downgrade(AsyncPort)

    async def _downgrade(self, port_type: type[SyncPort | AsyncPort]) -> None:
        self.check()
        claim, port = self._claim, port_type(self._server)
        if claim.primitive not in (permits.READ, permits.WRITE):
            raise TypeError(
                f"the lease on {self.name!r} is of the kind {claim.primitive.kind!r}; only the "
                f"lease of ReadWriteLock(…).write() can be downgraded"
            )
        if claim.primitive is permits.WRITE:
            await self._refuse_downgrade(port)
        # From here on the lease is for reading only, even if the answer is lost.
        claim.primitive = permits.READ
        refusal = await permits.READ.downgrade(port, claim)
        if refusal is not None:
            self._lifetime.lose(refusal.error(self.name))
        self.check()

    async def _refuse_downgrade(self, port: Port) -> None:
        """Raise `LockError` if an outer block or a transaction relies on exclusive access."""
        blocks = len(self._holds.blocks)
        if blocks > 1:
            raise LockError(
                f"The lease on {self.name!r} is held by {blocks} blocks, and the outer "
                f"ones rely on exclusive access. Call lease.downgrade() in the outermost block, "
                f"after the inner ones.",
                self.name,
            )
        if self._policy.release != "commit":
            return
        if await beside_orm(port, transactions.open_transactions):
            raise LockError(
                f"The lease on {self.name!r} is kept until the database transaction is committed "
                f"(release='commit'): readers admitted now would read the old rows. Call "
                f"lease.downgrade() after the atomic block, or not at all.",
                self.name,
            )

    # Export and restore.

    def export(self) -> str:
        """Hand the lease to another process, as a text for `Lease.restore` there.

        From here on this process doesn't renew or release it; its state here is released. The
        other process has to restore it within `ttl`; if several try, only the first one gets it.
        The text is signed, and contains the token: treat it as a secret.

        Raises `LeaseLost`, and `LockError` for a `MultiLock` or a `Redlock`, whose leases can't be
        exported.
        """
        self.check()
        left, renewed = self._lifetime.hold_left(now()), self._lifetime.renew
        text = Exported.of(self._claim, self._policy, left, renew=renewed).signed()
        if not self._close():
            self.check()  # another thread or task has released or exported it meanwhile
        self._lifetime.end()
        return text

    @classmethod
    def restore(cls, text: str) -> Lease:
        """Continue a lease that another process exported, with the same settings: `SECRET_KEY`
        (or one of `SECRET_KEY_FALLBACKS`), `PREFIX`, and the alias of `CACHES`.

        Raises `ValueError` for a text that is not what `export` returned, or that came from other
        settings; `LeaseLost` when the lease is no longer held; `LockUnavailable`.
        """
        return run(cls._restore(SyncPort, text))

    @classmethod
    async def arestore(cls, text: str) -> Lease:
        """`restore` for coroutines."""
        return await cls._restore(AsyncPort, text)

    @classmethod
    async def _restore(cls, port_type: type[SyncPort | AsyncPort], text: str) -> Lease:
        exported = Exported.read(text)
        me, policy = current_holder(), exported.policy
        claim = Claim(
            keys=exported.keys,
            token=tokens.new(),
            ttl=min(policy.ttl, policy.max_hold or policy.ttl),
            owner=owner_of(me),
            label=exported.label,
            primitive=kinds.primitive(policy),
            guarded=kinds.guarded(policy, clustered),
        )
        server = server_of(policy.using)
        try:
            port = port_type(server, terms=policy.terms())
            got = await claim.primitive.adopt(port, exported.token, claim)
            if isinstance(got, Refusal):
                claim.sent = False  # there is nothing to take back
                raise got.error(claim.keys.name)
            lease = cls(server, claim, got, policy, Hold(me))
            lease.check()  # the answer may have taken longer than it lives
            return lease._watched()
        except BaseException as error:
            await claims.cut_short(error, port_type, server, claim)
            raise

    # Release.

    def release(self) -> None:
        """Release the lease. Releasing a released lease does nothing, even if another thread or
        task, or the code that a signal's handler has interrupted, is releasing it at this moment.

        If the lease was taken again (`reentrant=True`), this ends only the innermost hold; the
        last one releases the lease. Nothing happens while only a database transaction
        (`release="commit"`) or a response that is being sent holds it. Raises `LeaseLost` when it
        was no longer held, and `LockUnavailable` when Redis could not be asked: then the call may
        be repeated, or the lease left to its TTL. If a signal's handler raises an exception
        meanwhile, the lease is released in the background.
        """
        hold = None
        try:
            hold = self._holds.innermost
            run(self._end_hold(SyncPort(self._server), hold))
        except LockError:
            raise
        except BaseException:
            self._abandon(hold or self._holds.innermost)
            raise

    async def arelease(self) -> None:
        """`release` for coroutines."""
        await self._end_hold(AsyncPort(self._server), self._holds.innermost)

    def _settle(self, hold: Hold) -> None:
        """End a hold that has outlived its block: that of a transaction, or of a response."""
        try:
            run(self._end_hold(SyncPort(self._server), hold))
        except LockUnavailable:
            self._release_later()
        except LeaseLost as lost:
            logger.error(
                "%r was lost before its transaction was committed, or its response sent: %s",
                self.name,
                lost,
            )
        except BaseException:
            self._abandon(hold)
            raise

    async def _release_in_background(self, port: Port, hold: Hold | None) -> None:
        """Release it in the watchdog's thread, which calls no receivers."""
        claim = self._claim
        if claim.owed and self._lifetime.over and not self._lifetime.released:
            # The lease has ended before Redis answered; its record is still to be written.
            await claim.primitive.release(port, claim)
        else:
            await self._end_hold(port, hold, in_background=True)

    async def _end_hold(
        self, port: Port, hold: Hold | None, *, in_background: bool = False
    ) -> None:
        """End a hold, and release the lease if it was the last one, or if that has failed before.

        Others may be releasing it at this moment: threads, tasks, and the code that a signal's
        handler has interrupted, which can't be waited for. So each sends a request, and has
        released the lease when it returns.
        """
        fork.look()
        lifetime, claim = self._lifetime, self._claim
        if lifetime.over:
            return
        lost = lifetime.expire()
        self._end(hold)
        if not lifetime.closing:
            return
        self._watchdog.forget(claim)
        self._releasing += 1
        try:
            # Even if it is lost: by its own deadline, it may exist at the server for another
            # moment.
            refusal = await claim.primitive.release(port, claim)
            if lost is None and refusal is not None and refusal.forgotten and claim.guarded:
                refusal = await guard.release_forgotten(port, claim, lifetime.deadline)
            if lost is None and refusal is not None:
                if lifetime.released or (self._releasing > 1 and not refusal.revoked):
                    return  # it was released by another request, or the last of them will tell
                lost = refusal.error(self.name)
                lifetime.lose(lost, at_release=True)
            elif lost is None and not lifetime.end():
                return
        except LockUnavailable:
            if lifetime.released:
                return
            if lost is None or claim.owed:
                raise
        except BaseException as error:
            claim.doubtful = True
            lifetime.end()  # even if an exception follows: this lease holds nothing any more
            await claims.interrupted(error, port, self._server, claim)
            raise
        finally:
            self._releasing -= 1
        if lost is not None:
            raise lost
        if signals.wanted("released"):
            grant = self._grant
            await claims.report(
                port,
                "released",
                claim,
                self._server,
                in_background=in_background,
                fencing_token=grant.fencing_token,
                held=now() - grant.sent,
            )

    def _end(self, hold: Hold | None) -> None:
        """End a hold. Nothing changes if it has ended before."""
        if hold is not None:
            if hold.cancellation is not None:
                hold.cancellation.disarm()
            with suppress(ValueError):  # it has ended before
                self._holds.remove(hold)
        # No call, and so no other thread and no signal, comes between these two lines.
        if not self._holds:
            self._lifetime.closing = True
        elif others := self._holds.copy():
            self._move(others[-1].by)

    def _add(self, hold: Hold) -> bool:
        """Let it be held once more. Return False if it is being released already."""
        self._holds.append(hold)
        if self._lifetime.closing:
            self._end(hold)
            return False
        self._move(hold.by)
        return True

    def _close(self) -> bool:
        """End all holds, and stop renewing. Return False if there was none."""
        before, self._lifetime.closing = self._lifetime.closing, True
        for hold in self._holds.copy():
            self._end(hold)
        self._watchdog.forget(self._claim)
        return not before

    def _abandon(self, hold: Hold | None = None) -> None:
        """End a hold after an exception from outside; if it was the last one, let the watchdog
        release the lease. None: the hold of an acquire that no block has entered."""
        self._end(hold or self._holds.unentered)
        lifetime = self._lifetime
        if lifetime.closing and not lifetime.released and lifetime.error is None:
            self._release_later()

    def _release_later(self, hold: Hold | None = None) -> None:
        """End a hold in the background. A finalizer may call this, in the middle of anything."""
        if not self._lifetime.released:  # by a test, which leaves no server to ask either
            release = partial(self._release_in_background, hold=hold)
            self._watchdog.release_later(self.name, release)

    # Blocks.

    def __enter__(self) -> Lease:
        self._enter()
        return self

    async def __aenter__(self) -> Lease:
        self._enter()
        return self

    def _watched(self) -> Lease:
        """Let the watchdog renew it from now on."""
        self._watchdog.watch(self._lifetime, self._holds.holder)
        return self

    def _enter(self, *, current: bool = True) -> Hold:
        """Begin a block of this thread or task. Unless it is a generator, which is entered and
        left with each step, it becomes the current one."""
        hold = None
        try:
            me = current_holder()
            hold = self._holds.enter(self, me)
            self.check()  # a block never runs without its lock
            if self._holds.holder is not me:
                self._hand_over(hold, me)
            if current:
                hold.begin()
            return hold
        except LeaseLost:  # whoever has released it, sends the request
            if hold is not None:
                hold.leave()
                self._end(hold)
            raise
        except BaseException:
            if hold is not None:
                hold.leave()
            self._abandon(hold)
            raise

    def _hand_over(self, hold: Hold, me: Holding) -> None:
        """Let another thread or task use the lease, in a block of its own."""
        cancels = any(one.cancellation for one in self._holds.copy())
        if hold.cancellation is not None:
            hold.cancellation.disarm()
        hold.cancellation = Cancellation(me) if cancels and isinstance(me, asyncio.Task) else None
        self._move(me)

    def _move(self, me: Holding | None) -> None:
        """Note who uses the lease."""
        if me is not self._holds.holder:
            # Before the holder changes: a signal's exception may come in between.
            if me is not None:
                self._watchdog.move(self._lifetime, me)
            self._holds.holder = me

    def _leaving(self) -> tuple[Hold, Lease]:
        hold, me = innermost(), current_holder()
        if hold is not None and hold.by is me and hold.lease is not None and hold.lease() is self:
            return hold, self
        blocks = [one for one in self._holds.copy() if one.entered]
        return last(blocks or [Hold(me)], me), self

    async def _end_block(self, port: Port, hold: Hold, error: BaseException | None) -> None:
        """End the hold of a block: now, or at the end of the transactions that are open."""
        cancelled = hold.cancellation is not None and hold.cancellation.finish(error)
        release, by_hand = self._policy.release, None
        if release == "exit" or hold not in self._holds or self._lifetime.over:
            pass
        elif release == "commit":
            try:
                await beside_orm(port, partial(self._defer, error))
            except TransactionManagementError as raised:
                by_hand = raised  # since somewhere in the block
        elif error is None and len(self._holds) == 1:
            await beside_orm(port, partial(transactions.warn_if_open, self.label))
        try:
            await self._end_hold(port, hold)
            if by_hand is not None:
                raise by_hand
        except LockUnavailable as unavailable:
            # The block did its work under the lock: this is no reason to fail it.
            logger.warning("%r is released later: %s", self.name, unavailable)
            self._release_later()
        except (LockError, TransactionManagementError) as raised:
            if error is None:
                raise
            if error is not raised:
                error.add_note(str(raised))
        if cancelled and (lost := self._lifetime.lost) is not None:
            # This package cancelled the task: say why, as asyncio.timeout() does.
            raise lost from error

    def _defer(self, error: BaseException | None) -> None:
        """Let each open transaction hold the lease from now on, besides the block."""
        pending = transactions.open_transactions()
        if pending and error is None:
            self.check()  # before the commit, while it can still be rolled back
        for connection in pending:
            later = Hold(self._holds.holder, outlives=True)
            # A finalizer calls `dropped`, which therefore sends no request.
            transactions.at_end(
                connection,
                committed=partial(self._settle, later),
                dropped=partial(self._release_later, later),
            )
            self._holds.append(later)
