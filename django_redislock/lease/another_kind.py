"""The error for a lock with keys of a wrong type: the kind of lock that the name is held as, and
its holder; or the key that another program has overwritten."""

from __future__ import annotations

import shlex
from contextlib import suppress

from ..base.exceptions import LockError
from ..primitives import mending, mutex, permits
from ..primitives.contract import Claim, Port
from ..primitives.keys import Keys
from ..settings import conf

_NAMES = {
    "mutex": "a mutex",
    "semaphore": "a semaphore",
    "read": "a read-write lock, for reading",
    "write": "a read-write lock, for writing",
}


async def explained(port: Port, claim: Claim, using: str, error: LockError) -> LockError:
    """Return the error of an acquire, with the holder of another kind that it met, or with the
    broken key."""
    shared = isinstance(claim.primitive, permits.Permits)
    for keys in claim.renewed_keys:
        for look in (permits.held_as, mutex.held_as) if shared else (permits.held_as,):
            with suppress(LockError):  # not of this kind, or Redis is away now
                found = await look(port, keys)
                if found is not None and found[0] != claim.primitive.kind:
                    kind, holder = found
                    said = f"{error} {keys.name!r} is held as {_NAMES[kind]}, by {holder}."
                    return LockError(said, keys.name)
        with suppress(LockError):
            for key in await mending.broken(port, keys, shared=shared):
                return _broken(keys, key, using)
    return error


def _broken(keys: Keys, key: str, using: str) -> LockError:
    words = ["manage.py", "redislock", "clear"]
    if keys.named_by_others:
        words.append("--cache-locks")
    if conf.listed(keys.name).using != using:
        words.append(f"--using={using}")
    return LockError(
        f"The key {key!r} has a type that such a lock does not use, so {keys.name!r} can't be "
        f"locked: another program has written it. It was left alone. If that program needs it, "
        f"change REDISLOCK['PREFIX']. To delete it: {shlex.join([*words, keys.name])}",
        keys.name,
    )
