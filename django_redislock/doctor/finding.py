"""A finding: one thing that is wrong, for the system checks and the doctor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.conf import settings

from ..settings.conf import source
from ..settings.policy import DEFAULTS


class Level(StrEnum):
    """How bad a finding is. Its first letter stands in the id."""

    ERROR = "error"
    """Locks don't work, or will not."""
    WARNING = "warning"
    """Locks work, and may fail when it matters."""
    INFO = "info"
    """Nothing is wrong."""


_LEVELS = {level.name[0]: level for level in Level}


@dataclass(frozen=True, slots=True)
class Finding:
    id: str
    """Such as `redislock.W101`. docs/checks.md has a row for each."""
    message: str
    hint: str
    """What to do, ready to paste if possible."""
    alias: str | None = None
    """The alias of CACHES. None: the finding is about the settings."""

    @property
    def level(self) -> Level:
        return _LEVELS[self.id.removeprefix("redislock.")[0]]


def listed(names: Sequence[str]) -> str:
    """Return the first three of what may be thousands, in quotes."""
    more = len(names) - 3
    return ", ".join(map(repr, names[:3])) + (f" and {more} more" if more > 0 else "")


# Hints that are Python: lines to paste at the end of the settings.


class Code(str):
    """Python that stands for a value, such as a URL whose password nobody may see."""

    __slots__ = ()


def written(value: Any) -> str:
    """Return a value as Python."""
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=not value.isprintable())
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        items = (f"{written(key)}: {written(its)}" for key, its in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    return repr(value)


def redislock(*path: Any) -> str:
    """Return the place in `REDISLOCK` to which these keys lead."""
    return "REDISLOCK" + "".join(map(_key, path))


def _key(key: Any) -> str:
    return f"[{written(key) if isinstance(key, str) else repr(key)}]"


def into_redislock(entry: str | None = None, /, **values: Any) -> str:
    """Return the line that sets these keys of `REDISLOCK`, or of an entry of its `LOCKS`."""
    if entry is not None:
        return f"{redislock('LOCKS', entry)} |= {written(values)}"
    return f"REDISLOCK {'|=' if hasattr(settings, 'REDISLOCK') else '='} {written(values)}"


def into_cache(alias: str, values: Mapping[str, Any], *path: str) -> str:
    """Return the line that puts values into an entry of CACHES, into the dict at this path."""
    inside, place, rest = settings.CACHES[alias], f"CACHES[{written(alias)}]", [*path]
    while rest and isinstance(inside.get(rest[0]), Mapping):
        inside, place = inside[rest[0]], f"{place}[{written(rest.pop(0))}]"
    for key in reversed(rest):
        values = {key: values}
    return f"{place} |= {written(values)}"


def changed(field: str, right: Callable[[Any], Any]) -> str:
    """Return the lines that replace values of a setting, in `REDISLOCK` and in `LOCKS`. `right`
    returns the new value, or the old one if that is right."""
    project = {field: DEFAULTS[field.lower()], **source()}
    return joined(
        into_redislock(name, **{field: new})
        for name, entry in ((None, project), *source().get("LOCKS", {}).items())
        if field in entry and (new := right(entry[field])) != entry[field]
    )


def renamed(place: str, old: Any, new: str) -> str:
    """Return the line that renames a key of the dict at a place."""
    return f"{place}{_key(new)} = {place}.pop({_key(old)[1:-1]})"


def joined(lines: Iterable[str], comment: str = "") -> str:
    """Return several lines as one, which may end with a comment."""
    return "; ".join(filter(None, lines)) + (f"  # {comment}" if comment else "")
