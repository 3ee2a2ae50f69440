"""Keys of a lock that another program has overwritten, so that nobody can take the lock.

A script that meets a key of another type ends with an error, and leaves the key alone: perhaps the
name is held as another kind of lock. Only then it is asked which key that is. An operator who
clears the lock deletes such keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import tokens

if TYPE_CHECKING:
    from .contract import Port
    from .keys import Keys


async def broken(port: Port, keys: Keys, *, shared: bool) -> list[str]:
    """Return the keys that have another type than such a lock gives them, and let lists have the
    lock. `shared`: it has permits. Raises `LockUnavailable`."""
    return await _ask(port, keys, "ZCARD" if shared else "GET")


async def mend(port: Port, keys: Keys) -> list[str]:
    """Delete the keys that have another type than any lock gives them, and return them. Raises
    `LockUnavailable`."""
    return await _ask(port, keys, "")


async def _ask(port: Port, keys: Keys, reads: str) -> list[str]:
    its = [*keys.looked_at, keys.index]
    found = await port.script("lock_mend", its, [tokens.word(), reads])
    return [key.decode(errors="backslashreplace") for key in found]
