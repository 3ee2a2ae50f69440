"""What is where on a cluster, and what locks do there and on other sharded servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from io import StringIO

from django.core.management import call_command

from devtools.redis_cluster import RedisCluster
from devtools.redis_server import RedisServer
from django_redislock import (
    Lease,
    ReadWriteLock,
    Semaphore,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.inspection import Inspector, Kind, State
from tests.contract.api import Api
from tests.waiting import PATIENCE, eventually

NAMES = [f"invoice:{number}" for number in range(12)]
"""They are spread over all nodes, and over both parts."""


def name_at(cluster: RedisCluster, node: RedisServer, *, start: int = 0) -> str:
    """A name whose lock is on that node: the first one from this number on."""
    names = (f"job:{number}" for number in range(start, start + 1000))
    return next(name for name in names if cluster.owner(f"redislock:{{{name}}}") is node)


def waiting(number: int, name: str = "job") -> None:
    """Wait until so many wait for a lock."""
    eventually(lambda: len(Inspector().waiters(name)) == number)


def hold_each(api: Api, names: list[str]) -> None:
    """Hold each lock twice: it is refused to others, and its fencing tokens grow."""
    for name in names:
        first = api.acquire(redis_lock(name), wait=0)
        assert api.start(lambda n=name: api.acquire(redis_lock(n), wait=0)).result() is None
        assert api.holder(redis_lock(name)).fencing_token == first.fencing_token
        api.extend(first, 60)
        api.release(first)
        second = api.acquire(redis_lock(name), wait=0)
        assert second.fencing_token > first.fencing_token
        api.release(second)


def killed_waiters(cluster: RedisCluster, lease: Lease, number: int, inbox: str) -> None:
    """Let so many wait for a lock of which nobody listens at their inbox."""
    keys = lease._claim.keys
    node, now_us = cluster.owner(keys.lock), int(time.time() * 1e6)
    for each in range(number):
        token, says = f"{each:032x}", f"{now_us}|600000|{inbox}|web3:1:x|job.py:1"
        cluster.call(node, "ZADD", keys.queue, now_us + each, token)
        cluster.call(node, "HSET", keys.waiters, token, says)


def do_once(api: Api) -> None:
    """The second one finds it done, or what the first has computed or written."""
    runs: list[object] = []
    for _ in range(2):
        api.enter(once("warm", ttl=60), lambda first: first and runs.append("warm"))
    rates = single_flight("rates:{arguments[0]}", ttl=60)(
        api.function(lambda currency: runs.append(currency) or 42)
    )
    assert [api.call(rates, "EUR"), api.call(rates, "EUR")] == [42, 42]
    assert runs == ["warm", "EUR"]
    assert [api.initialise("secret", value) for value in ("a", "b")] == ["a", "a"]


def inspect(api: Api, write: Callable[[str, str], object], forget: Callable[[], object]) -> None:
    """All locks are found, wherever they are, with their waiters; also what others left, which is
    what `write` does. `forget` comes before each look."""
    leases = [api.acquire(redis_lock(name, ttl=30 + at)) for at, name in enumerate(NAMES)]
    waiter = api.start(lambda: api.acquire(redis_lock(NAMES[0]), wait=PATIENCE))
    waiting(1, NAMES[0])
    several = [
        api.acquire(lock)
        for lock in (Semaphore("rates", 2, ttl=300), ReadWriteLock("stock", ttl=300).read())
    ]
    write("redislock:{left}", "by somebody")

    for look, found in (
        (lambda: [lock.name for lock in Inspector().page(limit=5).items], NAMES[:5]),
        (lambda: Inspector().page().total, len(NAMES) + 2),
        (lambda: Inspector().counts().total, len(NAMES) + 2),
        (lambda: Inspector().counts().waiters, 1),
        (
            lambda: [lock.name for lock in Inspector().all("*:1*")],
            [NAMES[at] for at in (1, 10, 11)],
        ),
        (lambda: [lock.name for lock in Inspector().discover()], ["left"]),
        (lambda: len(list(Inspector().held(NAMES))), len(NAMES)),
        (lambda: Inspector().get(NAMES[0]).waiters, 1),
        (lambda: {lock.state for lock in Inspector().all()}, {State.HELD}),
        (lambda: list(Inspector(cache_locks=True).all()), []),
    ):
        forget()
        assert look() == found
    kinds = {lock.name: lock.kind for lock in Inspector().all() if lock.name not in NAMES}
    assert kinds == {"rates": Kind.SEMAPHORE, "stock": Kind.READ}
    forget()
    out = StringIO()
    call_command("redislock", "list", stdout=out)
    assert all(name in out.getvalue() for name in NAMES)
    api.clear(redis_lock(NAMES[0]), by="ann", reason="stuck")
    api.release(waiter.result(PATIENCE))
    for lease in [*leases[1:], *several]:
        api.release(lease)
    assert Inspector().page().total == 0
