"""What is wrong with an entry of CACHES, by the settings alone; nothing here connects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from redis.connection import BlockingConnectionPool, Connection

from ..settings.configured import aliases, replicas_timeout
from ..transport import location
from ..transport.cluster import Cluster
from ..transport.server import server_of
from .finding import Finding, listed

MIN_CONNECTIONS = 10
"""Of a pool that is too full to lock, rather than of one that was made small on purpose."""


def alias_findings(alias: str) -> Iterator[Finding]:
    """What keeps locks from using an alias at all."""
    try:
        server_of(alias).shared_pool()
    except Exception as error:  # whatever the entry says, and whatever that is imported by it
        reason = str(error)
        if not isinstance(error, ImproperlyConfigured):  # those say themselves whose they are
            reason = f"CACHES[{alias!r}] can't be used for locks: {reason}"
        yield Finding(
            id="redislock.E002",
            message=reason,
            hint=f'CACHES = {{"{alias}": {{"BACKEND": "django_redis.cache.RedisCache", '
            f'"LOCATION": "redis://localhost:6379/0"}}}}',
            alias=alias,
        )


def advice(alias: str) -> Iterator[Finding]:
    """What is better done otherwise, in an entry of CACHES that can be used."""
    pool = server_of(alias).shared_pool()
    if isinstance(pool, Cluster):
        pool = pool.pool(pool.seeds[0])  # that of each node has the same options
    yield from _shared_with_the_cache(alias)
    yield from _timeouts(alias, pool)
    yield from _size(alias, pool)


def _shared_with_the_cache(alias: str) -> Iterator[Finding]:
    ours = _places(settings.CACHES[alias])
    for_locks = {alias, *aliases()} - {"default"}  # which is what `cache` means everywhere
    others = [
        repr(other)
        for other, entry in settings.CACHES.items()
        if other == alias == "default" or (other not in for_locks and ours & _places(entry))
    ]
    if others:
        yield Finding(
            id="redislock.W002",
            message=f"Locks share their database with the cache {listed(others)}: its "
            f"cache.clear() is FLUSHDB, and takes all locks with it.",
            hint='CACHES["locks"] = {"BACKEND": "django_redis.cache.RedisCache", '
            f'"LOCATION": "redis://localhost:6379/{_free_database()}"}}; REDISLOCK["USING"] = '
            '"locks". Change it while no lock is held. If nobody calls cache.clear(), silence '
            "this check.",
            alias=alias,
        )


def _places(entry: Any) -> set[tuple[Any, ...]]:
    """Which databases an entry of CACHES leads to; none, if that isn't Redis."""
    found = set()
    with suppress(Exception):  # it belongs to others, and may say anything
        locations = entry["LOCATION"]
        if isinstance(locations, str):
            locations = locations.split(",")
        options = entry.get("OPTIONS") or {}
        # That of Django's own backend, and that of django-redis.
        given = {**options, **(options.get("CONNECTION_POOL_KWARGS") or {})}
        for its in filter(None, map(location.read, locations)):
            db = given.get("db") if its.db is None else its.db
            found.add((its.where, int(db or 0)))
    return found


def _free_database() -> int:
    """The first one that no entry of CACHES leads to, on whichever server."""
    taken = {database for entry in settings.CACHES.values() for _, database in _places(entry)}
    return next(number for number in count(1) if number not in taken)


def _timeouts(alias: str, pool: Any) -> Iterator[Finding]:
    connection: Any = None
    with suppress(Exception):  # a class of the project's own, perhaps, that is made otherwise
        # As the pool would make it. It connects when it is used, and this one never is.
        connection = pool.connection_class(**pool.connection_kwargs)
    answers = getattr(connection, "socket_timeout", None)
    connects = getattr(connection, "socket_connect_timeout", None)
    # Where there is none, redis-py takes SOCKET_TIMEOUT. Over a Unix socket, one is connected at
    # once; and for an answer locks wait a few seconds, whatever the entry says.
    if connects is None and isinstance(connection, Connection):
        yield Finding(
            id="redislock.W003",
            message=f"CACHES[{alias!r}] has no SOCKET_CONNECT_TIMEOUT: when the host of Redis is "
            f"gone, whoever releases a lock, or takes one with wait=None, may hang for minutes.",
            hint='"OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 2, "SOCKET_TIMEOUT": 5}',
            alias=alias,
        )
    within = replicas_timeout(alias)
    if within is not None and answers is not None and answers <= within:
        yield Finding(
            id="redislock.W005",
            message=f"The SOCKET_TIMEOUT of CACHES[{alias!r}] is {answers:g} s, and replicas have "
            f"{within:g} s to confirm a lock: it is given up while they may "
            f"yet do so.",
            hint=f'"OPTIONS": {{"SOCKET_TIMEOUT": {within + 4:g}}}',
            alias=alias,
        )


def _size(alias: str, pool: Any) -> Iterator[Finding]:
    size = getattr(pool, "max_connections", MIN_CONNECTIONS)
    if size < MIN_CONNECTIONS and not isinstance(pool, BlockingConnectionPool):
        yield Finding(
            id="redislock.W004",
            message=f"The pool of CACHES[{alias!r}] has {size} connections, for the cache and for "
            f"locks: when more threads than that ask at the same time, one is refused, and has "
            f"to try again until its wait is over.",
            hint='"OPTIONS": {"CONNECTION_POOL_KWARGS": {"max_connections": 100}}',
            alias=alias,
        )
