"""A stand-in for CACHES in tests: locks go to no server, or to one in memory.

The CACHES of the test settings stay as they are, and may be any, `LocMemCache` for example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock
from urllib.parse import quote

from django.conf import settings
from django.core.cache import CacheHandler, InvalidCacheBackendError
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ..lease.lease import Lease
from ..lease.lock import Lock
from ..lease.watchdog import Watchdog
from ..locks.completion import RecordedLock
from ..locks.multi_lock import MultiLock
from ..settings import conf, kinds
from ..settings.policy import Policy
from ..transport import ports, server
from ..transport.server import every, server_of

SCRIPT = ports.BasePort.script
PRIMITIVES = [(kind, kind._primitive) for kind in (Lock, RecordedLock, MultiLock)]


class Caches(CacheHandler):
    """A stand-in for `django.core.cache.caches`, with another server for each alias."""

    def __init__(self, where: str) -> None:
        super().__init__({"default": {}})
        self.host = f"{where}.invalid"
        self._caches: dict[str, Any] = {}

    def __getitem__(self, alias: str) -> Any:
        if alias not in settings.CACHES:  # so that tests find a misspelt alias
            raise InvalidCacheBackendError(alias)
        return self._caches.get(alias) or self._caches.setdefault(alias, self._cache(alias))

    def _cache(self, alias: str) -> Any:
        options = {"CONNECTION_POOL_KWARGS": self.options(alias)}
        backend = import_string("django_redis.cache.RedisCache")
        return backend(f"redis://{quote(alias)}.{self.host}/0", {"OPTIONS": options})

    def options(self, alias: str) -> dict[str, Any]:  # noqa: ARG002
        """Return the options of connections to the server of an alias."""
        return {}

    @contextmanager
    def in_place(self, script: Callable[..., Any] = SCRIPT) -> Iterator[None]:
        """Send locks here and let `script` run their scripts, whatever is around this."""
        before = self.leases
        with (
            mock.patch.object(server, "caches", self),
            answering(script),
            finding(PRIMITIVES),
            nothing_lost(),
        ):
            try:
                yield
            finally:
                self.forget(before)

    @property
    def watchdogs(self) -> list[Watchdog]:
        return [one for one in every(Watchdog) if self.host in one.server.address]

    @property
    def leases(self) -> list[Lease]:
        """The leases that this process holds here."""
        return [lease for watchdog in self.watchdogs for lease in watchdog.leases()]

    def forget(self, besides: Sequence[Lease] = ()) -> None:
        """Forget the leases that the test did not release: the server is gone after the test."""
        for watchdog in self.watchdogs:
            watchdog._to_release.clear()
            for lease in watchdog.leases():
                if lease not in besides:
                    lease._lifetime.end()
                    watchdog.forget(lease._claim)


def answering(script: Callable[..., Any]) -> Any:
    """Let ports run their scripts by this method."""
    return mock.patch.object(ports.BasePort, "script", script)


@contextmanager
def finding(primitives: list[tuple[type[Lock], Any]]) -> Iterator[None]:
    """Let locks of these classes find their primitives by these methods."""
    with ExitStack() as stack:
        for kind, its in primitives:
            stack.enter_context(mock.patch.object(kind, "_primitive", its))
        yield


@contextmanager
def nothing_lost() -> Iterator[None]:
    """Let locks with `AFTER_LOSS = "wait"` behave as on a server that has forgotten nothing. A
    server that is new for each test looks like one that has lost its data."""
    guarded = kinds.guarded

    def never(policy: Policy, clustered: Callable[[str], bool]) -> bool:
        guarded(policy, clustered)  # raises where it can't be kept
        return False

    with mock.patch.object(kinds, "guarded", never):
        yield


def replaced() -> bool:
    """Whether a stand-in has replaced the project's servers."""
    return isinstance(vars(server)["caches"], Caches)


def configured() -> bool:
    """Whether the settings have a server for locks."""
    try:
        server_of(conf.policy("a test", {}).using)
    except ImproperlyConfigured:
        return False
    return True
