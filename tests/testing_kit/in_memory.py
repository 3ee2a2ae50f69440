"""A plugin, `-p tests.testing_kit.in_memory`: the tests of the contract, with locks in memory.

They are those of the real server, unchanged; so their plain client looks into the memory, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import fakeredis
import pytest

from django_redislock.testing import locks_in_memory
from django_redislock.testing.memory import _servers


class Client(fakeredis.FakeRedis):  # type: ignore[misc]
    @classmethod
    def from_url(cls, *_: Any, **__: Any) -> Client:
        _servers["default"]
        return cls(server=_servers._servers["default"])

    def info(self, *_: Any, **__: Any) -> Any:
        pytest.skip("fakeredis does not count commands")


@pytest.fixture(scope="session", autouse=True)
def _in_memory() -> Iterator[None]:
    with mock.patch.object(sys.modules["tests.conftest"], "Redis", Client), locks_in_memory():
        yield
