"""Semaphores and read-write locks on three primaries."""

from __future__ import annotations

import pytest

from devtools.redis_cluster import RedisCluster
from django_redislock import LeaseRevoked, LeaseState, Semaphore
from django_redislock.inspection import Inspector, State
from tests.cluster.looking import waiting
from tests.contract.api import Api
from tests.waiting import PATIENCE, eventually

NAMES = [f"exports:{number}" for number in range(9)]
"""They are spread over all nodes."""


def test_places(cluster: RedisCluster, api: Api) -> None:
    """So many at a time, wherever the name is; renewed, handed over, seen and cleared."""
    for name in NAMES:
        held = [
            api.start(lambda n=name: api.acquire(Semaphore(n, 2, ttl=2))).result(PATIENCE)
            for _ in range(2)
        ]
        assert (
            api.start(lambda n=name: api.acquire(Semaphore(n, 2), wait=0)).result(PATIENCE) is None
        )
        waiter = api.start(lambda n=name: api.acquire(Semaphore(n, 2), wait=PATIENCE))
        waiting(1, name)
        api.release(held.pop())
        held.append(waiter.result(PATIENCE))
        api.extend(held[0])
        lock = Inspector().get(name)
        assert lock is not None
        assert (lock.holding, lock.limit, lock.state) == (2, 2, State.HELD)
        assert Inspector().clear(lock, by="eva", reason="x")
        for lease in held:
            with pytest.raises(LeaseRevoked):
                api.extend(lease)


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
