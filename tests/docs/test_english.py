"""The documentation, and the messages that people read, are in plain English.

CONTRIBUTING.md has the word list. These are the habits that came back most often.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_redislock
from tests.docs.world import ROOT

BEGIN = r"(?:^|[.:;(] |\| |- )\**"
"""Where a sentence or a cell begins."""

HABITS = {
    rf"{BEGIN}Who(?:ever)? (?![^.|]*\?)": "name the subject: 'a waiter', 'a caller that …'",
    r"\bwhoever\b": "name the subject: 'any caller that …', 'anyone who …'",
    r"(?:^|[.:;(] |\| |\* )What (?:is|are|was|has|can't|goes|comes) (?![^.|]*\?)": "name it",
    r"(?<!of )\b(?:[Oo]urs|[Tt]heirs)\b": "name the thing: 'this package', 'our lock'",
    r"\bin place of\b": "'instead of'",
    r"\bfor ever\b": "'without end', 'no limit'",
    r"\btells (?:where|when|why|how|who|what|whether|which|that|of|about)\b": "'says', 'shows'",
    r"\b(?:is|are|was|were|be) at it\b": "'is doing it', 'works on it'",
}
"""Patterns, and what to write."""

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("example_project/*.md")]
PACKAGE = Path(django_redislock.__file__).parent


def found_in(paragraph: str) -> Iterator[str]:
    for habit, advice in HABITS.items():
        for match in re.finditer(habit, paragraph):
            around = paragraph[max(0, match.start() - 20) : match.end() + 40]
            yield f"…{around}…: write {advice}"


def paragraphs(page: Path) -> Iterator[str]:
    """The prose of a page: no code, no titles, no table that a program writes, no word list."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<!-- (?!end)(\w[\w-]*) -->.*?<!-- end of \1 -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "`x`", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=[|#>*-]|\d+\.)", text):
        if not paragraph.startswith("#"):
            yield " ".join(paragraph.split())


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", sorted(PAGES), ids=name)
def test_pages(page: Path) -> None:
    """No page has one of them."""
    found = [one for paragraph in paragraphs(page) for one in found_in(paragraph)]
    assert not found, "\n".join(found)


def messages(path: Path) -> Iterator[str]:
    """The text in a module, but for its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        text = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and id(node) not in docstrings:
            yield " ".join(text.split())


def test_messages() -> None:
    """What errors, logs, commands and templates say."""
    found = [
        f"{path.name}: {one}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for message in messages(path)
        for one in found_in(message)
    ]
    for path in sorted(PACKAGE.rglob("*.html")):
        text = re.sub(r"{#.*?#}|{% comment.*?endcomment %}", "", path.read_text(encoding="utf-8"))
        found += [f"{path.name}: {one}" for one in found_in(" ".join(text.split()))]
    assert not found, "\n".join(found)
