"""What is where on a cluster, and what locks do there and on other sharded servers."""

from __future__ import annotations

import time

from devtools.redis_cluster import RedisCluster
from devtools.redis_server import RedisServer
from django_redislock import Lease, redis_lock
from django_redislock.inspection import Inspector
from tests.contract.api import Api
from tests.waiting import eventually


def name_at(cluster: RedisCluster, node: RedisServer, *, start: int = 0) -> str:
    """A name whose lock is on that node: the first one from this number on."""
    names = (f"job:{number}" for number in range(start, start + 1000))
    return next(name for name in names if cluster.owner(f"redislock:{{{name}}}") is node)


def waiting(number: int, name: str = "job") -> None:
    """Wait until so many wait for a lock."""
    eventually(lambda: len(Inspector().waiters(name)) == number)


def hold_each(api: Api, names: list[str]) -> None:
    """Hold each lock twice: it is refused to others, and its fencing tokens grow."""
    for name in names:
        first = api.acquire(redis_lock(name), wait=0)
        assert api.start(lambda n=name: api.acquire(redis_lock(n), wait=0)).result() is None
        assert api.holder(redis_lock(name)).fencing_token == first.fencing_token
        api.extend(first, 60)
        api.release(first)
        second = api.acquire(redis_lock(name), wait=0)
        assert second.fencing_token > first.fencing_token
        api.release(second)


def killed_waiters(cluster: RedisCluster, lease: Lease, number: int, inbox: str) -> None:
    """Let so many wait for a lock of which nobody listens at their inbox."""
    keys = lease._claim.keys
    node, now_us = cluster.owner(keys.lock), int(time.time() * 1e6)
    for each in range(number):
        token, says = f"{each:032x}", f"{now_us}|600000|{inbox}|web3:1:x|job.py:1"
        cluster.call(node, "ZADD", keys.queue, now_us + each, token)
        cluster.call(node, "HSET", keys.waiters, token, says)
