"""A cluster for the tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from devtools.redis_cluster import RedisCluster
from devtools.redis_server import find_server
from tests.caches import cluster as caches
from tests.processes import Start, Worker


@pytest.fixture(scope="session", autouse=True)
def _own_servers() -> None:
    if find_server().binary is None:
        pytest.skip("needs servers of its own, and REDISLOCK_SERVER is a URL")


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def node() -> Iterator[RedisCluster]:
    """A cluster of one node, for entries that know nothing of clusters."""
    with RedisCluster(1) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: RedisCluster, settings: Any) -> RedisCluster:
    """Three primaries, without any key, on which everybody works."""
    for node in shared_cluster.nodes:
        shared_cluster.call(node, "FLUSHALL")
    settings.CACHES = caches(shared_cluster.urls[:1])
    return shared_cluster


@pytest.fixture
def begin(start: Start, cluster: RedisCluster) -> Start:
    """Start a worker that knows only one node of the cluster: `begin(1, "hold", "30")`."""

    def begin(seed: int, *command: str) -> Worker:
        env = {
            "DJANGO_SETTINGS_MODULE": "tests.cluster.settings",
            "REDISLOCK_TEST_NODES": cluster.urls[seed],
        }
        return start(*command, env=env)

    return begin
