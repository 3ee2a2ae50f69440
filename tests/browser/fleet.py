"""A project's locks at some moment: 61 of all kinds on 8 hosts. Two are stale, one is unknown, and
300 wait for one of them."""

from __future__ import annotations

import time
from typing import Any

from tests.browser.site import INDEX, Site
from tests.operations.calling import granted

HOSTS = ["web-1", "web-2", "web-3", "worker-1", "worker-2", "worker-3", "cron-1", "batch-1"]
CACHE_INDEX = "redislock:key:index"
LEASE = 120
A_WHILE = 900
"""Seconds: nothing ends meanwhile that is not shown to end."""

PLACES = {
    "order:{}": (15, "shop/orders.py:88 in pay", 2.4),
    "cart:{}": (10, "shop/carts.py:31 in checkout", 1.3),
    "thumbnail:{}": (9, "media/thumbnails.py:54 in scale", 6.1),
    "customer:{}:sync": (8, "crm/sync.py:120 in push", 19.5),
    "report:2026-{}": (5, "reports/build.py:203 in build", 312.0),
}
"""Patterns of names: how many there are, where they are taken, and for how long they are held."""


def fleet(site: Site) -> None:
    for index in (INDEX, CACHE_INDEX):
        for host in HOSTS:
            key = f"{index.removesuffix(':index')}:process:{_process(host)}"
            site.redis.set(key, "1", ex=A_WHILE)
    _in_trouble(site)
    _waited_for(site)
    _shared(site)
    _of_others(site)
    _held(site, "newsletter", "worker-2", silent=22.5, label="news/send.py:27 in send")
    _held(site, "backup", "batch-1", silent=2712, label="run: pg_dump shop")
    number = 0
    for pattern, (count, label, seconds) in PLACES.items():
        for _ in range(count):
            number += 1
            silent = seconds * (1 + number % 7 / 3)
            name = pattern.format(1000 + 37 * number)
            _held(site, name, HOSTS[number % 8], silent=silent, label=label)


def _in_trouble(site: Site) -> None:
    site.left_behind(
        "export:accounts", owner="worker-2:77:MainThread", label="accounts/export.py:15 in run"
    )
    site.left_behind(
        "warehouse:synchronisation:with-the-supplier:2026-11-21",
        owner="cron-1:30112:MainThread",
        label="warehouse/management/commands/synchronise.py:77 in handle",
        silent=2004,
        ttl=7200,
    )
    waits(site, "export:accounts", "worker-1", "accounts/export.py:15 in run", 301)
    # One of two holders has not written down who it is.
    _place(site, "mailbox", "worker-3", 2, silent=48, label="mail/fetch.py:12 in fetch")
    site.redis.zadd("redislock:{mailbox}", {"f" * 32: int((time.time() + A_WHILE) * 1000)})


def _waited_for(site: Site) -> None:
    _held(site, "stock:1", "web-3", silent=9.5, label="shop/stock.py:10 in take")
    for number in range(300):
        waits(site, "stock:1", HOSTS[number % 3], "shop/stock.py:10 in take", 9 - number / 50)
    _held(site, "invoice:42", "web-1", silent=8.6, label="billing/tasks.py:118 in charge")
    waits(site, "invoice:42", "web-2", "billing/tasks.py:118 in charge", 6.2)
    waits(site, "invoice:42", "cron-1", "billing/dunning.py:41 in remind", 1.7)
    _held(site, "import:supplier", "worker-3", silent=754, label="stock/imports.py:64 in fetch")
    waits(site, "import:supplier", "worker-1", "stock/imports.py:64 in fetch", 301)


def _shared(site: Site) -> None:
    for host, seconds in (("worker-1", 41), ("worker-2", 12), ("batch-1", 3)):
        label = "stock/supplier.py:23 in ask"
        _place(site, "supplier-api", host, 10, silent=seconds, label=label)
    for number, host in enumerate(HOSTS[:4]):
        label = "shop/catalogue.py:70 in show"
        _place(site, "catalogue", host, kind="read", silent=2 + number, label=label)
    _place(
        site, "prices", "cron-1", kind="write", silent=4, label="shop/prices.py:35 in raise_all"
    )


def _of_others(site: Site) -> None:
    site.strangers("legacy:sync", value="b2f9e1", seconds=95)
    site.redis.set(":1:receipt:77", _record("web-2", 1.1, "shop/receipts.py:9 in print"), ex=LEASE)
    ends = time.time() + 140
    site.redis.set(":1:nightly", repr(ends), ex=140)
    now = int(time.time() * 1000)
    site.redis.zadd(
        CACHE_INDEX, {":1:receipt:77": now + LEASE * 1000, ":1:nightly": int(ends * 1000)}
    )


def _process(host: str) -> str:
    return f"aaaaaa{HOSTS.index(host):02}"


def _pid(host: str) -> int:
    return 2080 + 37 * HOSTS.index(host)


def _owner(host: str) -> str:
    return f"{host}:{_pid(host)}:MainThread"


def _record(host: str, silent: float, label: str) -> str:
    began = int((time.time() - silent) * 1e6)
    return f"{_process(host)}{began:024}+{began}|{began}|{LEASE}000|{_owner(host)}|{label}"


def _held(site: Site, name: str, host: str, **facts: Any) -> None:
    """A lock whose holder lives, and has just renewed it."""
    left = LEASE * (0.75 + len(name) % 5 / 20)
    granted(
        site.redis,
        name,
        owner=_owner(host),
        process=_process(host),
        ttl=LEASE,
        left=left,
        **facts,
    )


def _place(
    site: Site, name: str, host: str, limit: int = 1_000_000_000, kind: str = "", **facts: Any
) -> None:
    """One of the holders of a semaphore, or with `kind`, of a read-write lock."""
    granted(
        site.redis,
        name,
        places=limit,
        owner=_owner(host),
        process=_process(host),
        ttl=LEASE,
        left=0.9 * LEASE,
        **facts,
    )
    if kind:
        holders = f"redislock:{{{name}}}:holders"
        for token, record in site.redis.hgetall(holders).items():
            kept = record.partition(b"\t")[0] + f"\t{kind}|{limit}".encode()
            site.redis.hset(holders, token, kept)


def waits(site: Site, name: str, host: str, label: str, seconds: float) -> None:
    """Somebody who has waited for so long."""
    now = time.time()
    arrived = int((now - seconds) * 1e6)
    token = f"{_process(host)}{arrived:024}"
    site.redis.zadd(f"redislock:{{{name}}}:queue", {token: arrived})
    says = f"{int(now * 1e6)}|30000||{_owner(host)}|{label}"
    site.redis.hset(f"redislock:{{{name}}}:waiters", token, says)
