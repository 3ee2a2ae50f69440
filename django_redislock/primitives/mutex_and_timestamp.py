"""A mutex and a timestamp lock together, which new code takes as long as there are old clients.

1.  The mutex is taken first. So new code is served in order of arrival, has a fencing token, and
    only one claim of it at a time asks for the timestamp lock, which has no order.
2.  That claim asks for the timestamp lock some 30 times a second; otherwise old clients that poll
    fast would always come first. While it waits, it asks for the mutex again at every third of its
    ttl: that extends the mutex, or waits for it again if it was lost.
3.  A claim that does not get the timestamp lock gives the mutex back. Both have the same token and
    are renewed together; the lease is lost if either is. They are released in reverse order: while
    new code waits for the mutex, old clients can take their turn.
4.  Nobody waits for the mutex while holding the timestamp lock, so the two can't deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ..base.clock import deadline
from ..base.exceptions import LockError, LockNotAcquired, LockUnavailable
from . import mutex
from .asking import too_late
from .contract import Claim, Grant, Refusal, Sight
from .timestamp import WHOLE
from .waiting import Deadline

if TYPE_CHECKING:
    from .contract import Port
    from .keys import Keys

OFTEN = replace(WHOLE, often=True)

kind = "mutex+timestamp"
unfenced = ""


class First(Protocol):
    """How the mutex is taken and given back: as in mutex.py or, with a record, in recorded.py."""

    async def acquire(
        self, port: Port, claim: Claim, wait: float | None, /
    ) -> Grant | LockNotAcquired: ...

    async def release(self, port: Port, claim: Claim, /) -> Refusal | None: ...


def _second(claim: Claim) -> Claim:
    """Return the same claim on the timestamp lock. `_remember` keeps its doubts in `claim`."""
    return replace(claim, keys=claim.keys.of_timestamp(), primitive=WHOLE)


def _remember(claim: Claim, second: Claim) -> None:
    claim.doubtful |= second.doubtful
    claim.given_back |= second.given_back
    # `second` began with those of `claim`: each of them once, however often this is repeated.
    claim.released = tuple(dict.fromkeys((*claim.released, *second.released)))


async def acquire(
    port: Port, claim: Claim, wait: float | None, first: First = mutex
) -> Grant | LockNotAcquired:
    """As `mutex.acquire`."""
    began = port.now()
    patience = Deadline(began, wait)
    while True:
        left = patience.left(port.now())
        got = await first.acquire(port, claim, None if wait is None else left)
        if isinstance(got, LockNotAcquired):
            return got
        second = _second(claim)
        try:
            also = await OFTEN.acquire(port, second, min(patience.left(port.now()), claim.ttl / 3))
        except LockUnavailable as error:
            if not error.passing or patience.over(port.now()):
                raise
            continue  # only this round of the wait is over; the mutex waits until Redis is back
        finally:
            _remember(claim, second)
        if isinstance(also, Grant):
            # The mutex was asked for earlier: its deadline is the first of the two.
            if port.now() < deadline(got.sent, claim.ttl):
                return got
            if patience.over(port.now()):
                raise too_late(claim)
            # Others may have the mutex by now, and nobody waits for it while holding the timestamp
            # lock. No tombstone: the token will ask again.
            await WHOLE.release(port, replace(second, doubtful=False))
        elif patience.over(port.now()):
            await release(port, claim, first)
            return LockNotAcquired(claim.keys.name, also.holder, port.now() - began)


async def release(port: Port, claim: Claim, first: First = mutex) -> Refusal | None:
    """As `mutex.release`."""
    second = _second(claim)
    try:
        refusal = await WHOLE.release(port, second)
    except LockUnavailable:
        raise
    except LockError:  # a key of a wrong type: nobody holds the timestamp lock
        await first.release(port, claim)
        raise
    finally:
        _remember(claim, second)
    return await first.release(port, claim) or refusal


async def extend(
    port: Port, claims: Sequence[Claim], ttls: Sequence[float]
) -> list[Refusal | None]:
    """As `mutex.extend`, in two round trips; on a cluster, in one more for each slot."""
    refusals = await mutex.extend(port, claims, ttls)
    slots: dict[int, list[int]] = {}
    for number, refusal in enumerate(refusals):
        if refusal is None:  # a lost lease is not extended, so that it ends
            slots.setdefault(port.slot(claims[number].keys.timestamp_key), []).append(number)
    for numbers in slots.values():
        seconds = [_second(claims[number]) for number in numbers]
        also = await WHOLE.extend(port, seconds, [ttls[number] for number in numbers])
        for number, refusal in zip(numbers, also, strict=True):
            refusals[number] = refusal
    return refusals


write_down = mutex.write_down


async def adopt(port: Port, token: str, claim: Claim) -> Grant | Refusal:
    """As `mutex.adopt`."""
    got = await mutex.adopt(port, token, claim)
    if isinstance(got, Refusal):
        return got
    second = _second(claim)
    try:
        also = await WHOLE.adopt(port, token, second)
    finally:
        _remember(claim, second)
    if isinstance(also, Refusal):
        await mutex.release(port, claim)
        return also
    return got


async def holders(port: Port, keys: Keys) -> list[Sight]:
    """Return the holders that a claim waits for: an old client, or another timestamp lock of ours,
    rather than the holder of the mutex, which waits for it, too."""
    ours, others = await mutex.holders(port, keys), await WHOLE.holders(port, keys.of_timestamp())
    return ours if {its.token for its in ours} >= {its.token for its in others} else others


async def clear(port: Port, keys: Keys, seen: Sequence[bytes], by: str, reason: str) -> list[bool]:
    """As `mutex.clear`, for holders that were seen at the mutex, at the timestamp lock, or at
    both."""
    cleared = await mutex.clear(port, keys, seen, by, reason)
    also = await WHOLE.clear(port, keys.of_timestamp(), seen, by, reason)
    return [any(both) for both in zip(cleared, also, strict=True)]
