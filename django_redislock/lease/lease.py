"""What acquiring returns: the proof of holding a name, and what is known of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..base import fork
from ..base.clock import deadline, now
from ..base.exceptions import LeaseLost, LockError
from ..base.holder import server_time
from ..base.label import Holding
from ..base.label import holder as current_holder
from ..settings.validators import validate_on_lost, validate_ttl
from .cancellation import Cancellation
from .current import innermost

if TYPE_CHECKING:
    from ..primitives.contract import Claim, Grant
    from ..settings.policy import Policy
    from ..transport.server import Server
    from .watchdog import Watchdog

logger = logging.getLogger("django_redislock")


class LeaseState(StrEnum):
    HELD = "held"
    UNKNOWN = "unknown"
    """The last renewal got no answer. That is not lost: the lease has time left."""
    LOST = "lost"
    RELEASED = "released"


class Operations(Protocol):
    """What a lease asks for; operations.py does it."""

    def extend(self, lease: Lease, ttl: float | None) -> None: ...
    async def aextend(self, lease: Lease, ttl: float | None) -> None: ...
    def downgrade(self, lease: Lease) -> None: ...
    async def adowngrade(self, lease: Lease) -> None: ...
    def release(self, lease: Lease) -> None: ...
    async def arelease(self, lease: Lease) -> None: ...
    async def release_through(self, port: Any, lease: Lease) -> None: ...
    def leave(self, lease: Lease, error: BaseException | None) -> None: ...
    async def aleave(self, lease: Lease, error: BaseException | None) -> None: ...
    def move(self, lease: Lease, me: Holding) -> None: ...
    def abandon(self, lease: Lease) -> None: ...
    def settle(self, lease: Lease) -> None: ...
    def lost(self, lease: Lease, error: LeaseLost) -> None: ...
    def export(self, lease: Lease) -> str: ...
    def restore(self, text: str) -> Lease: ...
    async def arestore(self, text: str) -> Lease: ...


Holds = tuple[int, int, int]
"""Holds, those of them that are blocks of code, and blocks that released before they ended.

Where it is taken before a `try`, no property is called, since a signal's exception may come there.
"""


class Lease:
    """The proof of holding a name. All times are seconds.

    A lease is `held` until it is `released`, or `lost`: expired without a renewal, taken by
    somebody else, or cleared by an operator. While Redis does not answer it is `unknown`
    until its own deadline, which counts from the time at which it was last asked for.
    """

    __slots__ = (
        "__weakref__",
        "_closing",
        "_count",
        "_deadline",
        "_doubt",
        "_error",
        "_hold_until",
        "_on_lost",
        "_operations",
        "_outer",
        "_released",
        "_released_early",
        "_unentered",
        "acquired_us",
        "began",
        "blocks",
        "cancellation",
        "claim",
        "due",
        "fence",
        "holder",
        "release_at",
        "renew",
        "replicas",
        "replicas_timeout",
        "server",
        "watchdog",
    )

    watchdog: Watchdog
    """What renews it, since it is watched."""
    restorer: ClassVar[Operations]
    """What restores an exported lease. operations.py sets it, since imports point one way."""

    @property
    def using(self) -> str:
        """The alias of CACHES through which it was acquired."""
        return self.server.using

    def __init__(
        self,
        operations: Operations,
        server: Server,
        claim: Claim,
        grant: Grant,
        policy: Policy,
        holder: Holding | None,
    ) -> None:
        self._operations = operations
        self.claim = claim
        self.server = server
        self.fence = grant.fencing_token
        """The fencing token, or None where its primitive has none."""
        self.acquired_us = grant.acquired_us
        """When it was acquired, in microseconds since the epoch, by the server's clock."""
        self.began = grant.sent
        """When this process began to hold it, by our own clock."""
        self.holder = holder
        """The thread or task that works with it; None: a response that is being sent."""
        self.renew = policy.renew
        self.replicas = policy.replicas
        """So many have to confirm each renewal."""
        self.replicas_timeout = policy.replicas_timeout
        """Seconds that they have for it."""
        self.release_at = policy.release
        self._hold_until = self.began + (policy.max_hold or float("inf"))
        self.due = 0.0
        """When the watchdog has to look at it: to renew it, or to see that it is lost."""
        self.blocks = 1
        """So many blocks of code hold it; when there is none, database transactions do."""
        self._unentered = 1
        """So many of them were acquired, and are no `with` block (yet)."""
        self._released_early = 0
        """So many `with` blocks have released it before they were left."""
        self._count = 1
        self._deadline = 0.0
        self.renewed(self.began, claim.ttl)
        self._closing = False
        self._released = False
        self._error: LeaseLost | None = None
        self._on_lost: list[tuple[int, Callable[[Lease], object]]] = []
        self._outer: list[weakref.ref[Lease] | None] = []
        self.cancellation: Cancellation | None = None
        """What cancels its task when it is lost, if that was asked for."""

    @property
    def name(self) -> str:
        """What is locked."""
        return self.claim.keys.name

    @property
    def token(self) -> str:
        """The secret proof of ownership."""
        return str(self.claim.token)

    @property
    def fencing_token(self) -> int:
        """An integer that only grows per name: let the database refuse a smaller one.

        Raises `LockError` with the reason where such a lock has none.
        """
        if self.fence is None:
            raise LockError(self.claim.primitive.unfenced, self.name)
        return self.fence

    @property
    def fencing_tokens(self) -> dict[str, int]:
        """The fencing token of each of its names: of a `MultiLock` these are several."""
        return dict(self.claim.fencing_tokens) or {self.name: self.fencing_token}

    @property
    def owner(self) -> str:
        """Who took it: host, process, and thread or task."""
        return self.claim.owner

    @property
    def label(self) -> str:
        """Where it was taken."""
        return self.claim.label

    @property
    def ttl(self) -> float:
        """Seconds that it lives without renewal."""
        return self.claim.ttl

    @property
    def acquired_at(self) -> datetime:
        """When it was acquired, by the server's clock; an aware datetime in UTC."""
        return server_time(self.acquired_us)

    def __repr__(self) -> str:
        return f"<Lease on {self.name!r}: {self.state}, {self.remaining():.1f} s left>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "A lease can't be copied or pickled, since it would have two owners. To continue "
            "it in another process, send lease.export() and call Lease.restore() there."
        )

    # What is known of it. Nothing here asks the server, and reading a property changes nothing.

    @property
    def over(self) -> bool:
        """It was released; or its time is over, and it was being given back before that."""
        ended = self._closing and self._error is None and now() >= self._deadline
        return self._released or ended

    @property
    def state(self) -> LeaseState:
        if self.over:
            return LeaseState.RELEASED
        if self.lost is not None:
            return LeaseState.LOST
        return LeaseState.UNKNOWN if self._doubt else LeaseState.HELD

    @property
    def lost(self) -> LeaseLost | None:
        """Why it is lost, or None."""
        # What happens after it began to be given back in time is no loss.
        over = self._closing or self._released
        if self._error is None and not over and now() >= self._deadline:
            return LeaseLost(self.name, f"its ttl of {self.ttl:g} s passed unrenewed")
        return self._error

    def expire(self) -> LeaseLost | None:
        """`lost`; and if its own deadline has passed, everybody who asked for it is told."""
        if self._error is None and (error := self.lost) is not None:
            self.lose(error)
        return self._error

    def remaining(self) -> float:
        """Seconds until its own deadline; 0 when it is not held any more."""
        if self._released or self._error is not None:
            return 0.0
        return max(0.0, self._deadline - now())

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is held. Costs nothing: no request is sent."""
        fork.look()
        if self._released or self._closing:
            raise LeaseLost(self.name, "it was released, or given to another process")
        if (error := self.expire()) is not None:
            raise error

    def on_lost(self, callback: Callable[[Lease], object]) -> None:
        """Call `callback(lease)` in a thread of its own when the lease is lost."""
        self.follow(validate_on_lost(callback), depth=0)

    def follow(self, callback: Callable[[Lease], object], *, depth: int) -> None:
        """`on_lost` for as long as at least `depth` blocks hold the lease."""
        with _ending:
            if self._error is None:
                self._on_lost.append((depth, callback))
                return
        self._tell([callback])

    # What the caller does with it.

    def extend(self, ttl: float | None = None) -> None:
        """Let it live for `ttl` seconds from now, and from each later renewal.

        A shorter `ttl` counts from when the present one has run down to it. Raises `LeaseLost`,
        or `LockUnavailable`: then it is unknown for the time being.
        """
        self.check()
        self._operations.extend(self, None if ttl is None else validate_ttl(ttl))

    async def aextend(self, ttl: float | None = None) -> None:
        """`extend` for coroutines."""
        self.check()
        await self._operations.aextend(self, None if ttl is None else validate_ttl(ttl))

    def downgrade(self) -> None:
        """From writing to reading, without letting go: nobody writes in between.

        Readers that have waited behind it go in. There is no way back but to release it. Of any
        lease but that of a `ReadWriteLock` it is a `TypeError`; where an outer block, or an open
        transaction with `release="commit"`, counts on being alone, a `LockError`.

        Raises `LeaseLost`, or `LockUnavailable`: then it may keep others waiting as a writer
        does, but is to be read under only, and this may be repeated.
        """
        self.check()
        self._operations.downgrade(self)

    async def adowngrade(self) -> None:
        """`downgrade` for coroutines."""
        self.check()
        await self._operations.adowngrade(self)

    def release(self) -> None:
        """Give it back. Releasing a released lease does nothing.

        Of a lease that was taken again (`reentrant=True`) only the innermost hold is given
        back, and the last one releases it.

        Raises `LeaseLost` when it was not ours any more, and `LockUnavailable` when Redis
        could not be asked: then it may be repeated, or left to its TTL. After what a signal's
        handler raises it is released in the background.
        """
        holds = self._count, self.blocks, self._released_early
        try:
            self._give_back()
            self._operations.release(self)
        except LockError:
            raise
        except BaseException:
            self.abandon(holds)
            raise

    async def arelease(self) -> None:
        """`release` for coroutines."""
        self._give_back()
        await self._operations.arelease(self)

    async def give_back(self, port: Any) -> None:
        """`release` through a port."""
        self._give_back()
        await self._operations.release_through(port, self)

    async def release_through(self, port: Any) -> None:
        """Release it through a port, for the watchdog."""
        await self._operations.release_through(port, self)

    def export(self) -> str:
        """Give the lease to another process, as a text for `Lease.restore` there.

        From here on this process doesn't renew or release it; its state here is released.
        The other one has to restore it within `ttl`, and of several that try only the first
        gets it. The text is signed, and contains the token: treat it as a secret. Raises
        `LeaseLost`, and `LockError` for a `MultiLock` or a `Redlock`, whose leases stay where
        they are.
        """
        self.check()
        return self._operations.export(self)

    @classmethod
    def restore(cls, text: str) -> Lease:
        """Continue a lease that another process exported, with the same settings: `SECRET_KEY`
        (or one of `SECRET_KEY_FALLBACKS`), `PREFIX`, and the alias of `CACHES`.

        Raises `ValueError` for a text that is not what `export` returned, or that came from other
        settings; `LeaseLost` when the lease is not held any more; `LockUnavailable`.
        """
        return cls.restorer.restore(text)

    @classmethod
    async def arestore(cls, text: str) -> Lease:
        """`restore` for coroutines."""
        return await cls.restorer.arestore(text)

    # What the lock and the watchdog tell it.

    def hold_left(self, time: float) -> float | None:
        """Seconds until renewal ends; None: it does not."""
        left = self._hold_until - time
        return None if left == float("inf") else max(left, 0.001)

    def next_ttl(self, time: float, ttl: float | None = None) -> float:
        """The ttl of a renewal that is sent at `time`: it ends no later than `max_hold` does."""
        return min(ttl or self.claim.ttl, max(self._hold_until - time, 0.001))

    def renewed(self, sent: float, ttl: float) -> None:
        """A renewal to `ttl` that was sent at `sent` got its answer."""
        if sent + ttl > self._hold_until - 0.001:
            self.renew = False  # it was the last one
        # No command shortens what another one has promised, whatever order they arrive in.
        self._deadline = max(deadline(sent, ttl), self._deadline)
        self.due = sent + ttl / 3 if self.renew else self._deadline
        self._doubt = False

    def unknown(self) -> None:
        """A renewal got no answer; soon comes the next."""
        self._doubt = True
        soon = now() + min(self.ttl / 10, 1.0)
        self.due = min(soon, self._deadline) if self.renew else self._deadline

    def enter(self) -> bool:
        """One more block of code holds it. False: it is being released already."""
        with _ending:
            if self._closing:
                return False
            self.blocks += 1
            self._unentered += 1
            self._count += 1
            return True

    def defer(self, transactions: int) -> None:
        """The block that was left just now is followed by so many database transactions."""
        with _ending:
            self._count += transactions - 1

    def outlive(self) -> None:
        """One hold more, which is no thread's or task's. `settle` ends it.

        Whoever asks for the lock from here on has to wait, as everybody else does.
        """
        with _ending:
            self._count += 1
            self.holder = None

    def settle(self) -> None:
        """What held it after its block is over: a transaction, a response."""
        holds = self._count, self.blocks, self._released_early
        try:
            self._operations.settle(self)
        except BaseException:
            self.abandon(holds)
            raise

    def unhold(self) -> bool:
        """One block or transaction less. True when it was the last: now release it."""
        with _ending:
            self._count -= 1
            self._closing |= self._count <= 0
            return self._count <= 0

    def close(self) -> None:
        """It is being released: what a renewal learns from now on is no loss."""
        self._closing = True
        if self.cancellation is not None:
            self.cancellation.disarm()

    @property
    def closing(self) -> bool:
        return self._closing

    def end(self) -> None:
        """It is not ours any more, and rightly so."""
        self._released = True

    @property
    def ended(self) -> bool:
        return self._released

    def lose(self, error: LeaseLost) -> None:
        """It is lost, for good: tell everybody who asked for it, once."""
        with _ending:
            if self._error is not None or self._released:
                return
            self._error = error
            callbacks = [callback for _, callback in self._on_lost]
        self._operations.lost(self, error)
        if self.cancellation is not None:
            self.cancellation.request()
        self._tell(callbacks)

    def _tell(self, callbacks: list[Callable[[Lease], object]]) -> None:
        # In a thread of its own: a callback that hangs must not keep the watchdog from the
        # other leases.
        for callback in callbacks:
            threading.Thread(
                target=self._call, args=(callback,), name="redislock-lost", daemon=True
            ).start()

    def _call(self, callback: Callable[[Lease], object]) -> None:
        try:
            callback(self)
        except Exception:
            logger.exception("on_lost of %r raised", self.name)

    # As a context manager, it is released when the block is left. A signal's exception may come
    # in the middle of entering and leaving, too: then the block is over, and the watchdog does
    # what is left to do.

    def __enter__(self) -> Lease:
        return self.enter_block()

    def enter_block(self, me: Holding | None = None) -> Lease:
        """A `with` block of this thread or task begins."""
        holds = self._count, self.blocks, 0
        try:
            me = current_holder() if me is None else me
            self.check()  # a block never runs without its lock
            if not self._unentered:
                self.enter()
                holds = self.holds
            self._unentered -= 1
            if self.holder is not me:
                self._move(me)
            self._outer.append(innermost.get())
            innermost.set(weakref.ref(self))
            return self
        except BaseException:
            self.abandon(holds)
            raise

    def __exit__(self, exc_type: object, error: BaseException | None, traceback: object) -> None:
        self.leave(error, entered=True)

    async def __aenter__(self) -> Lease:
        return self.__enter__()

    async def __aexit__(
        self, exc_type: object, error: BaseException | None, traceback: object
    ) -> None:
        await self.aleave(error, entered=True)

    @property
    def holds(self) -> Holds:
        """How often it is held right now."""
        return self._count, self.blocks, self._released_early

    def abandon(self, before: Holds | None = None) -> None:
        """A block was left, and an exception from outside came in the middle of that.

        Whether it has been counted is known from the numbers `before`.
        """
        with _ending:
            count, blocks, released_early = before or self.holds
            if not released_early:
                self._count = min(self._count, count - 1)
                self.blocks = min(self.blocks, blocks - 1)
            ends = self._count <= 0 and not self._released and self._error is None
            self._closing |= ends
        if ends:
            self._operations.abandon(self)

    def leave(self, error: BaseException | None, *, entered: bool = False) -> None:
        """The block that holds it is left, with `error` or without."""
        holds = self._count, self.blocks, self._released_early
        try:
            if sys.is_finalizing():
                return  # a generator that is closed with the interpreter can't ask anybody now
            if isinstance(error, GeneratorExit) and collecting():
                self._collected(entered=entered)
                self.abandon(holds)
                return
            if entered:
                innermost.set(self._outer.pop())
            if self._left():
                self._operations.leave(self, error)
        except BaseException:
            self.abandon(holds)
            raise

    def _collected(self, *, entered: bool) -> None:
        """The collector closes the generator that this block is in, perhaps in another thread, and
        in the middle of anything, such as the pool's own work. No request may be sent there."""
        if not entered:
            return
        outer, current = self._outer.pop(), innermost.get()
        if current is not None and current() is self:
            innermost.set(outer)

    async def aleave(self, error: BaseException | None, *, entered: bool = False) -> None:
        """`leave` for coroutines."""
        holds = self._count, self.blocks, self._released_early
        try:
            if entered:
                innermost.set(self._outer.pop())
            ours = self._left()
            cancelled = False
            if self.cancellation is not None and self.blocks < self.cancellation.depth:
                cancelled = self.cancellation.finish(error)
                self.cancellation = None
            if ours:
                await self._operations.aleave(self, error)
            if cancelled and self.lost is not None:
                # It was us who cancelled the task: say why, as asyncio.timeout() does.
                raise self.lost from error
        except BaseException:
            self.abandon(holds)
            raise

    def _left(self) -> bool:
        """One block less. False: it has released the lease itself, and others hold it still."""
        with _ending:
            if self._released_early:
                self._released_early -= 1
                return self._count <= 0
            self.blocks -= 1
            if self._on_lost:
                self._on_lost = [entry for entry in self._on_lost if entry[0] <= self.blocks]
            return True

    def _give_back(self) -> None:
        """One hold less, and if it is that of a `with` block, before that is left."""
        fork.look()
        with _ending:
            self.blocks -= 1
            if self._unentered:
                self._unentered -= 1
            else:
                self._released_early += 1

    def _move(self, me: Holding) -> None:
        """It was acquired elsewhere, and now this thread or task works with it."""
        self._operations.move(self, me)  # before it is true: a signal's exception may come here
        self.holder = me
        if self.cancellation is not None:
            self.cancellation.disarm()
            self.cancellation = (
                Cancellation(me, depth=self.blocks) if isinstance(me, asyncio.Task) else None
            )

    @property
    def orphaned(self) -> bool:
        """It is held by a block of a task that never goes on: its event loop was closed."""
        task = self.holder
        if self._closing or not self._outer or not isinstance(task, asyncio.Task):
            return False
        return not task.done() and task.get_loop().is_closed()

    @property
    def enterable(self) -> bool:
        """Its holder may hold it once more."""
        return not self._closing and self.state in (LeaseState.HELD, LeaseState.UNKNOWN)


# What the collector did last comes last. A callback in Python would swallow the exceptions of
# signals, for which CPython looks in there.
_collector: OrderedDict[str, None] = OrderedDict(start=None, stop=None)
# Called with the phase, and with a dictionary that is true.
gc.callbacks.append(_collector.move_to_end)  # type: ignore[arg-type]


def collecting() -> bool:
    """The garbage collector is at work, in this thread or in another one."""
    return next(reversed(_collector)) == "start"


# Reentrant, since the garbage collector may close a locked generator while it is held.
_ending = threading.RLock()
"""Held for a moment while a lease's count or end changes."""


def _after_fork() -> None:
    global _ending
    _ending = threading.RLock()  # another thread of the parent may have held it


fork.in_child(_after_fork)
