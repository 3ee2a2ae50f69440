"""Locks that several may hold: `Semaphore` and `ReadWriteLock`.

They are what `redis_lock` is, of another kind: context managers, decorators, with the same options
and leases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from .arguments import validate_limit
from .decorators import redis_lock
from .locks import Options


class Semaphore(redis_lock):
    """Run a block or a function in at most `limit` places at a time, across processes and hosts.

    Each holder has a lease of its own. `limit` may be changed at any time, also while the
    semaphore is held and waited for: it counts for whoever asks with it. Without one it comes
    from `LIMIT` in the settings of the lock.

    Takes the options of `redis_lock`, and raises the same errors. A thread or task may hold
    several places; `LockReentered` comes when it asks for one while it has all of them itself.
    """

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        limit: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(name, **options)
        self._of_kind("semaphore")
        if limit is not None:
            self._explicit["limit"] = validate_limit(limit)


class ReadWriteLock:
    """Many may read at a time, or one may write.

    `read()` and `write()` are locks as `redis_lock` is, with the options that are given here. It
    is fair: nobody is passed by who comes later, so a writer that waits keeps new readers out,
    and readers that have waited behind it go in together. `lease.downgrade()` makes a writer a
    reader; a reader that asks to write gets `LockReentered`.
    """

    def __init__(self, name: str | Callable[..., str], **options: Unpack[Options]) -> None:
        self._read = redis_lock(name, **options)._of_kind("read")
        self._write = redis_lock(name, **options)._of_kind("write")

    def read(self) -> redis_lock:
        """The lock of those who read."""
        return self._read

    def write(self) -> redis_lock:
        """The lock of those who write."""
        return self._write

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._read._template!r}>"
