"""English sentences that a page can translate.

The reason for a lock's state appears in JSON, in logs and on terminals, always in English, so that
it can be searched for. The pages of the admin translate it.
"""

from __future__ import annotations

from typing import Self

from django.utils.translation import gettext


class Sentence(str):
    """An English text that knows its template and values. Mark the template for translation."""

    template: str
    values: dict[str, object]

    def __new__(cls, template: str, **values: object) -> Self:
        sentence = super().__new__(cls, template % values)
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
        for name, value in text.values.items()
    }
    return gettext(text.template) % values
