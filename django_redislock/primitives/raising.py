"""Raise the fencing tokens of a name above a token that a database has seen.

A fencing token is the server's clock, or one more than the last token that the server remembers.
Both fail at the same time if Redis loses its data and its clock was set back: each new lease then
has a smaller token than the rows, which refuse it. That is safe, and it does not end by itself
before the clock has passed the tokens of the rows.

While a mutex is held, the holder's fencing token is the last one: the release writes it down. So a
name that is held as a mutex is acquired first, and raised by its holder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..base.exceptions import LockNotAcquired
from . import mutex

if TYPE_CHECKING:
    from .contract import Claim, Port

NOTHING_TO_DO, DONE, HELD, LOOKED = range(4)


class Raised(NamedTuple):
    """The answer of lua/fence_raise.lua."""

    code: int
    now_us: int
    next: int
    """The fencing token that the next lease would have had."""


async def check(port: Port, claim: Claim, seen: int) -> Raised:
    """Return whether the name's next fencing token is larger than `seen`. Raises
    `LockUnavailable`."""
    return await _ask(port, claim, seen, yes=False)


async def above(
    port: Port, claim: Claim, seen: int, wait: float | None
) -> Raised | LockNotAcquired:
    """Let the name's next fencing token be larger than `seen`.

    If another holder has the mutex, wait for it for up to `wait` seconds. Raises
    `LockUnavailable`; it may be repeated.
    """
    raised = await _ask(port, claim, seen, yes=True)
    if raised.code != HELD:
        return raised
    try:
        got = await mutex.acquire(port, claim, wait)
        if isinstance(got, LockNotAcquired):
            return got
        return await _ask(port, claim, seen, yes=True)
    finally:
        if claim.sent:
            await mutex.release(port, claim)


async def _ask(port: Port, claim: Claim, seen: int, *, yes: bool) -> Raised:
    keys = claim.keys
    args: list[str | int] = [claim.token, keys.name, seen, int(yes)]
    code, now_us, next_ = await port.script("fence_raise", keys.mutex(claim.token), args)
    return Raised(code, int(now_us), int(next_))
