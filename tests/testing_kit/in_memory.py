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
from django_redislock.testing.stubs import _memory
from django_redislock.transport import ports

calls = 0
_script = ports.BasePort.script


async def counted(*script: Any) -> Any:
    global calls
    calls += 1
    return await _script(*script)


class Client(fakeredis.FakeRedis):  # type: ignore[misc]
    @classmethod
    def from_url(cls, *_: Any, **__: Any) -> Client:
        return cls(server=_memory.pools_of("default").server)

    def info(self, section: str, **_: Any) -> Any:
        """fakeredis does not count commands."""
        assert section == "commandstats"
        return {"cmdstat_evalsha": {"calls": calls}}


@pytest.fixture(scope="session", autouse=True)
def _in_memory() -> Iterator[None]:
    client = mock.patch.object(sys.modules["tests.conftest"], "Redis", Client)
    with client, locks_in_memory(), mock.patch.object(ports.BasePort, "script", counted):
        yield
