"""The lease of the code that is running now."""

from __future__ import annotations

from collections.abc import Iterator

from ..base import label
from ..base.exceptions import LockError
from ..primitives.keys import validate_name
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


def held_here() -> Iterator[Lease]:
    """Yield the leases of the blocks around this code, from the innermost outwards, and then all
    that this thread or task holds. A lease may come twice."""
    for leases in (enclosing, lambda: reversed(held_by(label.holder()))):
        yield from (lease for lease in leases() if lease._lifetime.alive)


def names_of(lease: Lease) -> list[str]:
    """Return the names that a lease holds. A `MultiLock` holds several."""
    return [keys.name for keys in lease._claim.watched_keys]


def held(name: str) -> Lease | None:
    """Return the lease by which the code that is running holds a name, or None.

    That is the lease of a block around it, or one that this thread or task has acquired and not
    released. Its answer is what this process knows: no request is sent.
    """
    validate_name(name)
    return next((lease for lease in held_here() if name in names_of(lease)), None)


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
