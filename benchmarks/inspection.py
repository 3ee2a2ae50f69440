"""How long it takes to look at 10,000 locks beside 2,000,000 other keys.

Beside each figure stands a read by hand of the same locks, which makes no objects of them: a
script that takes a part of the index, with the rest of each lease and the number of those who
wait, and an MGET of the values.
"""

from __future__ import annotations

import time

from .harness import Row, add, django_project, private_server, turns, url

LOCKS, OTHERS = 10_000, 2_000_000
AT_ONCE = 1000

BY_HAND = """
local found = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2])
for i = 1, #found do
  local lock = found[i]
  found[i] = {lock, redis.call('PTTL', lock), redis.call('ZCARD', lock .. ':queue')}
end
return found
"""


def measure(*, rounds: int, locks: int = LOCKS, others: int = OTHERS) -> list[Row]:
    from redis import Redis

    with private_server() as server:
        django_project(default=url(server))
        from django_redislock import redis_lock
        from django_redislock.inspection import Inspector

        redis = Redis.from_url(url(server), socket_timeout=60)  # making the other keys takes
        redis.eval("for i = 1, ARGV[1] do redis.call('SET', 'other:' .. i, i) end", 0, others)
        held = [
            redis_lock(f"job:{number}", ttl=3600, renew=False).acquire(wait=0)
            for number in range(locks)
        ]
        inspector = Inspector()
        assert inspector.counts().total == len(held)  # all of them are in the index now
        by_hand = redis.register_script(BY_HAND)

        def read(number: int) -> list[object]:
            found: list[object] = []
            for start in range(0, number, AT_ONCE):
                end = min(number, start + AT_ONCE) - 1
                some = by_hand(keys=["redislock:index"], args=[start, end])
                found += zip(some, redis.mget([lock for lock, _, _ in some]), strict=True)
            return found

        looks = {
            "the first 100": (lambda: inspector.page(limit=100), lambda: read(100)),
            "all": (lambda: list(inspector.all()), lambda: read(locks)),
            "all that are stale": (inspector.stale, lambda: read(locks)),
            "counts": (inspector.counts, lambda: read(locks)),
        }
        rows: list[Row] = []
        for what, pair in looks.items():
            contestants = list(zip(("ours", "raw read"), pair, strict=True))
            for title, look in turns(contestants, rounds):
                begun = time.perf_counter()
                look()
                spent = {"seconds": round(time.perf_counter() - begun, 6)}
                add(rows, {"what": what, "locks": locks, "others": others}, title, spent)
        return rows
