"""A record beside a lock: the result of the work that the lock protected, kept for a while or
without an end.

1.  The holder of the lock reads the record first: if there is one, the work is not done again.
2.  The record is written when the work has succeeded, and before the lock is released. So the next
    holder finds the record whenever the work was done.
3.  A write names its token. A write of a token that has lost its lease is refused, and so is a
    write that arrives after its token was withdrawn; otherwise a record that was forgotten since
    could come back.
4.  A record may be read without the lock, too: once written, it stays true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import tokens
from .asking import milliseconds, twice
from .contract import Claim, Refusal

if TYPE_CHECKING:
    from .contract import Port
    from .keys import Keys


async def read(port: Port, keys: Keys) -> bytes | None:
    """Return the record; None if there is none, or its ttl is over. Raises `LockUnavailable`."""
    value: bytes | None = await twice(
        lambda: port.script("record_get", [keys.record], [tokens.word()])
    )
    return value


async def write(
    port: Port, claim: Claim, value: bytes, ttl: float | None, *, held: bool
) -> Refusal | None:
    """Keep `value` for `ttl` seconds (None: without an end). None: written.

    With `held`, only while `claim` holds the lock; else also if its lease has ended and nobody
    else has taken the lock. Raises `LockUnavailable`; it may be repeated.
    """
    keys = claim.keys
    its_keys = [keys.record, keys.lock, keys.gone(claim.token)]
    args = [claim.token, value, milliseconds_of(ttl), int(held)]
    written, *rest = await twice(lambda: port.script("record_write", its_keys, args), claim)
    return None if written else Refusal(*rest)


async def first(port: Port, keys: Keys, value: bytes, ttl: float | None) -> bytes:
    """Keep `value` unless there is a record. Returns the record. Raises `LockUnavailable`."""
    args = [tokens.word(), value, milliseconds_of(ttl)]
    stands: bytes = await twice(lambda: port.script("record_first", [keys.record], args))
    return stands


async def forget(port: Port, keys: Keys) -> None:
    """Remove the record. Raises `LockUnavailable`."""
    await twice(lambda: port.script("record_delete", [keys.record], [tokens.word()]))


async def keep(port: Port, key: str, ttl: float) -> None:
    """Let `key` exist for `ttl` seconds."""
    await port.script("record_set", [key], [tokens.word(), b"", milliseconds(ttl)])


def milliseconds_of(ttl: float | None) -> int | str:
    """Return the argument that says for how long a record is kept."""
    return "" if ttl is None else milliseconds(ttl)
