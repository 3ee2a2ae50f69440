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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..base import tokens
from ..base.exceptions import LockNotAcquired, LockUnavailable
from ..base.holder import Holder
from . import queued
from .asking import milliseconds, verdicts
from .contract import Claim, Grant, Refusal, Sight
from .waiting import poll

if TYPE_CHECKING:
    from .contract import Port
    from .keys import Keys


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

    async def acquire(
        self, port: Port, claim: Claim, wait: float | None
    ) -> Grant | LockNotAcquired:
        """As `mutex.acquire`, but waiters are not served in order."""
        keys = claim.keys
        attempts = queued.Attempts(port, claim, wait)
        ttl, fractions = milliseconds(claim.ttl), int(self.fractions)
        polls = 0
        while True:
            attempts.ask()
            try:
                code, *rest = await port.script(
                    "timestamp_acquire",
                    keys.timestamps(claim.token),
                    [claim.token, ttl, claim.says, fractions],
                )
                attempts.heard(code)
            except LockUnavailable as error:
                await port.sleep(attempts.failed(error))
                continue
            if code == 1:
                return Grant(None, int(rest[0]), attempts.sent)
            if code == -1:
                raise Refusal(None, rest[0]).error(keys.name)
            holder = holder_of(*rest)
            if attempts.last:
                return LockNotAcquired(keys.name, holder, attempts.waited)
            attempts.busy(keys.name, holder)
            polls += not self.often
            await port.sleep(poll(polls, holder.remaining, attempts.left, port.uniform))

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        """As `mutex.release`."""
        ask = queued.Script("timestamp_release", claim.keys.timestamps(claim.token))
        return await queued.release(port, claim, ask)

    async def extend(
        self, port: Port, claims: Sequence[Claim], ttls: Sequence[float]
    ) -> list[Refusal | None]:
        """As `mutex.extend`."""
        keys: list[str] = []
        args: list[str | int] = [tokens.word()]
        for claim, ttl in zip(claims, ttls, strict=True):
            keys += claim.keys.timestamps(claim.token)
            args += claim.token, milliseconds(ttl)
        return verdicts(await port.script("timestamp_extend", keys, args), len(claims))

    async def write_down(self, port: Port, claims: Sequence[Claim]) -> None:
        """Do nothing: acquiring and extending have listed the lock."""

    async def adopt(self, port: Port, token: str, claim: Claim) -> Grant | Refusal:
        """As `mutex.adopt`."""
        ask = queued.Script("timestamp_adopt", claim.keys.timestamps(token))
        return await queued.adopt(port, token, claim, ask)

    async def holders(self, port: Port, keys: Keys) -> list[Sight]:
        """Return the present holder; nobody, if its time is over."""
        reply = await port.script("timestamp_holder", keys.timestamps(""), [tokens.word()])
        return [Sight.of(reply[0], holder_of(*reply))] if reply else []

    async def clear(
        self, port: Port, keys: Keys, seen: Sequence[bytes], by: str, reason: str
    ) -> list[bool]:
        """As `mutex.clear`."""
        cleared = await port.script(
            "timestamp_clear",
            # An old client is told nothing.
            keys.timestamps(seen[0][:32].decode(errors="replace")),
            [tokens.word(), by, reason, seen[0]],
        )
        return [bool(cleared)]


def holder_of(value: bytes, remains_ms: bytes | int, now_us: bytes | int) -> Holder:
    """Read the holder beside the lock, or the time that an old client wrote."""
    holder = Holder.parse(value, int(remains_ms), int(now_us))
    return holder._replace(fencing_token=None)


WHOLE = Timestamp(fractions=False)
"""All old clients can read this, even those that expect an integer."""
FRACTIONS = Timestamp(fractions=True)
