"""Clear locks for an operator, from a shell or from the admin, and say what became of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ..base.exceptions import LockError, LockUnavailable
from ..base.servers import Servers
from ..primitives import permits
from ..settings import conf
from . import HolderInfo, Inspector, LockInfo
from .inspector import RedlockInspector


class ClearOutcome(StrEnum):
    """The outcome for a target."""

    WOULD = "would be cleared"
    CLEARED = "cleared"
    CHANGED = "changed hands"
    FREE = "free"
    REFUSED = "refused"
    """The server refused: the key is neither a lock nor a string."""
    UNKNOWN = "unknown"
    """Redis was asked and did not answer."""
    NOT_ASKED = "not asked"
    """Redis did not answer for a target before."""


@dataclass(slots=True)
class Target:
    """A lock to clear."""

    name: str
    inspector: Inspector | RedlockInspector = field(repr=False)
    lock: LockInfo | None
    """The lock with the holders that the operator saw; None: it was free."""
    outcome: ClearOutcome = ClearOutcome.NOT_ASKED
    error: str = ""
    """The error; for a cleared Redlock, the servers where it may still be held."""

    def keep(self, wanted: Callable[[HolderInfo], bool]) -> None:
        """Leave out the holders that are not wanted. If none is left, the lock is free, or it has
        changed hands."""
        kept = self.lock and self.lock.only(wanted)
        if kept is None:
            self.outcome = ClearOutcome.FREE if self.lock is None else ClearOutcome.CHANGED
        else:
            self.lock = kept

    def clear(self, by: str, reason: str) -> bool:
        """Clear the lock and set `outcome`. Returns False if Redis did not answer."""
        assert self.lock is not None
        try:
            cleared = self.inspector.clear(self.lock, by=by, reason=reason)
            self.outcome = ClearOutcome.CLEARED if cleared else ClearOutcome.CHANGED
            self.error = self._left() if cleared else ""
        except LockUnavailable as error:
            self.outcome, self.error = ClearOutcome.UNKNOWN, str(error)
            return False
        except LockError as error:
            self.outcome, self.error = ClearOutcome.REFUSED, str(error)
        return True

    def _left(self) -> str:
        servers = conf.listed(self.name).using
        if isinstance(self.inspector, RedlockInspector):
            left = [*self.inspector.unasked]
            why = "could not be reached, and may keep it until the lease ends there"
        elif isinstance(servers, Servers) and self.inspector.using in servers.aliases:
            left = [alias for alias in servers.aliases if alias != self.inspector.using]
            why = (
                f"were not asked: only {self.inspector.using!r} of the servers of this Redlock was"
            )
        else:
            left, why = [], ""
        return f"{', '.join(map(repr, left))} {why}" if left else ""

    def clear_all(self, by: str, reason: str, wanted: Callable[[HolderInfo], bool]) -> bool:
        """Clear the lock, and again while it has more holders than one answer can show.

        `wanted` says which holders to clear; it should leave out later holders.
        """
        cleared, answered = False, True
        assert self.lock is not None
        seen = self.lock
        for _ in range(permits.LOOKS):
            answered = self.clear(by, reason)
            cleared |= self.outcome == ClearOutcome.CLEARED
            if self.outcome in (ClearOutcome.UNKNOWN, ClearOutcome.REFUSED):
                break
            self.outcome = ClearOutcome.CLEARED if cleared else ClearOutcome.CHANGED
            if self.lock.holding <= permits.SHOWN:
                break
            try:
                again = next(self.inspector.held([self.name]), None)
            except LockUnavailable as error:
                self.outcome, self.error, answered = ClearOutcome.UNKNOWN, str(error), False
                break
            self.lock = again and again.only(wanted)
            if self.lock is None:
                break
            seen = replace(seen, holders=seen.holders + self.lock.holders)
        self.lock = seen
        return answered
