"""The entries of CACHES: where one leads, and with which options.

Locks of an entry of django-redis work with the factory and the pool of django-redis. Entries of
Django's own backend, of django-valkey and of django-cachex are read from the settings, and locks
have a pool of their own there, which all threads share: Django keeps a pool for each thread, and
the others may keep connections of another library. django-redis is not imported here.

An entry may have passwords, in its LOCATION too, and a crash reporter shows the variables of each
function that an exception leaves. So these functions return why an entry can't be used. What they
raise all the same ends in connections.py.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from redis.cluster import cleanup_kwargs
from redis.connection import parse_url

_OF_VALKEY = (
    *("USERNAME", "PASSWORD", "SOCKET_TIMEOUT", "SOCKET_CONNECT_TIMEOUT"),
    *("SENTINELS", "SENTINEL_KWARGS"),
)
"""The options of connections that django-valkey has inherited from django-redis."""
_OF_VALUES = {
    *("serializer", "compressor", "stampede_prevention", "tracking", "reverse_key_function"),
    *("ignore_exceptions", "log_ignored_exceptions", "async_pool_class"),
    *("MAX_ENTRIES", "CULL_FREQUENCY"),
}
"""The options of Django's own backend and of django-cachex that locks don't need."""
AN_ENTRY_APART = "Give locks an entry of their own, and name it in REDISLOCK['USING']."
"""The end of the error for an entry that is good for a cache, and not for locks."""


class Entry(NamedTuple):
    """What an entry says of its servers."""

    urls: list[str]
    """The first one is the primary; of a cluster, each is a node."""
    options: dict[str, Any]
    """Those of redis-py; of an entry of django-redis, its OPTIONS."""
    routed: bool = False
    """Whether the servers are nodes of a cluster."""
    factory: Any = None
    """The `ConnectionFactory` of django-redis, which knows what the options mean."""


def packages_of(its: object) -> set[str]:
    """Return the packages that have defined the classes of an object."""
    return {base.__module__.partition(".")[0] for base in type(its).__mro__}


def read(using: str) -> Entry | str:
    """Return what the entry of an alias says; or why locks can't use it."""
    backend = _backend(using)
    entry = settings.CACHES.get(using, {})  # another thread may override them at this moment
    where, options = entry.get("LOCATION"), entry.get("OPTIONS") or {}
    packages = packages_of(backend)
    if isinstance(backend, RedisCache):
        return of_django(where, options)
    if "django_valkey" in packages:
        return _of_valkey(where, options)
    if "django_cachex" in packages:
        return _of_cachex(backend, where, options)
    client = backend.client if hasattr(type(backend), "client") else None
    if "django_redis" in packages_of(client):
        return _of_django_redis(client, options, using)
    return (
        f" is served by {type(backend).__module__}.{type(backend).__qualname__}; locks need a "
        f"Redis: 'BACKEND': 'django_redis.cache.RedisCache', or Django's own. {AN_ENTRY_APART}"
    )


def _of_django_redis(client: Any, options: dict[str, Any], using: str) -> Entry | str:
    if any(base.__name__ == "ShardClient" for base in type(client).__mro__):
        return _in_shards(type(client).__name__)
    urls = _urls_of(client, using)
    if not readable(urls):
        return f"['LOCATION'] {UNREADABLE}."
    factory = client.connection_factory
    return _twin(using) or Entry(urls, options, getattr(factory, "routed", False), factory)


def _in_shards(kind: str) -> str:
    what = f"spreads its keys over several servers, by {kind}; locks need one primary"
    return f" {what}. {AN_ENTRY_APART}"


def _urls_of(client: Any, using: str) -> list[str]:
    """Return the LOCATION of an alias as django-redis has split it. A client may have changed it,
    so the settings are used only if django-redis keeps it under another name."""
    found: Any = getattr(client, "_server", None) or settings.CACHES[using]["LOCATION"]
    return found.split(",") if isinstance(found, str) else list(found)


def of_django(where: Any, options: dict[str, Any], *, routed: bool = False) -> Entry | str:
    """Return what an entry for Django's own backend says, whose first server is the primary; or
    why locks can't use it. `routed`: its servers are nodes of a cluster."""
    kwargs = {term: its for term, its in options.items() if term not in _OF_VALUES}
    for term in ("pool_class", "parser_class"):
        if (given := kwargs.pop(term, None)) is not None:
            kwargs[term] = import_string(given) if isinstance(given, str) else given
    for term, its in kwargs.items():
        if (its if isinstance(its, type) else type(its)).__module__.partition(".")[0] == "valkey":
            return (
                f" gives {term!r} an object of the package valkey; locks connect through "
                f"redis-py, and can't use it. {AN_ENTRY_APART}"
            )
    urls = urls_of(where) if routed else urls_of(where)[:1]
    if not readable(urls):
        return f"['LOCATION'] {UNREADABLE}."
    return Entry(urls, kwargs, routed)


def _of_valkey(where: Any, options: dict[str, Any]) -> Entry | str:
    kind = str(options.get("CLIENT_CLASS", "")).rpartition(".")[2]
    if "Shard" in kind or "Cluster" in kind:
        return _in_shards(kind)
    its = {term.lower(): options[term] for term in _OF_VALKEY if options.get(term)}
    return of_django(where, its | (options.get("CONNECTION_POOL_KWARGS") or {}))


def _of_cachex(backend: Any, where: Any, options: dict[str, Any]) -> Entry | str:
    classes = type(backend).__mro__
    name = next(its.__name__ for its in classes if its.__module__.startswith("django_cachex."))
    kind = re.fullmatch("(?:Redis|Valkey)(Sentinel|Cluster)?Cache", name)
    if kind is None:
        return (
            f" is served by {name} of django-cachex; locks need one of its caches that reach a "
            f"Redis through redis-py or valkey-py, such as its RedisCache. {AN_ENTRY_APART}"
        )
    if routed := kind[1] == "Cluster":
        options = cleanup_kwargs(**options)
    if not kind[1]:
        options = {term: options[term] for term in options if not term.startswith("sentinel")}
    return of_django(where, options, routed=routed)


def urls_of(where: Any) -> list[str]:
    """Read a LOCATION as Django does, and one for Valkey as one for Redis."""
    urls = re.split("[;,]", where) if isinstance(where, str) else list(where or [""])
    return [re.sub("^valkey(s?)://", r"redis\1://", str(url)) for url in urls]


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


# What follows reads a LOCATION. Nothing else does. One that can't be read is never quoted, and no
# error of urllib or redis-py about it is passed on: they quote parts of it, and after a `/`, `#`
# or `?` in a password, the password is in these parts.

UNREADABLE = (
    "must be a URL, such as 'redis://localhost:6379/0', and this one can't be read. If it has a "
    "password, write that as urllib.parse.quote(password, safe='') does"
)
"""The error text for a LOCATION for which `location_of` returns `None`."""

DEFAULT_PORT = 6379

_OPTIONS = re.compile(r"[a-z_]+=[^=]*(&[a-z_]+=[^=]*)*")
_salt = secrets.token_bytes(16)


class Location(NamedTuple):
    """The place of a server, without the means to log in."""

    scheme: str
    host: str
    """Empty for a Unix socket."""
    port: int
    path: str
    """The path of a Unix socket; else empty."""
    db: int | None
    """The number of the database, if the URL has one."""
    key: str
    """A hash of the URL, user and password included, that differs from process to process."""

    @property
    def where(self) -> str:
        """The server, for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"

    @property
    def address(self) -> str:
        """The server, the database and the user, in a text that shows no secret."""
        db = "" if self.db is None else f"?db={self.db}" if self.path else f"/{self.db}"
        return f"{self.scheme}://{self.where}{db}#{self.key}"


def location_of(url: object) -> Location | None:
    """Read a URL. `None` if it is no URL, or has a password that is not encoded."""
    try:
        parts = urlsplit(str(url))
        port = parts.port or DEFAULT_PORT
        known = parts.scheme in ("redis", "rediss", "unix")
        options = parse_url(str(url)) if known else {}
    except ValueError:
        return None
    if "://" not in str(url) or _cut_in_two(parts):
        return None
    unix = parts.scheme == "unix"
    return Location(
        scheme=parts.scheme,
        host="" if unix else parts.hostname or "localhost",
        port=port,
        path=parts.path if unix else "",
        db=options.get("db"),
        key=blake2b(str(url).encode(), key=_salt, digest_size=8).hexdigest(),
    )


def readable(urls: Iterable[object]) -> bool:
    """Return whether all of these URLs can be read."""
    return None not in map(location_of, urls)


def _cut_in_two(parts: SplitResult) -> bool:
    """Return whether the `@` that ends a password comes after the part that names the server: then
    a character in the password has ended that part."""
    if "@" in parts.fragment or ("@" in parts.query and not _OPTIONS.fullmatch(parts.query)):
        return bool(parts.netloc)
    if parts.scheme != "unix":
        return "@" in parts.path
    host = parts.netloc.rpartition("@")[2]
    return bool(host) and (":" in parts.netloc or "@" in parts.netloc + parts.path)


def nodes_of_urls(urls: Sequence[str]) -> list[tuple[str, int]]:
    """Return the nodes that these URLs name. Raises `ImproperlyConfigured` if one can't be a
    node's, or if they name several databases: the first URL is the pattern for all nodes."""
    nodes = [node_of_url(url) for url in urls]
    if len(databases := sorted({database_of(url) for url in urls})) > 1:
        raise ImproperlyConfigured(
            f"The LOCATION of a Redis Cluster names the databases {databases}: write the same "
            f"one into each URL."
        )
    return nodes


def database_of(url: str) -> int:
    """Return the number of the database that a URL names."""
    its = location_of(url)
    return (its and its.db) or 0


def node_of_url(url: str) -> tuple[str, int]:
    """Return the node that a URL names. Raises `ImproperlyConfigured` if it can't be a node's."""
    its = location_of(url)
    del url  # a crash reporter shows variables
    if its is None:
        raise ImproperlyConfigured(f"The LOCATION of a node {UNREADABLE}.")
    if its.path:
        raise ImproperlyConfigured(
            f"{its.address.partition('#')[0]!r} can't be a node of a Redis Cluster: nodes are "
            f"reached by host and port. Write redis://host:6379"
        )
    return its.host, its.port


def url_of(url: str, node: tuple[str, int]) -> str:
    """Return the URL of another node that is reached in the same way."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    host = f"[{node[0]}]" if ":" in node[0] else node[0]
    return parts._replace(netloc=f"{user}{at}{host}:{node[1]}").geturl()
