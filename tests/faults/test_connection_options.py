"""Options of CACHES that change how redis-py connects: what they mean for locks."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import LockUnavailable
from tests.contract.api import Api
from tests.faults.proxy import Fault, Proxy, command
from tests.faults.scene import ACQUIRE, FOR_EVER, Scene, eventually, through

INTERVAL = 0.1
"""Seconds without a command after which a connection has to answer a PING first."""


@pytest.fixture
def checked(
    api: Api, proxy: Proxy, redis: Redis, redis_server: RedisServer, settings: Any
) -> Scene:
    """A scene whose connections check their health."""
    scene = Scene(api, proxy, redis)
    settings.CACHES = through(
        proxy, redis_server, scene, CONNECTION_POOL_KWARGS={"health_check_interval": INTERVAL}
    )
    return scene


def test_a_client_of_one_connection(
    api: Api, proxy: Proxy, redis: Redis, redis_server: RedisServer, settings: Any
) -> None:
    """`single_connection_client` is for the cache: locks take connections from its pool, and
    say that Redis could not be asked in their own words."""
    scene = Scene(api, proxy, redis)
    settings.CACHES = through(
        proxy, redis_server, scene, REDIS_CLIENT_KWARGS={"single_connection_client": True}
    )
    proxy.cut()
    with pytest.raises(LockUnavailable):
        scene.acquire(wait=0)
    before = proxy.connected
    waiter = scene.start(wait=20)
    eventually(lambda: proxy.connected > before + 1)
    proxy.mend()
    scene.release_last(scene.got(waiter))


def test_a_health_check_lost(checked: Scene) -> None:
    """It costs a second try, as any other lost message."""
    checked.release(checked.acquire())
    rule = checked.proxy.on(command("PING"), Fault.LOSE_REPLY)
    time.sleep(2 * INTERVAL)  # idle for long enough
    lease = checked.acquire(wait=5)
    assert rule.count == 1
    checked.release_last(lease)


def test_all_health_checks_lost(checked: Scene) -> None:
    """Redis could not be asked, so it says so, and nothing is left."""
    held = checked.acquire_direct()
    checked.release(held)
    checked.release(checked.acquire())
    rule = checked.proxy.on(command("PING"), Fault.LOSE_REPLY, times=FOR_EVER)
    rest = checked.proxy.on(ACQUIRE, Fault.LOSE_REQUEST, times=FOR_EVER)
    time.sleep(2 * INTERVAL)
    with pytest.raises(LockUnavailable):
        checked.acquire(wait=0)
    assert rule.count
    rule.let_go()
    rest.let_go()
    checked.is_free(after=held)


def test_a_waiter_whose_connections_check_their_health(checked: Scene) -> None:
    """Its inbox hears between the answers to the checks, and does not take them for silence."""
    held = checked.acquire_direct()
    waiter = checked.start()
    checked.queued(1)
    eventually(checked.listening)
    listeners = {client["id"] for client in checked.redis.client_list(_type="pubsub")}
    pings = checked.redis.info("commandstats")["cmdstat_ping"]["calls"]
    eventually(lambda: checked.redis.info("commandstats")["cmdstat_ping"]["calls"] > pings + 1)
    still = {client["id"] for client in checked.redis.client_list(_type="pubsub")}
    assert listeners <= still, "somebody has opened a new connection"
    checked.release(held)
    checked.release_last(checked.got(waiter))
