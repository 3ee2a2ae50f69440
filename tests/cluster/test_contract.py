"""What every kind of lock owes where each name has a slot of its own: on a Redis Cluster, and on a
server that is sharded behind one address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis.cluster import RedisCluster as Client

from devtools.redis_cluster import RedisCluster
from tests.caches import caches
from tests.contract.api import Api, AsyncApi, SyncApi
from tests.contract.test_contract import *  # noqa: F403
from tests.contract.test_contract import Kind


@pytest.fixture(params=["cluster", "node"], ids=["cluster-async", "one-address-sync"])
def place(request: pytest.FixtureRequest) -> str:
    """The fixture of the server that everybody works on."""
    place: str = request.param
    return place


@pytest.fixture
def api(place: str) -> Iterator[Api]:
    api = AsyncApi() if place == "cluster" else SyncApi()
    yield api
    api.close()


@pytest.fixture
def redis(place: str, request: pytest.FixtureRequest, settings: Any) -> Iterator[Client]:
    """A plain client, which finds each key."""
    cluster: RedisCluster = request.getfixturevalue(place)
    if place == "node":
        settings.CACHES = caches(cluster.urls[0])
    with Client.from_url(cluster.urls[0]) as client:
        client.flushall()
        yield client


@pytest.fixture(autouse=True)
def _in_order_at_each_name(kind: Kind, request: pytest.FixtureRequest) -> None:
    """Names of several slots are taken one after the other, each in its own order."""
    if len(kind.names) > 1 and "order_of_arrival" in request.node.name:
        pytest.skip("a lock on several names is not promised to keep the order of all")


@pytest.fixture
def clock() -> str:
    """Each name has its own."""
    return "redislock:{contract}:clock"
