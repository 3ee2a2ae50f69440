"""Fixtures for all tests. The server itself is started by tests/plugin.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from tests.plugin import SERVER


@pytest.fixture(scope="session")
def redis_server(pytestconfig: pytest.Config) -> RedisServer:
    """The server that all tests share. A test that harms its server starts one of its own."""
    return pytestconfig.stash[SERVER]


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[Redis]:
    """A plain client on the shared server, to look at what ours has done. Answers in bytes."""
    with Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture(autouse=True)
def _no_locks_left(redis: Redis) -> None:
    """Begin each test without any key of ours.

    One rule for a private and for an external server, so never FLUSHALL: the keys of others stay.
    """
    keys = list(redis.scan_iter(match="redislock*", count=1000))
    if keys:
        redis.delete(*keys)
