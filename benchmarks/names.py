"""Names that are locked and released once: what Redis keeps of them, and for how long.

The names are locked one after the other, each by a `with` block; then nothing happens any more.
Meanwhile the server is asked each second for its memory; what is recorded is what it has above
that of the beginning. This is one long round, since there is nothing to compare with: nothing is
kept of a lock of the peers.
"""

from __future__ import annotations

import time

from .harness import Row, add, django_project, in_child, private_server, say, url

NAMES = 100_000
AFTERWARDS = 75.0
"""Seconds: keys that outlive a lock live for a minute."""


def measure(*, names: int = NAMES, afterwards: float = AFTERWARDS) -> list[Row]:
    say(f"names, {names}")
    rows: list[Row] = in_child("benchmarks.names:once", names=names, afterwards=afterwards)
    return rows


def once(*, names: int, afterwards: float) -> list[Row]:
    rows: list[Row] = []
    with private_server() as server:
        django_project(default=url(server))
        from redis import Redis

        from django_redislock import redis_lock

        redis = Redis.from_url(url(server))

        def memory() -> int:
            return int(redis.info("memory")["used_memory"])

        def reading(since: float) -> None:
            bytes_, keys = memory() - before, redis.dbsize()
            spent = {"second": round(time.monotonic() - since, 2), "bytes": bytes_, "keys": keys}
            add(rows, {"names": names}, "redis_lock", spent)

        with redis_lock("the first one"):  # the server learns the scripts
            pass
        redis.flushdb()
        before = memory()
        begun = time.monotonic()
        last = begun + 1.0
        for name in range(names):
            with redis_lock(f"invoice:{name}"):
                pass
            if time.monotonic() >= last:
                reading(begun)
                last += 1.0
        released = time.monotonic()
        while time.monotonic() < released + afterwards:
            reading(begun)
            time.sleep(1.0)
        found = {"released": round(released - begun, 2), "server_bytes": memory() - before}
        add(rows, {"names": names}, "the last release", found)
    return rows
