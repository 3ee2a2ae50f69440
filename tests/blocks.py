"""The Python examples of a page. tests/test_docs.py says which test runs those of which page."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"

PYTHON = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[str]:
    """In their order; those in lists, too."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [textwrap.dedent(match[2]) for match in PYTHON.finditer(text)]
