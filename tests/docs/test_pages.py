"""The documentation says what is there: tests that it names, pages that it links, and commands
that it types."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from django_redislock.management.commands.redislock import Command as Redislock
from django_redislock.management.commands.runperiodic import Command as Runperiodic
from tests.docs.world import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(?:\w+::)*(\w+))?`")
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
def test_it_is_read_on_github(page: Path) -> None:
    """No page has a directive of Sphinx, which GitHub shows as it is typed."""
    assert re.findall(r"^ *```\{.+$", page.read_text(encoding="utf-8"), re.MULTILINE) == []


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
        assert picture.stat().st_size < 150_000, target


TYPED = re.compile(r"^ *\$ (.+)$", re.MULTILINE)
TARGETS = set(
    re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)
OTHERS = (
    "cd ",
    "curl ",
    "django-admin makemessages ",
    "docker run ",
    "msgfmt ",
    "nox",
    "python -m nox",
    "python -m pip install ",
    "python -m tests.",
    "python manage.py check",
    "redis-server",
)
"""What is not ours, or would take too long."""


def test_programs_under_a_lock() -> None:
    """The crontab and the script of commands.md: `redislock run` takes their options."""
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    scripts = re.findall(r"^```(?:crontab|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for script in scripts:
        (typed,) = re.findall(r"manage\.py redislock (run .+)", script)
        parsed = Redislock().create_parser("manage.py", "redislock").parse_args(shlex.split(typed))
        assert parsed.subcommand == "run"
    assert len(scripts) == 2


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "tutorial.md"], ids=ids)
def test_the_commands_that_it_types(page: Path) -> None:
    """Ours take these arguments. Those of the tutorial are carried out."""
    for line in TYPED.findall(page.read_text(encoding="utf-8")):
        words = shlex.split(line.partition(" | ")[0], comments=True)
        while "=" in words[0]:  # the environment
            words.pop(0)
        if words[0] == "make":
            assert words[1] in TARGETS, line
        elif words[:3] == ["python", "manage.py", "redislock"]:
            if words[3] != "run":  # of which the tests of commands.md know the options
                Redislock().create_parser("manage.py", "redislock").parse_args(words[3:])
        elif words[:3] == ["python", "manage.py", "runperiodic"]:
            Runperiodic().create_parser("manage.py", "runperiodic").parse_args(words[3:])
        else:
            assert line.startswith(OTHERS), line
