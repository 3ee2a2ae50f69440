"""The entries of CACHES in docs/topologies.md: each leads to a server of its kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from devtools.redis_cluster import RedisCluster
from devtools.redis_sentinel import RedisSentinels
from devtools.redis_server import RedisServer
from django_redislock import redis_lock

PAGE = Path(__file__).parents[2] / "docs" / "topologies.md"


def pasted(title: str, changes: dict[str, str]) -> dict[str, Any]:
    """The settings of one block, with the addresses of the tests' servers in it."""
    text = PAGE.read_text(encoding="utf-8")
    block = re.search(rf"```python\n# {title}\n(.*?)```", text, re.DOTALL)
    assert block is not None
    code = block[1]
    for theirs, ours in changes.items():
        assert theirs in code
        code = code.replace(theirs, ours)
    found: dict[str, Any] = {}
    exec(code, found)
    del found["CACHES"]["default"]
    return found


def use(settings: Any, found: dict[str, Any], **changes: Any) -> None:
    settings.CACHES = {**settings.CACHES, **found["CACHES"]}
    settings.REDISLOCK = {**found["REDISLOCK"], **changes}
    with redis_lock("job") as lease:
        assert lease.using == "locks"
        lease.extend()


def test_one_primary(settings: Any) -> None:
    """As it is pasted."""
    with RedisServer(tcp_port=0) as server:
        use(settings, pasted("one primary", {"redis-1:6379": f"127.0.0.1:{server.tcp_port}"}))


def test_another_cache(settings: Any) -> None:
    """As it is pasted, by Django's own backend."""
    with RedisServer(tcp_port=0) as server:
        use(settings, pasted("another cache", {"redis-1:6379": f"127.0.0.1:{server.tcp_port}"}))


def test_sentinel(settings: Any) -> None:
    """As it is pasted, with its replica."""
    with RedisServer(tcp_port=0) as primary:
        follow = ["--replicaof", "127.0.0.1", str(primary.tcp_port)]
        with RedisServer(tcp_port=0, args=follow), RedisSentinels(primary) as sentinels:
            changes = {"//shop/": f"//{sentinels.service}/"}
            for number, (host, port) in enumerate(sentinels.addresses, 1):
                changes[f'"sentinel-{number}", 26379'] = f'"{host}", {port}'
            use(settings, pasted("Sentinel", changes))


def test_cluster(shared_cluster: RedisCluster, settings: Any) -> None:
    """As it is pasted."""
    changes = {
        f"redis://node-{number}:6379": url for number, url in enumerate(shared_cluster.urls, 1)
    }
    use(settings, pasted("Redis Cluster", changes))


def test_one_address(settings: Any) -> None:
    """As it is pasted."""
    with RedisCluster(1) as cluster:
        changes = {"redis://locks.example.com:6379": cluster.urls[0]}
        use(settings, pasted("sharded behind one address", changes))


@pytest.mark.parametrize("options", [{"replicas": 1, "replicas_timeout": 0.2}])
def test_options(options: dict[str, Any]) -> None:
    """What the page passes to a lock is what a lock takes."""
    text = PAGE.read_text(encoding="utf-8")
    call = re.search(r"^redis_lock\(.*\)$", text, re.MULTILINE)
    assert call is not None
    lock = eval(call[0], {"redis_lock": redis_lock})
    assert lock._explicit == options
