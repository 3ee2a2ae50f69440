"""The list of locks while a node of the cluster is away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from devtools.redis_cluster import RedisCluster
from devtools.redis_server import RedisServer
from django_redislock.inspection import Inspector, State
from tests.caches import cluster as caches
from tests.cluster.looking import name_at
from tests.operations.calling import call


@pytest.fixture
def cluster(settings: Any) -> Iterator[RedisCluster]:
    """Three primaries, of which one may go, and the others serve their slots nevertheless."""
    with RedisCluster() as cluster:
        for node in cluster.nodes:
            cluster.call(node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
        settings.CACHES = caches(cluster.urls)
        yield cluster


def process_at(cluster: RedisCluster, node: RedisServer) -> str:
    """The number of a process whose sign of life is on that node."""
    numbers = (f"{number:08x}" for number in range(1, 1000))
    return next(one for one in numbers if cluster.owner(f"redislock:process:{one}") is node)


def held_for_long(cluster: RedisCluster, node: RedisServer, name: str, process: str) -> None:
    """Held by a process that lives, and has not renewed it for longer than it shows life."""
    began = int((time.time() - 900) * 1e6)
    value = f"{process}{'0' * 24}|{began}|{began}|3600000|web3:1:x|job.py:1 in job"
    cluster.call(node, "SET", f"redislock:{{{name}}}", value, "PX", 2_700_000)
    sign = f"redislock:process:{process}"
    cluster.call(cluster.owner(sign), "SET", sign, "", "PX", 30_000)


def test_a_node_is_down(cluster: RedisCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The locks of the others are listed, a line says which node is missing, and no lock is
    called stale because the sign of life of its process is on that node."""
    names = [name_at(cluster, node) for node in cluster.nodes]
    for name, node in zip(names, cluster.nodes, strict=True):
        held_for_long(cluster, node, name, process_at(cluster, cluster.nodes[2]))
    assert all(name in call("list").out for name in names)
    down = cluster.nodes[2]
    down.stop()
    done = call("list")
    assert done.code == 69
    assert [name in done.out for name in names] == [True, True, False]
    told = capsys.readouterr().err
    assert f"127.0.0.1:{down.tcp_port}" in told
    assert "b'0'" not in told
    assert {lock.state for lock in Inspector().all()} == {State.HELD}
    assert f"127.0.0.1:{down.tcp_port}" in call("watch", "--count=1").out
