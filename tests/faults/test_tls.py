"""TLS with certificates at both ends: `rediss://` and `tls-auth-clients yes`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer, RedisServerError, find_server, free_port
from django_redislock import LeaseState, LockUnavailable, redis_lock
from tests.caches import caches
from tests.contract.api import Api, extended, queued
from tests.faults.tls import Authority
from tests.recovery import Recovery
from tests.waiting import PATIENCE, eventually

numbers = itertools.count(1)

SOON = 10.0
"""Seconds, far less than a caller would wait."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def mine(authority: Authority) -> tuple[Path, Path]:
    """The certificate of this process, and its key."""
    return authority.sign("client")


@pytest.fixture
def secure(authority: Authority, mine: tuple[Path, Path]) -> Iterator[RedisServer]:
    """A server that wants a certificate. Tests look at it over its Unix socket."""
    if find_server().binary is None:
        pytest.skip("needs a server of its own, and REDISLOCK_SERVER is a URL")
    certificate, key = authority.sign("server")
    args = ["--tls-port", str(free_port()), "--tls-auth-clients", "yes"]
    args += ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    args += ["--tls-ca-cert-file", str(authority.certificate)]
    server = RedisServer(args=args)
    try:
        server.start()
    except RedisServerError as error:
        pytest.skip(f"this server was built without TLS: {error}")
    yield server
    server.stop()


def entry(server: RedisServer, authority: Authority, *mine: Path) -> dict[str, Any]:
    """`CACHES` with the certificate `mine` and its key, or without."""
    port = server._args[1]
    pool: dict[str, Any] = {"ssl_ca_certs": str(authority.certificate)}
    if mine:
        pool["ssl_certfile"], pool["ssl_keyfile"] = map(str, mine)
    # Pools are remembered by URL.
    url = f"rediss://127.0.0.1:{port}/0#{next(numbers)}"
    return caches(url, CONNECTION_POOL_KWARGS=pool)


def test_a_certificate_of_the_client(
    secure: RedisServer, authority: Authority, mine: tuple[Path, Path], api: Api, settings: Any
) -> None:
    """A lock is acquired, a waiter is woken, and a lease is renewed."""
    settings.CACHES = entry(secure, authority, *mine)
    with Redis.from_url(secure.url) as redis:
        lease = api.acquire(redis_lock("job", ttl=9))
        waiter = api.start(lambda: api.acquire(redis_lock("job", ttl=60), wait=None))
        queued(redis, "job")
        eventually(lambda: redis.pubsub_channels("redislock:inbox:*"))
        eventually(lambda: redis.pttl("redislock:{job}") < 8000)
        eventually(lambda: redis.pttl("redislock:{job}") > 8000)
        assert lease.state == LeaseState.HELD
        assert redis.get("redislock:{job}").decode().startswith(lease.token)
        api.release(lease)
        following = waiter.result(PATIENCE)
        assert following.fencing_token > lease.fencing_token
        api.release(following)


@pytest.mark.parametrize("which", ["none", "another authority's"])
def test_a_certificate_that_is_not_accepted(
    secure: RedisServer,
    authority: Authority,
    which: str,
    api: Api,
    settings: Any,
    tmp_path: Path,
) -> None:
    """It is an error at once, although there is time to wait."""
    certificates = () if which == "none" else Authority(tmp_path, "another").sign("stranger")
    settings.CACHES = entry(secure, authority, *certificates)
    began = time.monotonic()
    with pytest.raises(LockUnavailable, match=r"(?i)ssl|certificate|alert") as caught:
        api.acquire(redis_lock("job"), wait=2 * PATIENCE)
    assert not caught.value.passing
    assert time.monotonic() - began < SOON


FAULT = "the server restarts, TLS with client certificates"


@pytest.mark.recovery
def test_a_restart(
    secure: RedisServer,
    authority: Authority,
    mine: tuple[Path, Path],
    api: Api,
    settings: Any,
    recovery: Recovery,
) -> None:
    """All kinds of connections are made again."""
    settings.CACHES = entry(secure, authority, *mine)
    lease = api.acquire(redis_lock("job", ttl=60))
    waiter = api.start(lambda: api.acquire(redis_lock("job", ttl=60), wait=None))
    with Redis.from_url(secure.url) as redis:
        queued(redis, "job")
    secure.stop()
    assert not extended(api, lease)
    secure.start()
    recovery.begins()
    # It comes up empty: the waiter finds the lock free.
    following = waiter.result(PATIENCE)
    recovery.done(FAULT, "a waiter has a lock that is free", within=SOON)
    other = api.acquire(redis_lock("other"), wait=PATIENCE)
    recovery.done(FAULT, "a free lock is acquired", within=SOON)
    with Redis.from_url(secure.url) as redis:
        eventually(lambda: redis.pubsub_channels("redislock:inbox:*"))
    recovery.done(FAULT, "waiters are woken by messages", within=SOON)
    api.release(other)
    api.release(following)
