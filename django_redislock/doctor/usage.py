"""Findings that compare the entries of `LOCKS` with the names that the code makes.

Known names are the templates of decorators, locked views and commands, and the paths of decorated
functions, in modules that are imported. A literal name, or one made by an f-string, is unknown
before it is locked. So these findings are of the level INFO.
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
from .lines import redislock, renamed, written

# A closing bracket may be the first character between brackets.
_TOKEN = re.compile(r"\[(.[^]]*)\]|(.)", re.DOTALL)


def usage_findings() -> Iterator[Finding]:
    """Return the findings, for settings without errors."""
    declared = entries()
    if not declared:
        return
    # This imports the views with most of what they use, as `manage.py check` does.
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
            f"REDISLOCK['LOCKS']: {listed([repr(entry) for entry in unused])}. Literal names, "
            f"and names made by an f-string, can't be seen.",
            hint=_meant(unused, made)
            or "manage.py redislock config NAME  # which entry a lock follows",
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
            hint=f"{redislock('LOCKS', sorted(undeclared)[0])} = {written({'TTL': 60})}"
            "  # for example",
        )


def _meant(unused: list[str], made: list[str]) -> str:
    for entry in unused:
        for pattern in get_close_matches(entry, made, 1, cutoff=0.75):
            return f"{renamed(redislock('LOCKS'), entry, pattern)}  # if that was meant"
    return ""


def overlap(one: str, other: str) -> bool:
    """Return whether a name can match both patterns. Brackets count as any character."""
    left, right = [*_tokens(one), ""], [*_tokens(other), ""]
    # From both ends: does any name match both what is left of the one and what is left of the
    # other?
    below = [False] * len(right)
    for here in reversed(left):
        row = [False] * (len(right) + 1)
        for column in range(len(right) - 1, -1, -1):
            there = right[column]
            if here == "*":  # it matches nothing, or also the token there
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
    """Return `*`, `?`, and `=` before any other character."""
    for between_brackets, char in _TOKEN.findall(pattern):
        if len(between_brackets) > 1:
            yield "?"
        elif between_brackets:
            yield f"={between_brackets}"  # as glob.escape() writes it
        else:
            yield char if char in "*?" else f"={char}"
