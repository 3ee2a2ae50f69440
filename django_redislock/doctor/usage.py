"""The entries of `LOCKS` beside the names that the code makes, as far as anybody can know.

Known are the templates of decorators, locked views and commands, and functions that are their own
name, in modules that are imported. A name that is written out, or made by an f-string, is known to
nobody before it is locked. So this is only to know, and never wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module

from django.conf import settings

from ..settings import naming
from ..settings.configured import entries
from .finding import Finding, listed

# A bracket may be the first one between brackets.
_TOKEN = re.compile(r"\[(.[^]]*)\]|(.)", re.DOTALL)


def usage_findings() -> Iterator[Finding]:
    """Nothing is wrong with the settings."""
    declared = entries()
    if not declared:
        return
    # It imports the views, and these most of what they use, as any `manage.py check` does.
    with suppress(Exception):
        import_module(settings.ROOT_URLCONF)
    made = list(naming.patterns)
    unused = [
        entry
        for entry in declared
        if set("*?[") & set(entry) and not any(overlap(entry, pattern) for pattern in made)
    ]
    if unused:
        yield Finding(
            id="redislock.I103",
            message=f"No template in the code that is imported makes names for these entries of "
            f"REDISLOCK['LOCKS']: {listed([repr(entry) for entry in unused])}. Names that are "
            f"written out, or made by an f-string, can't be seen.",
            hint=_meant(unused, made)
            or "To see which entry a lock follows: manage.py redislock config NAME",
        )
    undeclared = [
        pattern for pattern in made if not any(overlap(pattern, entry) for entry in declared)
    ]
    if undeclared:
        yield Finding(
            id="redislock.I104",
            message=f"REDISLOCK['LOCKS'] has no entry for names that the code makes: "
            f"{listed([repr(pattern) for pattern in sorted(undeclared)])}. They follow the "
            f"defaults.",
            hint=f'To tune one of them: "{sorted(undeclared)[0]}": {{"TTL": 60}}',
        )


def _meant(unused: list[str], made: list[str]) -> str:
    for entry in unused:
        for pattern in get_close_matches(entry, made, 1, cutoff=0.75):
            return f'Was it meant to be "{pattern}"?'
    return ""


def overlap(one: str, other: str) -> bool:
    """Whether a name can match both of these patterns. Brackets are taken for any character."""
    left, right = [*_tokens(one), ""], [*_tokens(other), ""]
    # From their ends on: whether what is left of both, from here and from there, has a name.
    below = [False] * len(right)
    for here in reversed(left):
        row = [False] * (len(right) + 1)
        for column in range(len(right) - 1, -1, -1):
            there = right[column]
            if here == "*":  # it stands for nothing, or for what is there as well
                row[column] = below[column] or row[column + 1]
            elif there == "*":
                row[column] = row[column + 1] or (bool(here) and below[column])
            elif here and there:
                row[column] = _same(here, there) and below[column + 1]
            else:
                row[column] = here == there
        below = row
    return below[0]


def _same(here: str, there: str) -> bool:
    return here == there or "?" in (here, there)


def _tokens(pattern: str) -> Iterator[str]:
    """`*`, `?`, and `=` before any other character."""
    for between_brackets, char in _TOKEN.findall(pattern):
        if len(between_brackets) > 1:
            yield "?"
        elif between_brackets:
            yield f"={between_brackets}"  # as glob.escape() writes it
        else:
            yield char if char in "*?" else f"={char}"
