"""Findings about an entry of CACHES. Nothing here opens a connection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from redis.connection import BlockingConnectionPool, Connection

from ..base.servers import MEMORY
from ..settings.configured import aliases, replicas_timeout
from ..transport import location
from ..transport.cluster import Cluster
from ..transport.server import server_of
from .finding import Finding, listed
from .vendors import vendor_of

MIN_CONNECTIONS = 10
"""A smaller pool may be too small for locks."""


def alias_findings(alias: str) -> Iterator[Finding]:
    """Return what keeps locks from using an alias."""
    try:
        server_of(alias).shared_pool()
    except Exception as error:  # the entry may name classes that raise anything
        reason = str(error)
        if not isinstance(error, ImproperlyConfigured):  # its message names the entry
            reason = f"CACHES[{alias!r}] can't be used for locks: {reason}"
        name = "default" if alias == MEMORY else alias
        yield Finding(
            id="redislock.E002",
            message=reason,
            hint=f'CACHES = {{"{name}": {{"BACKEND": "django_redis.cache.RedisCache", '
            f'"LOCATION": "redis://localhost:6379/0"}}}}',
            alias=alias,
        )


def in_memory() -> Finding:
    """Return what is to be said of locks in memory, with DEBUG."""
    return Finding(
        id="redislock.W009",
        message=f"Locks with USING {MEMORY!r} are in the memory of each process: they exclude no "
        f"other process.",
        hint='In production: REDISLOCK["USING"] = "default", an alias of CACHES for a Redis.',
    )


def advice(alias: str) -> Iterator[Finding]:
    """Return what can be improved in an entry of CACHES that works."""
    pool = server_of(alias).shared_pool()
    if isinstance(pool, Cluster):
        pool = pool.pool(pool.seeds[0])  # the pools of all nodes have the same options
    yield from _shared_with_the_cache(alias)
    yield from _timeouts(alias, pool)
    yield from _size(alias, pool)


def _shared_with_the_cache(alias: str) -> Iterator[Finding]:
    used = _databases(settings.CACHES[alias])
    for_locks = {alias, *aliases()} - {"default"}  # the name `cache` stands for "default"
    others = [
        repr(other)
        for other, entry in settings.CACHES.items()
        if other == alias == "default" or (other not in for_locks and used & _databases(entry))
    ]
    if others:
        yield Finding(
            id="redislock.W002",
            message=f"Locks share their database with the cache {listed(others)}: its "
            f"cache.clear() is FLUSHDB, which deletes all locks.",
            hint='CACHES["locks"] = {"BACKEND": "django_redis.cache.RedisCache", '
            f'"LOCATION": "{_another(settings.CACHES[alias])}"}}; REDISLOCK["USING"] = '
            '"locks". Change it while no lock is held. If nobody calls cache.clear(), silence '
            "this check.",
            alias=alias,
        )


def _locations(entry: Any) -> list[location.Location]:
    """Return the servers that an entry of CACHES names; none if it is not for Redis."""
    with suppress(Exception):  # the entry is for another backend, perhaps
        urls = entry["LOCATION"]
        return [
            *filter(None, map(location.read, urls.split(",") if isinstance(urls, str) else urls))
        ]
    return []


def hosts_of(alias: str) -> list[str]:
    """Return the hosts that the entry of an alias names."""
    return [its.host for its in _locations(settings.CACHES.get(alias))]


def _one_database(entry: Any) -> bool:
    """Return whether all databases of a server are one, as far as its host name says it."""
    return vendor_of([its.host for its in _locations(entry)], {}).one_database


def _databases(entry: Any) -> set[tuple[Any, ...]]:
    """Return the databases that an entry of CACHES uses; none if it is not for Redis."""
    found = set()
    with suppress(Exception):  # the entry is for another backend, perhaps
        options = entry.get("OPTIONS") or {}
        # Options of Django's own backend, and of django-redis.
        given = {**options, **(options.get("CONNECTION_POOL_KWARGS") or {})}
        for found_at in _locations(entry):
            db = given.get("db") if found_at.db is None else found_at.db
            found.add((found_at.where, 0 if _one_database(entry) else int(db or 0)))
    return found


def _another(entry: Any) -> str:
    """Return a URL to paste, of another database than those that are used."""
    if _one_database(entry):
        return "rediss://another-database.example:6379/0"
    return f"redis://localhost:6379/{_free_database()}"


def _free_database() -> int:
    """Return the first number that no entry of CACHES uses, on any server."""
    taken = {database for entry in settings.CACHES.values() for _, database in _databases(entry)}
    return next(number for number in count(1) if number not in taken)


def _options(alias: str, **options: float) -> str:
    """Return OPTIONS to paste, as the backend of the alias names them."""
    if isinstance(caches[alias], RedisCache):
        return f'"OPTIONS": {json.dumps(options)}'
    named: dict[str, Any] = {
        term.upper(): its for term, its in options.items() if term.startswith("socket_")
    }
    if len(named) < len(options):  # others are those of the pool
        named = {"CONNECTION_POOL_KWARGS": options}
    return f'"OPTIONS": {json.dumps(named)}'


def _timeouts(alias: str, pool: Any) -> Iterator[Finding]:
    connection: Any = None
    with suppress(Exception):  # a class of the project may take other arguments
        # Made as the pool makes it. It is never used, so it never connects.
        connection = pool.connection_class(**pool.connection_kwargs)
    answers = getattr(connection, "socket_timeout", None)
    connects = getattr(connection, "socket_connect_timeout", None)
    # Without SOCKET_CONNECT_TIMEOUT, redis-py uses SOCKET_TIMEOUT. A Unix socket connects at once.
    # For an answer, locks wait a few seconds, whatever the entry says.
    if connects is None and isinstance(connection, Connection):
        yield Finding(
            id="redislock.W003",
            message=f"CACHES[{alias!r}] has no SOCKET_CONNECT_TIMEOUT: when the host of Redis is "
            f"gone, a release, or an acquire with wait=None, may hang for minutes.",
            hint=_options(alias, socket_connect_timeout=2, socket_timeout=5),
            alias=alias,
        )
    within = replicas_timeout(alias)
    if within is not None and answers is not None and answers <= within:
        yield Finding(
            id="redislock.W005",
            message=f"The SOCKET_TIMEOUT of CACHES[{alias!r}] is {answers:g} s, and replicas have "
            f"{within:g} s to confirm a lock: the lock is given up before that time is over.",
            hint=_options(alias, socket_timeout=within + 4),
            alias=alias,
        )


def _size(alias: str, pool: Any) -> Iterator[Finding]:
    size = getattr(pool, "max_connections", MIN_CONNECTIONS)
    if size < MIN_CONNECTIONS and not isinstance(pool, BlockingConnectionPool):
        yield Finding(
            id="redislock.W004",
            message=f"The pool of CACHES[{alias!r}] has {size} connections, for the cache and for "
            f"locks: if more threads ask at the same time, some have to wait for one, and are "
            f"refused after a second.",
            hint=_options(alias, max_connections=100),
            alias=alias,
        )
