"""Semaphores and read-write locks in states that take long to come about."""

from __future__ import annotations

import time

from redis import Redis


def dead_holder(
    redis: Redis,
    name: str,
    *,
    kind: str = "semaphore",
    limit: int = 3,
    silent: float = 900,
    owner: str = "web3:1:x",
    label: str = "its/job.py:1 in job",
    process: str = "dead0000",
) -> str:
    """A place that a process got and that died so many seconds ago, as the server has it then."""
    token = process + f"{int(silent):024d}"
    now, ttl = time.time(), 3600
    began, ends = int((now - silent) * 1e6), int((now + ttl - silent) * 1000)
    record = f"{token}|{began}|{began}|{ttl * 1000}|{owner}|{label}\t{kind}|{limit}"
    key = f"redislock:{{{name}}}"
    redis.zadd(key, {token: ends})
    redis.hset(f"{key}:holders", token, record)
    redis.pexpireat(key, ends)
    redis.pexpireat(f"{key}:holders", ends)
    redis.zadd("redislock:index", {name: ends})
    return token
