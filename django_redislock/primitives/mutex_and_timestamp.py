"""A mutex and a timestamp lock in one: what new code takes as long as old clients are about.

1.  The mutex comes first: so new code is served in order of arrival, has a fencing token, and only
    one of it at a time asks for the timestamp lock, which knows no order.
2.  It asks for that one some 30 times a second, or old clients that poll fast would always come
    first. While it waits, it asks for the mutex again at every third of its ttl. That is how a
    mutex is extended, and where it was lost meanwhile, how it is waited for again.
3.  Who does not get the second gives the first back. Both have the same token, and are renewed
    together; the lease is lost when either is. They are released in reverse order: while new code
    waits for the mutex, old clients can go between.
4.  Nobody waits for the mutex with the timestamp lock in hand, so these two can't deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..base.clock import deadline
from ..base.exceptions import LockNotAcquired, LockUnavailable
from . import mutex
from .contract import Claim, Grant, Refusal, Sight
from .timestamp import WHOLE
from .waiting import Deadline

if TYPE_CHECKING:
    from ..transport.ports import IO
    from .keys import Keys

OFTEN = replace(WHOLE, often=True)

kind = "mutex+timestamp"
unfenced = ""


def _second(claim: Claim) -> Claim:
    """The same claim, to the timestamp lock. What its requests go through is kept in `claim`."""
    return replace(claim, keys=claim.keys.beside(), primitive=WHOLE)


def _remember(claim: Claim, second: Claim) -> None:
    claim.doubtful |= second.doubtful
    claim.given_back |= second.given_back


async def acquire(io: IO, claim: Claim, wait: float | None) -> Grant | LockNotAcquired:
    """As `mutex.acquire`."""
    began = io.now()
    patience = Deadline(began, wait)
    while True:
        left = patience.left(io.now())
        got = await mutex.acquire(io, claim, None if wait is None else left)
        if isinstance(got, LockNotAcquired):
            return got
        second = _second(claim)
        try:
            also = await OFTEN.acquire(io, second, min(patience.left(io.now()), claim.ttl / 3))
        except LockUnavailable as error:
            if not error.passing or patience.over(io.now()):
                raise
            continue  # only this round of the wait is over; the mutex knows how to wait for Redis
        finally:
            _remember(claim, second)
        if isinstance(also, Grant):
            # The mutex was asked for earlier: its deadline is the first of the two.
            if io.now() < deadline(got.sent, claim.ttl):
                return got
            if patience.over(io.now()):
                raise LockUnavailable(
                    f"Redis took longer to answer than the lease on {claim.keys.name!r} lives",
                    claim.keys.name,
                )
            # Others may have the mutex by now, so it is not waited for with the second in hand. No
            # tombstone: the token will ask again.
            await WHOLE.release(io, replace(second, doubtful=False))
        elif patience.over(io.now()):
            await release(io, claim)
            return LockNotAcquired(claim.keys.name, also.holder, io.now() - began)


async def release(io: IO, claim: Claim) -> Refusal | None:
    """As `mutex.release`."""
    second = _second(claim)
    try:
        refusal = await WHOLE.release(io, second)
    finally:
        _remember(claim, second)
    return await mutex.release(io, claim) or refusal


async def extend(io: IO, claims: Sequence[Claim], ttls: Sequence[float]) -> list[Refusal | None]:
    """As `mutex.extend`, in two round trips; on a cluster, in one more for each slot."""
    refusals = await mutex.extend(io, claims, ttls)
    slots: dict[int, list[int]] = {}
    for number, refusal in enumerate(refusals):
        if refusal is None:  # what is lost is not extended, so that it ends
            slots.setdefault(io.slot(claims[number].keys.also), []).append(number)
    for numbers in slots.values():
        seconds = [_second(claims[number]) for number in numbers]
        also = await WHOLE.extend(io, seconds, [ttls[number] for number in numbers])
        for number, refusal in zip(numbers, also, strict=True):
            refusals[number] = refusal
    return refusals


async def adopt(io: IO, token: str, claim: Claim) -> Grant | Refusal:
    """As `mutex.adopt`."""
    got = await mutex.adopt(io, token, claim)
    if isinstance(got, Refusal):
        return got
    second = _second(claim)
    try:
        also = await WHOLE.adopt(io, token, second)
    finally:
        _remember(claim, second)
    if isinstance(also, Refusal):
        await mutex.release(io, claim)
        return also
    return got


async def look(io: IO, keys: Keys) -> list[Sight]:
    """Who holds the lock that is waited for: an old client, or a timestamp lock of ours, before
    the holder of the mutex that waits for it."""
    ours, others = await mutex.look(io, keys), await WHOLE.look(io, keys.beside())
    return ours if {its.token for its in ours} >= {its.token for its in others} else others


async def clear(io: IO, keys: Keys, seen: Sequence[bytes], by: str, reason: str) -> list[bool]:
    """As `mutex.clear`: who was seen at the mutex, at the other lock, or at both."""
    cleared = await mutex.clear(io, keys, seen, by, reason)
    also = await WHOLE.clear(io, keys.beside(), seen, by, reason)
    return [any(both) for both in zip(cleared, also, strict=True)]
