"""The documentation says what is there: tests that it names, pages that it links."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
IMAGE = re.compile(r"""(?:\]\(|(?:src|srcset)=")([^)":]+\.(?:png|svg))""")
LINK = re.compile(r"\]\(([^)#:]+\.md)(#[\w-]+)?\)")


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_the_tests_that_it_names(page: Path) -> None:
    """A promise names the test that breaks when it is broken; that one is there."""
    for file, function in TEST.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / file).is_file(), file
        if function:
            assert function in functions(ROOT / file), f"{file}::{function}"


def test_every_promise_names_a_test() -> None:
    """In each table of promises, the second column is a test."""
    rows = [
        line
        for line in (ROOT / "docs" / "promises.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith(("| promise", "| ---"))
    ]
    assert len(rows) > 20
    for row in rows:
        assert TEST.search(row), row


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_the_pages_that_it_links(page: Path) -> None:
    """A link to another page leads somewhere, and its anchor to one of that page's titles."""
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        linked = (page.parent / target).resolve()
        assert linked.is_file(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor[1:] in slugs, target + anchor


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_the_pictures_that_it_shows(page: Path) -> None:
    """They are there, and small enough for whoever reads on the way."""
    for target in IMAGE.findall(page.read_text(encoding="utf-8")):
        picture = page.parent / target
        assert picture.is_file(), target
        assert picture.stat().st_size < 100_000, target
