"""A record beside a lock: what came of the work that it protected, kept for a while or for good.

1.  Whoever holds the lock reads it first: what is there need not be done again.
2.  It is written when the work has succeeded, and before the lock is released. So nobody who
    gets the lock finds neither a record nor the work still under way.
3.  A write names the token that it speaks for. One whose lease was lost is refused, and so is
    one that arrives after its token was withdrawn; else a record that was forgotten since could
    come back.
4.  A record may be read without the lock, too: what is there stays true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .asking import milliseconds, twice
from .contract import Claim, Refusal

if TYPE_CHECKING:
    from .contract import Port
    from .keys import Keys


async def read(port: Port, keys: Keys) -> bytes | None:
    """What was written, unless that was never, or longer ago than its ttl.

    Raises `LockUnavailable`.
    """
    value: bytes | None = await twice(lambda: port.script("record_get", [keys.record], []))
    return value


async def write(
    port: Port, claim: Claim, value: bytes, ttl: float | None, *, held: bool
) -> Refusal | None:
    """Keep `value` for `ttl` seconds (None: for good). None: written.

    With `held` only while `claim` holds the lock; else also when its lease has ended and nobody
    else has taken the lock. Raises `LockUnavailable`; it may be repeated.
    """
    keys = claim.keys
    its_keys = [keys.record, keys.lock, keys.gone(claim.token)]
    args = [claim.token, value, _milliseconds(ttl), int(held)]
    written, *rest = await twice(lambda: port.script("record_write", its_keys, args), claim)
    return None if written else Refusal(*rest)


async def first(port: Port, keys: Keys, value: bytes, ttl: float | None) -> bytes:
    """Keep `value`, unless something is there; returns what is. Raises `LockUnavailable`."""
    args = [value, _milliseconds(ttl)]
    stands: bytes = await twice(lambda: port.script("record_first", [keys.record], args))
    return stands


async def forget(port: Port, keys: Keys) -> None:
    """As if nothing had been written. Raises `LockUnavailable`."""
    await twice(lambda: port.script("record_delete", [keys.record], []))


async def keep(port: Port, key: str, ttl: float) -> None:
    """Let `key` be there for `ttl` seconds."""
    await port.script("record_set", [key], [b"", milliseconds(ttl)])


def _milliseconds(ttl: float | None) -> int | str:
    return "" if ttl is None else milliseconds(ttl)
