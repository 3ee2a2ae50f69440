"""Who holds a lease in this process.

A lease is held by blocks of code, and by what outlives its block: database transactions, and a
response that is being sent. Each of them is an object, and the lease is released when the last one
has ended. To end a hold twice changes nothing. So code that an exception from outside has
interrupted ends its hold again, and need not know how far it came.

With `cancel_on_lost`, the hold of a task cancels it when the lease is lost.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import logging
import math
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from ..base.background import start
from ..base.exceptions import LeaseLost
from ..base.people import Holding, holder
from ..base.process import by_a_handler
from ..primitives.contract import run

logger = logging.getLogger("django_redislock")


class Cancellation:
    """Cancels the task that holds a lease when it is lost, as asyncio.timeout() does."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self._before = task.cancelling()
        self._over = False
        self._delivered = False

    def follow(self) -> None:
        """Cancel this task, which makes a step of a generator; another one may have begun it."""
        me = holder()
        if isinstance(me, asyncio.Task) and me is not self._task and not self._delivered:
            self._task, self._before = me, me.cancelling()

    def request(self) -> None:
        """Cancel the task. Any thread may call this."""
        try:
            self._task.get_loop().call_soon_threadsafe(self._deliver)
        except RuntimeError:
            logger.debug("The event loop of a lost lease is closed already.")

    def _deliver(self) -> None:
        # This runs in the thread of the loop. A block that was left meanwhile is not cancelled.
        if not self._over and not self._delivered:
            self._delivered = True
            self._task.cancel("the lease was lost")

    def disarm(self) -> None:
        """Cancel nothing from now on, since the block is left."""
        self._over = True

    def finish(self, error: BaseException | None) -> bool:
        """Leave the block with `error`. Return whether this cancellation has ended it."""
        self.disarm()
        if not self._delivered:
            return False
        ours = self._task.uncancel() <= self._before
        return ours and isinstance(error, asyncio.CancelledError)


K = TypeVar("K")
V = TypeVar("V")
L = TypeVar("L")

_order = itertools.count(1)


class Held(Protocol):
    """What is held: a lease, as its holds, its lifetime and the watchdog know it."""

    _holds: Holds

    @property
    def name(self) -> str: ...

    async def _leave(self, hold: Hold, error: BaseException | None, *, sync: bool) -> None:
        """End the hold of a block, which a thread leaves if `sync`, and a task if not."""

    def _abandon(self, hold: Hold | None = None) -> None:
        """End a hold; if it is the last one, let the watchdog release the lease."""

    def _announce_lost(self, error: LeaseLost) -> None:
        """Call everybody who asked to know that the lease is lost."""

    def _announce_unknown(self) -> None:
        """Call everybody who asked to know that the state of the lease is unknown."""


class Hold:
    """One reason to hold a lease: a block, an acquire that no block has entered (yet), a database
    transaction, or a response."""

    __slots__ = ("by", "cancellation", "entered", "lease", "on_lost", "outer", "outlives")

    def __init__(self, by: Holding | None, *, outlives: bool = False) -> None:
        self.by = by
        """The thread or task that uses the lease. None: a response that is being sent."""
        self.outlives = outlives
        """It outlives a block, so `release()` does not end it."""
        self.entered = 0
        """Blocks have a number here, which grows with each one that is entered."""
        self.lease: weakref.ref[Any] | None = None
        """The lease, while the block runs. A weak reference: a block that was left in disorder
        must not keep its lease alive."""
        self.outer: Hold | None = None
        """The block around this one."""
        self.on_lost: Callable[[Any], object] | None = None
        self.cancellation: Cancellation | None = None

    def enter(self, lease: Held) -> Hold:
        """Begin a block, and return it."""
        self.entered, self.lease = next(_order), weakref.ref(lease)
        return self

    def begin(self) -> None:
        """Make it the innermost block."""
        self.outer = innermost()
        current.set(self)

    def tell_lost(self, lease: Held) -> None:
        """Cancel its task, and call who asked for a loss: once."""
        if self.cancellation is not None:
            self.cancellation.request()
        callback, self.on_lost = self.on_lost, None
        if callback is not None:
            call_apart(callback, lease)

    def leave(self) -> None:
        """Make the block around it the innermost one."""
        self.lease = None
        if current.get() is self:
            current.set(self.outer)


def call_apart(callback: Callable[[Any], object], lease: Held) -> None:
    """Call `callback(lease)` in a thread of its own: one that hangs must not keep the watchdog
    from the other leases. If no thread can be started, call it here."""

    def call() -> None:
        try:
            callback(lease)
        except SystemExit as error:  # it ends that thread, and nothing else
            if by_a_handler(error):
                raise
        except Exception:
            logger.exception("A callback of the lease on %r raised", lease.name)

    if start(call, "redislock-lost") is None:
        call()


# It is a context variable, so that each task has its own. It is set and not reset by token, since
# a generator may be closed in another context than the one in which it began.
current: contextvars.ContextVar[Hold | None] = contextvars.ContextVar(
    "django_redislock_current", default=None
)


def innermost(hold: Hold | None = None) -> Hold | None:
    """Return the innermost block that is running, or the one around `hold`."""
    hold = current.get() if hold is None else hold.outer
    while hold is not None and hold.lease is None:  # it was left in another context
        hold = hold.outer
    return hold


def enclosing(kind: type[L]) -> Iterator[L]:
    """Yield the leases of a kind, of all blocks that are running, from the innermost outwards."""
    hold = innermost()
    while hold is not None:
        lease = None if hold.lease is None else hold.lease()
        if lease is not None and isinstance(lease, kind):
            yield lease
        hold = innermost(hold)


def last(blocks: list[Hold], me: Holding) -> Hold:
    """Return the one of these blocks that this thread or task has entered last. If it has entered
    none of them, since another one may leave a block: the oldest."""
    if not blocks:
        raise RuntimeError("a lock is left here that was not entered, or that was left before")
    blocks.sort(key=lambda hold: hold.entered)
    return next((hold for hold in reversed(blocks) if hold.by is me), blocks[0])


class Holds(list[Hold]):
    """The holds of one lease, in order."""

    __slots__ = ("holder",)

    def __init__(self, first: Hold) -> None:
        self.append(first)
        self.holder = first.by
        """The thread or task that uses the lease. None: a response that is being sent."""

    @property
    def blocks(self) -> list[Hold]:
        """All but those that outlive their block."""
        return [hold for hold in self.copy() if not hold.outlives]

    @property
    def unentered(self) -> Hold | None:
        """The last acquire that no block has entered."""
        return next((hold for hold in reversed(self.blocks) if not hold.entered), None)

    @property
    def innermost(self) -> Hold | None:
        """The hold that `release()` ends."""
        return max(self.blocks, key=lambda hold: hold.entered or math.inf, default=None)

    @property
    def orphan(self) -> Hold | None:
        """The block of a task that never goes on, since its event loop was closed."""
        task = self.holder
        if not isinstance(task, asyncio.Task) or task.done() or not task.get_loop().is_closed():
            return None
        return next((hold for hold in self.blocks if hold.entered and hold.by is task), None)

    def enter(self, lease: Held, me: Holding) -> Hold:
        """Return the hold of a block that begins: that of an acquire, or one more."""
        its, number = weakref.ref(lease), next(_order)
        for hold in reversed(self.copy()):
            if not hold.entered and not hold.outlives:
                # No call comes before this line, and so no other thread enters it, too.
                hold.entered, hold.lease, hold.by = number, its, me
                return hold
        hold = Hold(me).enter(lease)
        self.append(hold)
        return hold


class Running(dict[K, V]):
    """What an object is busy with in this process: a copy of the object is busy with nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class Entered:
    """What a `with` statement has entered, and leaves: a lock, or a lease.

    An exception from outside may come in the middle of that, too: then the block is over, and the
    watchdog does what is left to do.
    """

    __slots__ = ()

    def _leaving(self) -> tuple[Hold, Held]:
        """Return the block that this thread or task leaves, and its lease."""
        raise NotImplementedError

    def _left(self, hold: Hold | None) -> None:
        """Forget a block that was left."""

    def __exit__(self, exc_type: object, error: BaseException | None, traceback: object) -> None:
        left = hold = None
        try:
            hold, lease = left = self._leaving()
            hold.leave()
            if sys.is_finalizing():
                return  # a generator that is closed with the interpreter can't ask anybody now
            if isinstance(error, GeneratorExit) and collecting():
                # The collector closes the generator that this block is in, perhaps in another
                # thread, and in the middle of anything, such as the pool's own work. No request
                # may be sent there.
                lease._abandon(hold)
                return
            run(lease._leave(hold, error, sync=True))
        except BaseException:
            hold, lease = left or self._leaving()
            hold.leave()
            lease._abandon(hold)
            raise
        finally:
            self._left(hold)

    async def __aexit__(
        self, exc_type: object, error: BaseException | None, traceback: object
    ) -> None:
        left = hold = None
        try:
            hold, lease = left = self._leaving()
            hold.leave()
            await lease._leave(hold, error, sync=False)
        except BaseException:
            hold, lease = left or self._leaving()
            hold.leave()
            lease._abandon(hold)
            raise
        finally:
            self._left(hold)


# The last phase of the collector comes last. A callback in Python would swallow the exceptions of
# signals, for which CPython looks in there.
_collector: OrderedDict[str, None] = OrderedDict(start=None, stop=None)
# Called with the phase, and with a dictionary that is true.
gc.callbacks.append(_collector.move_to_end)  # type: ignore[arg-type]


def collecting() -> bool:
    """Return whether the garbage collector is running, in this thread or in another one."""
    return next(reversed(_collector)) == "start"
