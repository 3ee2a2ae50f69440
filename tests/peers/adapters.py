"""One interface to several libraries' locks, so that the same trouble can be made for each.

An adapter uses its library as that one's documentation says, with the options that serve it best
here; it adds nothing of its own. What it can't do is left out and not imitated.
"""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from redis import Redis

from django_redislock.base.clock import now
from tests import caches
from tests.faults.proxy import Matcher, command, script


class NotOurs(Exception):
    """The library told the holder that the lock isn't its own, or no more."""


class Held(ABC):
    """What a library gives to a holder, and the error by which it says that it isn't its own."""

    fencing_token: int | None = None

    def __init__(self, its: Any, *refusal: type[Exception]) -> None:
        self._its = its
        self._refusal = refusal

    def ends(self) -> float | None:
        """Until when the holder may believe in it, on `clock.now`; 0: no more; None: it is not
        told."""
        return None

    def about(self) -> dict[str, Any]:
        """What the record of the grant says besides."""
        return {}

    def work(self, tell: Callable[..., None]) -> None:  # noqa: B027  # most have nothing to do
        """What the holder does first, and tells."""

    @abstractmethod
    def is_ours(self) -> bool:
        """What the library says when the holder asks before its next step."""

    def extend(self) -> None:
        """Let it live for its ttl from now. Raises `NotOurs`."""
        self._ask(self._its.extend)

    def release(self) -> None:
        """Raises `NotOurs`."""
        self._ask(self._its.release)

    def _ask(self, call: Callable[[], object]) -> None:
        try:
            call()
        except self._refusal as error:
            raise NotOurs from error


class Peer(ABC):
    """A library, connected to the Redis at `url`."""

    title: ClassVar[str]
    distribution: ClassVar[str]
    module: ClassVar[str]
    use: ClassVar[str]
    """How it is used here, as Markdown."""
    ask: ClassVar[str]
    """How a holder asks whether the lock is still its own, and what that costs."""
    shortest: ClassVar[float] = 0.0
    """The smallest ttl that it takes, in seconds."""
    renews: ClassVar[bool] = False
    """It keeps a lock alive for as long as its holder works."""
    servers: ClassVar[int] = 1
    """On so many servers it is; then `url` has as many words."""
    places: ClassVar[int] = 1
    """So many places has its lock."""
    modes: ClassVar[Mapping[str, int]] = {"": 1}
    """In which modes it can be taken, and how many places each of them takes."""
    acquires: ClassVar[Matcher] = staticmethod(command("SET"))
    """Matches the command that takes the lock."""
    directory: Path
    """All processes of a torture have it, and nobody else."""

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        self.url = url
        self.timeout = timeout
        """Seconds after which its connections give up on an answer; None: the library decides."""

    @classmethod
    def version(cls) -> str:
        return version(cls.distribution)

    @classmethod
    @abstractmethod
    def key(cls, name: str) -> str:
        """The Redis key of a lock."""

    @classmethod
    def transient(cls, name: str) -> list[str]:
        """Further keys that have no business when nobody holds the lock or waits for it."""
        return []

    @classmethod
    def patience(cls, ttl: float) -> float:
        """A socket timeout that suits leases of `ttl` seconds."""
        return 1.25 * ttl

    @classmethod
    def waiting(cls, redis: Redis, name: str) -> int | None:
        """How many wait, as far as the server can tell; None: it can't, since they poll."""
        return None

    @classmethod
    def releases(cls, words: list[bytes]) -> bool:
        """Whether a command is the one that releases. Of most it is the only script."""
        return words[0].upper() == b"EVALSHA"

    @classmethod
    def extends(cls, words: list[bytes]) -> bool:
        """Whether a command is a renewal."""
        return False

    @abstractmethod
    def acquire(self, name: str, ttl: float, wait: float | None) -> Held | None:
        """Take the lock, waiting for up to `wait` seconds (None: for ever)."""

    def about(self) -> dict[str, Any]:
        """What the record of the next question says besides."""
        return {}

    def owes(self) -> bool:
        """Whether it has to ask again when the time is up."""
        return False

    def acquire_as(self, mode: str, name: str, ttl: float, wait: float | None) -> Held | None:
        """The same, in one of its modes."""
        return self.acquire(name, ttl, wait)


# Ours.


def _connect_django(url: str, timeout: float | None) -> None:
    """Make this process a Django project whose caches are the Redis servers at `url`: "default",
    "1", "2" and so on; or "default" is a service of Sentinel (`sentinel://host:port/service`) or a
    cluster (`cluster://host:port,host:port`)."""
    from django.conf import settings

    if not settings.configured:
        options = {} if timeout is None else {"SOCKET_TIMEOUT": timeout}
        kind, _, place = url.partition("://")
        if kind == "sentinel":
            address, _, service = place.partition("/")
            host, _, port = address.partition(":")
            made = caches.through(caches.Service(service, [(host, int(port))]), timeout)
        elif kind == "cluster":
            made = caches.cluster([f"redis://{node}" for node in place.split(",")], **options)
        else:
            made = {
                str(number or "default"): caches.entry(location, **options)
                for number, location in enumerate(url.split())
            }
        # No django.setup(): there are no apps, and it takes longer than all the rest.
        settings.configure(CACHES=made)


class OurLease(Held):
    def ends(self) -> float | None:
        # The time first: a pause between the two may only make it seem shorter than it is.
        time = now()
        remaining = self._its.remaining()
        return time + remaining if remaining > 0 else 0.0

    def is_ours(self) -> bool:
        try:
            self._its.check()
        except self._refusal:
            return False
        return True


class Ours(Peer):
    title = "django-redislock"
    distribution = "django-redislock"
    module = "django_redislock"
    use = "`redis_lock(name, ttl=…)`, through django-redis with its defaults"
    ask = "without asking the server"
    renews = True
    acquires = staticmethod(script("mutex_acquire"))
    releases = staticmethod(script("mutex_release"))
    extends = staticmethod(script("mutex_extend"))

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        super().__init__(url, timeout=timeout)
        logging.getLogger("django_redislock").addHandler(logging.NullHandler())
        _connect_django(url, timeout)

    @classmethod
    def version(cls) -> str:
        return "this version"

    @classmethod
    def key(cls, name: str) -> str:
        return f"redislock:{{{name}}}"

    @classmethod
    def transient(cls, name: str) -> list[str]:
        return [f"{cls.key(name)}:queue", f"{cls.key(name)}:waiters"]

    @classmethod
    def waiting(cls, redis: Redis, name: str) -> int | None:
        return int(redis.zcard(cls.key(name) + ":queue"))

    def acquire(self, name: str, ttl: float, wait: float | None) -> Held | None:
        return self.acquire_as("", name, ttl, wait)

    def lock(self, mode: str, name: str, ttl: float) -> Any:
        """The lock to acquire."""
        from django_redislock import redis_lock

        return redis_lock(name, ttl=ttl)

    held: ClassVar[type[OurLease]] = OurLease

    def token(self, name: str, lease: Any) -> int | None:
        """The fencing token of a lease."""
        token: int = lease.fencing_token
        return token

    def acquire_as(self, mode: str, name: str, ttl: float, wait: float | None) -> Held | None:
        from django_redislock import LeaseLost

        lease = self.lock(mode, name, ttl).acquire(wait=wait)
        if lease is None:
            return None
        held = self.held(lease, LeaseLost)
        held.fencing_token = self.token(name, lease)
        return held


# redis-py, and django-redis, whose `cache.lock()` is the same class.


class _RedisPyLock(Held):
    def is_ours(self) -> bool:
        return bool(self._its.owned())

    def extend(self) -> None:
        self._ask(lambda: self._its.extend(self._its.timeout, replace_ttl=True))


def _plain_client(url: str, timeout: float | None) -> Redis:
    """`Redis(host=…, port=…)`, as the READMEs write: with redis-py's retries, which a client that
    is made from a URL does not have."""
    address = urlsplit(url)
    options: dict[str, Any] = {} if timeout is None else {"socket_timeout": timeout}
    return Redis(host=address.hostname or "", port=address.port or 0, **options)


class RedisPy(Peer):
    title = "redis-py"
    distribution = "redis"
    module = "redis"
    use = "`Redis(host=…).lock(name, timeout=…, blocking_timeout=…)`"
    ask = "if it asks the server: `owned()`"

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        super().__init__(url, timeout=timeout)
        self._client = _plain_client(url, timeout)

    @classmethod
    def key(cls, name: str) -> str:
        return name

    def acquire(self, name: str, ttl: float, wait: float | None) -> Held | None:
        from redis.exceptions import LockError

        lock = self._make(name, ttl)
        held = lock.acquire(blocking=wait != 0, blocking_timeout=wait)
        return _RedisPyLock(lock, LockError) if held else None

    def _make(self, name: str, ttl: float) -> Any:
        return self._client.lock(name, timeout=ttl)


class DjangoRedis(RedisPy):
    title = "django-redis"
    distribution = "django-redis"
    module = "django_redis"
    use = "`cache.lock(name, timeout=…, blocking_timeout=…)`"

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        Peer.__init__(self, url, timeout=timeout)
        _connect_django(url, timeout)

    @classmethod
    def key(cls, name: str) -> str:
        return f":1:{name}"

    def _make(self, name: str, ttl: float) -> Any:
        from django.core.cache import cache

        return cache.lock(name, timeout=ttl)


# python-redis-lock.


class _PythonRedisLock(Held):
    def is_ours(self) -> bool:
        return bool(self._its.get_owner_id() == self._its.id)


class PythonRedisLock(Peer):
    title = "python-redis-lock"
    distribution = "python-redis-lock"
    module = "redis_lock"
    use = "`Lock(Redis(host=…), name, expire=…, auto_renewal=True)`"
    ask = "if it asks the server: `get_owner_id()`"
    shortest = 1.0  # whole seconds
    renews = True

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        super().__init__(url, timeout=timeout)
        # It warns of each lock that it did not get, and its renewal ends with a traceback.
        logging.getLogger("redis_lock").addHandler(logging.NullHandler())
        threading.excepthook = lambda args: None
        self._client = _plain_client(url, timeout)

    @classmethod
    def key(cls, name: str) -> str:
        return f"lock:{name}"

    @classmethod
    def transient(cls, name: str) -> list[str]:
        return [f"lock-signal:{name}"]

    @classmethod
    def patience(cls, ttl: float) -> float:
        return 1.5 * ttl  # it waits in BLPOP, for ttl at a time

    @classmethod
    def waiting(cls, redis: Redis, name: str) -> int | None:
        return int(redis.info("clients")["blocked_clients"])

    @classmethod
    def releases(cls, words: list[bytes]) -> bool:
        return words[0].upper() == b"EVALSHA" and not cls.extends(words)

    @classmethod
    def extends(cls, words: list[bytes]) -> bool:
        from hashlib import sha1

        from redis_lock import EXTEND_SCRIPT

        return len(words) > 1 and words[1] == sha1(EXTEND_SCRIPT).hexdigest().encode()

    def acquire(self, name: str, ttl: float, wait: float | None) -> Held | None:
        from redis_lock import Lock, NotAcquired

        lock = Lock(self._client, name, expire=math.ceil(ttl), auto_renewal=True)
        if wait == 0:
            held = lock.acquire(blocking=False)
        else:
            held = lock.acquire(timeout=None if wait is None else math.ceil(wait))
        return _PythonRedisLock(lock, NotAcquired) if held else None


# pottery.


class _Redlock(Held):
    def is_ours(self) -> bool:
        return bool(self._its.locked() > 0)


class Pottery(Peer):
    title = "pottery"
    distribution = "pottery"
    module = "pottery"
    use = "`Redlock(key=…, masters={Redis.from_url(…)}, auto_release_time=…)`"
    ask = "if it asks the server: `locked()`"

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        super().__init__(url, timeout=timeout)
        options: dict[str, Any] = {} if timeout is None else {"socket_timeout": timeout}
        self._client = Redis.from_url(url, **options)

    @classmethod
    def key(cls, name: str) -> str:
        return f"redlock:{name}"

    def acquire(self, name: str, ttl: float, wait: float | None) -> Held | None:
        from pottery import ExtendUnlockedLock, Redlock, ReleaseUnlockedLock

        lock = Redlock(key=name, masters={self._client}, auto_release_time=ttl)
        if wait == 0:
            held = lock.acquire(blocking=False)
        else:
            held = lock.acquire(timeout=-1 if wait is None else wait)
        return _Redlock(lock, ExtendUnlockedLock, ReleaseUnlockedLock) if held else None


PEERS: list[type[Peer]] = [Ours, RedisPy, DjangoRedis, PythonRedisLock, Pottery]
