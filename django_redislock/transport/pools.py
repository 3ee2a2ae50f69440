"""Pools of connections, made from an entry of CACHES or from a redis-py client.

A server has three kinds of connections. Synchronous callers use the pool of the project's cache.
Work in the background has a pool of its own, so that a busy or exhausted pool can't keep a lease
from being renewed. The tasks of an event loop share one connection (`multiplexed`). For a cluster,
each of these is a `Cluster`, with one for each node.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import redis
from django.core.exceptions import ImproperlyConfigured
from django_redis.pool import SentinelConnectionFactory
from redis import asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry as SyncRetry
from redis.sentinel import SentinelConnectionPool

from ..primitives.contract import NO_TERMS, run
from . import location
from .cluster import Cluster, Node
from .cluster_factory import (
    ClusterConnectionFactory,
    OneAddressConnectionFactory,
    nodes_of_urls,
    url_of,
)
from .command import AsyncPool, Pool, SyncExchange, sender
from .multiplexed import Multiplexed

T = TypeVar("T")

BACKGROUND_TIMEOUT = 2.0
"""Seconds that work in the background waits for an answer, at most."""

_BACKGROUND = {
    "decode_responses": False,
    "socket_timeout": BACKGROUND_TIMEOUT,
    "socket_connect_timeout": BACKGROUND_TIMEOUT,
    # We try again ourselves, and know how much time is left.
    "retry": SyncRetry(NoBackoff(), 0),
    "retry_on_timeout": False,
    "retry_on_error": [],
}


_TIMES = ("socket_timeout", "socket_connect_timeout", "health_check_interval", "timeout")
"""The options of pools and connections that are seconds."""


class Pools(Protocol):
    """Makes pools to one server, and knows its address."""

    @property
    def address(self) -> str:
        """As `Server.address`."""

    @property
    def where(self) -> str:
        """As `Server.where`."""

    @property
    def clustered(self) -> bool:
        """As `Server.declared`."""

    def shared(self) -> Pool:
        """As `Server.shared_pool`."""

    def background(self) -> Pool:
        """As `Server.background_pool`."""

    def for_loop(self) -> AsyncPool:
        """As `Server.async_pool`."""


def made_of_entry(using: str, make: Callable[[], T]) -> T:
    """Return what `make` makes of an entry of CACHES, which may name classes that raise anything.

    Raises `ImproperlyConfigured`, after `make` has ended: a crash reporter shows the variables of
    each function that an exception leaves, and those of `make` have passwords.
    """
    try:
        return make()
    except ImproperlyConfigured:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    raise ImproperlyConfigured(f"CACHES[{using!r}] can't be used for locks: {why}")


class PoolsOfAlias:
    """Pools as an entry of CACHES describes them.

    With `apart`, they are not those of the cache: a number that tells them from others at the same
    URL.
    """

    def __init__(
        self, using: str, urls: list[str], factory: Any, apart: int | None = None
    ) -> None:
        self._using = using
        self._apart = apart
        self._urls = urls
        self._factory = factory
        """django-redis' `ConnectionFactory`."""
        routed = isinstance(self._factory, ClusterConnectionFactory)
        self.clustered = routed or isinstance(self._factory, OneAddressConnectionFactory)
        nodes = [its for url in self._urls if (its := location.read(url)) is not None]
        self.address = nodes[0].address + ("" if apart is None else f"#{apart:x}")
        self.where = ", ".join(its.where for its in nodes if routed or its is nodes[0])
        if isinstance(self._factory, SentinelConnectionFactory):
            self.where = f"the primary of {nodes[0].host!r}"
        self._shared: Pool | None = None

    def shared(self) -> Pool:
        if self._shared is None:
            self._shared = made_of_entry(self._using, self._make_shared)
        return self._shared

    def _refuse_wrong_times(self) -> None:
        """Raise `ImproperlyConfigured` for time-outs that are no times. This package reckons with
        them; redis-py takes them as they are."""
        for name in _TIMES:
            given = self._factory.pool_cls_kwargs.get(name)
            if given is not None and not (isinstance(given, int | float) and given >= 0):
                raise ImproperlyConfigured(
                    f"CACHES[{self._using!r}] has the {name} {given!r}: write a number of "
                    f"seconds, such as 5."
                )

    def background(self) -> Pool:
        return made_of_entry(self._using, self._make_background)

    def for_loop(self) -> AsyncPool:
        return made_of_entry(self._using, self._make_for_loop)

    def _make_shared(self) -> Pool:
        self._refuse_wrong_times()
        if isinstance(self._factory, ClusterConnectionFactory):
            return self._factory.get_or_create_pools(self._urls)
        # The pool of a client would do, too, but a client may connect when it is made.
        params = self._factory.make_connection_params(self._urls[0])
        create = self._factory.get_or_create_connection_pool
        if self._apart is not None:  # django-redis may have other pools at this URL
            create = self._factory.get_connection_pool
        pool: redis.ConnectionPool = create(params)
        return pool

    def _make_background(self) -> Pool:
        if isinstance(self._factory, ClusterConnectionFactory):
            return self._factory.get_pools(self._urls, _BACKGROUND)
        params = self._factory.make_connection_params(self._urls[0])
        pool: redis.ConnectionPool = self._factory.get_connection_pool(params)
        pool.connection_kwargs.update(_BACKGROUND)
        return pool

    def _make_for_loop(self) -> AsyncPool:
        self._refuse_wrong_times()
        if not isinstance(self._factory, ClusterConnectionFactory):
            return self._multiplexed(self._urls[0])
        return Cluster(
            nodes_of_urls(self._urls),
            lambda node: self._multiplexed(url_of(self._urls[0], node)),
        )

    def _multiplexed(self, url: str) -> Multiplexed:
        options: dict[str, Any] = {
            **self._factory.make_connection_params(url),
            **self._factory.pool_cls_kwargs,
        }
        url = options.pop("url")
        for synchronous in ("parser_class", "queue_class", "cache_config", "cache"):
            options.pop(synchronous, None)
        if "maint_notifications_config" not in _ASYNC_OPTIONS:  # before redis-py 8
            options.pop("maint_notifications_config", None)
        if options.get("retry") is not None:
            options["retry"] = _async_retry(options["retry"])
        connection_class = options.get("connection_class")
        if connection_class is not None:
            options["connection_class"] = _async_twin(self._using, connection_class)

        options.pop("timeout", None)  # how long to wait for a connection, in a blocking pool only
        if not isinstance(self._factory, SentinelConnectionFactory):
            return Multiplexed(aioredis.ConnectionPool.from_url(url, **options))
        return Multiplexed(_sentinel_pool(url, self._factory.options, options))


_ASYNC_OPTIONS = signature(aioredis.connection.AbstractConnection.__init__).parameters


def _async_retry(retry: Any) -> Retry | None:
    """Return the same `Retry` for `redis.asyncio`. `None`, which stands for its default, if
    redis-py keeps the parts of a `Retry` under other names."""
    try:
        return Retry(retry._backoff, retry._retries, retry._supported_errors)
    except AttributeError:
        return None


def _async_twin(using: str, connection_class: type) -> type:
    for module in (aioredis.connection, aioredis.sentinel):
        twin = getattr(module, connection_class.__name__, None)
        if isinstance(twin, type):
            return twin
    raise ImproperlyConfigured(
        f"CACHES[{using!r}] uses the connection class {connection_class.__qualname__}, and "
        f"redis.asyncio has no class of that name: asynchronous locks can't use it."
    )


def _sentinel_pool(
    url: str, cache_options: dict[str, Any], options: dict[str, Any]
) -> aioredis.ConnectionPool:
    address = urlsplit(url)
    manager = Sentinel(
        cache_options["SENTINELS"],
        sentinel_kwargs=cache_options.get("SENTINEL_KWARGS"),
        **options,
    )
    return aioredis.sentinel.SentinelConnectionPool.from_url(
        # Locks live on the primary, whether or not the URL asks for a replica.
        address._replace(query="").geturl(),
        service_name=address.hostname,
        sentinel_manager=manager,
        is_master=True,
        **options,
    )


class PoolsOfClient:
    """Pools to the server of a redis-py client, with the options of that client.

    The client is not kept alive, so that work in the background for a client that is gone can end.
    """

    clustered = False

    def __init__(self, client: object) -> None:
        pool = getattr(client, "connection_pool", None)
        if not isinstance(pool, redis.ConnectionPool):
            raise TypeError(
                f"locks need a redis.Redis, or another client with a pool of connections to one "
                f"primary, not {client!r}"
            )
        options = dict(pool.connection_kwargs, connection_class=pool.connection_class)
        for its_own in ("connection_pool", "maint_notifications_pool_handler", "himport_registry"):
            options.pop(its_own, None)
        host, port, path, db = (options.get(key) for key in ("host", "port", "path", "db"))
        sentinels: list[str] = []
        another: Callable[..., redis.ConnectionPool] = redis.ConnectionPool
        if isinstance(pool, SentinelConnectionPool):
            host, port = pool.service_name, None
            for sentinel in pool.sentinel_manager.sentinels:
                to_it = sentinel.connection_pool.connection_kwargs
                sentinels.append(f"{to_it.get('host')}:{to_it.get('port')}")
            another = partial(
                SentinelConnectionPool,
                pool.service_name,
                pool.sentinel_manager,
                is_master=pool.is_master,
            )
        where = f"unix://{path}" if path else f"redis://{host}" + (f":{port}" if port else "")
        self.url = f"{where}/{db or 0}"
        self.where = where.partition("://")[2]
        # A client with a wrong password must share nothing with one that has the right one.
        secrets = [options.get(key) for key in ("username", "password", "credential_provider")]
        self.address = f"{self.url}#{hash(repr((sorted(sentinels), secrets))):x}"
        self._pool = weakref.ref(pool)
        self._another = partial(another, **options)

    def client_is_there(self) -> bool:
        """Return whether the client, or another one with its pool, still exists."""
        return self._pool() is not None

    def shared(self) -> redis.ConnectionPool:
        pool = self._pool()
        if pool is None:
            raise ImproperlyConfigured(f"the client that was connected to {self.url} is gone")
        return pool

    def background(self) -> redis.ConnectionPool:
        pool = self._another()
        pool.connection_kwargs.update(_BACKGROUND)
        return pool

    def for_loop(self) -> AsyncPool:
        raise ImproperlyConfigured(
            f"asynchronous locks need an alias of CACHES, and not a client for {self.url}"
        )


def routed(pool: Pool | AsyncPool | None) -> bool:
    """Return whether each request is sent to the node of a cluster that has its key."""
    return isinstance(pool, Cluster)


def node_of(pool: Pool | AsyncPool | None, key: str) -> Node | None:
    """Return the node of a cluster that has a key, if it is known. `None` without a cluster."""
    return pool.node_of(key) if isinstance(pool, Cluster) else None


def failed(pool: Pool | None) -> set[Node]:
    """Return the nodes of a cluster that did not answer when they were last asked."""
    return pool.failed if isinstance(pool, Cluster) else set()


def primaries(pool: Pool) -> list[redis.ConnectionPool]:
    """Return a pool for each server that has locks: several for a cluster only.

    Raises `LockUnavailable`.
    """
    if not isinstance(pool, Cluster):
        return [pool]
    return run(pool.primaries(sender(SyncExchange, ("",), NO_TERMS)))


def primary_at(pool: Pool, node: Node | None) -> redis.ConnectionPool:
    """Return the pool of a node of a cluster. None: of any node, each of which gets all messages
    that are published; or of the only server. Raises `LockUnavailable`."""
    if node is not None and isinstance(pool, Cluster):
        return pool.pool(node)
    return random.SystemRandom().choice(primaries(pool))


def close(pool: Pool) -> None:
    """Close all connections of a pool that is no longer used."""
    for its in pool.pools() if isinstance(pool, Cluster) else [pool]:
        its.disconnect()


async def aclose(pool: AsyncPool) -> None:
    """Close all connections of an event loop, also those to sentinels."""
    for its in pool.pools() if isinstance(pool, Cluster) else [pool]:
        await its.aclose()
