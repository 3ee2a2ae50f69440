"""The mutex: one lease per name, first come, first served.

1.  *Acquire* is one script. If the key is free it gets a value with our token and a TTL. If
    the token at the key is ours already, because an earlier send did arrive although we
    never saw its answer, only the TTL is set anew. So we may always ask again.
2.  Who can't have the lock and may wait is put into the queue by that same script.
3.  *Release* compares the token, deletes the key and, in the same step, hands the lock to
    the first waiter whose process can be reached, for a short claim window. That waiter is
    woken and calls acquire again: it finds the lock its own. Nobody can barge in between.
    If it does not come, the window passes and the next one's slice finds the lock free.
4.  Giving up is an acquire that gives no inbox: if the lock was handed to us in that very
    moment we have it after all, else our place in the queue is gone when the answer comes.
5.  Where an answer was lost, the last word is a release that leaves a tombstone: an acquire
    of that token that arrives late is refused, and can't become a lock that nobody holds.
6.  The holder's own deadline counts from the time at which it *sent* the request, less a
    margin for clock drift. Counting from the answer would let it believe in its lease for
    as long as the answer travelled after the lease had begun.

Sources: the compare-and-delete release is the one of the Redis documentation of SET; the
fencing token is Martin Kleppmann's ("How to do distributed locking", 2016), taken from the
server's clock; the margin is Redlock's drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..clock import deadline
from ..exceptions import Holder, LockNotAcquired, LockUnavailable
from ..waiting import DEAF, Deadline, backoff, slice_for
from .primitive import Grant, Refusal, milliseconds

if TYPE_CHECKING:
    from ..io import IO
    from ..keys import Keys
    from ..lease import Claim


class Sight(NamedTuple):
    """A holder as an operator saw it; the token binds what is done next to what was seen."""

    token: bytes
    """Or the whole of a stranger's value, whatever that is."""
    holder: Holder

    @classmethod
    def of(cls, value: bytes, holder: Holder) -> Sight:
        return cls(value if holder.owner is None else value[:32], holder)


kind = "mutex"
unfenced = ""


async def acquire(io: IO, claim: Claim, wait: float | None) -> Grant | LockNotAcquired:
    """Hold `claim`, waiting for up to `wait` seconds (0: try once, None: for ever).

    Raises `LockUnavailable` when Redis can't be asked for as long; the caller then owes a
    `release`, as after any other exception.
    """
    keys, token = claim.keys, claim.token
    began = io.now()
    patience = Deadline(began, wait)
    inbox = "" if wait == 0 else await io.listen(token, within=0)
    begun = False
    ticket = ""
    failures = 0
    try:
        while True:
            sent = io.now()
            last = patience.over(sent)
            known, claim.sent = claim.sent, True
            try:
                code, *rest = await io.script(
                    "mutex_acquire",
                    keys.mutex(token),
                    [
                        token,
                        keys.name,
                        milliseconds(claim.ttl),
                        claim.owner,
                        claim.label,
                        "" if last else inbox,
                        ticket,
                    ],
                )
                if code == 1 and io.now() >= deadline(sent, claim.ttl):
                    raise LockUnavailable(
                        f"Redis took longer to answer than the lease on {keys.name!r} lives",
                        keys.name,
                        doubtful=True,
                    )
            except LockUnavailable as error:
                claim.doubtful |= error.doubtful
                claim.sent = known or error.doubtful
                failures += 1
                # Once more when something was sent and refused: an idle connection that the
                # server had closed fails so, and who waits for nothing deserves an answer too.
                once_more = failures == 1 and error.doubtful and not error.silent
                if not error.passing or (last and not once_more):
                    raise
                left = patience.left(io.now())
                pause = min(backoff(failures, uniform=io.uniform), left)
                await io.wait(pause, left)  # who listens is told when the server is back
                continue
            failures = 0
            if code == 1:
                fencing_token, acquired_us = rest
                return Grant(int(fencing_token), int(acquired_us), sent)
            if code == -1:
                raise Refusal(None, rest[0]).error(keys.name)
            value, pttl, now_us, position, ticket_bytes, lasted_us = rest
            holder = Holder.parse(value, pttl, int(now_us))
            if last:
                lasted = None if lasted_us is None else max(0, int(lasted_us)) / 1e6
                return LockNotAcquired(keys.name, holder, io.now() - began, position, lasted)
            ticket = ticket_bytes.decode()
            left = patience.left(io.now())
            if inbox == DEAF and not begun:
                # The first wait of this process, perhaps: begin to listen, and ask again before
                # a claim window could be over.
                begun = True
                inbox = await io.listen(token, within=min(0.5, left))
                continue
            place = 0 if inbox == DEAF else position
            await io.wait(slice_for(place, holder.remaining, left, io.uniform), left)
            inbox = await io.listen(token, within=0)
    finally:
        io.unlisten()


async def release(io: IO, claim: Claim) -> Refusal | None:
    """Give back the lease, or the place in the queue. None: released, now or before.

    Asks twice when the connection is lost. Raises `LockUnavailable`; it may be repeated.
    """
    for attempt in (1, 2):
        try:
            released, *rest = await io.script(
                "mutex_release",
                claim.keys.mutex(claim.token),
                [claim.token, claim.keys.name, int(claim.doubtful)],
            )
        except LockUnavailable as error:
            claim.doubtful |= error.doubtful
            claim.given_back = True
            if attempt == 2 or not error.passing or error.silent:
                raise
        else:
            refusal = None if released else Refusal(*rest)
            if refusal and claim.given_back and not refusal.revoked:
                # The earlier send did it, as far as anybody can tell, and others have held
                # the lock since.
                return None
            return refusal
    raise AssertionError("unreachable")


async def extend(io: IO, claims: Sequence[Claim], ttls: Sequence[float]) -> list[Refusal | None]:
    """Let leases live for so long from now, all in one round trip. None: extended.

    Raises `LockUnavailable`: then nothing is known of any of them.
    """
    keys: list[str] = []
    args: list[str | int] = []
    for claim, ttl in zip(claims, ttls, strict=True):
        keys += claim.keys.lock, claim.keys.tail, claim.keys.gone(claim.token)
        args += claim.token, claim.keys.name, milliseconds(ttl)
    keys.append(claims[0].keys.index)
    replies: list[list[Any]] = await io.script("mutex_extend", keys, args)
    return [None if extended else Refusal(*rest) for extended, *rest in replies]


async def adopt(io: IO, token: str, claim: Claim) -> Grant | Refusal:
    """Hold, as `claim`, the lease that `token` has held until now.

    Asks twice when the connection is lost. Raises `LockUnavailable`; the caller then owes a
    `release` of `claim`, as after any other exception.
    """
    keys = claim.keys
    ttl = milliseconds(claim.ttl)
    for attempt in (1, 2):
        sent = io.now()
        claim.sent = True
        try:
            adopted, *rest = await io.script(
                "mutex_adopt",
                keys.mutex(token),
                [token, keys.name, claim.token, ttl, claim.owner, claim.label],
            )
        except LockUnavailable as error:
            claim.doubtful |= error.doubtful
            if attempt == 2 or not error.passing or error.silent:
                raise
        else:
            return Grant(int(rest[0]), int(rest[1]), sent) if adopted else Refusal(*rest)
    raise AssertionError("unreachable")


async def look(io: IO, keys: Keys) -> Sight | None:
    """Who holds the lock now; None: nobody."""
    reply = await io.script("mutex_holder", [keys.lock], [])
    if reply is None:
        return None
    value, pttl, now_us = reply
    return Sight.of(value, Holder.parse(value, pttl, int(now_us)))


async def clear(io: IO, keys: Keys, seen: bytes, by: str, reason: str) -> bool:
    """Remove the lock that `seen` holds, for an operator. False: it changed hands."""
    cleared = await io.script(
        "mutex_clear",
        keys.mutex(seen[:32].decode(errors="replace")),  # a stranger is told nothing
        [seen, keys.name, by.replace("|", "/"), reason],
    )
    return bool(cleared)
