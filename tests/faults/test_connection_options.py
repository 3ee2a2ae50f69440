"""Options of CACHES that change how redis-py connects: what they mean for locks."""

from __future__ import annotations

import errno
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from redis import Connection, Redis

from devtools.redis_server import RedisServer
from django_redislock import LockUnavailable, redis_lock
from tests.caches import caches
from tests.contract.api import Api
from tests.faults.proxy import Fault, Proxy, command
from tests.faults.scene import ACQUIRE, FOR_EVER, Scene, eventually, through
from tests.waiting import PATIENCE

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
    say that Redis could not be reached in their own words."""
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


OPTIONS: dict[str, dict[str, Any]] = {
    "unknown": {"colour": "red"},
    "a text for seconds": {"socket_timeout": "5"},
    "less than no time": {"socket_timeout": -1},
    "a text for an interval": {"health_check_interval": "30"},
    "a list for a dictionary": {"socket_keepalive": True, "socket_keepalive_options": [1]},
    "a number for a list": {"retry_on_error": 3},
    "an object for a name": {"username": object(), "password": "secret"},
    "two that exclude each other": {"password": "secret", "credential_provider": object()},
    "no protocol": {"protocol": "three"},
}
"""Options of which redis-py makes no connection."""


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_wrong_option(
    api: Api, redis_server: RedisServer, settings: Any, options: dict[str, Any]
) -> None:
    """It is said at once, and not asked for again as if it could pass."""
    url = f"{redis_server.url}&client_name={'-'.join(options)}"
    settings.CACHES = caches(url, CONNECTION_POOL_KWARGS=options)
    says = "|".join(options) + "|look at LOCATION and OPTIONS of this server in CACHES"
    began = time.monotonic()
    with pytest.raises((LockUnavailable, ImproperlyConfigured), match=says):
        api.acquire(redis_lock("job", wait=PATIENCE, unavailable="run"))
    assert time.monotonic() - began < PATIENCE / 3


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "folder"])
def test_a_file_that_is_not_there(api: Api, settings: Any, tmp_path: Path, option: str) -> None:
    """Nor may a file for TLS be missing, or be no file."""
    files = {"ssl_certfile": tmp_path / "mine", "ssl_keyfile": tmp_path / "mine"}
    options: dict[str, Any] = {option: tmp_path / "missing"}
    if option == "folder":
        options = {"ssl_ca_certs": tmp_path}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        settings.CACHES = caches(
            f"rediss://127.0.0.1:{listening.getsockname()[1]}?client_name={option}",
            CONNECTION_POOL_KWARGS=(files if option in files else {}) | options,
        )
        began = time.monotonic()
        with pytest.raises(LockUnavailable, match="look at LOCATION and OPTIONS") as caught:
            api.acquire(redis_lock("job", wait=PATIENCE, unavailable="run"))
        assert not caught.value.passing
        assert time.monotonic() - began < PATIENCE / 3


@pytest.mark.parametrize(
    ("error", "passes", "away"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), True, True),
        (TimeoutError("timed out"), True, True),
        (OSError(errno.EHOSTUNREACH, "no route to host"), True, True),
        (OSError(errno.EMFILE, "too many open files"), True, False),
        (OSError("Multiple exceptions: refused, refused"), True, True),
        (ssl.SSLEOFError(8, "cut off"), True, True),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), True, True),
        (socket.gaierror(socket.EAI_NONAME, "no such host"), False, False),
        (socket.gaierror(socket.EAI_SERVICE, "no such port"), False, False),
        (FileNotFoundError(errno.ENOENT, "no such file"), False, False),
        (PermissionError(errno.EACCES, "not allowed"), False, False),
        (IsADirectoryError(errno.EISDIR, "a folder"), False, False),
        (OSError("AF_UNIX path too long"), False, False),
        (ssl.SSLCertVerificationError(1, "not accepted"), False, False),
    ],
    ids=repr,
)
def test_what_may_pass(
    monkeypatch: pytest.MonkeyPatch, settings: Any, error: OSError, passes: bool, away: bool
) -> None:
    """Trouble of the network is waited for; everything else that keeps a connection from being
    made is not. If this host can open no more files, nothing is known of Redis."""

    def connect(_: object) -> None:
        raise error

    settings.CACHES = caches(f"redis://localhost:1?client_name={id(error)}")
    monkeypatch.setattr(Connection, "_connect", connect)
    with pytest.raises(LockUnavailable) as caught:
        redis_lock("job").acquire(wait=0)
    assert (caught.value.passing, caught.value.away) == (passes, away)


def test_a_health_check_lost(checked: Scene) -> None:
    """It costs a second try, as any other lost message."""
    checked.release(checked.acquire())
    rule = checked.proxy.on(command("PING"), Fault.LOSE_REPLY)
    time.sleep(2 * INTERVAL)  # idle for long enough
    lease = checked.acquire(wait=5)
    assert rule.count == 1
    checked.release_last(lease)


def test_all_health_checks_lost(checked: Scene) -> None:
    """Redis could not be reached, so it says so, and nothing is left."""
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
