"""The timestamp lock: a key that says when the lock ends. For fleets with old clients.

1.  The algorithm is the one that the Redis documentation of SETNX had before there was
    `SET NX PX`: `SETNX key <time + ttl + 1>`; who finds the key there reads it, and when its time
    is over, writes its own with GETSET. Who gets a time back that is over has the lock; else
    another one was faster. The holder looks at its own time before it deletes the key.
2.  Here each of these steps is one script that does the same by the server's clock. So between
    ours nobody is the loser of a GETSET, and no clocks have to agree. The old clients read what
    we write, and we read what they do, in whole seconds or with fractions.
3.  The key has no room for a token: that stands in the tail beside it, with what we wrote. We
    believe that the lock is ours as long as our token was the last, our time is not over, and
    the key says that time. But the loser of a GETSET, among old clients, moves it: by a little,
    if their ttl is like ours. Two seconds are no loss, and the next renewal puts them right. More
    may be such a loser with another ttl, or a successor: nobody can tell, so the lease is lost.
4.  Against old clients it is as good as the algorithm is: their clocks have to agree with the
    server's but for a second, and who deletes the key without a look at its time deletes ours,
    too, which we learn at the next renewal.
5.  Nobody hands over the lock, and old clients wake nobody: who waits looks again, soon at first,
    later about three times a second, and when the time at the key is over.
6.  In the old algorithm the key has no TTL. Ours has one, a minute after its time, when the value
    says nothing any more; so a name that is never used again does not stay for ever. The GETSET
    of an old client removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

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
    """Of a second, in what is written."""
    often: bool = False
    """Whoever waits keeps on asking as often as at first: there is only one."""
    kind: ClassVar[str] = "timestamp"
    unfenced: ClassVar[str] = (
        "A TimestampLock has no fencing token: the clients that it shares its key with have none, "
        "so there is no order that all holders would follow."
    )

    async def acquire(
        self, port: Port, claim: Claim, wait: float | None
    ) -> Grant | LockNotAcquired:
        """As `mutex.acquire`, but for the order in which those who wait have it."""
        keys = claim.keys
        attempts = queued.Attempts(port, claim, wait)
        ttl, fractions = milliseconds(claim.ttl), int(self.fractions)
        polls = 0
        while True:
            attempts.ask()
            try:
                code, *rest = await port.script(
                    "timestamp_acquire",
                    keys.mutex(claim.token),
                    [claim.token, keys.name, ttl, claim.owner, claim.label, fractions],
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
        ask = queued.Script("timestamp_release", claim.keys.mutex(claim.token))
        return await queued.release(port, claim, ask)

    async def extend(
        self, port: Port, claims: Sequence[Claim], ttls: Sequence[float]
    ) -> list[Refusal | None]:
        """As `mutex.extend`."""
        keys: list[str] = []
        args: list[str | int] = []
        for claim, ttl in zip(claims, ttls, strict=True):
            keys += claim.keys.mutex(claim.token)
            args += claim.token, claim.keys.name, milliseconds(ttl)
        return verdicts(await port.script("timestamp_extend", keys, args), len(claims))

    async def adopt(self, port: Port, token: str, claim: Claim) -> Grant | Refusal:
        """As `mutex.adopt`."""
        ask = queued.Script("timestamp_adopt", claim.keys.mutex(token))
        return await queued.adopt(port, token, claim, ask)

    async def holders(self, port: Port, keys: Keys) -> list[Sight]:
        """Who holds the lock now; nobody, when its time is over."""
        reply = await port.script("timestamp_holder", keys.mutex(""), [])
        return [Sight.of(reply[0], holder_of(*reply))] if reply else []

    async def clear(
        self, port: Port, keys: Keys, seen: Sequence[bytes], by: str, reason: str
    ) -> list[bool]:
        """As `mutex.clear`."""
        cleared = await port.script(
            "timestamp_clear",
            keys.mutex(seen[0][:32].decode(errors="replace")),  # an old one is told nothing
            [seen[0], keys.name, by, reason],
        )
        return [bool(cleared)]


def holder_of(value: bytes, remains_ms: bytes | int, now_us: bytes | int) -> Holder:
    """Read what the tail says of a holder of ours, or the time of an old client."""
    holder = Holder.parse(value, int(remains_ms), int(now_us))
    return holder._replace(fencing_token=None)


WHOLE = Timestamp(fractions=False)
"""What all old clients can read, also those that take an integer."""
FRACTIONS = Timestamp(fractions=True)
