"""A lease: what acquiring returns, the proof of holding a name."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db.transaction import TransactionManagementError

from .. import signals
from ..base import process
from ..base.clock import now
from ..base.exceptions import LeaseLost, LockError, LockUnavailable
from ..base.people import Holding, server_time
from ..base.people import holder as current_holder
from ..primitives import mutex
from ..primitives.contract import Claim, Grant, Port, Refusal, run
from ..settings.policy import Policy
from ..settings.validators import validate_on_lost, validate_ttl
from ..transport.ports import AsyncPort, PortType, SyncPort
from ..transport.server import Server, server_of
from . import claims, transactions
from .claims import beside_orm
from .export import Exported
from .holds import Cancellation, Entered, Hold, Holds, call_apart, innermost, last
from .lifetime import CLOSING, RELEASED, LeaseState, Lifetime, renew
from .notes import Notes, Noting
from .watchdog import Watchdog, watchdog

logger = logging.getLogger("django_redislock")


class Lease(Noting, Entered):
    """The proof of holding a name. All times are seconds.

    A lease is `held` until it is `released`, or `lost`: expired without a renewal, taken by
    somebody else, or cleared by an operator. While Redis does not answer it is `unknown`
    until its own deadline, which counts from the time at which it was last asked for.
    """

    _lifetime: Lifetime

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_claim",
        "_ended",
        "_first",
        "_grant",
        "_holds",
        "_lifetime",
        "_policy",
        "_releasing",
        "_server",
        "_unknown_callbacks",
        "_watchdog",
        "_whole",
    )

    def __init__(
        self,
        server: Server,
        claim: Claim,
        grant: Grant,
        policy: Policy,
        hold: Hold,
        its_watchdog: Watchdog | None = None,
        *,
        young: bool = False,
    ) -> None:
        self._server = server
        self._watchdog = its_watchdog or watchdog(server)
        self._claim = claim
        self._grant = claim.granted = grant
        self._policy = policy
        self._first = hold
        self._ended = 0
        """How far the end of a young lease has come."""
        self._whole: dict[str, Lifetime] = {}
        """The lifetime, when there is one."""
        self._callbacks: list[Callable[[Lease], object]] = []
        """The callbacks for a loss that were not called yet, besides those of its holds."""
        self._unknown_callbacks: tuple[Callable[[Lease], object], ...] = ()
        self._releasing = 0
        """The number of requests to release it that have no answer yet."""
        if not young:
            self._complete()

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name in ("_holds", "_lifetime"):
                self._complete()
                return getattr(self, name)
            raise AttributeError(f"'Lease' object has no attribute {name!r}", name=name, obj=self)

    def _complete(self) -> None:
        """Let the watchdog renew it, and let everybody find it who looks for it.

        Several threads may do this at the same time, one may be releasing it meanwhile, and an
        exception from outside may end it anywhere. It may be repeated.
        """
        claim = self._claim
        lifetime = Lifetime(self, claim, self._grant, self._policy)
        lifetime.holds = Holds(self._first)
        if claim.found is not None:
            lifetime.notes = Notes(claim, self._policy)
        lifetime = self._whole.setdefault("", lifetime)
        self._holds, self._lifetime = lifetime.holds, lifetime
        if not (self._ended or lifetime.closing):
            self._watchdog.watch(lifetime, lifetime.holds.holder)
        if self._ended:  # before, or since that line
            lifetime.closing = True
            lifetime.released |= self._ended == RELEASED
        if lifetime.closing or lifetime.released:
            self._watchdog.forget(claim)

    async def _leave(self, hold: Hold, error: BaseException | None, *, sync: bool) -> None:
        """Release a young lease when its only hold ends, or end the block in the usual way."""
        claim, server = self._claim, self._server
        if (
            hold is not self._first
            # The transactions of a task are in another thread.
            or (self._policy.release != "exit" and (not sync or transactions.may_go_on()))
            or not self._watchdog.register.remove_young(claim)
            or now() >= self._grant.deadline(claim.ttl)
            or signals.wanted("released")
        ):
            await self._end_block(SyncPort(server) if sync else AsyncPort(server), hold, error)
            return
        self._ended = CLOSING
        self._releasing += 1
        try:
            port: Port | None = (
                claims.release_straight(server, claim) if sync else AsyncPort(server)
            )
            if port is not None and not (sync and claim.short):
                port = None if await claims.release_young(port, claim) else port
            if port is None:
                self._end_young()
        except BaseException as raised:
            claim.doubtful = True
            self._end_young()
            port = SyncPort(server) if sync else AsyncPort(server)
            await claims.interrupted(raised, port, server, claim)
            raise
        finally:
            self._releasing -= 1
        if port is not None:
            await self._end_block(port, hold, error)

    def _end_young(self) -> None:
        self._ended = RELEASED
        if self._whole:  # since a moment ago
            self._lifetime.end()
            self._watchdog.forget(self._claim)

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
        return {keys.unscoped or keys.name: tokens[keys.name] for keys in self._claim.names}

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
        process.notice_fork()
        time = now()
        young = not (self._whole or self._ended)
        if young and time < self._grant.deadline(self._claim.ttl):
            return
        lifetime = self._lifetime
        if lifetime.intact(time):
            return
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
            call_apart(callback, self)

    def _announce_lost(self, error: LeaseLost) -> None:
        run(claims.report(None, "lost", self._claim, self._server, why=error.why))
        self._call_back()

    def _call_back(self) -> None:
        """Call who asked for a loss: each once, even if several threads come here."""
        for hold in self._holds.copy():
            hold.tell_lost(self)
        while self._callbacks:
            with suppress(IndexError):  # another thread has taken it
                call_apart(self._callbacks.pop(0), self)

    def _announce_unknown(self) -> None:
        run(claims.report(None, "unknown", self._claim, self._server))
        for callback in self._unknown_callbacks:
            call_apart(callback, self)

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

    async def _extend(self, port_type: PortType, ttl: float | None) -> None:
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

    async def _downgrade(self, port_type: PortType) -> None:
        self.check()
        claim, blocks = self._claim, len(self._holds.blocks)
        commit = self._policy.release == "commit"
        refusal = await claims.downgrade(port_type(self._server), claim, blocks, commit=commit)
        self._lifetime.told(refusal)
        self.check()

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
        text = Exported.of(self._lifetime, self._policy).signed()
        if not self._close():
            self.check()  # another thread or task has released or exported it meanwhile
        self._lifetime.end()
        if self._lifetime.times.term < (ttl := self._lifetime.next_ttl(now())):
            claims.extend_later(self._server, self._claim, ttl)  # a message gave it less
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
    async def _restore(cls, port_type: PortType, text: str) -> Lease:
        exported = Exported.read(text)
        claim, policy = exported.claim(), exported.policy
        server = server_of(policy.using)
        try:
            port = port_type(server, terms=policy.terms())
            got = await claim.primitive.adopt(port, exported.token, claim)
            if isinstance(got, Refusal):
                claim.sent = False  # there is nothing to undo
                raise got.error(claim.keys.name)
            lease = cls(server, claim, got, policy, Hold(current_holder()))
            lease.check()  # the answer may have taken longer than it lives
            return lease
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
        was no longer held, and `LockUnavailable` when Redis could not be reached: then the lease
        is released in the background as soon as Redis answers, and the call may be repeated. It is
        also released in the background if a signal's handler raises an exception meanwhile.
        """
        hold = None
        try:
            hold = self._holds.innermost
            self._ends(sys.exception())
            run(self._end_hold(SyncPort(self._server), hold))
        except LockError:
            raise
        except BaseException:
            self._abandon(hold or self._holds.innermost)
            raise

    async def arelease(self) -> None:
        """`release` for coroutines."""
        self._ends(sys.exception())
        await self._end_hold(AsyncPort(self._server), self._holds.innermost)

    def _settle(self, hold: Hold) -> None:
        """End a hold that has outlived its block: that of a transaction, or of a response."""
        try:
            run(self._end_hold(SyncPort(self._server), hold))
        except LockUnavailable:
            pass  # it is released later
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
        released the lease when it returns. If Redis could not be reached, it is released later.
        """
        lifetime, claim, lost = self._lifetime, self._claim, None
        if not lifetime.intact(now()):
            if lifetime.over:
                return
            lost = lifetime.expire()
        self._end(hold)
        if not lifetime.closing:
            return
        self._watchdog.forget(claim)
        self._releasing += 1
        try:
            # Whoever is told of a loss leaves its note, although its lock may still be there.
            if lifetime.notes is not None and (lost is None or in_background):
                await lifetime.notes.end(port)
            # Even if it is lost: by its own deadline, it may exist at the server for another
            # moment.
            refusal = await claims.release(port, claim)
            if lost is None and refusal is not None and refusal.forgotten and claim.guarded:
                refusal = await mutex.release_forgotten(port, claim, lifetime.deadline)
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
                if not in_background:
                    self._release_later()
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
        await claims.report(None if in_background else port, "released", claim, self._server)

    def _end(self, hold: Hold | None) -> None:
        """End a hold. Nothing changes if it has ended before."""
        if hold is not None:
            if hold.cancellation is not None:
                hold.cancellation.disarm()
            try:  # noqa: SIM105  # most leases come here
                self._holds.remove(hold)
            except ValueError:  # it has ended before
                pass
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
        if hold is not None:
            self._ends(hold)  # of a transaction that was rolled back, or what nobody has any more
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

    def _enter(self, *, current: bool = True) -> Hold:
        """Begin a block of this thread or task. Unless it is a generator, which is entered and
        left with each step, it becomes the current one."""
        hold, first = None, self._first
        try:
            if not (first.entered or self._whole or self._ended):  # it is young
                hold = first.enter(self)
                if current:
                    hold.begin()
                return hold
            me = current_holder()
            hold = self._holds.enter(self, me)
            self.check()  # a block never runs without its lock
            if self._holds.holder is not me:
                self._hand_over(hold, me)
            if current:
                hold.begin()
            return hold
        except BaseException as error:
            if hold is not None:
                hold.leave()
            if isinstance(error, LeaseLost):
                self._end(hold)  # whoever has released it, sends the request
            else:
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
                self._watchdog.register.move(self._lifetime, me)
            self._holds.holder = me

    def _leaving(self) -> tuple[Hold, Lease]:
        hold, me = innermost(), current_holder()
        if hold is not None and hold.by is me and hold.lease is not None and hold.lease() is self:
            return hold, self
        blocks = [one for one in self._holds.copy() if one.entered]
        return last(blocks or [Hold(me)], me), self

    async def _end_block(self, port: Port, hold: Hold, error: BaseException | None) -> None:
        """End the hold of a block: now, or at the end of the transactions that are open."""
        self._ends(error)
        cancelled = hold.cancellation is not None and hold.cancellation.finish(error)
        release, by_hand = self._policy.release, None
        if release == "exit" or hold not in self._holds or self._lifetime.over:
            pass
        elif release == "commit":
            try:
                await beside_orm(port, partial(transactions.defer, self, error))
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
        except (LockError, TransactionManagementError) as raised:
            if error is None:
                raise
            if error is not raised:
                error.add_note(str(raised))
        if cancelled and (lost := self._lifetime.lost) is not None:
            # This package cancelled the task: say why, as asyncio.timeout() does.
            raise lost from error
