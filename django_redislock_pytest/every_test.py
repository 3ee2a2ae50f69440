"""The condition of the ini-file, for all tests and for fixtures of wider scopes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import condition


@pytest.fixture(scope="session", autouse=True)
def _redislock(pytestconfig: pytest.Config) -> Iterator[None]:
    with condition(pytestconfig.getini("redislock")):
        yield


@pytest.fixture(autouse=True)
def _redislock_anew(pytestconfig: pytest.Config, _redislock: None) -> Iterator[None]:
    if pytestconfig.getini("redislock") != "memory":
        yield
        return
    with condition("memory"):
        yield
