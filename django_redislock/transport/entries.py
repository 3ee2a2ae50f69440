"""What an alias means: the pools of connections that its entry of CACHES describes.

Locks of an entry of django-redis work with the factory and the pool of django-redis. Entries of
Django's own backend and of django-valkey are read from the settings, and locks have a pool of
their own there, which all threads share: Django keeps a pool for each thread, and django-valkey
keeps connections of another library.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from django_redis.client import DefaultClient, ShardClient
from django_redis.pool import ConnectionFactory, SentinelConnectionFactory

from ..base.servers import MEMORY
from . import location, memory
from .pools import Pools, PoolsOfAlias, made_of_entry

_ALIKE = (
    "USERNAME",
    "PASSWORD",
    "SOCKET_TIMEOUT",
    "SOCKET_CONNECT_TIMEOUT",
    "CONNECTION_POOL_KWARGS",
    "SENTINELS",
    "SENTINEL_KWARGS",
)
"""The options of connections that django-valkey has inherited from django-redis."""
AN_ENTRY_APART = "Give locks an entry of their own, and name it in REDISLOCK['USING']."
"""The end of the error for an entry that is good for a cache, and not for locks."""


def pools_of(using: str) -> Pools:
    """Return the pools of an alias. Raises `ImproperlyConfigured` if locks can't use it."""
    if using == MEMORY:
        return _in_memory()
    backend = made_of_entry(using, lambda: _backend(using))
    found = made_of_entry(using, lambda: _read(backend, using))
    if isinstance(found, str):
        raise ImproperlyConfigured(f"CACHES[{using!r}]{found}")
    return found


# These functions have passwords in their variables, which a crash reporter would show. So they
# return why an entry can't be used. What they raise all the same ends in made_of_entry().


def _read(backend: Any, using: str) -> Pools | str:
    client = backend.client if hasattr(type(backend), "client") else None
    if isinstance(client, ShardClient):
        return _in_shards(type(client).__name__)
    if isinstance(client, DefaultClient):
        urls = _urls_of(client, using)
        if not location.readable(urls):
            return f"['LOCATION'] {location.UNREADABLE}."
        return _twin(using) or PoolsOfAlias(using, urls, client.connection_factory)
    entry = settings.CACHES.get(using, {})  # another thread may override them at this moment
    options = entry.get("OPTIONS") or {}
    if isinstance(backend, RedisCache):
        return of_django(entry.get("LOCATION"), options, using)
    if any(base.__module__.startswith("django_valkey.") for base in type(backend).__mro__):
        return _of_valkey(entry.get("LOCATION"), options, using)
    return (
        f" is served by {type(backend).__module__}.{type(backend).__qualname__}; locks need a "
        f"Redis: 'BACKEND': 'django_redis.cache.RedisCache', or Django's own. {AN_ENTRY_APART}"
    )


def _in_shards(kind: str) -> str:
    what = f"spreads its keys over several servers, by {kind}; locks need one primary"
    return f" {what}. {AN_ENTRY_APART}"


def _urls_of(client: DefaultClient[Any], using: str) -> list[str]:
    """Return the LOCATION of an alias as django-redis has split it. A client may have changed it,
    so the settings are used only if django-redis keeps it under another name."""
    found: Any = getattr(client, "_server", None) or settings.CACHES[using]["LOCATION"]
    return found.split(",") if isinstance(found, str) else list(found)


def of_django(where: Any, options: dict[str, Any], using: str = "") -> Pools | str:
    """Return the pools of an entry for Django's own backend, whose first server is the primary; or
    why locks can't use it."""
    kwargs = dict(options)
    kwargs.pop("serializer", None)
    translated: dict[str, Any] = {}
    for term, name in (("pool_class", "CONNECTION_POOL_CLASS"), ("parser_class", "PARSER_CLASS")):
        if (given := kwargs.pop(term, None)) is not None:
            path = given if isinstance(given, str) else f"{given.__module__}.{given.__qualname__}"
            translated[name] = path
    return _own_pools(_urls(where), {**translated, "CONNECTION_POOL_KWARGS": kwargs}, using)


def _of_valkey(where: Any, options: dict[str, Any], using: str) -> Pools | str:
    kind = str(options.get("CLIENT_CLASS", "")).rpartition(".")[2]
    if "Shard" in kind or "Cluster" in kind:
        return _in_shards(kind)
    for term, value in (options.get("CONNECTION_POOL_KWARGS") or {}).items():
        of = value if isinstance(value, type) else type(value)
        if of.__module__.partition(".")[0] == "valkey":
            return (
                f" gives {term!r} in CONNECTION_POOL_KWARGS an object of the package valkey; "
                f"locks connect through redis-py, and can't use it. {AN_ENTRY_APART}"
            )
    urls = [re.sub("^valkey(s?)://", r"redis\1://", url) for url in _urls(where)]
    return _own_pools(urls, {term: options[term] for term in _ALIKE if term in options}, using)


_own: dict[int, Pools] = {}
"""The pools that are not those of a cache, by what they were made from."""


def _own_pools(urls: list[str], options: dict[str, Any], using: str) -> Pools | str:
    if not location.readable(urls[:1]):
        return f"['LOCATION'] {location.UNREADABLE}."
    made_from = hash(repr((urls[0], options)))
    if (known := _own.get(made_from)) is not None:
        return known
    factory = SentinelConnectionFactory if "SENTINELS" in options else ConnectionFactory
    return _own.setdefault(made_from, PoolsOfAlias(using, urls[:1], factory(options), made_from))


def _urls(where: Any) -> list[str]:
    """Read a LOCATION as Django does."""
    return re.split("[;,]", where) if isinstance(where, str) else list(where or [""])


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
    if not memory.installed():
        raise ImproperlyConfigured(f"USING is {MEMORY!r}, which needs {memory.NEEDED}")
    return memory.PoolsInMemory(f"memory:{MEMORY}", MEMORY)


forget_memory = _memory.cache_clear


def _backend(using: str) -> Any:
    try:
        return caches[using]
    except InvalidCacheBackendError as error:
        if using in settings.CACHES:  # the alias is there, and its backend can't be imported
            raise ImproperlyConfigured(f"CACHES[{using!r}]: {error}") from error
        raise no_alias(using) from None


def no_alias(using: str) -> ImproperlyConfigured:
    aliases = ", ".join(map(repr, settings.CACHES))
    return ImproperlyConfigured(
        f"CACHES has no alias {using!r} for locks; it has {aliases}. Write one of them in using= "
        f"or in REDISLOCK['USING']."
    )


def _twin(using: str) -> str:
    """Return why an alias can't be used beside another one; "": there is no such alias.

    django-redis keeps one pool for each LOCATION, and the alias that is used first decides on
    its database and user. Locks of another alias would silently go to the wrong place.
    """
    entries = settings.CACHES
    mine = entries.get(using, {})  # another thread may override the settings at this moment
    for other, entry in entries.items():
        same = all(entry.get(key) == mine.get(key) for key in ("BACKEND", "LOCATION"))
        if other != using and same and _way_in(entry) != _way_in(mine):
            return (
                f" and CACHES[{other!r}] have the same LOCATION and differ in the database, the "
                f"user or the sentinels that their OPTIONS name. django-redis shares one pool "
                f"between them, and the alias that is used first decides for both: write the "
                f"database and the user into the URLs in LOCATION."
            )
    return ""


def _way_in(entry: dict[str, Any]) -> list[Any]:
    """Return the options of an entry of CACHES that decide where it leads, and as whom."""
    options = entry.get("OPTIONS", {})
    pool = options.get("CONNECTION_POOL_KWARGS", {})
    names = ("USERNAME", "PASSWORD", "SENTINELS", "SENTINEL_KWARGS", "CONNECTION_FACTORY")
    kwargs = ("db", "username", "password", "host", "port", "path", "credential_provider")
    return [options.get(name) for name in names] + [pool.get(name) for name in kwargs]
