"""The plugin for pytest: docs/testing.md explains how to use it.

pytest loads the plugin in every project that has this package installed, and before pytest-django
has configured Django. The plugin is therefore not part of the package, whose import loads Django:
it imports the package when a test asks for locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_redislock.testing import Memory
    from django_redislock.testing.condition import Condition

CONDITIONS = {"free": "locks_always_free", "memory": "locks_in_memory", "apart": "names_apart"}


def pytest_addoption(parser: pytest.Parser) -> None:
    names = ", ".join(CONDITIONS)
    parser.addini("redislock", f"how locks behave in all tests: {names}", default="")


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getini("redislock")
    if chosen and chosen not in CONDITIONS:
        names = ", ".join(CONDITIONS)
        raise pytest.UsageError(
            f"redislock in the ini-file must be one of {names}, not {chosen!r}"
        )
    if chosen:
        config.pluginmanager.import_plugin("django_redislock_pytest.every_test")


@pytest.fixture
def redis_locks() -> Iterator[Memory]:
    """Locks in memory, for this test; `redis_locks.advance(seconds)` moves their clock."""
    with condition("memory") as memory:
        yield memory


def condition(name: str) -> Condition[Memory]:
    """Return the condition that `name` means in the ini-file."""
    from django.conf import settings

    if not settings.configured:
        raise pytest.UsageError(
            "locks need Django's settings: install pytest-django, and set DJANGO_SETTINGS_MODULE"
        )
    from django_redislock import testing

    found: Condition[Memory] = getattr(testing, CONDITIONS[name])()
    return found
