"""The servers of locks, and what a process keeps for each.

`server_of` finds the `Server` of an alias, once for each operation; entries.py says what an alias
means. From then on the operation, its ports and its lease work with that `Server`. Two
aliases, or two clients, may lead to one server as one user. They have the same `address`, and
share everything that is kept for it: the register of leases, the watchdog, the inbox, the line of
waiters, and what each event loop has.

Each event loop has connections of its own (`OfLoop`), which are closed with it: a connection
belongs to the loop that opened it, and Django makes loops freely. `async_to_sync` and
`asyncio.run` may make one per request.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from redis import ConnectionPool

from ..base import process
from ..base.clock import now
from ..base.servers import Servers
from . import connections
from .cluster import Cluster, slot_of
from .connections import Pools, PoolsOfClient, pools_of
from .loans import Lines, lines_of

T = TypeVar("T")

_kept: dict[str, dict[tuple[Hashable, ...], Any]] = {}
"""The objects that this process keeps for a server, by address."""

_by_slot: set[str] = set()
"""The addresses that have refused a script whose keys are in several slots. A forked child knows
them, too."""


class Server:
    """A Redis server, or a cluster, as one alias or one client reaches it."""

    look_at = 0.0
    """When to ask once more whether it has slots (ports.py)."""

    def __init__(self, using: str, pools: Pools, each: tuple[Server, ...] = ()) -> None:
        _refuse_eventlet()
        self.using = using
        """The alias. For a client without an alias: the URL of its server, without secrets."""
        self.address = pools.address
        """Identifies the server, the database and the user in this process. It has no secret."""
        self.where = pools.where
        """Its host and port, or its socket, for people."""
        self.declared = pools.clustered
        """Whether the settings say that the keys of one script must be in one slot."""
        self.each = each
        """The servers of a Redlock. A single server has none."""
        self.shared_pool = pools.shared
        """Returns the pool that the project's cache or client uses. For a cluster: the pools that
        all threads share."""
        self.background_pool = pools.background
        """Makes a pool whose connections wait for `BACKGROUND_TIMEOUT` at most."""
        self.async_pool = pools.for_loop
        """Makes the connections of the running event loop."""
        self._pools = pools
        self._kept = _kept.setdefault(pools.address, {})
        self.busy: dict[str, float] = self._kept.setdefault(("busy",), {})
        """The keys of locks that were not free, and until when that is expected of them."""

    @property
    def clustered(self) -> bool:
        """Whether the keys of one script must be in one slot: on a Redis Cluster, and on servers
        that are sharded behind one address. The settings say so, or the server has refused such a
        script. A request is sent to a node by its slot only if the pool is a `Cluster`."""
        return self.declared or self.address in _by_slot

    def refuses_several_slots(self) -> None:
        """Note that the server has refused a script whose keys are in several slots."""
        global _found
        _by_slot.add(self.address)
        _found = {}  # what was decided about locks there may be wrong now

    @cached_property
    def links(self) -> Lines | Cluster[ConnectionPool]:
        """The connections of this pool that threads have borrowed; or the pools of a cluster."""
        pool = self.shared_pool()
        return pool if isinstance(pool, Cluster) else lines_of(pool)

    def slots(self, keys: Sequence[str]) -> list[int]:
        """Return the slot of each key: one script may touch keys of one slot only. On one primary
        all keys have slot 0."""
        return [*map(slot_of, keys)] if self.clustered else [0] * len(keys)

    def kept(self, make: Callable[..., T], *more: Hashable) -> T:
        """Return the object that `make(server, *more)` has made for this server in this process,
        and make it if there is none.

        A forked child starts with nothing. If the object has a method `left_behind`, the child
        calls it before it forgets the object.
        """
        found = self._kept.get((make, *more))
        if found is None:
            # Two threads may make one each, but both get the one that was first.
            found = self._kept.setdefault((make, *more), make(self, *more))
        return found  # type: ignore[no-any-return]

    def drop(self, kept: object) -> None:
        """Forget an object that was kept for this server."""
        for key in [key for key, one in self._kept.copy().items() if one is kept]:
            self._kept.pop(key, None)

    def again(self) -> Server | None:
        """Return this server as the settings describe it now. `None` if its alias now means
        another server, or no server; or if its client is gone."""
        try:
            found = server_of(self.using)
        except ImproperlyConfigured:
            return None
        except Exception:
            return self  # another thread overrides the settings at this moment
        return found if found.address == self.address else None


def _refuse_eventlet() -> None:
    """Raise `ImproperlyConfigured` in a process of eventlet. Under its `select`, two of our
    threads can't wait for one connection, and a lock would be left behind."""
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and any(map(patcher.is_monkey_patched, ("select", "socket", "thread"))):
        raise ImproperlyConfigured(
            "eventlet has replaced the sockets or threads of this process, and locks do not work "
            "with it. Use gevent (gunicorn --worker-class gevent, celery --pool gevent) or "
            "threads."
        )


class _ServerOfClient(Server):
    _pools: PoolsOfClient

    def again(self) -> Server | None:
        return self if self._pools.client_is_there() else None

    def as_before(self) -> bool:
        """Return whether the pool makes connections as it did when this was made."""
        return self._pools.options == self._pools.shared().connection_kwargs


_by_pool: weakref.WeakKeyDictionary[ConnectionPool, _ServerOfClient] = weakref.WeakKeyDictionary()


class _PoolsOfSeveral:
    """The servers of a Redlock together, which have no pool in common."""

    clustered = False

    def __init__(self, using: Servers, each: tuple[Server, ...]) -> None:
        self._using = using
        self.address = _common_address(each)
        self.where = ", ".join(one.where for one in each)

    def _refuse(self) -> Any:
        raise ImproperlyConfigured(
            f"{self._using} are several servers, which only a Redlock works with. Write one alias "
            f"of CACHES, or 'KIND': 'redlock' beside them in REDISLOCK['LOCKS']."
        )

    shared = background = for_loop = _refuse


def _common_address(servers: tuple[Server, ...]) -> str:
    """Return one address for several servers, which does not depend on their order.

    Raises `ImproperlyConfigured` if two of them are databases or users of one server: the
    majority of a Redlock has to be a majority of servers.
    """
    for where, number in Counter(one.where for one in servers).items():
        if number > 1:
            raise ImproperlyConfigured(
                f"Aliases of CACHES for one Redlock lead to the same server, {where}: it needs "
                f"servers that fail independently of each other, not databases of one"
            )
    return " ".join(sorted(one.address for one in servers))


_found: dict[str | tuple[str, ...], Server] = {}
"""The servers, by alias or by the aliases of a Redlock, as `_settings` describes them. It is
replaced and not cleared: another thread may just now add a server as they were before."""
_settings: Any = None


def known_servers() -> dict[Any, Server]:
    """Return the servers that are known, as a dictionary that is another one when an alias may
    mean something else."""
    global _settings, _found
    # Django replaces this object when settings are overridden. To read the settings each time
    # would take six times as long.
    if caches.settings is not _settings:
        _found, _settings = {}, caches.settings
    return _found


def server_of(using: str) -> Server:
    """Return the server that an alias of CACHES means now, or the servers of a Redlock.

    Raises `ImproperlyConfigured` if there is no such alias, or if django-redis does not serve it.
    """
    known = known_servers()
    key = using.aliases if isinstance(using, Servers) else using
    found = known.get(key)
    if found is None:
        if isinstance(using, Servers):
            each = tuple(map(server_of, using.aliases))
            found = known[key] = Server(using, _PoolsOfSeveral(using, each), each)
        else:
            found = known[key] = Server(using, _pools_of(using))
    return found


def clustered(using: str) -> bool:
    """Return what `Server.clustered` is for the server that an alias means now."""
    return server_of(using).clustered


def server_of_client(client: object) -> Server:
    """Return the server of a redis-py client that has no alias. The client is not kept alive.

    Raises `TypeError` if it is no client of a single primary.
    """
    pool: Any = getattr(client, "connection_pool", None)
    found = _by_pool.get(pool) if isinstance(pool, ConnectionPool) else None
    if found is None or not found.as_before():
        pools = PoolsOfClient(client)
        found = _by_pool[pool] = _ServerOfClient(pools.url, pools)
    return found


def every(make: Callable[..., T]) -> list[T]:
    """Return the objects that `make` has made for all servers, by `Server.kept`."""
    return [
        one
        for kept in _kept.copy().values()
        for (by, *_), one in kept.copy().items()
        if by is make
    ]


@contextmanager
def leading_to(pools_of: Callable[[str], Pools]) -> Iterator[None]:
    """Let aliases lead to other servers, in tests."""
    global _pools_of, _found
    before, _pools_of = _pools_of, pools_of
    _found = {}
    try:
        yield
    finally:
        _pools_of = before
        _found = {}


def elsewhere() -> bool:
    """Return whether aliases lead to other servers than the settings describe."""
    return _pools_of is not pools_of


def _forget() -> None:
    """In a forked child: the kept objects have threads and sockets that stayed in the parent. A
    thread of the parent may have been in the middle of a command in its memory."""
    global _found
    connections.forget_memory()
    _found = {}
    _by_pool.clear()
    for kept in _kept.values():
        for one in kept.values():
            if hasattr(one, "left_behind"):
                one.left_behind()
        kept.clear()


process.in_child(_forget)


_pools_of: Callable[[str], Pools] = pools_of


CLOSE_TIMEOUT = 5.0
"""Seconds that the end of a loop waits for commands that are under way."""

_inherited: list[object] = []

ending: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
"""The loops that close their asynchronous generators."""


class OfLoop:
    """The objects that all tasks of one loop share for one server."""

    def __init__(self, loops: EventLoops, loop: asyncio.AbstractEventLoop, server: Server) -> None:
        self.loop = loop
        self.pool = server.async_pool()
        self.busy = 0
        """How many commands are under way."""
        self.closer = self._close_at_end(loops)

    async def _close_at_end(self, loops: EventLoops) -> AsyncGenerator[None]:
        """Close the connections when their loop ends.

        A loop has no hook for that, but it closes the asynchronous generators that were begun
        in it (`shutdown_asyncgens`, which asyncio.run, asgiref and ASGI servers call).
        """
        try:
            yield
        finally:
            ending.add(self.loop)
            loops.pop(self.loop, None)
            give_up = now() + CLOSE_TIMEOUT
            while self.busy and now() < give_up:  # noqa: ASYNC110
                await asyncio.sleep(0.001)  # an event would cost time with each command
            await connections.aclose(self.pool)


class EventLoops(dict[asyncio.AbstractEventLoop, OfLoop]):
    """The event loops of this process that use one server."""

    def __init__(self, _: Server) -> None: ...

    def left_behind(self) -> None:
        """Keep the connections, in a forked child. Otherwise they would be closed, which takes
        their sockets out of the epoll that the child shares with its parent."""
        _inherited.append(self.copy())


def joined(loop: asyncio.AbstractEventLoop, server: Server) -> OfLoop | None:
    """Return `of_loop`, if it is there already."""
    return server.kept(EventLoops).get(loop)


async def of_loop(loop: asyncio.AbstractEventLoop, server: Server) -> OfLoop:
    """Return the objects that the tasks of a loop share for a server. `server` has the settings
    for them."""
    its = joined(loop, server)
    if its is None:
        _drop_closed()
        loops = server.kept(EventLoops)
        its = loops[loop] = OfLoop(loops, loop, server)
        await anext(its.closer)
    return its


def _drop_closed() -> None:
    """Forget loops that were closed without `shutdown_asyncgens`. Their sockets go with the
    transports."""
    for loops in every(EventLoops):
        for loop in [loop for loop in loops.copy() if loop.is_closed()]:
            loops.pop(loop, None)
