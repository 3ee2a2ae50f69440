"""Sentences about locks as HTML, in the language of the page: their values read from left to right
in every language."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.utils.html import escape, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext

from ..inspection.sentences import Sentence
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
    return cells.time_of(at, cells.moment(at))
