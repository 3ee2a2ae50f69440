"""Texts for people: sentences, times, owners, settings, and foreign texts made safe to show.

The reason for a lock's state appears in JSON, in logs and on terminals, always in English, so that
it can be searched for. The pages of the admin translate it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Self

from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from ..base import people

NOTHING = "-"
MAX_LINE = 4000
"""Characters."""


class Sentence(str):
    """An English text that knows its template and values. Mark the template for translation.

    Times are written in UTC; in a translation, in the time zone of the page.
    """

    template: str
    values: dict[str, object]

    def __new__(cls, template: str, **values: object) -> Self:
        sentence = super().__new__(cls, template % _with_times(values, instant))
        sentence.template, sentence.values = template, values
        return sentence

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, object]]:
        return (self.template,), self.values  # for pickle


def translated(text: str) -> str:
    """Translate a sentence, and the sentences within it; return other texts unchanged."""
    if not isinstance(text, Sentence):
        return text
    values = {
        name: translated(value) if isinstance(value, str) else value
        for name, value in _with_times(text.values, local).items()
    }
    return gettext(text.template) % values


def instant(time: datetime | None) -> str:
    """Write an aware time for logs and terminals."""
    return NOTHING if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def local(time: datetime) -> str:
    """Write a time in the time zone of the page."""
    there = localtime(time) if is_aware(time) else time
    return f"{there:%Y-%m-%d %H:%M:%S %Z}"


def _with_times(values: dict[str, object], write: Callable[[datetime], str]) -> dict[str, object]:
    return {
        name: write(value) if isinstance(value, datetime) else value
        for name, value in values.items()
    }


def clean(text: str) -> str:
    """Make one printable line of a text: foreign names may have any character."""
    return people.clean(text, MAX_LINE)


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
    if time is None:
        return NOTHING
    return Sentence(_("%(time)s ago"), time=rounded(max(0.0, (now - time).total_seconds())))


def until(time: datetime | None, now: datetime) -> str:
    """In how long a time comes, or for how long something has been due."""
    if time is None:
        return NOTHING
    left = (time - now).total_seconds()
    template = _("in %(time)s") if left >= 0 else _("due for %(time)s")
    return Sentence(template, time=rounded(abs(left)))


def process_name(owner: str) -> str:
    """Host and process of an owner: `web-1 · 2080`; and its thread or task, unless that is the
    main thread."""
    return clean(" · ".join(part for part in owner.split(":", 2) if part != "MainThread"))


def count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
