"""From a CACHES alias to Redis, through django-redis: the only module that imports it.

Three ways to the same server: the pool that the project's cache uses, for synchronous
callers; a pool of our own for what goes on in the background, so that a busy or exhausted
pool can't keep a lease from being renewed; and a `redis.asyncio` pool for one event loop.

Commands go over a connection that we check out ourselves, and not through
`Redis.execute_command`: we have to know whether a command may have reached the server when
its answer was lost, and redis-py's own retry would send it again without telling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django_redis.client import DefaultClient, ShardClient
from redis import asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from .exceptions import LockError, LockUnavailable
from .keys import name_of

if TYPE_CHECKING:
    from django_redis.pool import ConnectionFactory

BACKGROUND_TIMEOUT = 2.0
"""Seconds after which a renewal that got no answer is tried again."""

# Answers that say "not now". BUSY (a script runs for too long) and MISCONF (the disk is
# full) have no class of their own.
_PASSING = (BusyLoadingError, ReadOnlyError, OutOfMemoryError, ClusterDownError, TryAgainError)
_PASSING_CODES = ("READONLY ", "OOM ", "BUSY ", "MISCONF ", "NOREPLICAS ", "MASTERDOWN ")
_REFUSED = (AuthenticationError, AuthorizationError)

_client_cache: dict[str, DefaultClient[Any]] = {}
_client_cache_of: dict[str, Any] | None = None


def _client(using: str) -> DefaultClient[Any]:
    """The django-redis client of a CACHES alias.

    Raises `ImproperlyConfigured` when there is none, or when it isn't django-redis.
    """
    global _client_cache_of
    if settings.CACHES is not _client_cache_of:  # the first call, or override_settings
        _client_cache.clear()
        _client_cache_of = settings.CACHES
    client = _client_cache.get(using)
    if client is None:
        try:
            backend = caches[using]
        except InvalidCacheBackendError:
            aliases = ", ".join(map(repr, settings.CACHES))
            raise ImproperlyConfigured(
                f"CACHES has no alias {using!r} for locks; it has {aliases}. Write one of "
                f"them in using= or in REDISLOCK['USING']."
            ) from None
        client = getattr(backend, "client", None)
        if not isinstance(client, DefaultClient) or isinstance(client, ShardClient):
            raise ImproperlyConfigured(
                f"CACHES[{using!r}] is served by {type(backend).__module__}."
                f"{type(backend).__qualname__}; locks need one that django-redis serves from "
                f"a single primary: 'BACKEND': 'django_redis.cache.RedisCache'."
            )
        _client_cache[using] = client
    return client


def address(using: str) -> str:
    """Which server an alias means right now; threads and loops key what they keep by it."""
    return str(_client(using)._server[0])


def shared_pool(using: str) -> redis.ConnectionPool:
    """The pool that the project's cache uses."""
    pool: redis.ConnectionPool = _client(using).get_client(write=True).connection_pool
    return pool


def background_pool(using: str) -> redis.ConnectionPool:
    """A new pool to the same server, whose connections don't wait for ever."""
    client = _client(using)
    factory: ConnectionFactory[Any, Any, Any] = client.connection_factory
    pool: redis.ConnectionPool = factory.get_connection_pool(
        factory.make_connection_params(client._server[0])
    )
    pool.connection_kwargs.update(
        socket_timeout=BACKGROUND_TIMEOUT,
        socket_connect_timeout=BACKGROUND_TIMEOUT,
        decode_responses=False,
    )
    return pool


def async_pool(using: str, *, blocking: bool = True) -> aioredis.ConnectionPool:
    """A new `redis.asyncio` pool to the same server, for the running event loop.

    It is built from what the CACHES entry says. When it is `blocking`, tasks that find all
    connections in use wait for one, in place of failing as in redis-py's plain pool: five
    hundred tasks are nothing special in one loop.
    """
    client = _client(using)
    factory: ConnectionFactory[Any, Any, Any] = client.connection_factory
    options: dict[str, Any] = {
        **factory.make_connection_params(client._server[0]),
        **factory.pool_cls_kwargs,
    }
    url = options.pop("url")
    for synchronous in ("parser_class", "queue_class"):
        options.pop(synchronous, None)
    retry = options.get("retry")
    if retry is not None:
        options["retry"] = Retry(retry._backoff, retry._retries, retry._supported_errors)
    connection_class = options.get("connection_class")
    if connection_class is not None:
        options["connection_class"] = _async_twin(using, connection_class)

    sentinel = getattr(factory, "_sentinel", None)
    if sentinel is None and blocking:
        return aioredis.BlockingConnectionPool.from_url(url, **options)
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


async def aclose(pool: aioredis.ConnectionPool) -> None:
    """Close all that `async_pool` opened, the connections to the sentinels included."""
    await pool.disconnect()
    manager = getattr(pool, "sentinel_manager", None)
    for sentinel in manager.sentinels if manager else ():
        await sentinel.connection_pool.disconnect()


def execute(pool: redis.ConnectionPool, *command: str | int) -> Any:
    """Send one command and return its answer as bytes; one round trip.

    Raises `LockUnavailable` when there is no answer, `LockError` when the key isn't ours.
    """
    sent = False
    try:
        connection = pool.get_connection()
        try:
            sent = True
            connection.send_command(*command)
            return connection.read_response(disable_decoding=True)
        except ResponseError:
            raise
        except BaseException:
            # The answer may still come, and would be taken for that of the next command.
            connection.disconnect()
            raise
        finally:
            pool.release(connection)
    except (RedisError, OSError) as error:
        raise _translate(error, command, sent) from error


async def aexecute(pool: aioredis.ConnectionPool, *command: str | int) -> Any:
    """`execute` on an event loop."""
    sent = False
    try:
        connection = await pool.get_connection()
        try:
            sent = True
            await connection.send_command(*command)
            return await connection.read_response(disable_decoding=True)
        except ResponseError:
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)
    except (TimeoutError, RedisError, OSError) as error:
        raise _translate(error, command, sent) from error


def _translate(error: Exception, command: tuple[Any, ...], sent: bool) -> Exception:
    """Our error for one of redis-py's."""
    key = str(command[3]) if len(command) > 3 else ""
    text = str(error)
    if isinstance(error, redis.exceptions.NoScriptError):
        return error
    if "WRONGTYPE" in text:
        return LockError(
            f"The key {key!r}, or one of those beside it, holds something that is neither a "
            f"lock of ours nor a plain string; we leave it alone. Delete it if it is a "
            f"leftover, or set REDISLOCK['PREFIX'] to something else.",
            name_of(key),
        )
    answered = isinstance(error, ResponseError | BusyLoadingError | AuthenticationError)
    if isinstance(error, _REFUSED):
        passing = False
    elif isinstance(error, ResponseError):
        passing = isinstance(error, _PASSING) or any(code in text for code in _PASSING_CODES)
    else:
        passing = True
    return LockUnavailable(
        f"Redis could not be asked for {key!r}: {type(error).__name__}: {text}",
        name_of(key),
        doubtful=sent and not answered,
        passing=passing,
    )
