"""Locks with a queue: how they are acquired, released and adopted.

mutex.py explains the steps; semaphores and read-write locks take the same (permits.py). They
differ in the script, and in its last arguments.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..base import people
from ..base.clock import DRIFT, deadline
from ..base.exceptions import LockError, LockNotAcquired, LockUnavailable
from ..base.people import server_time
from .contract import (
    Claim,
    Grant,
    Handed,
    Outcome,
    Port,
    Refusal,
    Request,
    milliseconds,
    too_late,
    twice,
)
from .keys import Keys, Word
from .scripts import ask, instant, maybe, nth, refusal, sight, text, whole
from .waiting import DEAF, HEAD, NEVER, WaitLog, backoff, slice_for

NAMES = {
    "mutex": "a mutex",
    "semaphore": "a semaphore",
    "read": "a read-write lock, for reading",
    "write": "a read-write lock, for writing",
    "task": "tasks of @unique or @limited",
}
"""Kinds of locks, in messages."""

Acquired = tuple[Any, ...]
"""An answer as `acquired` returns it."""
Asked = tuple[Acquired, str]
"""An answer, and the name to which it applies."""
Ask = Callable[[Port, Claim, str, str], Awaitable[Asked]]
"""A way to ask for a lock, once, with an inbox and a ticket."""
Release = Callable[[Port, Claim], Awaitable[Refusal | None]]
"""A way to release a lock, once."""


def acquired(answer: Any, names: int = 1) -> Acquired:
    """Read the answer of a script that acquires so many names: its code, and what
    lua/mutex_acquire.lua or lua/permits_acquire.lua says of that code, without a holder's
    times, which are in a `Sight`."""
    match answer:
        case [1, acquired_us, *fences] if len(fences) == names:
            return 1, instant(acquired_us), *map(whole, fences)
        case [0, value, pttl, now_us, position, ticket, lasted_us, number]:
            seen, us = sight(value or b"", pttl, now_us), people.number(maybe(lasted_us))
            lasted_for = None if us is None else us / 1e6
            now_us = instant(now_us)
            return 0, seen, whole(position), ticket.decode(), lasted_for, now_us, whole(number)
        case [2, ticket]:
            return 2, ticket.decode()
        case [4, left_ms, now_us, ticket]:
            return 4, whole(left_ms), instant(now_us), ticket.decode()
        case [-1, why, *number]:
            return -1, Refusal(None, text(why)), *number
        case [-2, kind]:
            return -2, kind.decode()
    raise ValueError(answer)


class Script(NamedTuple):
    """A script that acquires, releases or adopts."""

    name: str
    keys: Sequence[str]
    more: Sequence[Word] = ()
    """Its last arguments."""
    read: Callable[[Any], Acquired] = acquired
    """The reader, if it acquires."""

    async def acquire(self, port: Port, claim: Claim, inbox: str, ticket: str) -> Asked:
        args = [claim.token, milliseconds(claim.ttl), claim.says, inbox, ticket, *self.more]
        return await ask(port, self.read, self.name, self.keys, args), claim.keys.name

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        args = [claim.token, int(claim.doubtful), port.own_inbox(claim.keys), *self.more]
        return await release_once(port, claim, [claim.keys], Request(self.name, self.keys, args))


async def release_once(
    port: Port, claim: Claim, names: Sequence[Keys], request: Request
) -> Refusal | None:
    """Send a release of these names, and wake the waiters of this process that have the lock now.
    None: released, now or before."""
    sent, first = port.now(), names[0]
    try:
        # The waiters' deadlines count from our sending, since they have the same clock.
        done = await ask(port, partial(released, names, sent=sent), *request)
    except BaseException:
        # A waiter of this process may have the lock now, and no message says so.
        port.wake_neighbours(first)
        raise
    if isinstance(done, Refusal):
        if first.lock in claim.released:
            return None
        return done if len(claim.names) > 1 else done._replace(name=None)
    claim.released += (first.lock,)
    if done:
        await port.hand_over(done)
    return None


def released(
    names: Sequence[Keys], answer: Any, sent: float = 0.0
) -> Refusal | list[tuple[str, Grant]]:
    """Read the answer of a script that releases: the waiters that have the lock now."""
    match answer:
        case [1]:
            return []
        case [1, now_us, heirs]:
            each = zip(heirs[::2], heirs[1::2], strict=True)
            acquired_us = instant(now_us)
            return [
                (token.decode(), Grant(whole(fence), acquired_us, sent)) for token, fence in each
            ]
        case [0, value, gone, *number]:
            return refusal(value, gone)._replace(name=nth(names, *number or (1,)).name)
    raise ValueError(answer)


class Attempts:
    """The requests for a lock, for up to `wait` seconds. The result of each, as far as it can be
    known, is kept in the claim."""

    def __init__(self, port: Port, claim: Claim, wait: float | None) -> None:
        self._port = port
        self._claim = claim
        self._began = claim.began = port.now() if claim.began is None else claim.began
        self._end = NEVER if wait is None else self._began + wait
        self._failures = 0
        self.log = WaitLog(claim.keys.name)
        self.last = False
        """Whether the present request is the last one."""

    @property
    def waited(self) -> float:
        return self._port.now() - self._began

    @property
    def left(self) -> float:
        return max(0.0, self._end - self._port.now())

    @property
    def over(self) -> bool:
        return self._port.now() >= self._end

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
        self._claim.heard = True

    def failed(self, error: LockUnavailable) -> float:
        """Note that there was no answer. Returns the seconds until the next request; raises
        `error` if there will be none."""
        error.away &= not self._claim.heard
        self._claim.doubtful |= error.doubtful
        self._claim.sent = self._known or error.doubtful
        self._failures += 1
        # Once more if the request was sent and the connection closed: an idle connection that the
        # server had closed fails so, and an acquire that does not wait needs an answer, too.
        once_more = self._failures == 1 and error.doubtful and not error.silent
        error.after(self.waited)
        if not error.passing or (self.over and not once_more):
            raise error
        if not once_more:
            self.log.unavailable(error, self.waited)
        return min(backoff(self._failures, uniform=self._port.uniform), self.left)


_handed = re.compile(r"([0-9A-Za-z]{32})\|([0-9]{1,16})\|([0-9]{1,16})\|([0-9]{1,9})").fullmatch


def read_message(text: str, since: float) -> tuple[str, Handed | None]:
    """Read a message of lua/queue.lua to a waiter, over a connection that listens since then.
    Return its token, and what it was handed, if the message says that."""
    its = _handed(text)
    if its is None:
        return text, None
    return its[1], Handed(int(its[2]), int(its[3]), int(its[4]) / 1000, since)


LATE = 0.05
"""Seconds that a message may take, as far as the clocks tell. They are taken off the lease: if the
server's clock was set forward meanwhile, the message took longer."""
FRESH = 60.0
"""Seconds for which an anchor is good: the drift grows with them."""


class Anchor(NamedTuple):
    """The last answer to a waiter: a request that was sent at `sent`, by our clock, was carried
    out at `us`, in µs, by the server's.

    At `us` our clock was at `sent` or later. So when the server's clock says that some time has
    passed since then, our clock is at least as far from `sent`, less the drift.
    """

    sent: float
    us: int

    def late(self, us: int, now: float) -> float:
        """Return for how many seconds that time of the server has passed, or some more."""
        return now - self.sent - (us - self.us) / 1e6

    def grant(self, handed: Handed, claim: Claim, now: float) -> Grant | None:
        """Return the grant of a lock that was handed to a claim, as a message says that is read
        now. None if that is in doubt, or if the lease is shorter than the claim has to have: then
        ask, as after any message."""
        passed, late = (handed.us - self.us) / 1e6, self.late(handed.us, now)
        lives = min(handed.lives, claim.ttl)
        if (
            # Another server may have sent the message than the one that has answered.
            handed.since > self.sent
            # It is older than the answer, or one of the clocks was set.
            or not 0 <= passed < FRESH
            or not 0 <= late < LATE
            or lives < 10 * LATE
            or (lives < claim.ttl and not claim.renewed)
        ):
            return None
        lives -= passed * DRIFT + LATE
        return Grant(handed.fencing_token, handed.us, self.sent + passed, lives=lives)


async def acquire(port: Port, claim: Claim, wait: float | None, way: Ask) -> Outcome:
    """Hold `claim`, waiting for up to `wait` seconds (0: try once, None: without end).

    Raises `LockUnavailable` if Redis can't be reached for as long; the caller then owes a
    `release`, as after any other exception.
    """
    token = claim.token
    attempts = Attempts(port, claim, wait)
    names = claim.names
    begun = listened = False
    anchor: Anchor | None = None
    ticket = ""
    while True:
        inbox = "" if wait == 0 else await port.listen(token, within=0, keys=names)
        attempts.ask()
        try:
            claim.raise_failed()
            box = "" if attempts.last else inbox
            (code, *rest), name = await way(port, claim, box, ticket)
            attempts.heard(code)
        except LockUnavailable as error:
            pause = attempts.failed(error)
            await port.wait(pause, attempts.left, away=True)
            listened = False
            continue
        if code == 1:
            acquired_us, fence = rest
            missed_wakeup = (
                anchor is not None
                and listened
                and port.wakeup == "poll"
                and anchor.late(acquired_us, attempts.sent) >= LATE
            )
            return Grant(fence, acquired_us, attempts.sent, missed_wakeup)
        if code == 2:
            # Killed waiters stood before us. A script removes only some of them, since Redis
            # stands still meanwhile, and the lock may be free: so this is no refusal yet.
            [ticket] = rest
            continue
        if code == 4:
            left_ms, now_us, ticket = rest
            paused = _paused(name, left_ms, now_us)
            if attempts.last:
                paused.after(attempts.waited)
                # The script has given up the place in the queue, too.
                claim.sent = claim.doubtful
                raise paused
            attempts.log.unavailable(paused, attempts.waited)
            # As who is far behind in a queue: nobody gets it sooner, and many may wait for it.
            pause = slice_for(HEAD, left_ms / 1000, attempts.left, port.uniform)
            await port.wait(pause, attempts.left)
            continue
        if code == -1:
            raise rest[0].error(name)
        if code == -2:
            raise another_kind(name, claim, rest[0])
        (_, holder), position, ticket, lasted_for, now_us, *holders = rest
        anchor = Anchor(attempts.sent, now_us)
        if attempts.last:
            return LockNotAcquired(name, holder, attempts.waited, position, lasted_for, *holders)
        attempts.log.busy(name, holder, attempts.waited, position)
        left = attempts.left
        if inbox == DEAF and not begun:
            # Perhaps this process waits for the first time: begin to listen, and ask again
            # before a claim window could be over.
            begun = True
            await port.listen(token, within=min(0.5, left), keys=names)
            continue
        listened = inbox != DEAF
        place = position if listened else 0
        pause = slice_for(place, holder.remaining, left, port.uniform)
        rest_for = max(pause, attempts.log.next_busy - attempts.waited) if listened else 0.0
        found = await port.wait(pause, left, rest=min(left, rest_for))
        grant = anchor.grant(found, claim, port.now()) if isinstance(found, Handed) else found
        if grant is not None and len(names) == 1 and port.now() < grant.deadline(claim.ttl):
            return grant


async def release(port: Port, claim: Claim, way: Release) -> Refusal | None:
    """Release the lease, or the place in the queue. None: released, now or before.

    Asks twice when the connection is lost. Raises `LockUnavailable`; it may be repeated.
    """
    refusal = await twice(partial(way, port, claim), claim, releases=True)
    if refusal and claim.release_lost and not refusal.revoked:
        # As far as the answers show, the earlier request released the lock, and others have held
        # it since.
        return None
    return refusal


async def adopt(port: Port, token: str, claim: Claim, script: Script) -> Grant | Refusal:
    """Hold, as `claim`, the lease that `token` has held until now.

    Asks twice when the connection is lost. Raises `LockUnavailable`; the caller then owes a
    `release` of `claim`, as after any other exception.
    """
    name = claim.keys.name
    args = [token, claim.token, milliseconds(claim.ttl), claim.says, *script.more]
    claim.sent = True

    def read(sent: float, answer: Any) -> Grant | Refusal:
        match answer:
            case [1, fence, acquired_us]:
                return Grant(None if fence is None else whole(fence), instant(acquired_us), sent)
            case [0, value, gone]:
                return refusal(value, gone)
            case [-2, kind]:
                raise another_kind(name, claim, kind.decode())
        raise ValueError(answer)

    return await twice(
        lambda: ask(port, partial(read, port.now()), script.name, script.keys, args), claim
    )


def another_kind(name: str, claim: Claim, held: str) -> LockError:
    """The error for a name that is held as another kind of permits. For a mutex, Redis says
    WRONGTYPE."""
    is_, wanted = (NAMES[kind].partition(",")[0] for kind in (held, claim.primitive.kind))
    return LockError(
        f"{name!r} is held as {is_}, and can't be {wanted} at the same time. Give them different "
        f"names; or, if you changed the kind of this lock, wait until nobody holds it as the old "
        f"kind.",
        name,
    )


def _paused(name: str, left_ms: int, now_us: int) -> LockUnavailable:
    """The error for a lock that nobody new gets for so long."""
    until = server_time(now_us + 1000 * left_ms)
    return LockUnavailable(
        f"Redis has lost its data, or is new: it may have forgotten who holds {name!r}. Nobody "
        f"new gets it before {until:%H:%M:%S} UTC, in {left_ms / 1000:.1f} s (AFTER_LOSS is "
        f"'wait').",
        name,
    )
