"""The lease of the code that is running now."""

from __future__ import annotations

from collections.abc import Iterator

from ..base import label
from ..base.exceptions import LockError
from .holds import Hold, current, innermost
from .lease import Lease
from .watchdog import held_by


def enclosing() -> Iterator[Lease]:
    """Yield the leases of all blocks that are running, from the innermost outwards."""
    hold = innermost()
    while hold is not None:
        if hold.lease is not None and (lease := hold.lease()) is not None:
            yield lease
        hold = innermost(hold)


def held_here() -> list[Lease]:
    """Return the leases that this thread or task holds, and those of the blocks around it."""
    leases = {lease.token: lease for lease in [*held_by(label.holder()), *enclosing()]}
    return [lease for lease in leases.values() if lease._lifetime.alive]


class Steps:
    """Make a block the innermost one while a generator runs, and only then.

    Between two steps the caller of the generator runs, in the same context. What the generator
    has entered itself is current again at its next step.
    """

    def __init__(self, hold: Hold) -> None:
        self._inside: Hold | None = hold
        self._outside: Hold | None = None

    def __enter__(self) -> None:
        self._outside = current.get()
        current.set(self._inside)

    def __exit__(self, *exc_info: object) -> None:
        self._inside = current.get()
        current.set(self._outside)


def current_lease() -> Lease:
    """Return the lease of the innermost `redis_lock` block or function that is running.

    Raises `LockError` when none is.
    """
    for lease in enclosing():
        return lease
    raise LockError(
        "current_lease() is called where no lock is held: outside of a `with "
        "redis_lock(…)` block and of a function that it decorates."
    )
