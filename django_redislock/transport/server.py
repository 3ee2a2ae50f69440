"""From a CACHES alias to Redis, through django-redis: the only module that imports it.

Where a lock is taken through a redis-py client that belongs to no alias (client.py), a
`ClientName` stands in place of the alias.

Three ways to the same server: the pool that the project's cache uses, for synchronous
callers; a pool of our own for what goes on in the background, so that a busy or exhausted
pool can't keep a lease from being renewed; and a `redis.asyncio` pool for one event loop.
To a cluster, each of them is a `Cluster` (slots.py), which has a pool for each node.
"""

from __future__ import annotations

import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django_redis.client import DefaultClient, ShardClient
from redis import asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry as SyncRetry
from redis.sentinel import SentinelConnectionPool

from ..base.coroutines import run
from ..base.servers import Servers
from ..primitives.contract import NO_TERMS
from . import location
from .cluster import Cluster, Node, slot_of
from .cluster_factory import ClusterConnectionFactory, url_of
from .cluster_factory import node_of as node_in
from .command import FOREGROUND_TIMEOUT, AsyncPool, Pool, sender
from .wire import KeptPool

if TYPE_CHECKING:
    from django_redis.pool import ConnectionFactory

BACKGROUND_TIMEOUT = 2.0
"""Seconds that what goes on in the background waits for an answer, at most."""


class Server(Protocol):
    """Where the locks of one `using` are."""

    @property
    def address(self) -> str:
        """Which server it is; threads and loops key what they keep by it. It holds no secret."""

    @property
    def where(self) -> str:
        """Its host and port, or its socket, for people."""

    @property
    def clustered(self) -> bool:
        """Whether it is a Redis Cluster."""

    def shared_pool(self) -> Pool:
        """The pool that the project's cache uses; of a cluster, one that all threads share."""


class _Alias:
    """What an alias of CACHES means right now."""

    def __init__(self, client: DefaultClient[Any]) -> None:
        self.client = client
        self.clustered = isinstance(client.connection_factory, ClusterConnectionFactory)
        nodes = [its for url in client._server if (its := location.read(url)) is not None]
        self.address = nodes[0].address
        self.where = ", ".join(its.where for its in nodes if self.clustered or its is nodes[0])
        if getattr(client.connection_factory, "_sentinel", None) is not None:
            self.where = f"the primary of {nodes[0].host!r}"
        self._shared_pool: Pool | None = None

    def shared_pool(self) -> Pool:
        if self._shared_pool is None:
            self._shared_pool = self._find_pool()
        return self._shared_pool

    def _find_pool(self) -> Pool:
        factory: ConnectionFactory[Any, Any, Any] = self.client.connection_factory
        params = factory.make_connection_params(self.client._server[0])
        if self.clustered:
            params |= factory.pool_cls_kwargs
            key = f"{self.client._server} {sorted(params.items())}"
            return _clusters.get(key) or _clusters.setdefault(key, _cluster(self.client, {}))
        # And not that of a client, which may connect when it is made.
        pool: redis.ConnectionPool = factory.get_or_create_connection_pool(params)
        return pool


_aliases: dict[str, _Alias] = {}
_aliases_of: dict[str, Any] | None = None


def _alias(using: str) -> _Alias:
    """Raises `ImproperlyConfigured` when there is none, or when it isn't django-redis."""
    global _aliases_of
    # Django gives it another one, when settings are overridden; each lock asks several times, and
    # to ask the settings takes six times as long.
    if caches.settings is not _aliases_of:
        _aliases.clear()
        _aliases_of = caches.settings
    found = _aliases.get(using)
    if found is None:
        found = _aliases[using] = _Alias(_find_client(using))
    return found


def _client(using: str) -> DefaultClient[Any]:
    """The django-redis client of a CACHES alias."""
    return _alias(using).client


def _find_client(using: str) -> DefaultClient[Any]:
    if isinstance(using, Servers):
        raise ImproperlyConfigured(
            f"{using} are several servers, which only a Redlock works with. Write one alias "
            f"of CACHES, or 'KIND': 'redlock' beside them in REDISLOCK['LOCKS']."
        )
    try:
        backend = caches[using]
    except InvalidCacheBackendError as error:
        if using in settings.CACHES:  # it is there, and its backend can't be imported
            raise ImproperlyConfigured(f"CACHES[{using!r}]: {error}") from error
        aliases = ", ".join(map(repr, settings.CACHES))
        raise ImproperlyConfigured(
            f"CACHES has no alias {using!r} for locks; it has {aliases}. Write one of "
            f"them in using= or in REDISLOCK['USING']."
        ) from None
    client = getattr(backend, "client", None)
    if not isinstance(client, DefaultClient) or isinstance(client, ShardClient):
        raise ImproperlyConfigured(
            f"CACHES[{using!r}] is served by {type(backend).__module__}."
            f"{type(backend).__qualname__}; locks need one that django-redis serves, and "
            f"not in shards: 'BACKEND': 'django_redis.cache.RedisCache'."
        )
    if not location.readable(client._server):
        raise ImproperlyConfigured(f"CACHES[{using!r}]['LOCATION'] {location.UNREADABLE}.")
    _refuse_twins(using)
    return client


def _refuse_twins(using: str) -> None:
    """django-redis keeps one pool for each LOCATION, in which whichever alias comes first
    decides on database and user: those of another alias would lock elsewhere, in silence."""
    entries = settings.CACHES
    mine = entries.get(using, {})  # another thread may override the settings just now
    for other, entry in entries.items():
        same = all(entry.get(key) == mine.get(key) for key in ("BACKEND", "LOCATION"))
        if other != using and same and _way_in(entry) != _way_in(mine):
            raise ImproperlyConfigured(
                f"CACHES[{using!r}] and CACHES[{other!r}] have the same LOCATION and differ in "
                f"the database, the user or the sentinels that their OPTIONS name. django-redis "
                f"shares one pool between them, and the alias that is used first decides for "
                f"both: write the database and the user into the URLs in LOCATION."
            )


def _way_in(entry: dict[str, Any]) -> list[Any]:
    options = entry.get("OPTIONS", {})
    pool = options.get("CONNECTION_POOL_KWARGS", {})
    names = ("USERNAME", "PASSWORD", "SENTINELS", "SENTINEL_KWARGS", "CONNECTION_FACTORY")
    kwargs = ("db", "username", "password", "host", "port", "path", "credential_provider")
    return [options.get(name) for name in names] + [pool.get(name) for name in kwargs]


class ClientName(str):
    """In place of an alias: which server a redis-py client is connected to, for people.

    It doesn't keep the client: what goes on in the background for one that is gone may end.
    """

    where: str
    _address: str
    _pool: weakref.ref[redis.ConnectionPool]
    background_pool: Callable[[], redis.ConnectionPool]
    """Makes a new one, with the options of that which the client uses."""

    @classmethod
    def of(cls, client: object) -> ClientName:
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
        name = cls(f"{where}/{db or 0}")
        name.where = where.partition("://")[2]
        # Who has a wrong password must not share anything with who has the right one.
        secrets = [options.get(key) for key in ("username", "password", "credential_provider")]
        name._address = f"{name}#{hash(repr((sorted(sentinels), secrets))):x}"
        name._pool = weakref.ref(pool)
        name.background_pool = partial(another, **options)
        return name

    clustered = False

    def shared_pool(self) -> redis.ConnectionPool:
        """That of the client."""
        pool = self._pool()
        if pool is None:
            raise ImproperlyConfigured(f"the client that was connected to {self} is gone")
        return pool

    @property
    def address(self) -> str:
        """The same for all clients that lead to one server as one user, while they are there."""
        self.shared_pool()
        return self._address


class _Several:
    """The servers of a Redlock, which are asked one by one."""

    clustered = False

    def __init__(self, using: Servers) -> None:
        self._using = using

    @property
    def address(self) -> str:
        return _all_of(tuple((its.where, its.address) for its in self._each()))

    @property
    def where(self) -> str:
        return ", ".join(its.where for its in self._each())

    def _each(self) -> Iterator[_Alias]:
        return map(_alias, self._using.aliases)

    def shared_pool(self) -> Pool:
        return _alias(self._using).shared_pool()  # which they have not


def server(using: str) -> Server:
    """What an alias of CACHES means right now, or what stands in its place.

    Raises `ImproperlyConfigured` when there is no such alias, or when it isn't django-redis.
    """
    if type(using) is str:  # asked first, since nearly always it is a plain alias
        return _alias(using)
    if isinstance(using, Servers):
        return _Several(using)
    return using if isinstance(using, ClientName) else _alias(using)


def address(using: str) -> str:
    """Which server an alias means right now; threads and loops key what they keep by it."""
    return server(using).address


@cache
def _all_of(servers: tuple[tuple[str, str], ...]) -> str:
    """One text for several servers, in whatever order they are named: of each, where it is,
    whichever of its databases is meant and who is to log in, and its address.

    Raises `ImproperlyConfigured` when two are one: a majority of servers has to be one.
    """
    for where, number in Counter(where for where, _ in servers).items():
        if number > 1:
            raise ImproperlyConfigured(
                f"Aliases of CACHES for one Redlock lead to the same server, {where}: it needs "
                f"servers that fail independently of each other, not databases of one"
            )
    return " ".join(sorted(address for _, address in servers))


def clustered(using: str) -> bool:
    """Whether an alias means a Redis Cluster."""
    return server(using).clustered


def slot(using: str, key: str) -> int:
    """Keys of the same slot may be touched by one script. Without a cluster, all of them."""
    return slot_of(key) if clustered(using) else 0


_clusters: dict[str, Cluster[redis.ConnectionPool]] = {}


def _cluster(
    client: DefaultClient[Any], options: Mapping[str, Any]
) -> Cluster[redis.ConnectionPool]:
    """A new pool for each node, with these options besides."""
    factory: ConnectionFactory[Any, Any, Any] = client.connection_factory

    def make(node: Node) -> redis.ConnectionPool:
        url = url_of(client._server[0], node)
        pool: redis.ConnectionPool = factory.get_connection_pool(
            factory.make_connection_params(url)
        )
        pool.connection_kwargs.update(options)
        return pool

    return Cluster([node_in(url) for url in client._server], make)


def shared_pool(using: str) -> Pool:
    """The pool that the project's cache uses; of a cluster, one that all threads share."""
    return server(using).shared_pool()


_BACKGROUND = {
    "decode_responses": False,
    "socket_timeout": BACKGROUND_TIMEOUT,
    "socket_connect_timeout": BACKGROUND_TIMEOUT,
    # We try again ourselves, with an eye on the clock.
    "retry": SyncRetry(NoBackoff(), 0),
    "retry_on_timeout": False,
    "retry_on_error": [],
}


def background_pool(using: str) -> Pool:
    """A new pool to the same server, whose connections don't wait for ever."""
    if clustered(using):
        return _cluster(_client(using), _BACKGROUND)
    pool: redis.ConnectionPool
    if isinstance(using, ClientName):
        pool = using.background_pool()
    else:
        client = _client(using)
        factory: ConnectionFactory[Any, Any, Any] = client.connection_factory
        pool = factory.get_connection_pool(factory.make_connection_params(client._server[0]))
    pool.connection_kwargs.update(_BACKGROUND)
    return pool


def node_of(pool: Pool, key: str) -> Node | None:
    """Which node of a cluster has a key, as far as is known; None without a cluster."""
    return pool.node_of(key) if isinstance(pool, Cluster) else None


def failed(pool: Pool | None) -> set[Node]:
    """The nodes of a cluster that did not answer when they were asked last."""
    return pool.failed if isinstance(pool, Cluster) else set()


def primaries(pool: Pool) -> list[redis.ConnectionPool]:
    """A pool for each server that has locks: one, but of a cluster. Raises `LockUnavailable`."""
    if not isinstance(pool, Cluster):
        return [pool]
    return run(pool.primaries(sender(("",), NO_TERMS)))


def any_primary(pool: Pool) -> redis.ConnectionPool:
    """Where to hear what is published: in a cluster, all nodes do. Raises `LockUnavailable`."""
    return random.SystemRandom().choice(primaries(pool))


def close(pool: Pool) -> None:
    """Close all connections of a pool that is not used any more."""
    for its in pool.pools() if isinstance(pool, Cluster) else [pool]:
        its.disconnect()


def async_pool(using: str, *, blocking: bool = True) -> AsyncPool:
    """A new `redis.asyncio` pool to the same server, for the running event loop.

    It is built from what the CACHES entry says. When it is `blocking`, tasks that find all
    connections in use wait for one, in place of failing as in redis-py's plain pool: five
    hundred tasks are nothing special in one loop.
    """
    client = _client(using)
    first = client._server[0]
    if not clustered(using):
        return _async_pool(using, first, blocking=blocking)
    return Cluster(
        [node_in(url) for url in client._server],
        lambda node: _async_pool(using, url_of(first, node), blocking=blocking),
    )


_ASYNC_OPTIONS = signature(aioredis.connection.AbstractConnection.__init__).parameters


def _async_pool(using: str, url: str, *, blocking: bool) -> aioredis.ConnectionPool:
    factory: ConnectionFactory[Any, Any, Any] = _client(using).connection_factory
    options: dict[str, Any] = {
        **factory.make_connection_params(url),
        **factory.pool_cls_kwargs,
    }
    url = options.pop("url")
    if "socket_timeout" not in url:
        options.setdefault("socket_timeout", FOREGROUND_TIMEOUT)
    for synchronous in ("parser_class", "queue_class", "cache_config", "cache"):
        options.pop(synchronous, None)
    if "maint_notifications_config" not in _ASYNC_OPTIONS:  # before redis-py 8
        options.pop("maint_notifications_config", None)
    retry = options.get("retry")
    if retry is not None:
        options["retry"] = Retry(retry._backoff, retry._retries, retry._supported_errors)
    connection_class = options.get("connection_class")
    if connection_class is not None:
        options["connection_class"] = _async_twin(using, connection_class)

    sentinel = getattr(factory, "_sentinel", None)
    if sentinel is None and blocking:
        return KeptPool.from_url(url, **options)
    options.pop("timeout", None)  # for a connection, which only a blocking pool waits for
    if sentinel is None:
        return aioredis.ConnectionPool.from_url(url, **options)
    return _sentinel_pool(url, factory.options, options)


def _async_twin(using: str, connection_class: type) -> type:
    for module in (aioredis.connection, aioredis.sentinel):
        twin = getattr(module, connection_class.__name__, None)
        if isinstance(twin, type):
            return twin
    raise ImproperlyConfigured(
        f"CACHES[{using!r}] uses the connection class {connection_class.__qualname__}, which "
        f"has no twin of the same name in redis.asyncio; asynchronous locks can't use it."
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
        # Locks live on the primary, whatever the URL says of reading.
        address._replace(query="").geturl(),
        service_name=address.hostname,
        sentinel_manager=manager,
        is_master=True,
        **options,
    )


async def aclose(pool: AsyncPool) -> None:
    """Close all that `async_pool` opened, the connections to the sentinels included."""
    if isinstance(pool, Cluster):
        for its in pool.pools():
            await its.disconnect()
        return
    await pool.disconnect()
    manager = getattr(pool, "sentinel_manager", None)
    for sentinel in manager.sentinels if manager else ():
        await sentinel.connection_pool.disconnect()
