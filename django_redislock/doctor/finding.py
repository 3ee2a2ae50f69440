"""A finding: one thing that is wrong, for the system checks and the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is. Its first letter stands in the id."""

    ERROR = "error"
    """Locks don't work, or will not."""
    WARNING = "warning"
    """Locks work, and may fail when it matters."""
    INFO = "info"
    """Nothing is wrong."""


_LEVELS = {level.name[0]: level for level in Level}


@dataclass(frozen=True, slots=True)
class Finding:
    id: str
    """Such as `redislock.W101`. docs/checks.md has a row for each."""
    message: str
    hint: str
    """What to do, ready to paste if possible."""
    alias: str | None = None
    """The alias of CACHES. None: the finding is about the settings."""

    @property
    def level(self) -> Level:
        return _LEVELS[self.id.removeprefix("redislock.")[0]]


def listed(things: list[str]) -> str:
    """Return the first three of what may be thousands."""
    more = len(things) - 3
    return ", ".join(things[:3]) + (f" and {more} more" if more > 0 else "")
