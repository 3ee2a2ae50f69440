"""The house has seven floors. Imports point down, and primitives know nothing of the world."""

from __future__ import annotations

from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from devtools.floors import FLOORS, MODULES, NAMES, PACKAGE, imports_of, room


def floor(module: str) -> int:
    """The number of a room's floor, from 1."""
    return next(number for number, rooms in enumerate(FLOORS, 1) if room(module) in rooms)


def test_every_room_has_its_floor() -> None:
    """A new room has to be put somewhere."""
    assert {room(name) for name in NAMES} == {one for rooms in FLOORS for one in rooms}


def test_imports_point_down() -> None:
    """A module imports only from its own room and from lower floors."""
    wrong = {
        (name, module)
        for name, path in NAMES.items()
        for module, ours in imports_of(path)
        if ours and room(module) != room(name) and floor(module) >= floor(name)
    }
    assert not wrong


def test_no_files_import_each_other_in_a_circle() -> None:
    """Of any two modules, one can be read without the other."""
    graph = {
        name: {module for module, ours in imports_of(path) if ours and module != name}
        for name, path in NAMES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_longest_chain_of_imports() -> None:
    """Whoever reads a module need not have read more than so many others, one below the other. If
    this is too long: look which import is there for one constant or one small function."""

    @cache
    def height(module: str) -> int:
        below = (its for its, ours in imports_of(NAMES[module]) if ours and its != module)
        return 1 + max(map(height, below), default=0)

    assert max(map(height, NAMES)) <= 18


def test_no_rooms_import_each_other_in_a_circle() -> None:
    """Of any two rooms, one can be read without the other."""
    graph: dict[str, set[str]] = {}
    for name, path in NAMES.items():
        below = {room(module) for module, ours in imports_of(path) if ours}
        graph.setdefault(room(name), set()).update(below - {room(name)})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_primitives_only_await_their_port() -> None:
    """They import no asyncio, threading, time, redis or django: all else goes through the port."""
    worldly = {"asyncio", "threading", "time", "redis", "django", "django_redis", "socket", "os"}
    for path in (PACKAGE / "primitives").glob("*.py"):
        for module, ours in imports_of(path):
            if not ours:
                assert module.partition(".")[0] not in worldly, f"{path.name} imports {module}"


def test_who_knows_django_redis() -> None:
    """A client class, or a connection factory, for it can only be a subclass of its own. An entry
    of CACHES names these; nothing else needs it (test_startup.py)."""
    who = {
        path.stem
        for path in MODULES
        for module, ours in imports_of(path)
        if not ours and module.partition(".")[0] == "django_redis"
    }
    assert who == {"client", "cluster"}
