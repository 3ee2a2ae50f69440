"""Servers in the memory of this process, for development and tests: fakeredis runs the scripts.

Other processes see nothing of them. fakeredis is imported when the first one is made.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import redis
from redis import asyncio as aioredis

from .command import AsyncPool, Pool
from .multiplexed import Multiplexed

VERSION = (7, 4)
"""The version of Redis that fakeredis stands in for."""
NEEDED = 'fakeredis with Lua: pip install "django-redislock[testing]"'


def installed() -> bool:
    """Return whether there is what a server in memory needs."""
    return bool(find_spec("fakeredis") and find_spec("lupa"))


class PoolsInMemory:
    """Pools to a server of its own, which is gone with this object."""

    clustered = False

    def __init__(self, address: str, using: str) -> None:
        from fakeredis import FakeServer

        self.address = address
        self.where = f"the memory of this process, {using}"
        self.server = FakeServer(version=VERSION)
        self._options: dict[str, Any] = {
            "server": self.server,
            "version": VERSION,
            "server_type": "redis",
            "lua_modules": None,
        }
        self._shared = self.background()

    def shared(self) -> Pool:
        return self._shared

    def background(self) -> Pool:
        from fakeredis import FakeRedis, FakeRedisConnection

        kind: dict[str, Any] = {
            "connection_class": FakeRedisConnection,
            "client_class": FakeRedis,
        }
        return redis.ConnectionPool(**kind, **self._options)

    def for_loop(self) -> AsyncPool:
        from fakeredis.aioredis import FakeAsyncRedisConnection

        kind: dict[str, Any] = {"connection_class": FakeAsyncRedisConnection}
        return Multiplexed(aioredis.ConnectionPool(**kind, **self._options))
