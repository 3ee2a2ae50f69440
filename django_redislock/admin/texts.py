"""Sentences about locks as HTML, in the language of the page: their values read from left to right
in every language."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext

from ..inspection.sentences import Sentence
from ..inspection.words import duration
from . import cells


def sentence(text: str) -> SafeString:
    """Translate a sentence, and mark its values."""
    if not isinstance(text, Sentence):
        return SafeString(cells.value(text))
    values = {
        name: moment(value)
        if isinstance(value, datetime)
        else sentence(value if isinstance(value, str) else str(value))
        for name, value in text.values.items()
    }
    return mark_safe(escape(gettext(text.template)) % values)


def paragraph(texts: Iterable[str]) -> SafeString:
    return format_html_join(" ", "{}", ((sentence(text),) for text in texts))


def moment(at: datetime) -> str:
    return _time(at, cells.moment(at))


def lasted(seconds: float | None, at: datetime | None) -> str:
    """A time in seconds; as a tooltip, when it began."""
    if seconds is None or at is None:
        return cells.seconds(seconds)
    return _time(at, duration(seconds))


def _time(at: datetime, text: str) -> str:
    return format_html(
        '<time dir="ltr" datetime="{}" title="{}">{}</time>',
        at.isoformat(timespec="seconds"),
        cells.moment(at),
        text,
    )
