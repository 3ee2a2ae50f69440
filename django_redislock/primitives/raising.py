"""Raise the fencing tokens of a name above one that a database has seen.

A fencing token is the server's clock, or one more than the last token that the server remembers.
Both go wrong at the same time if Redis loses its data and its clock was set back: then each new
lease has a smaller token than the rows, and they refuse it. That is safe, and it does not end by
itself before the clock has passed what the rows have seen.

While a mutex is held, its own token is the last one: its release writes it down. So a name that is
held as a mutex is raised by somebody who holds it, in its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..base.exceptions import LockNotAcquired
from . import mutex

if TYPE_CHECKING:
    from .contract import Claim, Port

NOTHING_TO_DO, DONE, HELD, LOOKED = range(4)


class Raised(NamedTuple):
    """What fence_raise.lua answers."""

    code: int
    now_us: int
    next: int
    """The fencing token that the next lease would have had."""


async def check(port: Port, claim: Claim, seen: int) -> Raised:
    """Whether the name's next fencing token is larger than `seen`. Raises `LockUnavailable`."""
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
