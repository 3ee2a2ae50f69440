"""The error for a name that is held as another kind of lock: which kind, and who holds it."""

from __future__ import annotations

from ..base.exceptions import LockError
from ..primitives import mutex, permits
from ..primitives.contract import Claim, Port

_NAMES = {
    "mutex": "a mutex",
    "semaphore": "a semaphore",
    "read": "a read-write lock, for reading",
    "write": "a read-write lock, for writing",
}


async def explained(port: Port, claim: Claim, error: LockError) -> LockError:
    """Return the error of an acquire, with the holder of another kind that it met, if any."""
    looks = [permits.held_as]
    if isinstance(claim.primitive, permits.Permits):
        looks.append(mutex.held_as)
    for keys in claim.parts or (claim.keys,):
        for look in looks:
            try:
                found = await look(port, keys)
            except LockError:  # not of this kind, or Redis is away now
                continue
            if found is not None and found[0] != claim.primitive.kind:
                kind, holder = found
                said = f"{error} {keys.name!r} is held as {_NAMES[kind]}, by {holder}."
                return LockError(said, keys.name)
    return error
