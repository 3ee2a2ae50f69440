"""Where a lock goes in a test: in place of CACHES to no server, or to one in memory.

The test settings may have whatever caches they like, `LocMemCache` for one; these stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock
from urllib.parse import quote

from django.conf import settings
from django.core.cache import CacheHandler, InvalidCacheBackendError
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ..lease import watchdog as renewal
from ..lease.lease import Lease
from ..lease.lock import Lock
from ..locks.multi_lock import MultiLock
from ..settings import conf
from ..transport import ports
from ..transport import server as connections
from ..transport.server import every, server_of

SCRIPT = ports._AnyPort.script
PRIMITIVES = [(kind, kind._primitive) for kind in (Lock, MultiLock)]


class Caches(CacheHandler):
    """In place of `django.core.cache.caches`: for each alias, a server of its own."""

    def __init__(self, where: str) -> None:
        super().__init__({"default": {}})
        self.host = f"{where}.invalid"
        self._caches: dict[str, Any] = {}

    def __getitem__(self, alias: str) -> Any:
        if alias not in settings.CACHES:  # a typing error is to be found by tests
            raise InvalidCacheBackendError(alias)
        return self._caches.get(alias) or self._caches.setdefault(alias, self._cache(alias))

    def _cache(self, alias: str) -> Any:
        options = {"CONNECTION_POOL_KWARGS": self.options(alias)}
        backend = import_string("django_redis.cache.RedisCache")
        return backend(f"redis://{quote(alias)}.{self.host}/0", {"OPTIONS": options})

    def options(self, alias: str) -> dict[str, Any]:  # noqa: ARG002
        """Of the connections to the server of an alias."""
        return {}

    @contextmanager
    def in_place(self, script: Callable[..., Any] = SCRIPT) -> Iterator[None]:
        """Locks go here, where `script` runs their scripts, whatever holds around this."""
        before = self.leases
        with (
            mock.patch.object(connections, "caches", self),
            answering(script),
            finding(PRIMITIVES),
        ):
            try:
                yield
            finally:
                self.forget(before)

    @property
    def watchdogs(self) -> list[renewal.Watchdog]:
        return [one for one in every(renewal.Watchdog) if self.host in one.server.address]

    @property
    def leases(self) -> list[Lease]:
        """That this process holds here."""
        return [lease for watchdog in self.watchdogs for lease in leases_of(watchdog)]

    def forget(self, besides: Sequence[Lease] = ()) -> None:
        """What nobody has given back: after the test, there is nobody to give it to."""
        for watchdog in self.watchdogs:
            watchdog._to_release.clear()
            for lease in leases_of(watchdog):
                if lease not in besides:
                    lease.end()
                    watchdog.forget(lease.claim)


def leases_of(watchdog: renewal.Watchdog) -> list[Lease]:
    watched = [one.lease() for one in watchdog._leases.copy().values()]
    return [lease for lease in watched if lease is not None]


def answering(script: Callable[..., Any]) -> Any:
    """Scripts are run by this method of a port."""
    return mock.patch.object(ports._AnyPort, "script", script)


@contextmanager
def finding(primitives: list[tuple[type[Lock], Any]]) -> Iterator[None]:
    """Locks of these classes find their primitives so."""
    (one, its), (other, others) = primitives
    with mock.patch.object(one, "_primitive", its), mock.patch.object(other, "_primitive", others):
        yield


def pretended() -> bool:
    """Locks go to none of the project's servers."""
    return isinstance(vars(connections)["caches"], Caches)


def configured() -> bool:
    """Locks have a server to go to."""
    try:
        server_of(conf.policy("a test", {}).using)
    except ImproperlyConfigured:
        return False
    return True
