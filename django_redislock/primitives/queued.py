"""Locks with a queue: how they are acquired, released and adopted.

mutex.py explains the steps; semaphores and read-write locks take the same (permits.py). They
differ in the script, and in its last arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..base.clock import deadline
from ..base.exceptions import LockError, LockNotAcquired, LockUnavailable
from ..base.holder import Holder
from ..base.label import number
from . import guard
from .asking import milliseconds, too_late, twice
from .contract import Claim, Grant, Refusal, Word
from .waiting import DEAF, HEAD, NEVER, WaitLog, backoff, slice_for

if TYPE_CHECKING:
    from .contract import Port


class Acquire(Protocol):
    """A way to ask for a lock, once."""

    async def acquire(
        self, port: Port, claim: Claim, inbox: str, ticket: str
    ) -> tuple[list[Any], str]:
        """Return an answer like that of lua/mutex_acquire.lua, and the name to which it
        applies."""


class Release(Protocol):
    """A way to release a lock, once."""

    async def release(self, port: Port, claim: Claim) -> Refusal | None: ...


class Script(NamedTuple):
    """A script that acquires, releases or adopts."""

    name: str
    keys: Sequence[str]
    more: Sequence[Word] = ()
    """Its last arguments."""

    async def acquire(
        self, port: Port, claim: Claim, inbox: str, ticket: str
    ) -> tuple[list[Any], str]:
        args = [claim.token, milliseconds(claim.ttl), claim.says, inbox, ticket, *self.more]
        return await port.script(self.name, self.keys, args), claim.keys.name

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        own_inbox = port.own_inbox(claim.keys)
        args = [claim.token, int(claim.doubtful), own_inbox, *self.more]
        sent = port.now()
        try:
            released, *rest = await port.script(self.name, self.keys, args)
        except BaseException:
            # A waiter of this process may have the lock now, and no message says so.
            port.wake_neighbours(claim.keys)
            raise
        if not released:
            return None if claim.keys.lock in claim.released else Refusal(*rest)
        claim.released += (claim.keys.lock,)
        now_us, granted = rest or (0, ())
        if granted:
            # The deadlines count from our sending, since these waiters have the same clock.
            grants = [Grant(int(fence), int(now_us), sent) for fence in granted[1::2]]
            await port.hand_over([*zip(map(bytes.decode, granted[::2]), grants, strict=True)])
        return None


class Attempts:
    """The requests for a lock, for up to `wait` seconds. The result of each, as far as it can be
    known, is kept in the claim."""

    def __init__(self, port: Port, claim: Claim, wait: float | None) -> None:
        self._port = port
        self._claim = claim
        self._began = port.now()
        self._end = NEVER if wait is None else self._began + wait
        self._failures = 0
        self.last = False
        """Whether the present request is the last one."""

    @property
    def waited(self) -> float:
        return self._port.now() - self._began

    @property
    def left(self) -> float:
        return max(0.0, self._end - self._port.now())

    @cached_property
    def _log(self) -> WaitLog:
        return WaitLog(self._claim.keys.name)

    @property
    def until_log(self) -> float:
        """Seconds until there is to be another line about a busy lock."""
        return self._log.next_busy - self.waited

    def ask(self) -> None:
        """Note that a request is sent now."""
        self.sent = self._port.now()
        self.last = self.sent >= self._end
        self._port.limit(max(0.0, self._end - self.sent))
        self._known, self._claim.sent = self._claim.sent, True

    def heard(self, code: int) -> None:
        """Note an answer. Raises `LockUnavailable` if a grant has come too late."""
        if code == 1 and self._port.now() >= deadline(self.sent, self._claim.ttl):
            raise too_late(self._claim, doubtful=True)
        self._failures = 0

    def busy(self, name: str, holder: Holder, position: int = 0) -> None:
        """Note that somebody holds the lock, which will be asked for again."""
        self._log.busy(name, holder, self.waited, position)

    def paused(self, error: LockUnavailable) -> None:
        """Note that nobody new gets the lock yet."""
        self._log.unavailable(error, self.waited)

    def failed(self, error: LockUnavailable) -> float:
        """Note that there was no answer. Returns the seconds until the next request; raises
        `error` if there will be none."""
        self._claim.doubtful |= error.doubtful
        self._claim.sent = self._known or error.doubtful
        self._failures += 1
        # Once more if the request was sent and the connection closed: an idle connection that the
        # server had closed fails so, and an acquire that does not wait needs an answer, too.
        once_more = self._failures == 1 and error.doubtful and not error.silent
        over = self._port.now() >= self._end
        error.after(self.waited)
        if not error.passing or (over and not once_more):
            raise error
        if not once_more:
            self._log.unavailable(error, self.waited)
        return min(backoff(self._failures, uniform=self._port.uniform), self.left)


async def acquire(
    port: Port, claim: Claim, wait: float | None, ask: Acquire
) -> Grant | LockNotAcquired:
    """Hold `claim`, waiting for up to `wait` seconds (0: try once, None: without end).

    Raises `LockUnavailable` if Redis can't be asked for as long; the caller then owes a
    `release`, as after any other exception.
    """
    token = claim.token
    attempts = Attempts(port, claim, wait)
    names = claim.parts or (claim.keys,)
    begun = listened = False
    ticket = ""
    try:
        inbox = "" if wait == 0 else await port.listen(token, within=0, keys=names)
        while True:
            attempts.ask()
            try:
                answer, name = await ask.acquire(
                    port, claim, "" if attempts.last else inbox, ticket
                )
                code, *rest = answer
                attempts.heard(code)
            except LockUnavailable as error:
                pause = attempts.failed(error)
                await port.wait(pause, attempts.left)  # a listener is woken when Redis is back
                listened = False
                continue
            if code == 1:
                # An answer of one number is that of a lock that was free: it has got both from the
                # server's clock.
                fencing_token, acquired_us, *handed = rest if len(rest) > 1 else rest * 2
                fence = None if fencing_token is None else int(fencing_token)
                untold = any(handed) and listened and port.learned == "look"
                return Grant(fence, int(acquired_us), attempts.sent, untold)
            if code == 2:
                # Killed waiters stood before us. A script removes only some of them, since Redis
                # stands still meanwhile, and the lock may be free: so this is no refusal yet.
                ticket = rest[0].decode()
                continue
            if code == 4:
                left_ms, now_us, ticket_bytes = rest
                paused = guard.paused(name, left_ms, int(now_us))
                if attempts.last:
                    paused.after(attempts.waited)
                    # The script has given up the place in the queue, too.
                    claim.sent = claim.doubtful
                    raise paused
                attempts.paused(paused)
                ticket = ticket_bytes.decode()
                # As who is far behind in a queue: nobody gets it sooner, and many may wait for it.
                pause = slice_for(HEAD, left_ms / 1000, attempts.left, port.uniform)
                await port.wait(pause, attempts.left)
                inbox = await port.listen(token, within=0, keys=names)
                continue
            if code == -1:
                raise Refusal(None, rest[0]).error(name)
            if code == -2:
                raise _another_kind(name, claim, rest[0])
            value, pttl, now_us, position, ticket_bytes, lasted_us, *holders = rest
            holder = Holder.parse(value or b"", pttl, int(now_us))
            if attempts.last:
                lasted_for = None if (us := number(lasted_us)) is None else us / 1e6
                return LockNotAcquired(
                    name, holder, attempts.waited, position, lasted_for, *holders
                )
            attempts.busy(name, holder, position)
            ticket = ticket_bytes.decode()
            left = attempts.left
            if inbox == DEAF and not begun:
                # Perhaps this process waits for the first time: begin to listen, and ask again
                # before a claim window could be over.
                begun = True
                inbox = await port.listen(token, within=min(0.5, left), keys=names)
                continue
            listened = inbox != DEAF
            place = position if listened else 0
            pause = slice_for(place, holder.remaining, left, port.uniform)
            longest = min(left, max(pause, attempts.until_log)) if listened else 0.0
            grant = await port.wait(pause, left, rest=longest)
            if (
                grant is not None
                and not claim.parts
                and port.now() < deadline(grant.sent, claim.ttl)
            ):
                return grant
            inbox = await port.listen(token, within=0, keys=names)
    finally:
        # Twice, since an exception from outside may come in the middle of the first call.
        try:
            port.unlisten()
        except BaseException:
            port.unlisten()
            raise


async def release(port: Port, claim: Claim, ask: Release) -> Refusal | None:
    """Give back the lease, or the place in the queue. None: released, now or before.

    Asks twice when the connection is lost. Raises `LockUnavailable`; it may be repeated.
    """
    refusal = await twice(partial(ask.release, port, claim), claim, gives_back=True)
    if refusal and claim.given_back and not refusal.revoked:
        # As far as the answers show, the earlier request released the lock, and others have held
        # it since.
        return None
    return refusal


async def adopt(port: Port, token: str, claim: Claim, ask: Script) -> Grant | Refusal:
    """Hold, as `claim`, the lease that `token` has held until now.

    Asks twice when the connection is lost. Raises `LockUnavailable`; the caller then owes a
    `release` of `claim`, as after any other exception.
    """
    name = claim.keys.name
    args = [token, claim.token, milliseconds(claim.ttl), claim.says, *ask.more]
    claim.sent = True

    async def once() -> tuple[float, list[Any]]:
        return port.now(), await port.script(ask.name, ask.keys, args)

    sent, (adopted, *rest) = await twice(once, claim)
    if adopted == -2:
        raise _another_kind(name, claim, rest[0])
    if not adopted:
        return Refusal(*rest)
    fence = None if rest[0] is None else int(rest[0])
    return Grant(fence, int(rest[1]), sent)


def _another_kind(name: str, claim: Claim, held: bytes) -> LockError:
    """The error for a name that is held as another kind of permits. For a mutex, Redis says
    WRONGTYPE."""
    is_, wanted = (
        "a semaphore" if kind == "semaphore" else "a read-write lock"
        for kind in (held.decode(), claim.primitive.kind)
    )
    return LockError(
        f"{name!r} is held as {is_}, and can't be {wanted} at the same time. Give them different "
        f"names; or, if you changed the kind of this lock, wait until nobody holds it as the old "
        f"kind.",
        name,
    )
