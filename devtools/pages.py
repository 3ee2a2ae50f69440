"""Generated parts of Markdown pages: tables, and text between two markers."""

from __future__ import annotations

import re
from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "| " + " | ".join("---" for _ in rows[0]) + " |")
    return "\n".join(lines)


def replace(page: str, name: str, text: str) -> str:
    """Return the page with `text` between `<!-- name -->` and `<!-- end of name -->`."""
    page, count = _section(name).subn(lambda _: f"\n{text}\n\n", page)
    if count != 1:
        raise ValueError(f"the page needs the markers of {name!r} exactly once")
    return page


def part(page: str, name: str) -> str:
    """Return the text between the markers of `name`."""
    [text] = _section(name).findall(page)
    return str(text).strip()


def _section(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)
