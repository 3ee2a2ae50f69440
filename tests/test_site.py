"""The site: docs/ builds without a warning, and what is public is in its reference."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest

from django_redislock import __version__
from django_redislock.lease.lock import Options
from django_redislock.settings import conf

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parent.parent / "docs"
PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text("utf-8"))["project"]
SOURCE = PROJECT["urls"]["Source"]
PARTS = "views", "fencing", "periodic"
REFERENCE = "\n".join(page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md"))


def build(pages: Path) -> None:
    """The site, into this directory, without a warning."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", DOCS, pages]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    """Links that lead nowhere, pages that no page lists, and docstrings that can't be read."""
    build(tmp_path)
    assert "LockNotAcquired" in (tmp_path / "reference" / "errors.html").read_text("utf-8")
    options = (tmp_path / "reference" / "locks.html").read_text("utf-8")
    for name in get_type_hints(Options):  # those that a type inherits stand where it has them
        assert re.search(rf'id="django_redislock\.lease\.lock\.\w*Options\.{name}"', options), name
    settings = (tmp_path / "settings.html").read_text("utf-8")
    assert all(name.upper() in settings for name in conf.ENTRY_VALIDATORS)
    for page in tmp_path.rglob("*.html"):
        html = page.read_text("utf-8")
        assert f"Version {__version__}" in html, page
        assert html.count(f'href="{SOURCE}"') == 2, page  # in the sidebar, and below the text


@pytest.mark.parametrize(
    "module",
    ["django_redislock", *(f"django_redislock.{part}" for part in PARTS)],
)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    for name in import_module(module).__all__:
        assert f"- `{name}`\n" in REFERENCE, name
