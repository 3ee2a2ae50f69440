"""Semaphores and read-write locks on three primaries."""

from __future__ import annotations

from devtools.redis_cluster import RedisCluster
from django_redislock import LeaseState, Semaphore
from tests.waiting import eventually

NAMES = [f"exports:{number}" for number in range(9)]
"""They are spread over all nodes."""


def test_renewals(cluster: RedisCluster) -> None:
    """Of all nodes, by the watchdog."""
    leases = [Semaphore(name, 2, ttl=0.6).acquire() for name in NAMES]
    due = [lease._lifetime.due for lease in leases if lease is not None]
    eventually(
        lambda: all(
            lease is not None and lease._lifetime.due > before and lease.state == LeaseState.HELD
            for lease, before in zip(leases, due, strict=True)
        )
    )
    for lease in leases:
        assert lease is not None
        assert lease.state == LeaseState.HELD
        lease.release()
