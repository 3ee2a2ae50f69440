"""One thing that was noticed, for the system checks and for `doctor` alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is. The letter in an id."""

    ERROR = "error"
    """Locks don't work, or will not."""
    WARNING = "warning"
    """They work, and may fail on the day when it matters."""
    INFO = "info"
    """To know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    id: str
    """Such as `redislock.W101`; docs/checks.md has a row for each."""
    message: str
    hint: str
    """What to do: something to paste where that is possible."""
    alias: str | None = None
    """The alias of CACHES that it is about; None: the settings."""

    @property
    def level(self) -> Level:
        return {"E": Level.ERROR, "W": Level.WARNING, "I": Level.INFO}[self.id[len("redislock.")]]


def listed(things: list[str]) -> str:
    """A few of them, since there may be thousands."""
    more = len(things) - 3
    return ", ".join(things[:3]) + (f" and {more} more" if more > 0 else "")
