"""What becomes of locks that an operator clears, whether from a shell or from the admin."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .exceptions import LockError, LockUnavailable
from .inspection import Inspector, LockInfo


class Outcome(StrEnum):
    WOULD = "would be cleared"
    CLEARED = "cleared"
    CHANGED = "changed hands"
    FREE = "free"
    REFUSED = "refused"
    """By the server: the key is neither a lock nor a string."""
    UNKNOWN = "unknown"
    """Redis was asked, and did not answer."""
    NOT_ASKED = "not asked"
    """Redis did not answer before."""


@dataclass(slots=True)
class Target:
    """A lock that is to be cleared."""

    name: str
    inspector: Inspector
    lock: LockInfo | None
    """Its holder, as the operator saw it; None: it was free."""
    outcome: Outcome = Outcome.NOT_ASKED
    error: str = ""

    def clear(self, by: str, reason: str) -> bool:
        """False: Redis did not answer."""
        assert self.lock is not None
        try:
            cleared = self.inspector.clear(self.lock, by=by, reason=reason)
            self.outcome = Outcome.CLEARED if cleared else Outcome.CHANGED
        except LockUnavailable as error:
            self.outcome, self.error = Outcome.UNKNOWN, str(error)
            return False
        except LockError as error:
            self.outcome, self.error = Outcome.REFUSED, str(error)
        return True
