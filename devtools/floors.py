"""The floors of the package: `python -m devtools.floors` draws them into docs/.

It writes docs/images/floors.svg and, between the markers of docs/how-it-works.md, the table of the
rooms and the path of one `with redis_lock("x")` through them. Rooms and arrows come from the
imports, and the path from a profile of a real call, so that the page stays true.
"""

from __future__ import annotations

import ast
import gc
import os
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from .diagrams import IMAGES, svg
from .pages import replace, table

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "django_redislock"
PAGE = ROOT / "docs" / "how-it-works.md"

FLOORS: list[dict[str, str]] = [
    {"base": "plain Python: exceptions, holders, labels, tokens, the clock, threads and forks"},
    {
        "primitives": "the algorithms: coroutines that await only their port, and Lua scripts",
        "signals": "the events of locks, for the log and for receivers",
    },
    {
        "transport": "sends a command to Redis, and says what a missing answer means",
        "settings": "what can be configured: policies, validators, names, kinds",
    },
    {
        "lease": "acquires, renews, loses and releases one lease",
        "cluster": "the connection factory for Redis Cluster that settings name",
    },
    {
        "locks": "what people write: `redis_lock`, the other kinds, `once`, `single_flight`",
        "tasks": "unique and limited work above task queues",
        "inspection": "finds who holds what, and describes it",
        "periodic": "runs each tick of a job once in the fleet",
        "fencing": "models that refuse late writers",
        "leader": "one leader among many processes",
        "client": "a django-redis client whose `cache.lock()` is this package's",
    },
    {
        "cache": "Django's own cache backend, with `cache.lock()`",
        "commands": "management commands that hold a lock",
        "views": "views that hold a lock, and idempotent views",
        "doctor": "finds mistakes in settings and on servers",
        "contrib": "OpenTelemetry and Prometheus; the table of `once_in_transaction`",
        "testing": "tools for the tests of projects",
        "models": "the unmanaged models behind the admin",
        "__init__": "the public names",
    },
    {
        "admin": "the pages of the admin",
        "management": "`manage.py redislock` and `manage.py runperiodic`",
        "apps": "the Django app",
    },
]
"""The rooms of each floor, from the ground up. A room imports only from lower floors."""

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """Return a module's dotted name below the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


NAMES = {name_of(path): path for path in MODULES}


def room(module: str) -> str:
    """Return the folder or file below the package that has a module: "lease.lock" → "lease"."""
    return module.partition(".")[0]


def is_folder(room: str) -> bool:
    """Return whether a room is a folder. One that was is there as long as it has bytecode."""
    return (PACKAGE / room / "__init__.py").exists()


@cache
def imports_of(path: Path) -> tuple[tuple[str, bool], ...]:
    """Return each module that a file imports, and whether it belongs to the package.

    Imports for type checking, and those inside functions, count as well.
    """
    return tuple(_imports_of(path))


def _imports_of(path: Path) -> Iterator[tuple[str, bool]]:
    package = list(path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                yield node.module or "", False
                continue
            base = package[: len(package) - (node.level - 1)]
            target = ".".join(base + (node.module or "").split(".")).strip(".")
            for alias in node.names:
                inner = f"{target}.{alias.name}".strip(".")
                yield (inner if inner in NAMES else target or "__init__"), True


def arrows() -> dict[str, set[str]]:
    """Return the rooms that each room imports."""
    graph: dict[str, set[str]] = {one: set() for rooms in FLOORS for one in rooms}
    for name, path in NAMES.items():
        below = {room(module) for module, own in imports_of(path) if own}
        graph[room(name)] |= below - {room(name)}
    return graph


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = list(graph[start])
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left.extend(graph[one])
    return found


def drawn(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the arrows without those that a way over other rooms implies."""
    return {
        one: {
            its for its in below if not any(its in _reachable(graph, by) for by in below - {its})
        }
        for one, below in graph.items()
    }


WIDTH, FLOOR, BOX = 900, 84, 34


def picture() -> str:
    """Return the drawing of the floors."""
    graph = arrows()
    places: dict[str, tuple[float, int]] = {}
    body: list[str] = []
    for number, rooms in enumerate(FLOORS, 1):
        y = 20 + FLOOR * (len(FLOORS) - number)
        body.append(f'<text class="small" x="14" y="{y + BOX // 2 + 4}">{number}</text>')
        step = (WIDTH - 50) / len(rooms)
        for at, one in enumerate(rooms):
            places[one] = (40 + step * (at + 0.5), y)
    shown = drawn(graph)
    for one, below in shown.items():
        for its in sorted(below):
            (x1, y1), (x2, y2) = places[one], places[its]
            body.append(
                f'<line class="arrow" x1="{x1:.0f}" y1="{y1 + BOX}" x2="{x2:.0f}" '
                f'y2="{y2 - 5}" marker-end="url(#down)"/>'
            )
    for one, (x, y) in places.items():
        folder = is_folder(one)
        width = 108
        body.append(
            f'<rect class="{"good" if folder else "plain"}" x="{x - width / 2:.0f}" y="{y}" '
            f'width="{width}" height="{BOX}" rx="6"/>'
            f'<text class="small" x="{x:.0f}" y="{y + BOX // 2 + 4}" text-anchor="middle">'
            f"{one if folder else one + '.py'}{'/' if folder else ''}</text>"
        )
    head = (
        '<marker id="down" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker>'
    )
    count = sum(map(len, graph.values()))
    return svg(
        "floors",
        "The floors of django_redislock",
        f"{len(graph)} rooms on {len(FLOORS)} floors, and {count} imports between them, from "
        f"higher floors to lower ones. An arrow that other arrows imply is left out.",
        (WIDTH, FLOOR * len(FLOORS)),
        "\n".join([head, *body]),
    )


def rooms_table() -> str:
    """Return the table of the rooms, the highest floor first."""
    graph = arrows()
    rows = [["floor", "room", "what it does", "imports"]]
    for number, floor in reversed(list(enumerate(FLOORS, 1))):
        for one, sentence in floor.items():
            below = ", ".join(f"`{its}`" for its in sorted(graph[one])) or "nothing"
            name = f"{one}/" if is_folder(one) else f"{one}.py"
            rows.append([str(number), f"`{name}`", sentence, below])
    return table(rows)


def passed() -> dict[str, list[str]]:
    """Return the functions that one `with redis_lock("x")` calls, by file, in order.

    Needs a configured Django and a Redis server. The process holds another lease meanwhile, so
    that the path does not depend on what the watchdog is doing.
    """
    from django_redislock import redis_lock

    with redis_lock("devtools.floors.other"):
        time.sleep(0.1)  # until the watchdog sleeps
        first, *others = [_profiled() for _ in range(4)][1:]
    # Only what each of them calls: one may meet a busy thread, or a new connection.
    common = {
        file: [one for one in functions if all(one in other.get(file, ()) for other in others)]
        for file, functions in first.items()
    }
    return {file: functions for file, functions in common.items() if functions}


def _profiled() -> dict[str, list[str]]:
    from django_redislock import redis_lock

    found: dict[str, list[str]] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event != "call" or PACKAGE not in path.parents or "<" in code.co_name:
            return
        functions = found.setdefault(str(path.relative_to(PACKAGE)), [])
        name = code.co_qualname.replace(".<locals>", "")
        if name not in functions:
            functions.append(name)

    enabled = gc.isenabled()
    gc.disable()  # finalizers of other objects are not part of the path
    sys.setprofile(profile)
    try:
        lock = redis_lock("devtools.floors")
        with lock:
            pass
    finally:
        sys.setprofile(None)
        if enabled:
            gc.enable()
    return found


def path_table(files: dict[str, list[str]]) -> str:
    """Return the table of the files that a lock passes, in the order in which it gets there."""
    rows = [["file", "what it is", "functions, by their first call"]]
    for file, functions in files.items():
        tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
        title = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")
        named = ", ".join(f"`{function}`" for function in functions)
        rows.append([f"`{file}`", title.replace("|", "/"), named])
    return table(rows)


def main() -> None:
    from .redis_server import RedisServer

    with RedisServer() as server:
        os.environ["REDISLOCK_TEST_URL"] = server.url
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        import django

        django.setup()
        files = passed()
    (IMAGES / "floors.svg").write_text(picture(), encoding="utf-8")
    page = replace(PAGE.read_text(encoding="utf-8"), "rooms", rooms_table())
    PAGE.write_text(replace(page, "path", path_table(files)), encoding="utf-8")


if __name__ == "__main__":
    main()
