"""The Python examples of a page. tests/test_docs.py says which test runs those of which page."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"

PYTHON = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[str]:
    """In their order; those in lists, too."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [textwrap.dedent(match[2]) for match in PYTHON.finditer(text)]


def example(text: str, **names: Any) -> dict[str, Any]:
    """Run one, with what its page takes for granted; what is defined then."""
    namespace = {"__name__": "docs", **names}
    exec(compile(text, "docs", "exec"), namespace)
    return namespace
