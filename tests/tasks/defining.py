"""The tasks of the tests: the same ones for each queue, with its decorator and then with ours."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tests.tasks.events import work
from tests.tasks.pausing import install

DEPLOY = "REDISLOCK_TEST_DEPLOY"
"""The variable with the beginning of names in another deploy."""
BEGINNING = os.environ.get(DEPLOY, "")

try:
    from django_redislock.tasks import limited, unique
except ImportError:
    DECORATED: dict[str, list[Callable[[Any], Any]]] = {}
else:
    DECORATED = {
        "reindex": [unique("reindex:{pk}", ttl=3)],
        "latest": [unique("latest:{pk}", on_conflict="replace", ttl=3)],
        "skipped": [unique("skipped:{pk}", on_conflict="skip", ttl=3)],
        "shared": [unique("shared:{pk}", until="end", ttl=3)],
        "report": [unique("report:{pk}", until="end", on_conflict="raise", ttl=3)],
        "flaky": [unique("flaky:{pk}", ttl=3)],
        "flaky_report": [unique("flaky_report:{pk}", until="end", ttl=3)],
        "api": [limited("api:{pk}", 3, ttl=3)],
        "single": [limited("single:{pk}", 1, ttl=3)],
        "healed": [limited("healed:{pk}", 3, ttl=3, recover=True)],
        "flaky_api": [limited("flaky_api:{pk}", 1, ttl=3)],
        "both": [
            limited(f"{BEGINNING}both:{{pk}}", 1, ttl=3),
            unique(f"{BEGINNING}both:{{pk}}:{{item}}", ttl=3),
        ],
    }

install()

PLAIN: dict[str, list[Callable[[Any], Any]]] = {"plain": [], "flaky_plain": []}
SETTLING = {"digest": {"settle": 1, "at_most": 2}}


def define(
    module: str,
    make: Callable[[Any], Any],
    make_flaky: Callable[[Any], Any],
    current_id: Callable[[], str],
    *,
    settles: bool = True,
) -> dict[str, Any]:
    """The tasks of a module. `make` is the queue's decorator, `make_flaky` one with retries."""
    decorators = {**PLAIN, **DECORATED}
    if settles and DECORATED:
        for name, options in SETTLING.items():
            decorators[name] = [unique(f"{name}:{{pk}}", ttl=3, **options)]
    tasks = {}
    for name, ours in decorators.items():
        task = (make_flaky if name.startswith("flaky") else make)(
            _function(module, name, current_id)
        )
        for decorate in ours:
            task = decorate(task)
        tasks[name] = task
    return tasks


def _function(module: str, name: str, current_id: Callable[[], str]) -> Callable[..., None]:
    """A function as `def` makes one in that module: a worker finds it by its path."""

    def function(pk: Any, item: int = 0, gate: bool = False, secs: float = 0.0) -> None:
        work(name, pk, item, gate, secs, current_id())

    function.__module__, function.__name__, function.__qualname__ = module, name, name
    return function
