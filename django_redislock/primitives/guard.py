"""The guard: what becomes of mutexes when a server has lost its data.

1.  The key `redislock:guard` has the time since which the server has forgotten nothing. It is
    there as long as the data are. So whoever misses it knows that they were lost, or that the
    server is new, and writes it anew.
2.  *Acquire* of a guarded claim gets no free lock until its own ttl has passed since that time. By
    then every forgotten lease has ended whose ttl was not longer.
3.  A *renewal* that finds nothing puts its lease back, with its own token and fencing token, as
    long as that time is not over. So its holder keeps the lock, and whoever asks sees who it is.
4.  A lease that was put back may be released and handed on at once: at most one lease on the name
    was forgotten, and this is it. (A semaphore has several, so it can't be guarded.)
5.  That would not be so if the holder was stopped, or its request was late, until others had held
    the lock, and *their* lease was forgotten. So the server is asked for its time first, and the
    request says when the lease ends by that time. After that, nothing is put back.
6.  A request to put a lease back that arrives after its release would lock the name for nobody.
    So the claim is doubtful from then on, and its release leaves a tombstone.

A lock that is not guarded never reads the guard, and pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base import tokens
from ..base.exceptions import LockUnavailable
from ..base.holder import server_time
from .asking import batches, milliseconds, verdicts
from .contract import Claim, Refusal

if TYPE_CHECKING:
    from .contract import Port
    from .keys import Keys

MOST_AT_ONCE = 250
"""Leases in one request, as in mutex.py."""
A_MOMENT = 1.0
"""Seconds for which a lease is put back that is released next. A request that arrives late locks
the name for no longer."""


def guarded(
    claim: Claim, script: str, keys: Sequence[str], *, before: int = 0
) -> tuple[str, Sequence[str]]:
    """Return the script that acquires this claim, and its KEYS. The guard comes last, or `before`
    so many others."""
    if not claim.guarded:
        return script, keys
    place = len(keys) - before
    return f"{script}_guarded", [*keys[:place], claim.keys.guard, *keys[place:]]


def paused(name: str, left_ms: int, now_us: int) -> LockUnavailable:
    """The error for a lock that nobody new gets for so long."""
    until = server_time(now_us + 1000 * left_ms)
    return LockUnavailable(
        f"Redis has lost its data, or is new: it may have forgotten who holds {name!r}. Nobody "
        f"new gets it before {until:%H:%M:%S} UTC, in {left_ms / 1000:.1f} s (AFTER_LOSS is "
        f"'wait').",
        name,
    )


async def put_back(
    port: Port,
    claims: Sequence[Claim],
    ttls: Sequence[float],
    deadlines: Sequence[float],
    *,
    withdrawn: bool = False,
) -> list[Refusal | None]:
    """Let forgotten leases live for these times from now, unless their holders' deadlines have
    passed; with `withdrawn`, even if they were withdrawn. None: put back.

    Raises `LockUnavailable`: nothing is known of any of them.
    """
    there = (claims[0].parts or (claims[0].keys,))[0]
    now_us = int(await port.script("server_time", [there.guard], [tokens.word()]))
    heard = port.now()
    # Too early, if anything, by the time that the answer was on its way.
    ends = [now_us + round(1e6 * (deadline - heard)) for deadline in deadlines]
    found: list[Refusal | None] = [None] * len(claims)
    leases = [
        (number, its, _value(claim, its), milliseconds(ttl))
        for number, (claim, ttl) in enumerate(zip(claims, ttls, strict=True))
        for its in claim.parts or (claim.keys,)
    ]
    for positions in batches(port, [its.lock for _, its, *_ in leases], MOST_AT_ONCE):
        batch = [leases[position] for position in positions]
        keys = [
            key for number, its, *_ in batch for key in (its.lock, its.gone(claims[number].token))
        ]
        first = batch[0][1]
        args: list[str | int] = [tokens.word(), int(withdrawn)]
        for number, _, value, lives in batch:
            args += value, lives, ends[number]
        keys += first.guard, first.index, first.clock
        said = verdicts(await port.script("mutex_put_back", keys, args), len(batch))
        for (number, its, *_), refusal in zip(batch, said, strict=True):
            if refusal is not None:
                found[number] = found[number] or refusal._replace(name=its.name)
    return found


async def release_forgotten(port: Port, claim: Claim, deadline: float) -> Refusal | None:
    """Release a lease that its release has not found, and whose deadline has not passed. It is put
    back for a moment, which shows that nobody else has held the lock. None: released."""
    [refusal] = await put_back(port, [claim], [A_MOMENT], [deadline], withdrawn=True)
    if refusal is None:
        refusal = await claim.primitive.release(port, claim)
        if refusal is not None and not refusal.revoked:
            return None  # that moment was over, or the lease was forgotten once more
    return refusal


def _value(claim: Claim, keys: Keys) -> str:
    """Return the value of a lease at its lock, as in lua/value.lua."""
    assert claim.granted is not None
    fence = claim.fencing_tokens.get(keys.name, claim.granted.fencing_token)
    acquired_us = claim.granted.acquired_us
    acquired = "" if acquired_us == fence else acquired_us
    return f"{claim.token}+{fence}|{acquired}|{milliseconds(claim.ttl)}|{claim.says}"
