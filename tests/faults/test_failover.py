"""Replication: what `REPLICAS` refuses, and a failover that loses a lease all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from django.db import transaction
from redis import Redis

from devtools.redis_sentinel import RedisSentinels
from devtools.redis_server import RedisServer
from django_redislock import LeaseLost, LeaseState, LockUnavailable, redis_lock
from django_redislock.fencing import StaleLease
from tests.caches import caches, through
from tests.contract.api import Api
from tests.faults.proxy import Proxy
from tests.models import Product
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"


class Pair(NamedTuple):
    """A primary and its replica, with a cable in between that can be cut."""

    primary: RedisServer
    replica: RedisServer
    cable: Proxy

    def in_step(self) -> bool:
        """The replica follows."""
        with Redis.from_url(self.replica.url) as redis:
            return bool(redis.info("replication")["master_link_status"] == "up")

    def cut(self) -> None:
        self.cable.cut()
        eventually(lambda: self.cable.open == 0)

    def mend(self) -> None:
        self.cable.mend()
        eventually(self.in_step)


@pytest.fixture
def pair(settings: Any) -> Iterator[Pair]:
    """Everybody works on the primary."""
    delay = ["--repl-diskless-sync-delay", "0"]
    with RedisServer(tcp_port=0, args=delay) as primary, Proxy(primary) as cable:
        options = [
            *("--replicaof", "127.0.0.1", str(cable.port)),
            *("--replica-announce-ip", "127.0.0.1"),
        ]
        with RedisServer(tcp_port=0, args=options) as replica:
            settings.CACHES = caches(primary.url, SOCKET_TIMEOUT=2 * PATIENCE)
            pair = Pair(primary, replica, cable)
            eventually(pair.in_step)
            yield pair


def test_a_confirmed_lease_is_on_the_replica(pair: Pair, api: Api) -> None:
    """When acquire returns, the replica has it; and so with each renewal."""
    lease = api.acquire(redis_lock("job", ttl=30, replicas=1))
    with Redis.from_url(pair.replica.url) as replica:
        assert replica.get(KEY).decode().startswith(lease.token)
        api.extend(lease, 600)
        assert replica.pttl(KEY) > 500_000
    api.release(lease)


def test_a_lease_that_no_replica_confirms_is_refused(pair: Pair, api: Api) -> None:
    """The acquire fails, and is undone: nobody waits for a ttl."""
    pair.cut()
    with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
        api.acquire(redis_lock("job", replicas=1), wait=0)
    with Redis.from_url(pair.primary.url) as redis:
        assert not redis.exists(KEY, f"{KEY}:queue")
    api.release(api.acquire(redis_lock("job"), wait=0))


def test_a_replica_that_comes_back_is_waited_for(pair: Pair, api: Api) -> None:
    """As long as `wait` lasts, like for a Redis that is away."""
    pair.cut()
    waiter = api.start(lambda: api.acquire(redis_lock("job", replicas=1), wait=PATIENCE))
    with Redis.from_url(pair.primary.url) as redis:
        eventually(lambda: redis.exists(KEY))
    assert not waiter.done()
    pair.mend()
    lease = waiter.result(PATIENCE)
    assert lease.state == LeaseState.HELD
    api.release(lease)


def test_a_replica_that_takes_its_time(pair: Pair, api: Api) -> None:
    """It has `replicas_timeout` seconds, and the lock is asked for once."""
    pair.cut()
    lock = redis_lock("job", replicas=1, replicas_timeout=PATIENCE)
    first = api.start(lambda: api.acquire(lock, wait=0))
    with Redis.from_url(pair.primary.url) as redis:
        eventually(lambda: redis.exists(KEY))
    pair.mend()
    api.release(first.result(PATIENCE))


def test_a_renewal_that_no_replica_confirms(pair: Pair, api: Api) -> None:
    """The lease is unknown until one does."""
    lease = api.acquire(redis_lock("job", ttl=30, replicas=1))
    pair.cut()
    with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
        api.extend(lease)
    assert lease.state == LeaseState.UNKNOWN
    lease.check()
    pair.mend()
    eventually(lambda: lease.state == LeaseState.HELD)
    api.release(lease)


def test_a_lease_that_no_replica_confirms_any_more(pair: Pair, api: Api) -> None:
    """It is lost at its own deadline, although the primary has it: a failover could bring
    another holder from then on. What the primary has is released nevertheless."""
    lease = api.acquire(redis_lock("job", ttl=1.5, replicas=1))
    pair.cut()
    eventually(lambda: lease.state == LeaseState.LOST)
    with pytest.raises(LeaseLost):
        api.release(lease)
    with Redis.from_url(pair.primary.url) as redis:
        assert not redis.exists(KEY)


def test_one_replica_too_few(pair: Pair) -> None:
    """All that are asked for have to confirm."""
    with redis_lock("job", replicas=1):
        pass
    with pytest.raises(LockUnavailable, match="1 of 2 replicas"):
        redis_lock("job", replicas=2).acquire(wait=0)


@pytest.mark.django_db(transaction=True)
def test_a_failover_that_loses_a_lease(pair: Pair, api: Api, settings: Any) -> None:
    """Two believe that they hold the lock. The first one learns it at its next renewal, and its
    late write is refused by the row, which has seen a newer fencing token."""
    product = Product.objects.create(name="lamp", stock=10)
    with RedisSentinels(pair.primary, number=1) as sentinels:
        settings.CACHES = through(sentinels, timeout=0.5)
        pair.cut()
        first = api.acquire(redis_lock("job", ttl=600))
        assert Product.objects.fenced(first).get(pk=product.pk).stock == 10

        assert pair.primary.pid is not None
        os.kill(pair.primary.pid, signal.SIGSTOP)
        try:
            second = api.start(
                lambda: api.acquire(redis_lock("job", ttl=600), wait=2 * PATIENCE)
            ).result(3 * PATIENCE)
            assert first.state == second.state == LeaseState.HELD

            assert second.fencing_token > first.fencing_token
            seen = Product.objects.fenced(second).get(pk=product.pk)
            with transaction.atomic(), pytest.raises(StaleLease):
                Product.objects.fenced(first).filter(pk=product.pk).update(stock=9)
            seen.stock -= 3
            seen.save(lease=second)
            product.refresh_from_db()
            assert product.stock == 7
            api.release(second)
        finally:
            os.kill(pair.primary.pid, signal.SIGCONT)


@pytest.mark.parametrize("asks", ["itself", "watchdog"])
def test_the_first_holder_learns_of_a_failover(
    pair: Pair, api: Api, settings: Any, asks: str
) -> None:
    """At its next renewal, by whom that ever is: the new primary does not know its lease."""
    with RedisSentinels(pair.primary, number=1) as sentinels:
        settings.CACHES = through(sentinels, timeout=0.5)
        pair.cut()
        lease = api.acquire(redis_lock("job", ttl=600 if asks == "itself" else 9))
        pair.primary.stop()
        eventually(lambda: sentinels.agree_on(pair.replica))

        def told() -> bool:
            if asks == "watchdog":
                return lease.state == LeaseState.LOST
            try:
                api.extend(lease)
            except LockUnavailable:
                return False
            except LeaseLost:
                return True
            raise AssertionError("renewed where it is not known")

        eventually(told)
        assert lease.remaining() == 0
