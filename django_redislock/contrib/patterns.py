"""What a lock's name is an example of: names are without number, and these are not."""

from __future__ import annotations

from fnmatch import fnmatchcase

from ..settings import conf, naming

OTHER = "other"
"""Locks of which nobody has written down what their names look like."""


def pattern(name: str) -> str:
    """The entry of `LOCKS` that it follows, else the template that it could be made from."""
    its = conf.entry(name)
    if its is not None:
        return its
    return next((known for known in naming.patterns if fnmatchcase(name, known)), OTHER)
