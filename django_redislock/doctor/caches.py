"""Findings about an entry of CACHES. Nothing here opens a connection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count
from typing import Any
from urllib.parse import SplitResult, urlsplit

from django.conf import settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from redis.connection import BlockingConnectionPool, Connection

from ..base.servers import MEMORY
from ..settings.conf import aliases, replicas_timeout
from ..transport.cluster import Cluster
from ..transport.entries import AN_ENTRY_APART, Location, location_of, packages_of, urls_of
from ..transport.server import server_of
from .finding import Code, Finding, changed, into_cache, joined, listed, written
from .vendors import vendor_of

MIN_CONNECTIONS = 10
"""A smaller pool may be too small for locks."""


def alias_findings(alias: str) -> Iterator[Finding]:
    """Return what keeps locks from using an alias."""
    try:
        server_of(alias).shared_pool()
    except ImproperlyConfigured as error:
        apart = alias == MEMORY or str(error).endswith(AN_ENTRY_APART)
        name = _new_alias() if apart else alias
        url = f"redis://localhost:6379/{_free_database(0)}"
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
        line = f"CACHES[{written(name)}] = {written(entry)}"
        yield Finding(
            id="redislock.E002",
            message=str(error),
            hint=joined([line, _used(alias, name) if apart else ""], "with your server"),
            alias=alias,
        )


def in_memory() -> Finding:
    """Return what is to be said of locks in memory, with DEBUG."""
    return Finding(
        id="redislock.W009",
        message=f"Locks with USING {MEMORY!r} are in the memory of each process: they exclude no "
        f"other process.",
        hint=joined([_used(MEMORY, "default")], "in production; an alias of CACHES for a Redis"),
    )


def advice(alias: str) -> Iterator[Finding]:
    """Return what can be improved in an entry of CACHES that works."""
    pool = server_of(alias).shared_pool()
    if isinstance(pool, Cluster):
        pool = pool.pool(pool.seeds[0])  # the pools of all nodes have the same options
    found = (_shared_with_the_cache(alias), _timeouts(alias, pool), _size(alias, pool))
    yield from (replace(finding, alias=alias) for finding in chain.from_iterable(found))


def _shared_with_the_cache(alias: str) -> Iterator[Finding]:
    used = _databases(settings.CACHES[alias])
    for_locks = {alias, *aliases()} - {"default"}  # the name `cache` stands for "default"
    others = [
        other
        for other, entry in settings.CACHES.items()
        if other == alias == "default" or (other not in for_locks and used & _databases(entry))
    ]
    if others:
        yield Finding(
            id="redislock.W002",
            message=f"Locks share their database with the cache {listed(others)}: its "
            f"cache.clear() is FLUSHDB, which deletes all locks. If nobody calls it, silence this "
            f"check.",
            hint=_apart(alias),
        )


def _locations(entry: Any) -> list[Location]:
    """Return the servers that an entry of CACHES names; none if it is not for Redis."""
    with suppress(Exception):  # the entry is for another backend, perhaps
        return [*filter(None, map(location_of, urls_of(entry["LOCATION"])))]
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


def _apart(alias: str) -> str:
    """Return the lines that give locks another database."""
    entry = settings.CACHES[alias]
    if _one_database(entry) or server_of(alias).clustered:
        return "Give locks a server of their own: this one has one database."
    where = {"LOCATION": _in_database(alias, _free_database(1))}
    while_free = "while no lock is held"
    if alias != "default":  # then the entry is for locks
        return joined([into_cache(alias, where)], while_free)
    name = _new_alias()
    line = f"CACHES[{written(name)}] = CACHES[{written(alias)}] | {written(where)}"
    return joined([line, _used(alias, name)], while_free)


def _new_alias() -> str:
    """Return a name that no entry of CACHES has."""
    names = ("locks", *(f"locks{number}" for number in range(2, 100)))
    return next(name for name in names if name not in settings.CACHES)


def _used(old: str, new: str) -> str:
    """Return the lines that let locks use another alias."""

    def right(using: Any) -> Any:
        if isinstance(using, str):
            return new if using == old else using
        return [new if one == old else one for one in using]

    return changed("USING", right)


def _free_database(least: int) -> int:
    """Return the first number that no entry of CACHES uses, on any server."""
    taken = {database for entry in settings.CACHES.values() for _, database in _databases(entry)}
    return next(number for number in count(least) if number not in taken)


def _first_url(alias: str) -> tuple[str, str]:
    """Return the URL of the primary, and the Python that finds it in the settings."""
    where, place = settings.CACHES[alias]["LOCATION"], f'CACHES[{written(alias)}]["LOCATION"]'
    if not isinstance(where, str):
        return str(where[0]), f"{place}[0]"
    sign = next((sign for sign in ",;" if sign in where), "")
    return (where.split(sign)[0], f"{place}.split({written(sign)})[0]") if sign else (where, place)


def at(alias: str, where: str) -> str:
    """Return the URL of another server, with what else the URL of an alias has."""
    parts = urlsplit(_first_url(alias)[0])
    if parts.scheme == "unix":
        return f"redis://{where}/0"
    return _moved(alias, _host(parts), f"{_host(parts)[0]}{where}")


def _in_database(alias: str, number: int) -> str:
    """Return the URL of another database of the same server."""
    parts = urlsplit(_first_url(alias)[0])
    if named := re.search("(?:^|&)(db=[^&]*)", parts.query):
        return _moved(alias, named[1], f"db={number}")
    if parts.scheme == "unix":
        old = f"{parts.path}?" if parts.query else parts.path
        return _moved(alias, old, f"{parts.path}?db={number}{'&' if parts.query else ''}")
    return _moved(alias, f"{_host(parts)}{parts.path}", f"{_host(parts)}/{number}")


def _host(parts: SplitResult) -> str:
    """Return the host and port of a URL, with the character before them."""
    return f"{'@' if '@' in parts.netloc else '/'}{parts.netloc.rpartition('@')[2]}"


def _moved(alias: str, old: str, new: str) -> str:
    """Return the URL of the primary with another text in the place of `old`; of a URL with a
    password, the Python that makes it."""
    url, place = _first_url(alias)
    if "@" in urlsplit(url).netloc or "password=" in url:
        return Code(f"{place}.replace({written(old)}, {written(new)})")
    return url.replace(old, new)


def _options(alias: str, **options: float) -> str:
    """Return the lines that set options of an entry, as its backend names them."""
    query = urlsplit(_first_url(alias)[0]).query
    for term, value in options.items():
        if there := re.search(f"(?:^|&)({term}=[^&]*)", query):  # it beats all others
            return into_cache(alias, {"LOCATION": _moved(alias, there[1], f"{term}={value:g}")})
    if not packages_of(caches[alias]) & {"django_redis", "django_valkey"}:
        return into_cache(alias, options, "OPTIONS")
    given = (settings.CACHES[alias].get("OPTIONS") or {}).get("CONNECTION_POOL_KWARGS") or {}
    if all(term.startswith("socket_") and term not in given for term in options):
        return into_cache(alias, {term.upper(): its for term, its in options.items()}, "OPTIONS")
    return into_cache(alias, options, "OPTIONS", "CONNECTION_POOL_KWARGS")


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
        )
    within = replicas_timeout(alias)
    if within is not None and answers is not None and answers <= within:
        yield Finding(
            id="redislock.W005",
            message=f"The SOCKET_TIMEOUT of CACHES[{alias!r}] is {answers:g} s, and replicas have "
            f"{within:g} s to confirm a lock: the lock is given up before that time is over.",
            hint=_options(alias, socket_timeout=within + 4),
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
        )
