"""English sentences that a page can translate.

The reason for a lock's state appears in JSON, in logs and on terminals, always in English, so that
it can be searched for. The pages of the admin translate it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Self

from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext


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


def instant(time: datetime) -> str:
    """Write an aware time for logs and terminals."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def local(time: datetime) -> str:
    """Write a time in the time zone of the page."""
    there = localtime(time) if is_aware(time) else time
    return f"{there:%Y-%m-%d %H:%M:%S %Z}"


def _with_times(values: dict[str, object], write: Callable[[datetime], str]) -> dict[str, object]:
    return {
        name: write(value) if isinstance(value, datetime) else value
        for name, value in values.items()
    }
