"""The test suite itself: what `make test` leaves out, and what runs alone."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import SLOW

TESTS = Path(__file__).parent
MOST = 2
"""So many tests run alone. Rather than add one, make it wait for events, and not for time."""


def test_few_run_alone() -> None:
    """Each of them says why it can't share the machine with other tests."""
    reasons = [
        reason
        for path in TESTS.rglob("test_*.py")
        for reason in re.findall(r"^ *@pytest\.mark\.alone(.*)$", path.read_text(), re.MULTILINE)
    ]
    assert len(reasons) == MOST
    assert all(re.fullmatch(r'\("[^"]{20,}"\)', reason) for reason in reasons)


def test_the_slow_folders_are_there() -> None:
    """A folder that was renamed would be quick."""
    for folder in SLOW:
        assert list((TESTS / folder).glob("test_*.py")), folder
