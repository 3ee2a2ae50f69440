"""A proxy that mixes up the answers of two connections."""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from django_redislock import LeaseLost, LockUnavailable, redis_lock
from tests.faults.proxy import Fault, Proxy, script
from tests.waiting import PATIENCE, eventually

TTL = 4.0


@pytest.mark.parametrize("names", [8, 2], ids=["own names", "shared names"])
def test_answers_that_are_swapped(proxy: Proxy, redis: Redis, names: int) -> None:
    """No block runs without its lock, no answer is taken for another's, and each lock ends."""
    matches = script("mutex_acquire", "mutex_extend", "mutex_release")
    rule = proxy.on(matches, Fault.SWAP_REPLY, times=sys.maxsize, chance=0.3)
    inside: Counter[str] = Counter()
    seen: Counter[type] = Counter()

    def work(number: int) -> None:
        name = f"job {number % names}"
        for _ in range(10):
            try:
                with redis_lock(name, ttl=TTL, wait=PATIENCE) as lease:
                    assert redis.get(f"redislock:{{{name}}}").startswith(lease.token.encode())
                    inside[name] += 1
                    try:
                        assert inside[name] == 1
                        lease.extend()
                    finally:
                        inside[name] -= 1
            except (LockUnavailable, LeaseLost) as error:
                seen[type(error)] += 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    rule.let_go()
    assert rule.swapped > 10
    assert not seen[LeaseLost]
    eventually(lambda: not redis.keys("redislock:{job *}"))
