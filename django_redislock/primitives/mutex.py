"""The mutex: one lease per name, first come, first served.

1.  *Acquire* is one script. If the key is free it gets a value with our token and a TTL. If
    the token at the key is ours already, because an earlier send did arrive although we
    never saw its answer, only the TTL is set anew. So we may always ask again.
2.  A claim that can't have the lock and may wait is put into the queue by that same script.
3.  *Release* compares the token, deletes the key and, in the same step, hands the lock to the
    first waiter whose process can be reached, for a short claim window. That waiter is woken and
    calls acquire again: it finds that it has the lock. Nobody can get in between. If it does not
    come, the window passes, and the next waiter's slice finds the lock free. A waiter of the
    process that releases has nothing to confirm: the answer says who has the lock now, and its
    lease began when the release was sent.
4.  Giving up is an acquire without an inbox: if the lock was handed to us at that very moment we
    have it after all; otherwise our place in the queue is gone when the answer comes.
5.  If an answer was lost, the last request is a release that leaves a tombstone: an acquire of
    that token that arrives late is refused, and can't become a lock that nobody holds.
6.  The holder's own deadline counts from the time at which it *sent* the request, less a
    margin for clock drift. Counting from the answer would let it believe in its lease for
    as long as the answer travelled after the lease had begun.
7.  Redis serves nobody else while a script runs, so a script passes over a thousand killed waiters
    at most. If it finds none that lives, the lock stays free, and whoever asks next goes on:
    acquire answers that it is to be asked again at once, until the first waiter that lives has
    the lock.

Sources: the compare-and-delete release is the one of the Redis documentation of SET; the
fencing token is Martin Kleppmann's ("How to do distributed locking", 2016), taken from the
server's clock; the margin is Redlock's drift.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from ..base import tokens
from ..base.exceptions import LockNotAcquired
from ..base.holder import Holder
from . import guard, queued
from .asking import batches, milliseconds, verdicts
from .contract import Claim, Grant, Refusal, Sight

if TYPE_CHECKING:
    from .contract import Port
    from .keys import Keys


MOST_AT_ONCE = 250
"""Leases in one request, which keeps Redis busy for as long as a few hundred plain commands."""

kind = "mutex"
unfenced = ""


def acquire(
    port: Port, claim: Claim, wait: float | None
) -> Coroutine[Any, Any, Grant | LockNotAcquired]:
    ask = queued.Script(*guard.guarded(claim, "mutex_acquire", claim.keys.mutex(claim.token)))
    return queued.acquire(port, claim, wait, ask)


def release(port: Port, claim: Claim) -> Coroutine[Any, Any, Refusal | None]:
    ask = queued.Script("mutex_release", claim.keys.mutex(claim.token))
    return queued.release(port, claim, ask)


async def extend(
    port: Port, claims: Sequence[Claim], ttls: Sequence[float]
) -> list[Refusal | None]:
    """Let leases live for these times from now, all in one round trip. None: extended.

    Raises `LockUnavailable`: nothing is known of any of them.
    """
    held = [(claim.keys, claim.token, ttl) for claim, ttl in zip(claims, ttls, strict=True)]
    return await extend_all(port, held, store=another_ttl(claims, ttls))


Held = tuple["Keys", str, float]
"""The keys of a lock, the token that holds it, and a ttl in seconds."""


def another_ttl(claims: Sequence[Claim], ttls: Sequence[float]) -> bool:
    """Return whether a lease gets another ttl than it had, which is then written at its lock."""
    return any(claim.ttl != ttl for claim, ttl in zip(claims, ttls, strict=True))


async def extend_all(
    port: Port, held: Sequence[Held], *, store: bool, permits: bool = False
) -> list[Refusal | None]:
    """Let each token hold its keys for so many seconds from now. Of those that don't hold them, it
    is asked in a second request why."""
    script = "permits_extend" if permits else "mutex_extend"

    async def ask(some: Sequence[Held], *, why: bool = False) -> list[Refusal | None]:
        keys, args = extension(some, store=store, permits=permits, why=why)
        return verdicts(await port.script(script, keys, args), len(some))

    found = await ask(held)
    refused = [number for number, refusal in enumerate(found) if refusal is not None]
    if refused:
        answer = await ask([held[number] for number in refused], why=True)
        for number, refusal in zip(refused, answer, strict=True):
            found[number] = refusal
    return found


def extension(
    held: Sequence[Held], *, store: bool, permits: bool = False, why: bool = False
) -> tuple[list[str], list[str | int]]:
    """Return KEYS and ARGV that let each token hold its keys for so many seconds from now. With
    `why`, the answer says why a token does not hold them."""
    first = held[0][0]
    if permits:
        keys = [key for its, _, _ in held for key in (its.lock, its.holders)]
    else:
        keys = [its.lock for its, _, _ in held]
    keys += first.index, first.clock
    if why:
        keys += [its.gone(token) for its, token, _ in held]
    args: list[str | int] = [tokens.word(), int(store)]
    for _, token, ttl in held:
        args += token, milliseconds(ttl)
    return keys, args


async def write_down(port: Port, claims: Sequence[Claim]) -> None:
    """Write down leases that have been held for a while, in the index and in the history."""
    held = [(its, claim.token) for claim in claims for its in claim.parts or (claim.keys,)]
    for positions in batches(port, [its.lock for its, _ in held], MOST_AT_ONCE):
        await port.script("mutex_write_down", *record_of([held[each] for each in positions]))


def record_of(held: Sequence[tuple[Keys, str]]) -> tuple[list[str], list[str]]:
    """Return KEYS and ARGV that write down that each token holds its keys."""
    keys = [key for its, _ in held for key in (its.lock, its.history)]
    return [*keys, held[0][0].index], [tokens.word(), *(token for _, token in held)]


async def adopt(port: Port, token: str, claim: Claim) -> Grant | Refusal:
    ask = queued.Script("mutex_adopt", claim.keys.mutex(token))
    return await queued.adopt(port, token, claim, ask)


async def holders(port: Port, keys: Keys) -> list[Sight]:
    reply = await port.script("mutex_holder", [keys.lock], [tokens.word()])
    if reply is None:
        return []
    value, pttl, now_us = reply
    return [Sight.of(value, Holder.parse(value, pttl, int(now_us)))]


async def held_as(port: Port, keys: Keys) -> tuple[str, Holder] | None:
    """As `permits.held_as`. A value of another program is no mutex."""
    sights = await holders(port, keys)
    return (kind, sights[0].holder) if sights and sights[0].holder.owner else None


async def clear(port: Port, keys: Keys, seen: Sequence[bytes], by: str, reason: str) -> list[bool]:
    cleared = await port.script(
        "mutex_clear",
        keys.mutex(
            seen[0][:32].decode(errors="replace")
        ),  # the writer of a foreign value is told nothing
        [tokens.word(), by, reason, seen[0]],
    )
    return [bool(cleared)]
