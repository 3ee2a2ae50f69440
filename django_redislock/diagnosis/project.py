"""What the settings alone tell; nothing here opens a connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from itertools import count
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from redis.connection import BlockingConnectionPool, Connection, parse_url

from .. import conf, connections
from ..keys import MAX_NAME
from ..slots import Cluster
from .configured import aliases, entries, problems, replicas_timeout
from .finding import Finding, listed

MIN_CONNECTIONS = 10
"""Of a pool that is too full to lock, rather than of one that was made small on purpose."""


_COMPLETE = 'For example: "LOCKS": {"exports": {"KIND": "semaphore", "LIMIT": 3}}'


def settings_findings() -> Iterator[Finding]:
    """What keeps the settings from being understood, or from having an effect."""
    wrong = problems()
    for problem in wrong:
        hint = _COMPLETE if problem.incomplete else _remedy(problem.path)
        yield Finding(id="redislock.E001", message=problem.message, hint=hint)
    if wrong:
        return  # what else they say can't be known
    for alias in aliases():
        yield from alias_findings(alias)
    for name in entries():
        if "{" in name or "}" in name:
            yield Finding(
                id="redislock.W001",
                message=f"REDISLOCK['LOCKS'][{name!r}] applies to no lock of redis_lock: names "
                f"have no braces when they are looked up, since templates are filled in before.",
                hint=f'Write a pattern in place of the template: "{_pattern(name)}": {{…}}. If it '
                f"is the Redis key of a cache.lock(), silence this check.",
            )
        elif len(name) > MAX_NAME or not name.isprintable():
            yield Finding(
                id="redislock.W001",
                message=f"REDISLOCK['LOCKS'][{name[:80]!r}] applies to no lock: names are "
                f"printable, and {MAX_NAME} characters long at most.",
                hint="Correct the name, or remove the entry.",
            )


def alias_findings(alias: str) -> Iterator[Finding]:
    """What keeps locks from using an alias at all."""
    try:
        connections.shared_pool(alias)
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
    yield from _shared_with_the_cache(alias)
    yield from _connecting(alias)


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
        for location in locations:
            url = parse_url(location)
            where = url.get("path") or (url.get("host", "localhost"), url.get("port", 6379))
            found.add((where, int(url.get("db", given.get("db")) or 0)))
    return found


def _free_database() -> int:
    """The first one that no entry of CACHES leads to, on whichever server."""
    taken = {database for entry in settings.CACHES.values() for _, database in _places(entry)}
    return next(number for number in count(1) if number not in taken)


def _connecting(alias: str) -> Iterator[Finding]:
    pool = connections.shared_pool(alias)
    if isinstance(pool, Cluster):
        pool = pool.pool(pool.seeds[0])  # that of each node has the same options
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
            f"gone, whoever takes a lock may hang for minutes, whatever its wait says.",
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


_ENTRIES = {
    "LOCKS": '"LOCKS": {"report:*": {"TTL": 300}}',
    "JOBS": '"JOBS": {"shop.periodic.report": {"EVERY": 300}}',
}
_JOB = {
    "SCHEDULE": "*/5 * * * *",
    "EVERY": 300,
    "TZ": "Europe/Berlin",
    "ENABLED": True,
    "AT_MOST_FOR": 60,
    "AT_LEAST_FOR": 0,
    "OVERLAP": "skip",
    "ON_CRASH": "lose",
    "CATCH_UP": "latest",
    "GRACE": 60,
    "JITTER": 0,
}
"""What can be said of a job, with values that are good ones."""
_TIMEOUTS = ("TIMEOUT", "EXPIRE", "BLOCKING_TIMEOUT")
"""What other libraries call the one or the other."""


def _remedy(path: tuple[str, ...]) -> str:
    if not path:
        return 'REDISLOCK = {"USING": "default"}'
    key = path[-1]
    if key in _ENTRIES or (path[0] in _ENTRIES and len(path) == 2):
        return _ENTRIES[path[0]]
    if key.upper() in _TIMEOUTS and path[0] != "JOBS":
        return '"TTL": 30 for how long a lease lives; "WAIT": 10 for how long to wait'
    known = dict(_JOB) if path[0] == "JOBS" else {}
    if path[0] != "JOBS":
        known |= {field.upper(): value for field, value in conf.Policy()._asdict().items()}
    if key not in known:
        meant = [key.upper(), *get_close_matches(key.upper(), known, 1, 0.65)]
        key = next((name for name in meant if name in known), "")
    if not key:
        return "Remove it."
    return f'"{key}": {_as_written(known[key])}'


def _as_written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _pattern(template: str) -> str:
    """`report:*` for `report:{report.pk}`."""
    pattern, inside = "", False
    for char in template:
        if char in "{}":
            pattern += "*" if char == "{" else ""
            inside = char == "{"
        elif not inside:
            pattern += char
    return pattern
