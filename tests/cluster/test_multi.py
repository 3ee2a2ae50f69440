"""Locks on several names whose keys are on different nodes."""

from __future__ import annotations

import pytest

from devtools.redis_cluster import RedisCluster
from django_redislock import LockNotAcquired, MultiLock, redis_lock
from tests.contract.api import Api
from tests.waiting import PATIENCE, eventually

NAMES = [f"account:{number}" for number in range(6)]


def test_what_was_taken_is_released(api: Api, cluster: RedisCluster) -> None:
    """When a later name is held, none of the earlier ones is kept; and it is waited for."""
    single = api.acquire(redis_lock(NAMES[-1]))
    with pytest.raises(LockNotAcquired) as caught:
        api.start(lambda: api.enter(MultiLock(NAMES, wait=0), lambda _: None)).result(PATIENCE)
    assert caught.value.name == NAMES[-1]
    waiter = api.start(lambda: api.acquire(MultiLock(NAMES), wait=None))
    eventually(lambda: all(api.holder(redis_lock(name)) is None for name in NAMES[:-1]))
    assert not waiter.done()
    api.release(single)
    lease = waiter.result(PATIENCE)
    assert lease.fencing_tokens[NAMES[-1]] > single.fencing_token
    api.release(lease)
