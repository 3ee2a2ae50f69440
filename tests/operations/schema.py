"""The JSON that docs/operations.md describes: each table there is one kind of object."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import datetime
from typing import Any

from tests.processes import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")

_TABLES = {
    "lock": "A lock",
    "holder": "A holder",
    "progress": "A progress",
    "note": "A note",
    "waiter": "A waiter",
    "past": "The past",
    "past holder": "A past holder",
    "settings": "The settings",
    "setting": "A setting",
    "states": "The states",
    "clearing": "A clearing",
    "list output": "Output of list",
    "show": "Output of show",
    "clear": "Output of clear",
    "watch": "Output of watch",
    "tasks": "The tasks of a name",
    "task": "A task",
    "fence": "Output of fence",
    "raising": "A raising",
    "config": "Output of config",
}


def _documented(title: str) -> dict[str, set[str]]:
    section = re.split(r"\n##+ ", PAGE.partition(f"\n### {title}\n")[2])[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE)
    assert rows, title
    return {key: set(kinds.split(" or ")) for key, kinds in rows}


DOCUMENTED = {kind: _documented(title) for kind, title in _TABLES.items()}


def _is_instant(value: Any) -> bool:
    return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None


_PLAIN = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "instant": _is_instant,
    "string": lambda value: isinstance(value, str),
    "anything": lambda value: True,
}


class Seen:
    """Which of what is documented has been seen."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[str, str], set[str]] = defaultdict(set)

    def check(self, kind: str, document: Any) -> None:
        """An object of this kind: exactly its keys, and their types."""
        assert isinstance(document, dict), (kind, document)
        assert set(document) == set(DOCUMENTED[kind]), kind
        for key, allowed in DOCUMENTED[kind].items():
            fits = [each for each in allowed if self._fits(each, document[key])]
            assert fits, f"{kind}.{key} is {document[key]!r}, and not {allowed}"
            self.kinds[kind, key].update(fits)

    def _fits(self, kind: str, value: Any) -> bool:
        if kind.startswith("list of "):
            if not isinstance(value, list):
                return False
            for each in value:
                self.check(kind.removeprefix("list of "), each)
            return True
        if kind in _PLAIN:
            return bool(_PLAIN[kind](value))
        if not isinstance(value, dict):
            return False
        self.check(kind, value)
        return True

    def missing(self) -> set[str]:
        """What is documented and never came."""
        return {
            f"{kind}.{key}: {one}"
            for kind, keys in DOCUMENTED.items()
            for key, allowed in keys.items()
            for one in allowed - self.kinds[kind, key]
        }
