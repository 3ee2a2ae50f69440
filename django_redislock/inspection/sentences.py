"""English sentences that a page can say in the language of whoever reads it.

What a lock's state is due to is told in many places: to programs as JSON, in logs, on a terminal.
There it is English, so that it can be searched for. The pages of the admin translate it.
"""

from __future__ import annotations

from typing import Self

from django.utils.translation import gettext


class Sentence(str):
    """An English text, with what it is made from. The template is to be marked for translation."""

    template: str
    values: dict[str, object]

    def __new__(cls, template: str, **values: object) -> Self:
        sentence = super().__new__(cls, template % values)
        sentence.template, sentence.values = template, values
        return sentence

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, object]]:
        return (self.template,), self.values  # so that what holds it can be pickled


def translated(text: str) -> str:
    """A sentence, and those within it, in the active language; other texts as they are."""
    if not isinstance(text, Sentence):
        return text
    values = {
        name: translated(value) if isinstance(value, str) else value
        for name, value in text.values.items()
    }
    return gettext(text.template) % values
