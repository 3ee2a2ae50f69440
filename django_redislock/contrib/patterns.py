"""The pattern of a lock's name. There may be millions of names, and few patterns."""

from __future__ import annotations

from fnmatch import fnmatchcase

from ..settings import conf, naming

OTHER = "other"
"""Locks whose names follow no pattern that the project has written down."""


def pattern(name: str) -> str:
    """Return the entry of `LOCKS` that a name matches, else a template that it could come from."""
    name = conf.written(name)
    its = conf.entry(name)
    if its is not None:
        return its
    return next((known for known in naming.patterns if fnmatchcase(name, known)), OTHER)
