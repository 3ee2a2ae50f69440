"""Raise the fencing tokens above a token that a database has seen.

A fencing token is the server's clock, or one more than the last token that the server remembers.
Both fail at the same time if Redis loses its data and its clock was set back: each new lease then
has a smaller token than the rows, which refuse it. That is safe, and it does not end by itself
before the clock has passed the tokens of the rows.

One key has the last token for all names, so all of them are raised together. On a cluster each
name has a key of its own. A lease that is held keeps its token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..base import tokens

if TYPE_CHECKING:
    from .contract import Port
    from .keys import Keys

NOTHING_TO_DO, DONE, LOOKED = range(3)


class Raised(NamedTuple):
    """The answer of lua/fence_raise.lua."""

    code: int
    now_us: int
    next: int
    """The fencing token that the next lease would have had."""


async def check(port: Port, keys: Keys, seen: int) -> Raised:
    """Return whether the next fencing token is larger than `seen`. Raises `LockUnavailable`."""
    return await _ask(port, keys, seen, yes=False)


async def above(port: Port, keys: Keys, seen: int) -> Raised:
    """Let the next fencing token be larger than `seen`. Raises `LockUnavailable`; it may be
    repeated."""
    return await _ask(port, keys, seen, yes=True)


async def _ask(port: Port, keys: Keys, seen: int, *, yes: bool) -> Raised:
    args: list[str | int] = [tokens.word(), seen, int(yes)]
    its = [keys.lock, keys.clock, keys.index]
    code, now_us, next_ = await port.script("fence_raise", its, args)
    return Raised(code, int(now_us), int(next_))
