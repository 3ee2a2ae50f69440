"""Entries of CACHES of each backend that leads to one Redis."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_finished
from django.test import override_settings
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import LockNotAcquired, redis_lock
from django_redislock.doctor.caches import advice
from django_redislock.doctor.checks import check_deployment, check_settings
from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.server import server_of
from tests.cachex import INSTALLED, cachex
from tests.waiting import PATIENCE, eventually

DJANGO = "django.core.cache.backends.redis.RedisCache"
OURS = "django_redislock.cache.RedisCache"
VALKEY = "django_valkey.cache.ValkeyCache"

Entry = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _their_receivers() -> Iterator[None]:
    """django-valkey connects an asynchronous receiver when it is imported. With it, no response
    can be closed in an event loop, which other tests do."""
    before = [*request_finished.receivers]
    yield
    request_finished.receivers = before
    request_finished.sender_receivers_cache.clear()


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    """The server that all tests share, without a database."""
    return redis_server.url.partition("?")[0]


def entries(url: str) -> dict[str, dict[str, Any]]:
    """Entries that lead to database 0."""
    valkey = {"BACKEND": VALKEY, "OPTIONS": {"SOCKET_TIMEOUT": 5}}
    return {
        "django": {"BACKEND": DJANGO, "LOCATION": url},
        "ours": {"BACKEND": OURS, "LOCATION": [url]},
        "replicas": {"BACKEND": DJANGO, "LOCATION": f"{url},redis://replica.invalid"},
        "options": {
            "BACKEND": DJANGO,
            "LOCATION": url,
            "OPTIONS": {
                "db": 0,
                "pool_class": "redis.BlockingConnectionPool",
                "parser_class": redis_py.connection.DefaultParser,
                "serializer": "django.core.cache.backends.redis.RedisSerializer",
                "socket_timeout": 5,
                "max_connections": 20,
            },
        },
        "django-valkey": {**valkey, "LOCATION": url},
        "django-valkey, in databases": {
            **valkey,
            "LOCATION": [url],
            "OPTIONS": {"CONNECTION_POOL_KWARGS": {"db": 0}},
        },
        "django-cachex": {
            "BACKEND": cachex("Redis"),
            "LOCATION": [url],
            "OPTIONS": {
                "db": 0,
                "pool_class": "redis.BlockingConnectionPool",
                "max_connections": 20,
                "socket_timeout": 5,
                "compressor": "django_cachex.compressors.zlib.ZlibCompressor",
                "sentinels": [("nowhere.invalid", 1)],  # which this cache does not ask
            },
        },
        "django-cachex, by valkey": {"BACKEND": cachex("Valkey"), "LOCATION": url},
    }


@pytest.fixture(params=[*entries("")])
def _entry(request: pytest.FixtureRequest, url: str, settings: Any) -> Iterator[None]:
    if request.param.startswith("django-valkey"):
        pytest.importorskip("django_valkey")
    entry = entries(url)[request.param]
    settings.CACHES = {**settings.CACHES, "locks": entry}
    settings.REDISLOCK = {"USING": "locks"}
    yield
    server_of("locks").drop(watchdog(server_of("locks")))


@pytest.mark.usefixtures("_entry")
class TestEach:
    def test_it_excludes(self, redis: Redis) -> None:
        """A lock of it excludes the same lock by django-redis' entry, from threads and tasks."""

        async def task() -> None:
            async with redis_lock("job", wait=0):
                pass

        with redis_lock("job"):
            assert redis.exists("redislock:{job}")
            with pytest.raises(LockNotAcquired), redis_lock("job", using="default", wait=0):
                pass
            with pytest.raises(LockNotAcquired):
                asyncio.run(task())
        asyncio.run(task())
        assert not redis.exists("redislock:{job}")

    def test_waiters_are_woken(self, redis: Redis) -> None:
        fences: list[int] = []

        def waits() -> None:
            with redis_lock("job", wait=PATIENCE) as lease:
                fences.append(lease.fencing_token)

        thread = threading.Thread(target=waits)
        with redis_lock("job") as first:
            thread.start()
            eventually(lambda: redis.zcard("redislock:{job}:queue") == 1)
        thread.join(PATIENCE)
        assert fences > [first.fencing_token]

    def test_threads_share_a_pool(self) -> None:
        """Django keeps a pool for each thread; locks don't."""
        pools = []
        threads = [
            threading.Thread(target=lambda: pools.append(server_of("locks").shared_pool()))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(pool) for pool in pools}) == 1

    def test_checks(self) -> None:
        """Nothing is wrong, and the deployed server is asked."""
        assert check_settings() == []
        found = {message.id for message in check_deployment()}
        assert not found & {"redislock.E002", "redislock.E101"}


def test_another_database(url: str, settings: Any, redis: Redis) -> None:
    """The database in the OPTIONS counts, beside an entry with the same LOCATION."""
    third = {"BACKEND": DJANGO, "LOCATION": url, "OPTIONS": {"db": 3}}
    settings.CACHES = {**settings.CACHES, "third": third, "locks": {**third, "OPTIONS": {}}}
    with redis_lock("job", using="third"):
        with redis_lock("job", using="locks", wait=0):
            assert redis.exists("redislock:{job}")
        assert not redis.exists("redislock:{job}")
        assert server_of("third").address != server_of("locks").address


def test_shards_are_refused(url: str) -> None:
    pytest.importorskip("django_valkey")
    options = {"CLIENT_CLASS": "django_valkey.client.ShardClient"}
    refused({"BACKEND": VALKEY, "LOCATION": [url, url], "OPTIONS": options}, "one primary")


def test_objects_of_valkey_are_refused(url: str) -> None:
    pytest.importorskip("django_valkey")
    retry = pytest.importorskip("valkey.retry").Retry
    backoff = pytest.importorskip("valkey.backoff").NoBackoff
    options = {"CONNECTION_POOL_KWARGS": {"retry": retry(backoff(), 1)}}
    refused({"BACKEND": VALKEY, "LOCATION": url, "OPTIONS": options}, "'retry'.*redis-py")


@pytest.mark.parametrize("kind", ["LocMem", "ValkeyGlide"])
def test_other_caches_of_cachex_are_refused(kind: str) -> None:
    """They reach no Redis, or with a library and options of their own."""
    if INSTALLED and kind == "ValkeyGlide":
        pytest.importorskip("glide_sync")
    elif INSTALLED:
        pytest.importorskip("django_cachex.cache.locmem")  # from 0.4 on
    refused({"BACKEND": cachex(kind), "LOCATION": "redis://h"}, f"{kind}Cache of django-cachex")


def test_classes_of_valkey_are_refused() -> None:
    """They are named by their path, and not taken for those of redis-py."""
    pytest.importorskip("valkey")
    options = {"pool_class": "valkey.BlockingConnectionPool"}
    entry = {"BACKEND": cachex("Valkey"), "LOCATION": "valkey://h", "OPTIONS": options}
    refused(entry, "'pool_class'.*redis-py")


def refused(entry: dict[str, Any], why: str) -> None:
    with override_settings(CACHES={"default": entry}):
        with pytest.raises(ImproperlyConfigured, match=rf"CACHES\['default'\].*{why}"):
            redis_lock("job").acquire()
        assert [message.id for message in check_settings()] == ["redislock.E002"]


def test_a_valkey_url() -> None:
    """Its scheme means the same as that of Redis."""
    pytest.importorskip("django_valkey")
    entry = {"BACKEND": VALKEY, "LOCATION": "valkeys://user:secret@valkey.invalid:6380/2"}
    with override_settings(CACHES={"default": entry}):
        server = server_of("default")
        assert server.where == "valkey.invalid:6380"
        kwargs = server.shared_pool().connection_kwargs
        assert (kwargs["db"], kwargs["username"]) == (2, "user")
        assert "secret" not in server.address


def test_the_database_of_a_valkey_url(url: str, settings: Any) -> None:
    """It is told from that of another cache at the same server."""
    with_a_port = {"BACKEND": DJANGO, "LOCATION": "redis://valkey.invalid/2"}
    settings.CACHES = {
        "default": with_a_port,
        "locks": {"BACKEND": cachex("Valkey"), "LOCATION": "valkey://valkey.invalid/3"},
    }
    assert not [finding for finding in advice("locks") if finding.id == "redislock.W002"]
    settings.CACHES["locks"]["LOCATION"] = "valkey://valkey.invalid/2"
    assert [finding for finding in advice("locks") if finding.id == "redislock.W002"]


@pytest.mark.parametrize("through", ["Django", "django-cachex"])
def test_sentinels(through: str) -> None:
    """The name of a primary keeps its case, and TLS is not that of a server of this name."""
    options = {"sentinels": [("sentinel.invalid", 1)], "socket_timeout": 3}
    entry = {
        "BACKEND": DJANGO if through == "Django" else cachex("RedisSentinel"),
        "LOCATION": "rediss://user@Shop/2?is_master=0&socket_connect_timeout=1",
        "OPTIONS": options,
    }
    with override_settings(CACHES={"default": entry}):
        server = server_of("default")
        assert "primary" in server.where
        for pool in (server.shared_pool(), server.async_pool().factory):
            assert (pool.service_name, pool.is_master) == ("Shop", True)
            assert pool.connection_class.__name__ == "SentinelManagedSSLConnection"
            kwargs = pool.connection_kwargs
            assert (kwargs["db"], kwargs["username"]) == (2, "user")
            assert (kwargs["socket_timeout"], kwargs["socket_connect_timeout"]) == (3, 1)


@pytest.mark.parametrize("backend", [DJANGO, cachex("Redis")], ids=["Django", "django-cachex"])
def test_hints(backend: str, redis_server: RedisServer, settings: Any) -> None:
    """They have the names of the backend's own options."""
    options = {"max_connections": 3, "socket_timeout": 0.5, "socket_connect_timeout": 2}
    entry = {"BACKEND": backend, "LOCATION": redis_server.url, "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "locks": entry}
    settings.REDISLOCK = {"USING": "locks", "REPLICAS": 1}
    hints = {message.id: message.hint for message in check_deployment()}
    assert hints["redislock.W004"] == 'CACHES["locks"]["OPTIONS"] |= {"max_connections": 100}'
    assert hints["redislock.W005"] == 'CACHES["locks"]["OPTIONS"] |= {"socket_timeout": 5}'


class TestCacheLock:
    """`cache.lock()` of Django's own backend."""

    @pytest.fixture(autouse=True)
    def _entry(self, url: str, settings: Any) -> None:
        entry = {"BACKEND": OURS, "LOCATION": url, "KEY_PREFIX": "shop"}
        settings.CACHES = {**settings.CACHES, "own": entry}

    def test_it_locks_the_key(self, redis: Redis) -> None:
        """The key is made as that of a value, and redis-py's own lock excludes it."""
        lock = caches["own"].lock("import", timeout=60)
        with lock:
            assert lock.owned()
            assert redis.exists("shop:1:import")
            assert not redis.lock("shop:1:import", timeout=5).acquire(blocking=False)
            again = caches["own"].lock("import", blocking_timeout=0.1)
            assert not again.acquire()
        assert not redis.exists("shop:1:import")
        assert caches["own"].get("import") is None, "it is still a cache"

    def test_it_is_renewed(self, redis: Redis) -> None:
        """Without a timeout it has a lease of its process."""
        with caches["own"].lock("import", version=2):
            assert 0 < redis.pttl("shop:2:import") <= 30_000

    def test_threads_share_a_pool(self) -> None:
        """`caches` has one backend for each thread."""
        clients: list[Any] = []
        thread = threading.Thread(target=lambda: clients.append(caches["own"].lock("x").redis))
        thread.start()
        thread.join()
        assert clients[0].connection_pool is caches["own"].lock("x").redis.connection_pool
