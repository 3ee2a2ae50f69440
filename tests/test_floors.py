"""docs/how-it-works.md shows the floors as the imports have them, and the path of a real lock."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import redis

from devtools.floors import FLOORS, IMAGES, PAGE, arrows, drawn, picture, rooms_table
from devtools.pages import part
from tests.waiting import PATIENCE


def test_the_picture_is_up_to_date() -> None:
    """Else: python -m devtools.floors."""
    assert (IMAGES / "floors.svg").read_text(encoding="utf-8") == picture()


def test_the_table_of_rooms_is_up_to_date() -> None:
    """Else: python -m devtools.floors."""
    assert part(PAGE.read_text(encoding="utf-8"), "rooms") == rooms_table()


def test_arrows_that_are_left_out_are_implied() -> None:
    """What the picture does not draw can be reached over what it draws."""
    graph = arrows()
    shown = drawn(graph)

    def reached(one: str) -> set[str]:
        return shown[one].union(*map(reached, shown[one]))

    for one, below in graph.items():
        assert below <= reached(one)
    assert {one for rooms in FLOORS for one in rooms} == set(shown)


@pytest.mark.usefixtures("redis")
def test_the_path_of_a_lock() -> None:
    """The page names the files and functions that a lock passes: all of them, and no other ones.

    Else: python -m devtools.floors.
    """
    if redis.VERSION < (8,):
        pytest.skip("transport/loans.py passes other functions with an older redis-py")
    table = part(PAGE.read_text(encoding="utf-8"), "path")
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    named = {file.strip("| `"): re.findall(r"`([^`]+)`", functions) for file, _, functions in rows}
    # In a process of its own, since a process that has waited for a lock listens.
    run = "import django, json; django.setup(); from devtools import floors;"
    command = [sys.executable, "-c", f"{run} print(json.dumps(floors.passed()))"]
    really = json.loads(subprocess.check_output(command, timeout=PATIENCE))
    assert list(named) == list(really)
    for file, functions in really.items():
        assert set(named[file]) == set(functions), file
