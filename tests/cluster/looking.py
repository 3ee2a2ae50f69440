"""What is where on a cluster."""

from __future__ import annotations

from devtools.redis_cluster import RedisCluster
from devtools.redis_server import RedisServer
from django_redislock.inspection import Inspector
from tests.waiting import eventually


def name_at(cluster: RedisCluster, node: RedisServer, *, start: int = 0) -> str:
    """A name whose lock is on that node: the first one from this number on."""
    names = (f"job:{number}" for number in range(start, start + 1000))
    return next(name for name in names if cluster.owner(f"redislock:{{{name}}}") is node)


def waiting(number: int, name: str = "job") -> None:
    """Wait until so many wait for a lock."""
    eventually(lambda: len(Inspector().waiters(name)) == number)
