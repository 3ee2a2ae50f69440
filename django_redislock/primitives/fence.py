"""Raise the fencing tokens above a token that a database has seen.

A fencing token is the server's clock, or one more than the last token that the server remembers.
Both fail at the same time if Redis loses its data and its clock was set back: each new lease then
has a smaller token than the rows, which refuse it. That is safe, and it does not end by itself
before the clock has passed the tokens of the rows.

One key has the last token for all names, so all of them are raised together. On a cluster each
name has a key of its own. A lease that is held keeps its token.

If that key has something that no script wrote, the server's clock takes its place (`mend`). Rows
may have seen larger tokens, so this is logged, and counted for the doctor.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..base import tokens
from .contract import Port, Scripts
from .keys import Index, Keys, Shared, counter
from .scripts import ask, instant, whole

logger = logging.getLogger("django_redislock")

NOTHING_TO_DO, DONE, LOOKED, UNREADABLE = range(4)
COUNTER = "unreadable_clocks"


class Raised(NamedTuple):
    """The answer of lua/fence_raise.lua."""

    code: int
    now_us: int
    next: int
    """The fencing token that the next lease would have had."""


async def above(port: Port, keys: Keys, seen: int, *, yes: bool) -> Raised:
    """Let the next fencing token be larger than `seen`; without `yes`, only look whether it is.
    Raises `LockUnavailable`; it may be repeated."""
    return await _ask(port, [keys.lock, keys.clock, keys.index], seen, yes=yes)


async def mend(port: Scripts, keys: Sequence[str]) -> None:
    """Let a last fencing token that can't be read be the server's time. `keys` are those of a
    script that needs the token. Raises `LockUnavailable`."""
    # Scripts of tasks have another key that belongs to all locks, too.
    [clock] = (key for key in keys if type(key) is Shared and key.endswith(":clock"))
    [index] = (key for key in keys if isinstance(key, Index))
    if (await _ask(port, [keys[0], clock, index], 0, yes=True)).code == UNREADABLE:
        logger.warning(
            "The key %r had no fencing token that can be read, so the next ones come from the "
            "server's clock. Rows that have seen larger ones refuse new leases: see "
            "`manage.py redislock fence`",
            str(clock),
        )
        await ask(port, whole, "count", [counter(index, COUNTER)], [tokens.word(), 1])


async def settle(port: Port, keys: Keys) -> None:
    """Forget how many tokens could not be read: an operator has raised them above those of the
    rows. Raises `LockUnavailable`."""
    await port.script("record_delete", [counter(keys.index, COUNTER)], [tokens.word()])


async def _ask(port: Scripts, keys: Sequence[str], seen: int, *, yes: bool) -> Raised:
    args: list[str | int] = [tokens.word(), seen, int(yes)]
    return await ask(port, _raised, "fence_raise", keys, args)


def _raised(answer: Any) -> Raised:
    code, now_us, next_ = answer
    return Raised(whole(code), instant(now_us), whole(next_))
