"""Which lease the code that is running now holds."""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..base.exceptions import LockError

if TYPE_CHECKING:
    from .lease import Lease

# The lease of the innermost block. A context variable and not a stack per thread, so that
# each task has its own; it is set and not reset by token, since a generator may be closed
# in another context than the one that began it. Weak, since being the current one is no
# reason to live: a block that was left in disorder must not be renewed for ever.
innermost: contextvars.ContextVar[weakref.ref[Lease] | None] = contextvars.ContextVar(
    "django_redislock_current", default=None
)


def enclosing() -> Iterator[Lease]:
    """The leases of all blocks that are running, from the innermost outwards."""
    again: dict[str, int] = {}
    current = innermost.get()
    while current is not None and (lease := current()) is not None:
        yield lease
        # One that was taken again is its own outer one.
        depth = again[lease.token] = again.get(lease.token, 0) + 1
        current = lease._outer[-depth] if depth <= len(lease._outer) else None


class Steps:
    """Lets a lease be the current one while a generator runs, and only then.

    Between two steps its caller runs, in the same context. What the generator has entered
    itself meanwhile is current again at its next step.
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
    """The lease of the innermost `redis_lock` block or function that is running.

    Raises `LockError` when none is.
    """
    current = innermost.get()
    lease = None if current is None else current()
    if lease is None:
        raise LockError(
            "current_lease() is called where no lock is held: outside of a `with "
            "redis_lock(…)` block and of a function that it decorates."
        )
    return lease
