"""Fixtures for the fault tests: servers that may be harmed, and a proxy that harms."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis

from devtools.luacheck import SCRIPTS
from devtools.redis_server import RedisServer, find_server
from django_redislock.primitives import scripts
from tests.caches import caches
from tests.contract.api import Api, AsyncApi, SyncApi
from tests.faults.proxy import Proxy
from tests.faults.scene import Scene, through


def load_scripts(redis: Redis) -> None:
    """Let the server know our scripts: a fault is then sure to hit a call that is carried out,
    and not one that is answered with NOSCRIPT."""
    for name in SCRIPTS:
        redis.script_load(scripts.load(name).source)


@pytest.fixture
def beside(redis_server: RedisServer, redis: Redis) -> Iterator[Proxy]:
    """A proxy before the shared server, for processes that are given its URL."""
    load_scripts(redis)
    with Proxy(redis_server) as proxy:
        yield proxy


@pytest.fixture
def own_server(settings: Any) -> Iterator[RedisServer]:
    """A server of the test's own, which it may harm. Everybody works on it."""
    if find_server().url is not None:
        pytest.skip("needs a server of its own to harm")
    with RedisServer() as server:
        with Redis.from_url(server.url) as redis:
            load_scripts(redis)
        settings.CACHES = caches(server.url)
        yield server


@pytest.fixture
def proxy(redis_server: RedisServer, redis: Redis, settings: Any) -> Iterator[Proxy]:
    """Everybody who goes through the settings works on the shared server through this proxy;
    `redis` looks at the server past it."""
    load_scripts(redis)
    with Proxy(redis_server) as proxy:
        settings.CACHES = caches(proxy.url)
        yield proxy


@pytest.fixture
def apis() -> Iterator[dict[str, Api]]:
    """Both at once."""
    apis: dict[str, Api] = {"sync": SyncApi(), "async": AsyncApi()}
    yield apis
    for api in apis.values():
        api.close()


@pytest.fixture
def scene(api: Api, proxy: Proxy, redis: Redis, redis_server: RedisServer, settings: Any) -> Scene:
    """A lock that is reached through the proxy and past it."""
    scene = Scene(api, proxy, redis)
    settings.CACHES = through(proxy, redis_server, scene)
    return scene


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    """Threads of the test's own process that wait for a lock."""
    with ThreadPoolExecutor(8) as pool:
        yield pool
