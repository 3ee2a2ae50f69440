"""Numbered databases of a cluster, which Valkey has from version 9 on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from devtools.redis_cluster import RedisCluster
from devtools.redis_server import RedisServer, RedisServerError
from django_redislock import LockUnavailable, Semaphore, redis_lock
from django_redislock.inspection import Inspector
from tests.caches import cluster as caches
from tests.cluster.looking import name_at, waiting
from tests.contract.api import Api
from tests.waiting import PATIENCE

DATABASE = 3


@pytest.fixture(scope="module")
def with_databases() -> Iterator[RedisCluster]:
    """Three primaries with sixteen databases each."""
    try:
        with RedisCluster(args=("--cluster-databases", "16")) as cluster:
            yield cluster
    except RedisServerError as error:
        if "cluster-databases" not in str(error):
            raise
        pytest.skip("this server has no numbered databases in a cluster")


@pytest.fixture
def numbered(with_databases: RedisCluster, settings: Any) -> RedisCluster:
    """Locks in database 3 of an empty cluster."""
    for node in with_databases.nodes:
        with_databases.call(node, "FLUSHALL")
    settings.CACHES = caches([f"{with_databases.urls[0]}/{DATABASE}"])
    return with_databases


def keys(cluster: RedisCluster, node: RedisServer, database: int) -> int:
    """The number of keys that a node has in a database."""
    with cluster.ask(node) as client:
        client.select(database)
        return int(client.dbsize())


def test_locks_in_a_database(numbered: RedisCluster, api: Api) -> None:
    """On each node they are taken, waited for, handed over, renewed, listed and cleared there, and
    leave the databases of others alone."""
    for node in numbered.nodes:
        name = name_at(numbered, node)
        lease = api.acquire(redis_lock(name))
        assert keys(numbered, node, DATABASE) > 0
        assert keys(numbered, node, 0) == 0
        waiter = api.start(lambda name=name: api.acquire(redis_lock(name), wait=PATIENCE))
        waiting(1, name)
        api.extend(lease)
        api.release(lease)
        following = waiter.result(PATIENCE)
        assert following.fencing_token > lease.fencing_token
        [lock] = Inspector().all()
        assert lock.name == name
        assert Inspector().clear(lock, by="eva", reason="x")
    place = api.acquire(Semaphore("exports", 2))
    api.release(place)
    assert not any(keys(numbered, node, 0) for node in numbered.nodes)


def test_the_doctor(numbered: RedisCluster) -> None:
    """It looks into this database of each node."""
    out = StringIO()
    with redis_lock("job"):
        call_command("redislock", "doctor", stdout=out)
    assert "Redis could not be reached" not in out.getvalue()


def test_a_database_that_is_not_there(cluster: RedisCluster, settings: Any, api: Api) -> None:
    """On a server without them, or with fewer, the caller is told at once, and by the doctor."""
    settings.CACHES = caches([f"{cluster.urls[0]}/{DATABASE}"])
    began = time.monotonic()
    with pytest.raises(
        LockUnavailable, match="a database that the server does not have"
    ) as caught:
        api.acquire(redis_lock("job"), wait=PATIENCE)
    assert not caught.value.passing
    assert time.monotonic() - began < PATIENCE / 2
    with pytest.raises(CommandError, match="a database that the server does not have"):
        call_command("redislock", "doctor")
