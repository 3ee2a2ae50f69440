"""A primary of a cluster is killed, and its replica takes over."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import RedisError

from devtools.redis_cluster import RedisCluster
from devtools.redis_server import RedisServer
from django_redislock import LeaseLost, LeaseState, redis_lock
from tests.caches import cluster as caches
from tests.cluster.looking import name_at, waiting
from tests.contract.api import Api, extended
from tests.recovery import Recovery
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def cluster(settings: Any) -> Iterator[RedisCluster]:
    """Three primaries and a replica, which the test may harm."""
    with RedisCluster(replicas=1, node_timeout=1) as cluster:
        settings.CACHES = caches(cluster.urls[1:3], SOCKET_CONNECT_TIMEOUT=1)
        yield cluster


def kill(cluster: RedisCluster, node: RedisServer) -> None:
    """Kill it, and wait until another one has its slots."""
    assert node.pid is not None
    os.kill(node.pid, signal.SIGKILL)
    eventually(lambda: not node.running)

    def taken_over() -> bool:
        try:
            return cluster.call(cluster.nodes[3], "ROLE")[0] == "master"
        except RedisError:
            return False

    eventually(taken_over)
    cluster.settle()


def test_a_primary_is_killed(cluster: RedisCluster, api: Api) -> None:
    """The lease and the order of the waiters go on, since the replica has them."""
    primary, _, _, replica = cluster.nodes
    name = name_at(cluster, primary)
    key = f"redislock:{{{name}}}"
    lease = api.acquire(redis_lock(name, ttl=60))
    waiter = api.start(lambda: api.acquire(redis_lock(name), wait=2 * PATIENCE))
    waiting(1, name)
    with cluster.ask(replica) as client:
        client.readonly()
        eventually(lambda: client.exists(key, f"{key}:queue") == 2)

    kill(cluster, primary)
    eventually(lambda: extended(api, lease))
    assert lease.state == LeaseState.HELD
    api.release(lease)
    following = waiter.result(2 * PATIENCE)
    assert following.fencing_token > lease.fencing_token
    api.release(following)


def test_a_lease_that_the_new_primary_does_not_know(cluster: RedisCluster, api: Api) -> None:
    """Its holder is told at its next renewal, and others get the lock."""
    primary, _, _, replica = cluster.nodes
    name = name_at(cluster, primary)
    key = f"redislock:{{{name}}}"
    lease = api.acquire(redis_lock(name, ttl=600))
    kill(cluster, primary)
    cluster.call(replica, "DEL", key, f"{key}:clock")  # as if it had not arrived there
    with pytest.raises(LeaseLost):
        eventually(lambda: extended(api, lease))
    assert lease.state == LeaseState.LOST
    following = api.acquire(redis_lock(name), wait=PATIENCE)
    assert following.fencing_token > lease.fencing_token
    api.release(following)


FAULT = "Redis Cluster: a primary is killed"
SOON = 20.0
"""Seconds that all may take: some of them are the nodes' own, here with `cluster-node-timeout
1000`."""


@pytest.mark.recovery
def test_how_long_it_takes(cluster: RedisCluster, api: Api, recovery: Recovery) -> None:
    """Until its successor renews leases and grants free locks. The other nodes go on meanwhile,
    unless `cluster-require-full-coverage` says no."""
    primary, _, _, replica = cluster.nodes
    name, free = name_at(cluster, primary), name_at(cluster, primary, start=1000)
    lease = api.acquire(redis_lock(name, ttl=60))
    with cluster.ask(replica) as client:
        client.readonly()
        eventually(lambda: client.exists(f"redislock:{{{name}}}"))
    assert primary.pid is not None
    os.kill(primary.pid, signal.SIGKILL)
    recovery.begins()
    granted = recovery.start(api, lambda: api.acquire(redis_lock(free), wait=2 * PATIENCE))
    eventually(lambda: extended(api, lease))
    recovery.done(FAULT, "a lease is renewed", within=SOON)
    other, seconds = granted.result(PATIENCE)
    recovery.took(seconds, FAULT, "a free lock is acquired", within=SOON)
    api.release(other)
    api.release(lease)
