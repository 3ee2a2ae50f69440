"""Every way in which a CACHES entry can describe a server, for sync and async alike."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import django_redis
import pytest
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from redis import ConnectionPool, Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ReadOnlyError, ResponseError
from redis.retry import Retry

from devtools.redis_sentinel import RedisSentinels
from devtools.redis_server import (
    NoRedisServer,
    RedisServer,
    RedisServerError,
    find_server,
    free_port,
)
from django_redislock import LockUnavailable, redis_lock
from django_redislock.primitives.contract import run
from django_redislock.transport import command
from django_redislock.transport.loans import lines_of
from django_redislock.transport.protocol import Command, is_last, pack, reader
from django_redislock.transport.server import server_of
from tests.caches import caches as entries
from tests.caches import entry
from tests.cachex import cachex
from tests.faults.interruption import KINDS, OURS, every_place
from tests.lines import missing
from tests.waiting import PATIENCE, eventually


def server(**options: Any) -> RedisServer:
    """A server with options of its own; skipped where only an external one is to be used."""
    wanted = os.environ.get("REDISLOCK_SERVER", "")
    try:
        found = find_server({**os.environ, "REDISLOCK_SERVER": "" if "://" in wanted else wanted})
    except NoRedisServer as error:
        pytest.skip(str(error))
    return RedisServer(found, **options)


def lock_and_wait() -> list[str]:
    """Lock, wait, be woken and release, sync and async. Returns the names that were held."""
    names = []

    async def asynchronous() -> None:
        async with redis_lock("async", wait=5):
            waiter = asyncio.create_task(redis_lock("async").aacquire(wait=PATIENCE))
            while (holder := await redis_lock("async").aholder()) is None or waiter.done():
                await asyncio.sleep(0)
            assert holder.owner
        lease = await waiter
        names.append(lease.name)
        await lease.aextend()
        await lease.arelease()

    with redis_lock("sync", wait=5) as lease:
        lease.extend()
        names.append(lease.name)
    asyncio.run(asynchronous())
    return names


@pytest.fixture(scope="module")
def tcp() -> Iterator[RedisServer]:
    """A server with TCP, a password, and a user."""
    with server(
        tcp_port=0,
        args=[
            "--requirepass",
            "open sesame",
            "--user",
            "shop",
            "on",
            ">secret",
            "~*",
            "&*",
            "+@all",
        ],
    ) as running:
        yield running


def test_unix_socket(redis: Redis) -> None:
    """The tests' own server is one."""
    assert server_of("default").address.startswith("unix://")
    assert lock_and_wait() == ["sync", "async"]


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "a password": ("127.0.0.1:{}/0", {"PASSWORD": "open sesame"}),
    "a user": ("127.0.0.1:{}/1", {"USERNAME": "shop", "PASSWORD": "secret"}),
    "a user in the URL": ("shop:secret@127.0.0.1:{}/2", {}),
    "RESP3": (":open%20sesame@127.0.0.1:{}/5", {"CONNECTION_POOL_KWARGS": {"protocol": 3}}),
}


@pytest.mark.parametrize("way", WAYS)
def test_tcp(tcp: RedisServer, way: str) -> None:
    """As django-redis has it, in OPTIONS or in the URL."""
    if way == "a user" and django_redis.VERSION < (7,):
        pytest.skip("USERNAME is new in django-redis 7")
    url, options = WAYS[way]
    with override_settings(CACHES=entries(f"redis://{url.format(tcp.tcp_port)}", **options)):
        assert lock_and_wait() == ["sync", "async"]


def test_pool_options(tcp: RedisServer) -> None:
    """Whatever CONNECTION_POOL_KWARGS may hold: a retry policy, decoded answers, a client name,
    time-outs."""
    pool = {
        "max_connections": 5,
        "retry": Retry(ConstantBackoff(0.01), 2),
        "decode_responses": True,
        "client_name": "the-shop",
        "health_check_interval": 30,
        "socket_keepalive": True,
    }
    url = f"redis://:open%20sesame@127.0.0.1:{tcp.tcp_port}/3"
    options = {"SOCKET_TIMEOUT": 3, "SOCKET_CONNECT_TIMEOUT": 2, "CONNECTION_POOL_KWARGS": pool}
    with override_settings(CACHES=entries(url, **options)):
        assert lock_and_wait() == ["sync", "async"]
        factory = server_of("default").async_pool().factory
        kwargs = factory.connection_kwargs
        assert (kwargs["socket_timeout"], kwargs["socket_connect_timeout"]) == (3, 2)
        assert (kwargs["client_name"], kwargs["db"]) == ("the-shop", 3)
        assert factory.max_connections == 5


def test_a_blocking_pool(tcp: RedisServer) -> None:
    """The synchronous pool class of the project has its asynchronous twin."""
    url = f"redis://:open%20sesame@127.0.0.1:{tcp.tcp_port}/6"
    options = {
        "CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool",
        "CONNECTION_POOL_KWARGS": {"max_connections": 2, "timeout": 7},
    }
    with override_settings(CACHES=entries(url, **options)):
        assert lock_and_wait() == ["sync", "async"]


def hopeless(match: str) -> None:
    """It fails at once, although there is much time to wait."""
    began = time.monotonic()
    with pytest.raises(LockUnavailable, match=match) as caught:
        redis_lock("sync", wait=PATIENCE).acquire()
    assert not caught.value.passing
    with pytest.raises(LockUnavailable, match=match):
        asyncio.run(redis_lock("async", wait=PATIENCE).aacquire())
    assert time.monotonic() - began < PATIENCE / 2


def test_a_host_that_is_unknown() -> None:
    """No name server knows it, and waiting does not change that."""
    with override_settings(CACHES=entries("redis://redislock.invalid:6379/0")):
        hopeless("redislock.invalid")


@pytest.mark.parametrize(
    ("scheme", "says", "match"),
    [
        ("rediss", b"-ERR unknown command\r\n", "(?i)ssl"),
        ("redis", b"\x15\x03\x03\x00\x02\x02\x46\r\n", "InvalidResponse"),
    ],
)
def test_tls_at_one_end_only(scheme: str, says: bytes, match: str) -> None:
    """What answers does not speak as LOCATION says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    client.recv(1000)
                    client.sendall(says)
                    client.close()

        threading.Thread(target=answer, daemon=True).start()
        with override_settings(
            CACHES=entries(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}")
        ):
            hopeless(match)
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <coroutine object:pytest.PytestUnraisableExceptionWarning"
)
def test_tls(tmp_path: Path) -> None:
    """rediss://, with a certificate that is checked."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    make += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    make += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    port = free_port()
    args = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    args += ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    args += ["--tls-ca-cert-file", str(certificate)]
    try:
        running = server(args=args)
        running.start()
    except RedisServerError as error:
        pytest.skip(f"this server was built without TLS: {error}")
    try:
        pool = {"ssl_ca_certs": str(certificate), "ssl_cert_reqs": "required"}
        url = f"rediss://127.0.0.1:{port}/0"
        with override_settings(CACHES=entries(url, CONNECTION_POOL_KWARGS=pool)):
            assert lock_and_wait() == ["sync", "async"]
        # Another URL, since django-redis keeps one pool per URL, whatever the options.
        with override_settings(CACHES=entries(url.replace("/0", "/1"))):
            hopeless(r"(?i)certificate")
        interrupted(ConnectionPool.from_url(url, **pool, socket_timeout=PATIENCE))
    finally:
        running.stop()


def interrupted(pool: ConnectionPool) -> None:
    """An exception from outside that comes while a line is borrowed and used goes through, and the
    pool has all its connections afterwards."""

    ping = Command(pack(("PING",)))

    def act(_: int) -> None:
        assert run(command.carry_out(lines_of(pool), ping)) == b"PONG"

    act(0)
    places = list(every_place(act, kinds=KINDS, folders=[OURS]))
    assert len(places) > 10
    assert not [f"{place}: {place.instead}" for place in places if place.instead]
    eventually(lambda: not missing(pool))
    pool.disconnect()


THROUGH_SENTINELS = {
    "django-redis": {
        "BACKEND": "django_redis.cache.RedisCache",
        "OPTIONS": {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
        },
    },
    "Django": {"BACKEND": "django.core.cache.backends.redis.RedisCache"},
    "django-cachex": {"BACKEND": cachex("RedisSentinel")},
}


@pytest.mark.parametrize("through", THROUGH_SENTINELS.values(), ids=THROUGH_SENTINELS)
def test_sentinel(through: dict[str, Any]) -> None:
    """Sync, async, inbox and watchdog find the primary."""
    with (
        server(tcp_port=0) as primary,
        RedisSentinels(primary, number=1, replicas=0) as sentinels,
    ):
        name = "SENTINELS" if "OPTIONS" in through else "sentinels"
        options = {**through.get("OPTIONS", {}), name: sentinels.addresses}
        its = {**through, "LOCATION": f"redis://{sentinels.service}/0", "OPTIONS": options}
        with override_settings(CACHES={"default": its}):
            assert lock_and_wait() == ["sync", "async"]
            with redis_lock("renewed", ttl=0.3) as lease:
                with Redis.from_url(primary.url) as client:
                    score = client.pexpiretime("redislock:{renewed}")
                    eventually(lambda: client.pexpiretime("redislock:{renewed}") > score)
                lease.check()


class TestRedisAway:
    """Redis being away is LockUnavailable, with the original error as its cause."""

    @pytest.fixture
    def gone(self) -> Iterator[RedisServer]:
        with server() as running, override_settings(CACHES=entries(running.url)):
            yield running

    def test_at_acquire(self, gone: RedisServer) -> None:
        """The body does not run."""
        gone.stop()
        with pytest.raises(
            LockUnavailable, match=r"could not be reached while locking 'job'"
        ) as caught:
            with redis_lock("job", wait=0):
                pytest.fail("ran without the lock")
        assert isinstance(caught.value.__cause__, Exception)

        async def main() -> None:
            async with redis_lock("job", wait=0):
                pytest.fail("ran without the lock")

        with pytest.raises(LockUnavailable):
            asyncio.run(main())

    def test_it_is_waited_for(self, gone: RedisServer) -> None:
        """A Redis that comes back within `wait` is no error."""
        gone.stop()
        with ThreadPoolExecutor() as threads:
            waiter = threads.submit(lambda: redis_lock("job").acquire(wait=PATIENCE))
            with pytest.raises(TimeoutError):
                waiter.result(0.2)  # it has been refused by then, and is still waiting
            gone.start()
            lease = waiter.result(PATIENCE)
        lease.check()
        lease.release()

    def test_at_release(self, gone: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
        """What was done under the lock was done: leaving the block doesn't raise. An explicit
        release does, and may be repeated."""
        with redis_lock("job", ttl=30):
            gone.stop()
        assert "'job' is released later" in caplog.text
        gone.start()
        lease = redis_lock("job", wait=0).acquire()
        gone.stop()
        with pytest.raises(LockUnavailable):
            lease.release()
        assert lease.state != "released"
        with pytest.raises(LockUnavailable):
            lease.release()


def test_wrong_password_is_no_reason_to_wait(tcp: RedisServer) -> None:
    """It will not get better: LockUnavailable at once, although the wait is long."""
    caches_entry = entries(f"redis://127.0.0.1:{tcp.tcp_port}/4", PASSWORD="wrong")
    with override_settings(CACHES=caches_entry):
        with pytest.raises(LockUnavailable, match=r"(?i)AuthenticationError|WRONGPASS|password"):
            redis_lock("job", wait=None).acquire()


def answer_of(seen: str) -> Any:
    """What is read from these bytes."""
    its = reader()
    its.feed(seen.encode())
    return its.gets()


def test_a_replica_of_redis_62() -> None:
    """It says within a sentence about the script that it is one; that connection is not kept."""
    text = (
        "Error running script (call to f_cee68787): @user_script:200: @user_script: 200: "
        "-READONLY You can't write against a read only replica."
    )
    error = answer_of(f"-{text}\r\n")
    assert isinstance(error, ReadOnlyError)
    assert is_last(error)
    other = answer_of("-Error running script: -WRONGTYPE Operation against a key\r\n")
    assert type(other) is ResponseError
    assert not is_last(other)


def test_two_aliases_that_differ_only_in_their_options() -> None:
    """django-redis would let them share a pool, and so a database: that is refused."""
    one = entry(os.environ["REDISLOCK_TEST_URL"])
    third = {**one, "OPTIONS": {"CONNECTION_POOL_KWARGS": {"db": 3}}}
    with override_settings(CACHES={"default": one, "locks": third}):
        with pytest.raises(ImproperlyConfigured, match=r"'locks'.*'default'.*same LOCATION"):
            redis_lock("job", using="locks").acquire()
    with override_settings(CACHES={"default": one, "same": one}):
        with redis_lock("job", using="same"):
            pass


def test_another_encoding(redis: Redis) -> None:
    """The encoding of a cache's values is none of our keys' business."""
    location = os.environ["REDISLOCK_TEST_URL"] + "&encoding=latin-1"
    redis.script_flush()
    with override_settings(
        CACHES=entries(location, CONNECTION_POOL_KWARGS={"encoding": "latin-1"})
    ):
        with redis_lock("Rechnung Ł"):
            assert redis.exists("redislock:{Rechnung Ł}")


def test_a_sharded_client_is_refused() -> None:
    """Its locks would live on several servers."""
    options = {"CLIENT_CLASS": "django_redis.client.ShardClient"}
    with override_settings(CACHES=entries("redis://127.0.0.1:1/0", **options)):
        assert caches["default"]
        with pytest.raises(ImproperlyConfigured, match="ShardClient; locks need one primary"):
            redis_lock("job").acquire()


def test_a_backend_that_is_not_there() -> None:
    """It is said what can't be imported, and not that the alias is missing."""
    entry_of_it = {"BACKEND": "django_redis.cash.RedisCache", "LOCATION": "redis://127.0.0.1:1"}
    with override_settings(CACHES={"default": entry_of_it}):
        with pytest.raises(
            ImproperlyConfigured, match=r"CACHES\['default'\]: .*django_redis\.cash"
        ):
            redis_lock("job").acquire()


def test_a_location_that_is_no_url() -> None:
    """It is said what to write; without what stands there, which may be a password."""
    with override_settings(CACHES=entries("user:secret@localhost:6379")):
        with pytest.raises(ImproperlyConfigured, match=r"'LOCATION'\] must be a URL") as caught:
            redis_lock("job").acquire()
    assert "secret" not in str(caught.value)
