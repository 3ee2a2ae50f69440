"""How long it takes to look at 10,000 locks beside 2,000,000 other keys.

Beside each figure stands a raw read of the same locks: one pipeline of GET, PTTL and ZCARD through
redis-py.
"""

from __future__ import annotations

import time

from .harness import Row, add, django_project, private_server, turns, url

LOCKS, OTHERS = 10_000, 2_000_000


def measure(*, rounds: int, locks: int = LOCKS, others: int = OTHERS) -> list[Row]:
    from redis import Redis

    with private_server() as server:
        django_project(default=url(server))
        from django_redislock import redis_lock
        from django_redislock.inspection import Inspector

        redis = Redis.from_url(url(server), socket_timeout=60)  # making the other keys takes
        redis.eval("for i = 1, ARGV[1] do redis.call('SET', 'other:' .. i, i) end", 0, others)
        names = [f"job:{number}" for number in range(locks)]
        for name in names:
            redis_lock(name, ttl=3600, renew=False).acquire(wait=0)

        def raw(names: list[str]) -> list[object]:
            pipeline = redis.pipeline(transaction=False)
            for name in names:
                pipeline.get(f"redislock:{{{name}}}")
                pipeline.pttl(f"redislock:{{{name}}}")
                pipeline.zcard(f"redislock:{{{name}}}:queue")
            return pipeline.execute()

        inspector = Inspector()
        looks = {
            "the first 100": (lambda: inspector.page(limit=100), lambda: raw(names[:100])),
            "all": (lambda: list(inspector.all()), lambda: raw(names)),
            "all that are stale": (inspector.stale, lambda: raw(names)),
            "counts": (inspector.counts, lambda: raw(names)),
        }
        rows: list[Row] = []
        for what, pair in looks.items():
            for title, look in turns(list(zip(("ours", "raw read"), pair, strict=True)), rounds):
                begun = time.perf_counter()
                look()
                spent = {"seconds": round(time.perf_counter() - begun, 6)}
                add(rows, {"what": what, "locks": locks, "others": others}, title, spent)
        return rows
