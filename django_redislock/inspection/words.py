"""Times, holders, settings and strangers' texts, in the words of people."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils.translation import gettext_noop as _

from ..base import label
from ..base.label import of_function
from ..settings.conf import Setting
from . import SHARED, Kind, LockInfo
from .sentences import Sentence

NOTHING = "-"
MAX_LINE = 4000
"""Characters."""

_OTHERS = {
    Kind.FOREIGN: "a value of others",
    Kind.TIMESTAMP: "a time of an old lock",
}
"""Who holds what we have not written."""


def clean(text: str) -> str:
    """A line of a screen, from a name or an error: others' names may hold anything."""
    return label.clean(text, MAX_LINE)


def duration(seconds: float | None) -> str:
    """In two units at most."""
    if seconds is None:
        return NOTHING
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, smaller, its_size in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // its_size:02d} {smaller}"
    raise AssertionError(seconds)


def instant(time: datetime | None) -> str:
    return NOTHING if time is None else f"{time:%Y-%m-%d %H:%M:%S} UTC"


def remaining(lock: LockInfo) -> str:
    return "no TTL" if lock.holder.remaining is None else duration(lock.holder.remaining)


def holder(lock: LockInfo) -> str:
    """Who holds it, in short; of several, how many, and the one whose lease ends first."""
    its = _owner(lock)
    return f"{crowd(lock)}: {its}" if lock.kind in SHARED else its


def _owner(lock: LockInfo) -> str:
    return lock.holder.owner or _OTHERS.get(lock.kind, NOTHING)


def crowd(lock: LockInfo) -> str:
    """How many hold one that several may hold."""
    if lock.kind == Kind.SEMAPHORE:
        return f"{lock.holding} of {lock.limit}"
    return "writer" if lock.kind == Kind.WRITE else count(lock.holding, "reader")


def whose(lock: LockInfo) -> str:
    """Who holds it, where and since when."""
    text = _owner(lock)
    if lock.holder.label:
        text += f" ({lock.holder.label})"
    if lock.holder.acquired_at is not None:
        text = Sentence(
            _("%(holder)s since %(time)s, for %(duration)s"),
            holder=text,
            time=instant(lock.holder.acquired_at),
            duration=duration(lock.holder.held),
        )
    if len(lock.holders) > 1:
        more = len(lock.holders) - 1
        text = Sentence(_("%(holder)s, and %(number)s more"), holder=text, number=more)
    return text


def count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def value_text(value: Any) -> str:
    """The value of a setting, as it would be written there."""
    if isinstance(value, float):
        return f"{value:.15g}"
    told = setting_value(value)
    return str(told) if callable(value) else repr(told)


def place_text(term: str, setting: Setting) -> str:
    """Where a setting is written."""
    if setting.source == "default":
        return Sentence(_("the default"))
    entry = "" if setting.entry is None else f"['LOCKS'][{setting.entry!r}]"
    return f"REDISLOCK{entry}['{term}']"


def setting_value(value: Any) -> Any:
    """A function is told by where it is defined."""
    return of_function(value) if callable(value) else value
