"""Other kinds of `redis_lock`, with the same use, options and leases.

primitives/ explains how they work. `MultiLock` has several names, so it is no `redis_lock`: see
multi_lock.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Unpack

from ..base.servers import Servers
from ..lease.lock import BlockOptions, OnConflict_co, Options
from ..settings.validators import validate_flag, validate_limit
from .redis_lock import redis_lock


class Semaphore(redis_lock[OnConflict_co]):
    """Run a block or a function in at most `limit` places at a time, across processes and hosts.

    Each holder has a lease of its own. `limit` may change at any time, even while the semaphore is
    held and waited for: each caller is measured by the limit that it gives. Without `limit` it
    comes from `LIMIT` in the settings of the lock.

    Takes the options of `redis_lock`, and raises the same errors. A thread or task may hold
    several permits; `LockReentered` is raised if it asks for one while it holds all of them.
    """

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        limit: int | None = None,
        **options: Unpack[Options[OnConflict_co]],
    ) -> None:
        given = {} if limit is None else {"limit": validate_limit(limit)}
        super().__init__(name, **options)
        self._of_kind("semaphore")._explicit.update(given)


class ReadWriteLock(Generic[OnConflict_co]):
    """Let many read at a time, or one write.

    `read()` and `write()` return locks like `redis_lock`, with the options that are given here.
    They are fair: no caller overtakes an earlier one. So a waiting writer keeps new readers out,
    and the readers that wait behind it get the lock together. `lease.downgrade()` makes a writer a
    reader; a reader that asks to write gets `LockReentered`.
    """

    def __init__(
        self, name: str | Callable[..., str], **options: Unpack[Options[OnConflict_co]]
    ) -> None:
        self._read = redis_lock(name, **options)._of_kind("read")
        self._write = redis_lock(name, **options)._of_kind("write")
        self._read._used = self._write._used = True  # one of them may never be used

    def read(self) -> redis_lock[OnConflict_co]:
        """Return the lock for reading."""
        return self._read

    def write(self) -> redis_lock[OnConflict_co]:
        """Return the lock for writing."""
        return self._write

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._read._template!r}>"


class Redlock(redis_lock[OnConflict_co]):
    """A lock that survives the loss of a minority of its servers.

    `using` names three or five aliases of CACHES, whose primaries fail independently of each
    other. Without it, the entry of this name in `LOCKS` names them. It is used like `redis_lock`,
    and takes the same options except `replicas`.

    It has no queue and no fencing token: docs/redlock.md says what it promises, and what it
    doesn't. Raises what `redis_lock` raises; `LockUnavailable` if no majority can be asked.
    """

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        using: Sequence[str] | None = None,
        **options: Unpack[BlockOptions[OnConflict_co]],
    ) -> None:
        if "replicas" in options:
            raise TypeError("a Redlock has no replicas: its servers are all primaries")
        if isinstance(using, str):
            raise TypeError(f"using must be a list of aliases of CACHES, not {using!r}")
        given = {} if using is None else {"using": Servers.of(using)}
        super().__init__(name, **options)
        self._of_kind("redlock")._explicit.update(given)


class TimestampLock(redis_lock[OnConflict_co]):
    """A lock whose key says when it ends, for fleets whose old clients know no other.

    Its name is its key in Redis, verbatim, since old clients know it by that key. `timestamp_key`
    is for a key that is no valid name. With `fractions` the value has fractions of a second, which
    clients that expect an integer can't read. It is used like `redis_lock`, and takes the same
    options.

    It has no queue and no fencing token: docs/timestamp-lock.md says what it promises, and what
    it doesn't. Raises what `redis_lock` raises.
    """

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        *,
        fractions: bool = False,
        timestamp_key: str | None = None,
        **options: Unpack[Options[OnConflict_co]],
    ) -> None:
        validate_flag(fractions, "fractions")
        super().__init__(name, timestamp_key=timestamp_key, **options)
        self._of_kind("timestamp")._explicit["fractions"] = fractions
