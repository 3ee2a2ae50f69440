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

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..base.exceptions import LockUnavailable
from .contract import Claim, Refusal, milliseconds

if TYPE_CHECKING:
    from .contract import Port
    from .keys import Keys


async def read(port: Port, keys: Keys) -> bytes | None:
    """What was written, unless that was never, or longer ago than its ttl.

    Raises `LockUnavailable`.
    """
    value: bytes | None = await _twice(port, "record_get", [keys.record], [])
    return value


async def write(
    port: Port, claim: Claim, value: bytes, ttl: float | None, *, held: bool
) -> Refusal | None:
    """Keep `value` for `ttl` seconds (None: for good). None: written.

    With `held` only while `claim` holds the lock; else also when its lease has ended and nobody
    else has taken the lock. Raises `LockUnavailable`; it may be repeated.
    """
    keys = claim.keys
    written, *rest = await _twice(
        port,
        "record_write",
        [keys.record, keys.lock, keys.gone(claim.token)],
        [claim.token, value, _milliseconds(ttl), int(held)],
        claim,
    )
    return None if written else Refusal(*rest)


async def first(port: Port, keys: Keys, value: bytes, ttl: float | None) -> bytes:
    """Keep `value`, unless something is there; returns what is. Raises `LockUnavailable`."""
    stands: bytes = await _twice(port, "record_first", [keys.record], [value, _milliseconds(ttl)])
    return stands


async def forget(port: Port, keys: Keys) -> None:
    """As if nothing had been written. Raises `LockUnavailable`."""
    await _twice(port, "record_delete", [keys.record], [])


async def keep(port: Port, key: str, ttl: float) -> None:
    """Let `key` be there for `ttl` seconds."""
    await port.script("record_set", [key], [b"", milliseconds(ttl)])


def _milliseconds(ttl: float | None) -> int | str:
    return "" if ttl is None else milliseconds(ttl)


async def _twice(
    port: Port,
    name: str,
    keys: Sequence[str],
    args: Sequence[str | int | bytes],
    claim: Claim | None = None,
) -> Any:
    """Once more when the connection is lost: an idle one that the server had closed fails so."""
    for attempt in (1, 2):
        try:
            return await port.script(name, keys, args)
        except LockUnavailable as error:
            if claim is not None:
                claim.doubtful |= error.doubtful
            if attempt == 2 or not error.passing or error.silent:
                raise
    raise AssertionError("unreachable")
