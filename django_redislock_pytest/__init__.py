"""The plugin for pytest: docs/testing.md tells how it is used.

pytest loads it in every project that has this package installed, and before pytest-django has told
Django its settings. So it is no part of the package, whose import would load Django; it does that
when a test asks for locks.
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
    parser.addini("redislock", f"what locks are like in all tests: {names}", default="")


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getini("redislock")
    if chosen and chosen not in CONDITIONS:
        names = ", ".join(CONDITIONS)
        raise pytest.UsageError(
            f"redislock in the ini-file must be one of {names}, not {chosen!r}"
        )
    if chosen:
        config.pluginmanager.register(_EveryTest(chosen), "django_redislock_every_test")


@pytest.fixture
def redis_locks() -> Iterator[Memory]:
    """Locks in memory, for this test; `redis_locks.advance(seconds)` moves their clock."""
    with _condition("memory") as memory:
        yield memory


def _condition(name: str) -> Condition[Memory]:
    from django.conf import settings

    if not settings.configured:
        raise pytest.UsageError(
            "locks need Django's settings: install pytest-django, and set DJANGO_SETTINGS_MODULE"
        )
    from django_redislock import testing

    condition: Condition[Memory] = getattr(testing, CONDITIONS[name])()
    return condition


class _EveryTest:
    """What is in the ini-file holds for all tests, and for what is set up for several of them."""

    def __init__(self, chosen: str) -> None:
        self._chosen = chosen

    @pytest.fixture(scope="session", autouse=True)
    def _redislock(self) -> Iterator[None]:
        with _condition(self._chosen):
            yield

    @pytest.fixture(autouse=True)
    def _redislock_anew(self, _redislock: None) -> Iterator[None]:
        if self._chosen != "memory":
            yield
            return
        with _condition(self._chosen):
            yield
