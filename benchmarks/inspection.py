"""How long it takes to look at 10,000 locks beside 2,000,000 other keys; and what the first page
of the admin's list costs, as there are more of them.

The locks are copies of one lease, as those of other processes: a process that holds many would
write them down first. Beside each figure stands a read by hand of the same locks, which makes no
objects of them: a script that takes a part of the index, with the rest of each lease and the
number of those who wait, and an MGET of the values.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from .harness import Row, add, django_project, in_child, private_server, turns, url

LOCKS, OTHERS = 10_000, 2_000_000
AT_ONCE = 1000
ADMIN = "the first page of the admin's list"
PAGES = [100, 10_000, 100_000]

COPY = """
local value = redis.call('GET', 'redislock:{job:0}')
for i = ARGV[1], ARGV[2] do
  local key = 'redislock:{job:' .. i .. '}'
  local token = string.sub(value, 1, 8) .. string.format('%024x', i)
  redis.call('SET', key, token .. string.sub(value, 33), 'PX', 3600000)
  redis.call('ZADD', KEYS[1], redis.call('ZSCORE', KEYS[1], 'redislock:{job:0}') + i, key)
end
"""

BY_HAND = """
local found = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2])
for i = 1, #found do
  local lock = found[i]
  found[i] = {lock, redis.call('PTTL', lock), redis.call('ZCARD', lock .. ':queue')}
end
return found
"""


def measure(
    *, rounds: int, locks: int = LOCKS, others: int = OTHERS, pages: Sequence[int] = PAGES
) -> list[Row]:
    from redis import Redis

    with private_server() as server:
        django_project(default=url(server))
        from django_redislock import redis_lock
        from django_redislock.inspection import Inspector

        redis = Redis.from_url(url(server), socket_timeout=60)  # making the other keys takes
        redis.eval("for i = 1, ARGV[1] do redis.call('SET', 'other:' .. i, i) end", 0, others)
        inspector = Inspector()
        lease = redis_lock("job:0", ttl=3600).acquire(wait=0)
        assert inspector.counts().total == 1  # it is in the index now

        def hold(begin: int, end: int) -> None:
            redis.eval(COPY, 1, "redislock:index", begin, end - 1)

        hold(1, locks)
        assert inspector.counts().total == locks
        by_hand = redis.register_script(BY_HAND)

        def read(number: int) -> list[object]:
            found: list[object] = []
            for start in range(0, number, AT_ONCE):
                end = min(number, start + AT_ONCE) - 1
                some = by_hand(keys=["redislock:index"], args=[start, end])
                found += zip(some, redis.mget([lock for lock, _, _ in some]), strict=True)
            return found

        looks = {
            # By hand, too, all have to be read to know which are urgent.
            "the most urgent 100": (lambda: inspector.page(limit=100), lambda: read(locks)),
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
        redis.delete(*(f"redislock:{{job:{number}}}" for number in range(1, locks)))
        redis.zremrangebyrank("redislock:index", 1, -1)
        begin = 1
        for number in pages:
            hold(begin, number)
            begin = number
            rows += in_child(
                "benchmarks.inspection:admin_page", where=url(server), locks=number, rounds=rounds
            )
        lease.release()
        return rows


def admin_page(*, where: str, locks: int, rounds: int) -> list[Row]:
    """Make the first page of the admin's list, in a process that holds no locks."""
    django_project(with_admin=True, default=where)
    from django.conf import settings
    from django.contrib import admin
    from django.contrib.auth.models import User
    from django.test import RequestFactory
    from django.urls import path

    from django_redislock.models import LockStatus

    admin.autodiscover()
    settings.ROOT_URLCONF = (path("admin/", admin.site.urls),)
    page = admin.site.get_model_admin(LockStatus).changelist_view
    rows: list[Row] = []
    for number in range(rounds + 1):
        # A new one each time: it keeps what was read.
        request = RequestFactory().get("/admin/django_redislock/lockstatus/")
        request.user = User(username="eva", is_superuser=True, is_staff=True)
        begun, cpu = time.perf_counter(), time.process_time()
        page(request).render()  # type: ignore[attr-defined]
        spent = {
            "seconds": round(time.perf_counter() - begun, 6),
            "client_cpu": round(time.process_time() - cpu, 6),
        }
        if number:  # the first page loads templates
            add(rows, {"what": ADMIN, "locks": locks}, "ours", spent)
    return rows
