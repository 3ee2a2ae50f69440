"""The timestamp lock: a key that says when the lock ends. For fleets with old clients.

1.  The algorithm is the one that the Redis documentation of SETNX had before there was
    `SET NX PX`: `SETNX key <time + ttl + 1>`. A client that finds the key reads it, and if its
    time is over, writes its own time with GETSET. If GETSET returns a time that is over, the
    client has the lock; else another client was faster. The holder looks at its own time before it
    deletes the key.
2.  Here each of these steps is one script that does the same by the server's clock. So none of our
    clients loses a GETSET to another, and their clocks need not agree. The old clients read what
    we write, and we read what they write, in whole seconds or with fractions.
3.  The key has no room for a token: a hash beside it has the token, and the time that we wrote.
    We hold the lock as long as our token was the last, our time is not over, and the key says that
    time. But an old client that loses a GETSET moves the time: by a little, if its ttl is like
    ours. A difference of two seconds is no loss, and the next renewal corrects it. A larger one
    may be such a loser with another ttl, or a successor: nobody can tell, so the lease is lost.
4.  Against old clients the lock is as good as their algorithm: their clocks must agree with the
    server's clock to a second, and a client that deletes the key without a look at its time
    deletes our lock, too, which we learn at the next renewal.
5.  Nobody hands over the lock, and old clients wake nobody. A waiter looks again: soon at first,
    later about three times a second, and when the time at the key is over.
6.  In the old algorithm the key has no TTL. Our key has one, which ends a minute after the time of
    the lock; so a name that is never used again does not stay in Redis. The GETSET of an old
    client removes the TTL.

New code may take a mutex and such a lock together, as long as there are old clients (`Together`):

7.  The mutex is taken first. So new code is served in order of arrival, has a fencing token, and
    only one claim of it at a time asks for the timestamp lock, which has no order.
8.  That claim asks for the timestamp lock some 30 times a second; otherwise old clients that poll
    fast would always come first. While it waits, it asks for the mutex again at every third of its
    ttl: that extends the mutex, or waits for it again if it was lost.
9.  A claim that does not get the timestamp lock releases the mutex. Both have the same token and
    are renewed together; the lease is lost if either is. They are released in reverse order: while
    new code waits for the mutex, old clients can take their turn.
10. Nobody waits for the mutex while holding the timestamp lock, so the two can't deadlock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from ..base import tokens
from ..base.exceptions import LockError, LockNotAcquired, LockUnavailable
from . import mutex, queued
from .contract import (
    MOST_AT_ONCE,
    Claim,
    Grant,
    Outcome,
    Port,
    Refusal,
    Refusals,
    Sight,
    batches,
    milliseconds,
    no_short_request,
    too_late,
)
from .keys import Keys, Word
from .scripts import ask, flag, instant, sight, text, verdicts
from .waiting import poll

A_LITTLE = 2.0
"""Seconds by which the loser of a GETSET may have moved our time; as in lua/timestamp.lua."""


@dataclass(frozen=True, slots=True)
class Timestamp:
    """The algorithm."""

    fractions: bool
    """Whether fractions of a second are written."""
    often: bool = False
    """Whether a waiter keeps on asking as often as at first, since there is only one waiter."""
    kind: ClassVar[str] = "timestamp"
    unfenced: ClassVar[str] = (
        "A TimestampLock has no fencing token: the old clients that share its key have none, so "
        "no order would include all holders."
    )

    taking = dropping = staticmethod(no_short_request)

    async def acquire(self, port: Port, claim: Claim, wait: float | None) -> Outcome:
        """As `mutex.acquire`, but waiters are not served in order."""
        keys = claim.keys
        attempts = queued.Attempts(port, claim, wait)
        ttl, fractions = milliseconds(claim.ttl), int(self.fractions)
        polls = 0
        while True:
            attempts.ask()
            try:
                got = await ask(
                    port,
                    partial(_acquired, attempts.sent),
                    "timestamp_acquire",
                    keys.timestamps(claim.token),
                    [claim.token, ttl, claim.says, fractions],
                )
                attempts.heard(isinstance(got, Grant))
            except LockUnavailable as error:
                await port.wait(attempts.failed(error), attempts.left)
                continue
            if isinstance(got, Grant):
                return got
            if isinstance(got, Refusal):
                raise got.error(keys.name)
            holder = got.holder
            if attempts.last:
                return LockNotAcquired(keys.name, holder, attempts.waited)
            attempts.log.busy(keys.name, holder, attempts.waited)
            polls += not self.often
            left = attempts.left
            await port.wait(poll(polls, holder.remaining, left, port.uniform), left)

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        """As `mutex.release`."""
        script = queued.Script("timestamp_release", claim.keys.timestamps(claim.token))
        return await queued.release(port, claim, script.release)

    async def extend(self, port: Port, claims: Sequence[Claim], ttls: Sequence[float]) -> Refusals:
        """As `mutex.extend`."""
        keys: list[str] = []
        args: list[str | int] = [tokens.word()]
        for claim, ttl in zip(claims, ttls, strict=True):
            keys += claim.keys.timestamps(claim.token)
            args += claim.token, milliseconds(ttl)
        return await ask(port, verdicts(len(claims)), "timestamp_extend", keys, args)

    async def write_down(self, port: Port, claims: Sequence[Claim]) -> None:
        """Do nothing: acquiring and extending have listed the lock."""

    async def adopt(self, port: Port, token: str, claim: Claim) -> Grant | Refusal:
        """As `mutex.adopt`."""
        script = queued.Script("timestamp_adopt", claim.keys.timestamps(token))
        return await queued.adopt(port, token, claim, script)

    async def holders(self, port: Port, keys: Keys) -> list[Sight]:
        """Return the present holder; nobody, if its time is over."""
        its = keys.timestamps("")
        return await ask(port, _sights, "timestamp_holder", its, [tokens.word()])

    async def clear(
        self, port: Port, keys: Keys, seen: Sequence[bytes], by: str, reason: str
    ) -> list[bool]:
        """As `mutex.clear`."""
        # An old client is told nothing.
        its = keys.timestamps(seen[0][:32].decode(errors="replace"))
        args: list[Word] = [tokens.word(), by, reason, seen[0]]
        return [await ask(port, flag, "timestamp_clear", its, args)]


def sight_of(value: Any, remains_ms: Any, now_us: Any) -> Sight:
    """Read the holder beside the lock, or the time that an old client wrote."""
    seen = sight(value, remains_ms, now_us)
    return seen._replace(holder=seen.holder._replace(fencing_token=None))


def _sights(answer: Any) -> list[Sight]:
    return [] if answer is None else [sight_of(*answer)]


def _acquired(sent: float, answer: Any) -> Grant | Refusal | Sight:
    match answer:
        case [1, acquired_us]:
            return Grant(None, instant(acquired_us), sent)
        case [0, value, remains_ms, now_us]:
            return sight_of(value, remains_ms, now_us)
        case [-1, why]:
            return Refusal(None, text(why))
    raise ValueError(answer)


WHOLE = Timestamp(fractions=False)
"""All old clients can read this, even those that expect an integer."""
FRACTIONS = Timestamp(fractions=True)
OFTEN = replace(WHOLE, often=True)

Take = Callable[[Port, Claim, float | None], Awaitable[Outcome]]
"""How the mutex is taken: as in mutex.py or, with a record, in record.py."""


def _beside(claim: Claim) -> Claim:
    """Return the same claim on the timestamp lock, which is first asked for now."""
    second = copy(claim)
    second.keys, second.primitive = claim.keys.of_timestamp(), WHOLE
    second.began = None
    return second


@contextmanager
def _second(claim: Claim) -> Iterator[Claim]:
    """Yield the same claim on the timestamp lock, and keep its doubts in `claim`."""
    second = _beside(claim)
    try:
        yield second
    finally:
        claim.doubtful |= second.doubtful
        claim.release_lost |= second.release_lost
        # `second` began with those of `claim`: each of them once.
        claim.released = tuple(dict.fromkeys((*claim.released, *second.released)))


@dataclass(frozen=True, slots=True)
class Together:
    """The algorithm for a mutex and a timestamp lock."""

    take: Take = mutex.acquire
    release_mutex: queued.Release = mutex.release
    kind: ClassVar[str] = "mutex+timestamp"
    unfenced: ClassVar[str] = ""

    taking = dropping = staticmethod(no_short_request)

    async def acquire(self, port: Port, claim: Claim, wait: float | None) -> Outcome:
        """As `mutex.acquire`."""
        attempts = queued.Attempts(port, claim, wait)
        while True:
            got = await self.take(port, claim, wait)
            if isinstance(got, LockNotAcquired):
                return got
            port.unlisten()  # the wait for the mutex is over
            try:
                with _second(claim) as second:
                    also = await OFTEN.acquire(port, second, min(attempts.left, claim.ttl / 3))
            except LockUnavailable as error:
                if not error.passing or attempts.over:
                    raise
                # Only this round of the wait is over; the mutex waits until Redis is back.
                continue
            if isinstance(also, Grant):
                # The mutex was asked for earlier: its deadline is the first of the two.
                if port.now() < got.deadline(claim.ttl):
                    return got
                if attempts.over:
                    raise too_late(claim)
                # Others may have the mutex by now, and nobody waits for it while holding the
                # timestamp lock. No tombstone: the token will ask again.
                second.doubtful = False
                await WHOLE.release(port, second)
            elif attempts.over:
                await self.release(port, claim)
                return LockNotAcquired(claim.keys.name, also.holder, attempts.waited)

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        """As `mutex.release`."""
        try:
            with _second(claim) as second:
                refusal = await WHOLE.release(port, second)
        except LockUnavailable:
            raise
        except LockError:  # a key of a wrong type: nobody holds the timestamp lock
            await self.release_mutex(port, claim)
            raise
        return await self.release_mutex(port, claim) or refusal

    async def extend(self, port: Port, claims: Sequence[Claim], ttls: Sequence[float]) -> Refusals:
        """As `mutex.extend`, in two round trips; on a cluster, in one more for each slot."""
        refusals = await mutex.extend(port, claims, ttls)
        # A lost lease is not extended, so that it ends.
        held = [number for number, refusal in enumerate(refusals) if refusal is None]
        keys = [claims[number].keys.timestamp_key for number in held]
        for positions in batches(port, keys, MOST_AT_ONCE):
            numbers = [held[position] for position in positions]
            seconds = [_beside(claims[number]) for number in numbers]
            also = await WHOLE.extend(port, seconds, [ttls[number] for number in numbers])
            for number, refusal in zip(numbers, also, strict=True):
                refusals[number] = refusal
        return refusals

    write_down = staticmethod(mutex.write_down)

    async def adopt(self, port: Port, token: str, claim: Claim) -> Grant | Refusal:
        """As `mutex.adopt`."""
        got = await mutex.adopt(port, token, claim)
        if isinstance(got, Refusal):
            return got
        with _second(claim) as second:
            also = await WHOLE.adopt(port, token, second)
        if isinstance(also, Refusal):
            await mutex.release(port, claim)
            return also
        return got

    async def holders(self, port: Port, keys: Keys) -> list[Sight]:
        """Return the holders that a claim waits for: an old client, or another timestamp lock of
        ours, rather than the holder of the mutex, which waits for it, too."""
        ours = await mutex.holders(port, keys)
        others = await WHOLE.holders(port, keys.of_timestamp())
        return ours if {its.token for its in ours} >= {its.token for its in others} else others

    async def clear(
        self, port: Port, keys: Keys, seen: Sequence[bytes], by: str, reason: str
    ) -> list[bool]:
        """As `mutex.clear`, for holders that were seen at the mutex, at the timestamp lock, or at
        both."""
        cleared = await mutex.clear(port, keys, seen, by, reason)
        also = await WHOLE.clear(port, keys.of_timestamp(), seen, by, reason)
        return [any(both) for both in zip(cleared, also, strict=True)]


TOGETHER = Together()
