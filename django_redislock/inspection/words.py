"""Texts for people: times, holders, settings, and foreign texts made safe to show."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext_noop as _

from ..base import label
from ..base.label import of_function
from ..settings.conf import Setting
from . import SHARED, Kind, LockInfo, sentences
from .sentences import Sentence

NOTHING = "-"
MAX_LINE = 4000
"""Characters."""

_OTHERS = {
    Kind.FOREIGN: "another program",
    Kind.TIMESTAMP: "a SETNX program",
}
"""Shown instead of the holder of a value that we did not write."""

_KINDS = {
    Kind.READ: "read lock",
    Kind.WRITE: "write lock",
    Kind.FOREIGN: "other key",
    Kind.TIMESTAMP: "timestamp",
}


def clean(text: str) -> str:
    """Make one printable line of a text: foreign names may have any character."""
    return label.clean(text, MAX_LINE)


def duration(seconds: float | None) -> str:
    """A time in at most two units."""
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


def rounded(seconds: float) -> str:
    """A time in whole seconds, in at most two units."""
    return f"{seconds:.0f} s" if seconds < 59.5 else duration(max(60.0, seconds))


def unattended(silence: timedelta) -> Sentence:
    """Say that no scheduler has looked at the periodic jobs for so long, or that none ever has."""
    template = _("No scheduler has asked for ticks for %(time)s. Start one: %(command)s")
    if silence == timedelta.max:
        template = _("No scheduler asks for ticks. Start one: %(command)s")
    time = rounded(silence.total_seconds())
    return Sentence(template, time=time, command="manage.py runperiodic")


def since(time: datetime | None, now: datetime) -> str:
    """How long ago a time was."""
    return NOTHING if time is None else f"{rounded(max(0.0, (now - time).total_seconds()))} ago"


def until(time: datetime | None, now: datetime) -> str:
    """In how long a time comes, or for how long something has been due."""
    if time is None:
        return NOTHING
    left = (time - now).total_seconds()
    return f"in {rounded(left)}" if left >= 0 else f"due for {rounded(-left)}"


def instant(time: datetime | None) -> str:
    return NOTHING if time is None else sentences.instant(time)


def process_name(owner: str) -> str:
    """Host and process of an owner: `web-1 · 2080`; and its thread or task, unless that is the
    main thread."""
    return clean(" · ".join(part for part in owner.split(":", 2) if part != "MainThread"))


def kind(lock: LockInfo) -> str:
    """The kind of a lock, in a word or two."""
    if lock.cache_lock and lock.kind == Kind.MUTEX:
        return "cache.lock"
    return _KINDS.get(lock.kind, lock.kind.value)


def holder(lock: LockInfo) -> str:
    """The holder in short; of several, their number and the first one."""
    owner = process_name(lock.holder.owner or "") or _OTHERS.get(lock.kind, NOTHING)
    owner = owner if lock.holding else NOTHING
    return f"{holding(lock)}: {owner}" if lock.kind in SHARED else owner


def holding(lock: LockInfo) -> str:
    """The number of holders of a lock that several may hold."""
    if lock.kind == Kind.SEMAPHORE:
        return Sentence(_("%(number)s of %(limit)s"), number=lock.holding, limit=lock.limit)
    if lock.kind == Kind.WRITE:
        return Sentence(_("writer"))
    return Sentence(
        _("1 reader") if lock.holding == 1 else _("%(number)s readers"), number=lock.holding
    )


def count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def value_text(value: Any) -> str:
    """The value of a setting, as it would be written in the settings."""
    if isinstance(value, float):
        return f"{value:.15g}"
    return of_function(value) if callable(value) else repr(value)


def place_text(term: str, setting: Setting) -> str:
    """The place where a setting is written."""
    if setting.source == "default":
        return Sentence(_("the default"))
    entry = "" if setting.entry is None else f"['LOCKS'][{setting.entry!r}]"
    return f"REDISLOCK{entry}['{term}']"
