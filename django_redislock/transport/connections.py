"""The connections to a server, as an entry of CACHES or a redis-py client describes them.

A server has three kinds of connections. Synchronous callers borrow from the pool of the project's
cache (loans.py). Work in the background has a pool of its own, so that a busy or exhausted pool
can't keep a lease from being renewed. The tasks of an event loop share one connection
(multiplexed.py). For a cluster, each of these is a `Cluster`, with one for each node.

A server in the memory of this process is for development and tests: fakeredis runs the scripts.
Other processes see nothing of it. fakeredis is imported when the first one is made.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from inspect import signature
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from redis import asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.retry import Retry as SyncRetry

from ..base.servers import MEMORY
from .cluster import Cluster, Node
from .entries import Entry, location_of, nodes_of_urls, read, url_of
from .multiplexed import Multiplexed

T = TypeVar("T")
Pool = redis.ConnectionPool | Cluster[redis.ConnectionPool]
AsyncPool = Multiplexed | Cluster[Multiplexed]

BACKGROUND_TIMEOUT = 2.0
"""Seconds that work in the background waits for an answer, at most."""

_BACKGROUND = {
    "decode_responses": False,
    "socket_timeout": BACKGROUND_TIMEOUT,
    "socket_connect_timeout": BACKGROUND_TIMEOUT,
    # We try again ourselves, and know how much time is left.
    "retry": SyncRetry(NoBackoff(), 0),
}


_TIMES = ("socket_timeout", "socket_connect_timeout", "health_check_interval", "timeout")
"""The options of pools and connections that are seconds."""


class Pools(Protocol):
    """Makes pools to one server, and knows its address."""

    address: str
    """As `Server.address`."""
    where: str
    """As `Server.where`."""
    clustered: bool
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

    def __init__(self, using: str, entry: Entry, apart: int | None = None) -> None:
        self._using = using
        self._urls, self._routed = entry.urls, entry.routed
        self._factory = entry.factory or _Factory(entry.options)
        self.clustered = getattr(self._factory, "clustered", entry.routed)
        nodes = [its for url in entry.urls if (its := location_of(url)) is not None]
        self.address = nodes[0].address + ("" if apart is None else f"#{apart:x}")
        self.where = ", ".join(its.where for its in nodes if entry.routed or its is nodes[0])
        if self._factory.options.get("SENTINELS"):
            self.where = f"the primary of {nodes[0].host!r}"
        self._shared: Pool | None = None

    def shared(self) -> Pool:
        if self._shared is None:
            # The pool of a client would do, too, but a client may connect when it is made.
            # django-redis may have other pools at the URLs of nodes.
            create = "get_connection_pool" if self._routed else "get_or_create_connection_pool"
            make = getattr(self._factory, create)
            self._shared = self._made(lambda url: make(self._params(url)))
        return self._shared

    def background(self) -> Pool:
        return self._made(self._background)

    def for_loop(self) -> AsyncPool:
        return self._made(self._multiplexed)

    def _made(self, make: Callable[[str], T]) -> T | Cluster[T]:
        """Return what `make` makes of a URL; for a cluster, of the URL of each node."""

        def of_each() -> T | Cluster[T]:
            self._refuse_wrong_times()
            first = self._urls[0]
            if not self._routed:
                return make(first)
            return Cluster(nodes_of_urls(self._urls), lambda node: make(url_of(first, node)))

        return made_of_entry(self._using, of_each)

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

    def _params(self, url: str) -> dict[str, Any]:
        return dict(self._factory.make_connection_params(url))

    def _background(self, url: str) -> redis.ConnectionPool:
        pool: redis.ConnectionPool = self._factory.get_connection_pool(self._params(url))
        pool.connection_kwargs.update(_BACKGROUND)
        return pool

    def _multiplexed(self, url: str) -> Multiplexed:
        options = self._params(url) | self._factory.pool_cls_kwargs
        url = options.pop("url")
        # `timeout` is how long to wait for a connection, in a blocking pool only.
        for synchronous in ("parser_class", "queue_class", "cache_config", "cache", "timeout"):
            options.pop(synchronous, None)
        if "maint_notifications_config" not in _ASYNC_OPTIONS:  # before redis-py 8
            options.pop("maint_notifications_config", None)
        if options.get("retry") is not None:
            options["retry"] = _async_retry(options["retry"])
        connection_class = options.get("connection_class")
        if connection_class is not None:
            options["connection_class"] = _async_twin(self._using, connection_class)
        return Multiplexed(_pool(aioredis, url, self._factory.options, options))


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


def _pool(
    of: Any, url: str, entry: dict[str, Any], options: dict[str, Any], kind: Any = None
) -> Any:
    """Make a pool of `of`, which is redis or redis.asyncio: of a `kind`, or to the primary that
    the sentinels of an entry name."""
    if not entry.get("SENTINELS"):
        return (kind or of.ConnectionPool).from_url(url, **options)
    address = urlsplit(url)
    manager = of.sentinel.Sentinel(
        entry["SENTINELS"], sentinel_kwargs=entry.get("SENTINEL_KWARGS"), **options
    )
    if address.scheme == "rediss":  # else the pool would take its class from the URL
        options = {**options, "ssl": True}
    # Locks live on the primary, whether or not the URL asks for a replica.
    query = re.sub("is_master=[^&]*&?", "", address.query)
    return of.sentinel.SentinelConnectionPool.from_url(
        address._replace(scheme="redis", query=query).geturl(),
        service_name=address.netloc.rpartition("@")[2].partition(":")[0],  # case counts
        sentinel_manager=manager,
        is_master=True,
        **options,
    )


class _Factory:
    """Makes pools from options of redis-py, as a `ConnectionFactory` of django-redis does from its
    own."""

    def __init__(self, options: dict[str, Any]) -> None:
        names = ("SENTINELS", "SENTINEL_KWARGS")
        self.options = {name: options.pop(name.lower(), None) for name in names}
        self._pool_class = options.pop("pool_class", None)
        self.pool_cls_kwargs = options

    def make_connection_params(self, url: str) -> dict[str, Any]:
        return {"url": url}

    def get_connection_pool(self, params: dict[str, Any]) -> Any:
        url, kind = params["url"], self._pool_class
        return _pool(redis, url, self.options, self.pool_cls_kwargs, kind)

    get_or_create_connection_pool = get_connection_pool


class PoolsOfClient:
    """Pools to the server of a redis-py client, with the options of that client.

    The client is not kept alive, so that work in the background for a client that is gone can end.
    """

    clustered = False

    def __init__(self, client: object) -> None:
        pool = getattr(client, "connection_pool", None)
        if any(".multidb." in base.__module__ for base in type(client).__mro__):
            raise TypeError(
                f"locks can't use a {type(client).__name__}: it may fail over to a database that "
                f"does not have the locks of the one before, and then a lock has two holders. "
                f"Use a redis.Redis of one database, or a Redlock."
            )
        if not isinstance(pool, redis.ConnectionPool):
            raise TypeError(
                f"locks need a redis.Redis, or another client with a pool of connections to one "
                f"primary, not {client!r}"
            )
        self.options = dict(pool.connection_kwargs)
        """Those of the pool, which the project may change."""
        options = dict(self.options, connection_class=pool.connection_class)
        for its_own in ("connection_pool", "maint_notifications_pool_handler", "himport_registry"):
            options.pop(its_own, None)
        host, port, path, db = (options.get(key) for key in ("host", "port", "path", "db"))
        sentinels: list[str] = []
        another: Callable[..., redis.ConnectionPool] = redis.ConnectionPool
        if isinstance(pool, redis.sentinel.SentinelConnectionPool):
            host, port = pool.service_name, None
            for its in pool.sentinel_manager.sentinels:
                to_it = its.connection_pool.connection_kwargs
                sentinels.append(f"{to_it.get('host')}:{to_it.get('port')}")
            another = partial(
                redis.sentinel.SentinelConnectionPool,
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


def routed(pool: object) -> bool:
    """Return whether each request is sent to the node of a cluster that has its key."""
    return isinstance(pool, Cluster)


def node_of(pool: object, key: str) -> Node | None:
    """Return the node of a cluster that has a key, if it is known. `None` without a cluster."""
    return pool.node_of(key) if isinstance(pool, Cluster) else None


def failed(pool: Pool | None) -> set[Node]:
    """Return the nodes of a cluster that did not answer when they were last asked."""
    return pool.failed if isinstance(pool, Cluster) else set()


def close(pool: Pool) -> None:
    """Close all connections of a pool that is no longer used."""
    for its in pool.pools() if isinstance(pool, Cluster) else [pool]:
        its.disconnect()


async def aclose(pool: AsyncPool) -> None:
    """Close all connections of an event loop, also those to sentinels."""
    for its in pool.pools() if isinstance(pool, Cluster) else [pool]:
        await its.aclose()


_own: dict[int, PoolsOfAlias] = {}
"""The pools that are not those of a cache, by what they were made from."""


def pools_of(using: str) -> Pools:
    """Return the pools of an alias. Raises `ImproperlyConfigured` if locks can't use it."""
    if using == MEMORY:
        return _in_memory()
    found = made_of_entry(using, lambda: made_by(read(using), using))
    if isinstance(found, str):
        raise ImproperlyConfigured(f"CACHES[{using!r}]{found}")
    return found


def made_by(entry: Entry | str, using: str = "") -> Pools | str:
    """Return the pools of an entry; or why locks can't use it."""
    if isinstance(entry, str):
        return entry
    made_from = hash(repr(entry[:3]))
    pools = PoolsOfAlias(using, entry, None if entry.factory else made_from)
    # django-redis keeps its pools, but not those of nodes.
    kept = entry.factory and not entry.routed
    return pools if kept else _own.setdefault(made_from, pools)


def _in_memory() -> Pools:
    if settings.DEBUG:
        return _memory()
    raise ImproperlyConfigured(
        f"USING is {MEMORY!r}, and DEBUG is off: locks in the memory of one process exclude no "
        f"other process. Write an alias of CACHES that leads to a Redis. In tests, use "
        f"locks_in_memory() of django_redislock.testing."
    )


@cache
def _memory() -> Pools:
    if not installed():
        raise ImproperlyConfigured(f"USING is {MEMORY!r}, which needs {NEEDED}")
    return PoolsInMemory(f"memory:{MEMORY}", MEMORY)


forget_memory = _memory.cache_clear


VERSION = (7, 4)
"""The version of Redis that fakeredis stands in for."""
NEEDED = 'fakeredis with Lua: pip install "django-redislock[testing]"'


def installed() -> bool:
    """Return whether there is what a server in memory needs."""
    return bool(find_spec("fakeredis") and find_spec("lupa"))


class PoolsInMemory:
    """Pools to a server of its own, which is gone with this object."""

    clustered = False

    def __init__(self, address: str, using: str) -> None:
        from fakeredis import FakeServer

        self.address = address
        self.where = f"the memory of this process, {using}"
        self.server = FakeServer(version=VERSION)
        self._options: dict[str, Any] = {
            "server": self.server,
            "version": VERSION,
            "server_type": "redis",
            "lua_modules": None,
        }
        self._shared = self.background()

    def shared(self) -> Pool:
        return self._shared

    def background(self) -> Pool:
        from fakeredis import FakeRedis, FakeRedisConnection

        return redis.ConnectionPool(FakeRedisConnection, client_class=FakeRedis, **self._options)

    def for_loop(self) -> AsyncPool:
        from fakeredis.aioredis import FakeAsyncRedisConnection

        return Multiplexed(aioredis.ConnectionPool(FakeAsyncRedisConnection, **self._options))
