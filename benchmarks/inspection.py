"""How long it takes to look at 10,000 locks beside 2,000,000 other keys.

    python -m benchmarks.inspection

Each figure is the median of nine rounds, and is set beside a raw read of the same locks in the
same run: one pipeline of GET, PTTL and ZCARD through redis-py. The server is a private one.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from devtools.redis_server import RedisServer

LOCKS, OTHERS, ROUNDS = 10_000, 2_000_000, 9


def median(call: Callable[[], object]) -> float:
    """Seconds."""
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def main() -> None:
    with RedisServer() as server:
        os.environ["REDISLOCK_TEST_URL"] = server.url
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        import django

        django.setup()
        measure(server)


def measure(server: RedisServer) -> None:
    from redis import Redis

    from django_redislock import redis_lock
    from django_redislock.inspection import Inspector

    redis = Redis.from_url(server.url)
    redis.eval("for i = 1, ARGV[1] do redis.call('SET', 'other:' .. i, i) end", 0, OTHERS)
    leases = [
        redis_lock(f"job:{number}", ttl=3600, renew=False).acquire(wait=0)
        for number in range(LOCKS)
    ]
    names = [lease.name for lease in leases if lease is not None]

    def raw(names: list[str]) -> list[object]:
        pipeline = redis.pipeline(transaction=False)
        for name in names:
            pipeline.get(f"redislock:{{{name}}}")
            pipeline.pttl(f"redislock:{{{name}}}")
            pipeline.zcard(f"redislock:{{{name}}}:queue")
        return pipeline.execute()

    inspector = Inspector()
    rows = [
        ("the first 100", lambda: inspector.page(limit=100), lambda: raw(names[:100])),
        ("all", lambda: list(inspector.all()), lambda: raw(names)),
        ("all that are stale", inspector.stale, lambda: raw(names)),
        ("counts", inspector.counts, lambda: raw(names)),
    ]
    print(f"{LOCKS:,} locks, {OTHERS:,} other keys, {server.description}")
    print(f"{'':20}{'ours':>12}{'raw read':>12}{'ratio':>8}")
    for what, ours, theirs in rows:
        took, floor = median(ours), median(theirs)
        print(f"{what:20}{took * 1000:>9.1f} ms{floor * 1000:>9.1f} ms{took / floor:>8.2f}")


if __name__ == "__main__":
    main()
