"""Imports point one way, and primitives know nothing of the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_redislock

PACKAGE = Path(django_redislock.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# From the bottom up: a module may import only what stands before it.
LAYERS = [
    "clock",
    "fork",
    "background",
    "waiting",
    "label",
    "exceptions",
    "messenger",
    "signals",
    "tokens",
    "keys",
    "servers",
    "arguments",
    "cancellation",
    "current",
    "lease",
    "fence",
    "fencing",
    "scripts",
    "shapes",
    "primitives",
    "coroutines",
    "slots",
    "wire",
    "exchange",
    "location",
    "cluster",
    "connections",
    "inbox",
    "answers",
    "loops",
    "io",
    "renewal",
    "kinds",
    "conf",
    "transactions",
    "naming",
    "travel",
    "operations",
    "lock_order",
    "completion",
    "locks",
    "decorators",
    "multi",
    "other_kinds",
    "only_once",
    "values",
    "flights",
    "sentences",
    "inspection",
    "clearing",
    "periodic",
    "__init__",
    # The edges to Django.
    "testing",
    "client",
    "commands",
    "views",
    "diagnosis",
    "checks",
    "management",
    "live",
    "lock_id",
    "models",
    "admin",
    "contrib",
    "apps",
]


def name_of(path: Path) -> str:
    """The module's name below the package; all primitives are one layer."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imports_of(path: Path) -> Iterator[tuple[str, bool]]:
    """What a module imports: dotted names, and whether they are ours. Those for type checking
    only don't count: they are gone when the program runs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if 0 < node.level < len(path.relative_to(PACKAGE).parts):
                continue  # within its own layer, which is a package
            if node.level and node.module is None:
                yield from ((alias.name, True) for alias in node.names)
            else:
                yield node.module or "", bool(node.level)


def test_every_module_has_its_layer() -> None:
    """A new module has to be put somewhere."""
    assert {name_of(path) for path in MODULES} == set(LAYERS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    """A module imports only what stands below it."""
    layer = LAYERS.index(name_of(path))
    for module, ours in imports_of(path):
        if ours:
            target = module.partition(".")[0]
            assert LAYERS.index(target) <= layer, f"{path.name} imports {module}"


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "primitives").glob("*.py")), ids=lambda p: p.stem
)
def test_primitives_only_await_their_port(path: Path) -> None:
    """They import no asyncio, threading, time, redis or django: what they do goes through `io`."""
    worldly = {"asyncio", "threading", "time", "redis", "django", "django_redis", "socket", "os"}
    for module, ours in imports_of(path):
        if not ours:
            assert module.partition(".")[0] not in worldly, f"{path.name} imports {module}"


def test_one_module_knows_django_redis() -> None:
    """All that we take from django-redis stands in one place; but a client class, or a
    connection factory, for it can only be a subclass of its own."""
    who = {
        path.stem
        for path in MODULES
        for module, ours in imports_of(path)
        if not ours and module.partition(".")[0] == "django_redis"
    }
    assert who == {"connections", "client", "cluster"}
