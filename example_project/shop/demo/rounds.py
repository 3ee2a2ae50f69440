"""The rounds: without the lock, with it, with its holder killed, and on three servers that
fail."""

from __future__ import annotations

import json
import secrets
import time
from contextlib import ExitStack

from django.conf import settings
from django.core.management.base import CommandError
from django.test import override_settings

from devtools.redis_server import RedisServer
from django_redislock import LockNotAcquired, LockUnavailable, Redlock, StaleLease, redis_lock

from ..models import Product
from ..services import Sale, record
from .progress import Progress
from .report import Crash, Round
from .workers import workers

PATIENCE = 20.0
"""Seconds to wait for an event; selling gets some more for each unit."""

TTL = settings.REDISLOCK["LOCKS"]["stock:*"]["TTL"]


def race(progress: Progress, title: str, units: int, count: int, *options: str) -> Round:
    """Let `count` workers sell the same stock until they find it empty."""
    product = stocked(units)
    progress.show(f"starting {count} workers")
    with workers(product, [f"worker {n}" for n in range(1, count + 1)], *options) as team:
        began = time.monotonic()
        patience = PATIENCE + units / 10
        for worker in team:
            worker.go_on()
        while not all(worker.speaks(within=0) for worker in team):
            if time.monotonic() - began > patience:
                raise CommandError(f"{title}: not sold out after {patience:g} s.")
            product.refresh_from_db()
            progress.show(f"{product.orders.count()} orders, {product.stock} of {units} left")
            time.sleep(0.05)
        seconds = time.monotonic() - began
        for worker in team:
            worker.hear()
            worker.finish()
    return result(title, product, units, seconds)


def crash(progress: Progress, title: str, units: int) -> Crash:
    """Kill a worker that holds the lock while another one waits. Then let the killed worker's
    write arrive."""
    product = stocked(units)
    names = ["the holder", "the waiter"]
    with workers(product, names, "--locked", "--announce") as (holder, waiter):
        began = time.monotonic()
        holder.go_on()
        prepared = Sale(**json.loads(holder.hear()))
        waiter.go_on()
        await_waiter(progress, prepared)

        holder.kill()
        killed = time.monotonic()
        while not waiter.speaks(within=0.1):
            progress.show(f"killed {time.monotonic() - killed:.1f} s ago, its lease lives on")
        seen = Sale(**json.loads(waiter.hear()))
        takeover = time.monotonic() - killed

        # The worst moment: the next holder has read the stock, and has not written yet.
        refused = False
        try:
            record(prepared, prepared.fencing_token)
        except StaleLease:
            refused = True

        waiter.go_on()
        waiter.hear()
        seconds = time.monotonic() - began
        waiter.finish()
    return Crash(
        sales=result(title, product, units, seconds),
        ttl=TTL,
        takeover=takeover,
        dead_token=prepared.fencing_token,
        next_token=seen.fencing_token,
        refused=refused,
    )


def outages(progress: Progress) -> list[bool]:
    """Return whether a lock on the majority of three servers can be acquired while none, one and
    two of them are down."""
    had = []
    with ExitStack() as stack:
        servers = {name: stack.enter_context(RedisServer()) for name in ("a", "b", "c")}
        caches = {
            name: {**settings.CACHES["default"], "LOCATION": server.url}
            for name, server in servers.items()
        }
        stack.enter_context(override_settings(CACHES={**settings.CACHES, **caches}))
        for left, server in zip(("three", "two", "one"), servers.values(), strict=True):
            try:
                with Redlock("closing the books", using=list(servers), wait=0) as lease:
                    lease.check()
                had.append(True)
            except LockUnavailable:
                had.append(False)
            progress.keep(f"  {left} there: {'held' if had[-1] else 'refused'}")
            server.stop()
    return had


def await_waiter(progress: Progress, held: Sale) -> None:
    """Return when somebody waits for the lock. Redis says so in its answer to a failed acquire."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            with redis_lock(f"stock:{held.product_pk}", wait=0) as lease:
                token = lease.fencing_token
        except LockNotAcquired as conflict:
            token = conflict.holder.fencing_token
            if conflict.position:
                progress.keep(f"  held by {conflict.holder.owner}, {conflict.position} waiting")
                return
        if token != held.fencing_token:
            raise CommandError("The lock changed hands while its holder lived.")
        time.sleep(0.02)
    raise CommandError(f"Nobody was waiting for the lock after {PATIENCE:g} s.")


def stocked(units: int) -> Product:
    """Make a product. Its key is random, and so is its lock's name, since the Redis may be
    shared."""
    return Product.objects.create(pk=secrets.randbits(40), name="lamp", stock=units)


def result(title: str, product: Product, units: int, seconds: float) -> Round:
    """Return the state of the database at the end."""
    product.refresh_from_db()
    return Round(title, units, product.orders.count(), product.stock, seconds)
