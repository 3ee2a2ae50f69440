"""Stand-ins for the servers in tests: locks go to none, or to one in memory.

The CACHES of the test settings stay as they are, and may be any, `LocMemCache` for example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, TypeVar
from unittest import mock

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ..base.servers import MEMORY
from ..lease.lease import Lease
from ..lease.lock import Lock
from ..lease.watchdog import Watchdog
from ..locks.completion import RecordedLock
from ..locks.multi_lock import MultiLock
from ..settings import conf, kinds
from ..settings.policy import Policy
from ..transport import ports
from ..transport.entries import no_alias
from ..transport.pools import Pools
from ..transport.server import every, leading_to, server_of

P = TypeVar("P", bound=Pools)

SCRIPT = ports.BasePort.script
PRIMITIVES = [(kind, kind._primitive) for kind in (Lock, RecordedLock, MultiLock)]


class StandIns(Generic[P]):
    """Another server for each alias."""

    def __init__(self, name: str, pools: Callable[[str, str], P]) -> None:
        self._addresses = f"{name}://"
        self._make = pools
        """Makes the pools of an address and an alias."""
        self._pools: dict[str, P] = {}

    def pools_of(self, alias: str) -> P:
        if alias != MEMORY and alias not in settings.CACHES:  # so that tests find a misspelt alias
            raise no_alias(alias)
        made = self._pools.get(alias)
        return made or self._pools.setdefault(alias, self._make(self._addresses + alias, alias))

    @contextmanager
    def in_place(self, script: Callable[..., Any] = SCRIPT) -> Iterator[None]:
        """Send locks here and let `script` run their scripts, whatever is around this."""
        before = self.leases
        with (
            leading_to(self.pools_of),
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
        return [one for one in every(Watchdog) if one.server.address.startswith(self._addresses)]

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


def configured() -> bool:
    """Whether the settings have a server for locks."""
    try:
        server_of(conf.policy("a test", {}).using)
    except ImproperlyConfigured:
        return False
    return True
