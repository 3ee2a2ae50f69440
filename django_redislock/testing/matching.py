"""Names and patterns of locks, as tests write them."""

from __future__ import annotations

from fnmatch import fnmatchcase

from ..settings import conf


def validate_pattern(name: object) -> str:
    """Return `name`, or raise a `TypeError` that says what to write."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, such as 'invoice:42' or 'invoice:*', not {name!r}")
    return name


def matches(name: str, pattern: str) -> bool:
    """Whether `pattern` is this name or matches it, with its scope or without it; a name may look
    like a pattern."""
    return any(its == pattern or fnmatchcase(its, pattern) for its in (name, conf.written(name)))
