"""The lease of the code that is running now."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from ..base.exceptions import LockError
from .holds import innermost
from .lease import Lease


def enclosing() -> Iterator[Lease]:
    """Yield the leases of all blocks that are running, from the innermost outwards."""
    again: dict[str, int] = {}
    current = innermost.get()
    while current is not None and (lease := current()) is not None:
        yield lease
        # A lease that was taken again is its own outer one.
        depth = again[lease.token] = again.get(lease.token, 0) + 1
        outer = lease._holds.outer
        current = outer[-depth] if depth <= len(outer) else None


class Steps:
    """Make a lease the current one while a generator runs, and only then.

    Between two steps the caller of the generator runs, in the same context. What the generator
    has entered itself is current again at its next step.
    """

    def __init__(self, lease: Lease) -> None:
        self._inside: weakref.ref[Lease] | None = weakref.ref(lease)
        self._outside: weakref.ref[Lease] | None = None

    def __enter__(self) -> None:
        self._outside = innermost.get()
        innermost.set(self._inside)

    def __exit__(self, *exc_info: object) -> None:
        self._inside = innermost.get()
        innermost.set(self._outside)


def current_lease() -> Lease:
    """Return the lease of the innermost `redis_lock` block or function that is running.

    Raises `LockError` when none is.
    """
    current = innermost.get()
    lease: Lease | None = None if current is None else current()
    if lease is None:
        raise LockError(
            "current_lease() is called where no lock is held: outside of a `with "
            "redis_lock(…)` block and of a function that it decorates."
        )
    return lease
