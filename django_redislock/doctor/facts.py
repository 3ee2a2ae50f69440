"""The facts about one server, as the user that locks log in as sees them. rules.py judges them.

A bounded number of bounded commands asks for them, over a pool of its own. A fact is listed as
unseen if that user may not ask for it, or if the server does not know the command: managed servers
have no CONFIG.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from ..base import label
from ..base.exceptions import LockUnavailable
from ..primitives import raising
from ..primitives.contract import run
from ..primitives.keys import COUNTED, Keys, counter
from ..settings import conf, configured
from ..transport import pools
from ..transport.ports import SyncPort, find_out_slots
from ..transport.server import server_of
from . import keyspace, permissions, vendors
from .in_caches import hosts_of

SLOTS_LOOKED_AT = 50
"""Slots by which a node of a cluster is told from a server with all slots behind one address."""


class Unreachable(Exception):
    """The server could not be asked. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The facts about one server. Times are seconds."""

    alias: str
    prefix: str
    user: str
    db: int
    """The number of the database."""
    replicas: int
    """How many replicas have to confirm a lock."""
    after_loss: str = "go"
    """wait: a lock here waits after lost data; go: none does."""
    guard: float | None = None
    """Since when the server has forgotten nothing, by its clock. None: nobody has seen."""
    unneeded: frozenset[str] = frozenset()
    """Commands that locks don't send to this server."""
    round_trip: float
    skew: float
    """How far its clock is ahead of the clock of this host, at least. Negative: behind."""
    node: str = ""
    """The address of a node of a cluster."""
    sharded: bool = False
    """Whether the keys of one script must be in one slot."""
    has_all_slots: bool = True
    """Whether a single server that is a Redis Cluster serves all slots, as far as was seen."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The answer to INFO. Empty: unseen."""
    vendor: vendors.Vendor = vendors.SOMEBODY
    active_active: bool = False
    """Whether other servers accept writes of the same data, as far as that can be seen."""
    untold: int = 0
    """How many handovers no message announced to a waiter that listened."""
    unreadable_clocks: int = 0
    """How often the last fencing token could not be read."""
    save: str | None = None
    """When the server writes its data to disk. None: unseen."""
    refused: permissions.Refused = field(default_factory=permissions.Refused)
    messages: permissions.Messages = field(default_factory=permissions.Messages)
    keys: keyspace.KeyFacts = field(default_factory=keyspace.KeyFacts)
    unseen: tuple[str, ...] = ()
    """Facts that could not be seen, and why."""


def ask(alias: str, *, thorough: bool = True) -> list[ServerFacts]:
    """Ask the server of an alias, or each primary of its cluster. Raises `Unreachable`.

    If not `thorough`, leave out what takes long, and the commands that may be refused.
    """
    pool, clients = None, []
    try:
        pool = server_of(alias).background_pool()
        for its in pools.primaries(pool):
            clients.append(redis.Redis(connection_pool=its))
            with suppress(NoPermissionError):
                clients[-1].ping()  # if this fails, no question can be asked
    except Exception as error:  # a provider of credentials may raise anything
        if pool is not None:
            pools.close(pool)
        raise _unreachable(alias, error) from error
    try:
        return [_Asking(client, alias).facts(thorough=thorough) for client in clients]
    except (RedisError, OSError) as error:
        raise _unreachable(alias, error) from error
    finally:
        pools.close(pool)


def _unreachable(alias: str, error: Exception) -> Unreachable:
    what = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Unreachable(f"Redis could not be asked through CACHES[{alias!r}]: {what}")


class _Asking:
    def __init__(self, client: redis.Redis, alias: str) -> None:
        self._client = client
        self._alias = alias
        self._unseen: list[str] = []

    def facts(self, *, thorough: bool) -> ServerFacts:
        prefix, server = conf.prefix(), server_of(self._alias)
        routed = pools.routed(server.shared_pool())
        round_trip, skew = 0.0, 0.0
        with self._perhaps("its clock"):
            round_trip, skew = _clock(self._client.time)
        info: Mapping[str, Any] = {}
        with self._perhaps("version, role, eviction, persistence, replicas"):
            info = self._client.info()
        save, configurable = None, True
        with self._perhaps("whether it saves its data") as error:
            save = self._client.config_get("save").get("save")
        if error:
            configurable = isinstance(error[0], NoPermissionError)
        vendor = vendors.vendor_of(hosts_of(self._alias), info, configurable=configurable)
        options = self._client.connection_pool.connection_kwargs
        db, replicas = int(options.get("db") or 0), configured.replicas(self._alias)
        sharded = server.clustered
        if thorough:
            with suppress(LockUnavailable):  # without permissions, which is told below
                sharded = find_out_slots(server, prefix)
        unneeded = permissions.unneeded(
            database=db, replicas=replicas, routed=routed, sharded=sharded
        )
        after_loss, guard = configured.after_loss(self._alias), None
        if after_loss == "wait":
            with self._perhaps("its guard"):
                guard = self._client.get(Keys.of(prefix, "-").guard)
        counted: dict[str, Any] = dict.fromkeys(COUNTED)
        with self._perhaps("what is counted"):
            for what in COUNTED:
                key = counter(Keys.of(prefix, "-").index, what)
                with suppress(MovedError):  # another node of the cluster has this one
                    counted[what] = self._client.get(key)
        numbers = {what: label.number(text) or 0 for what, text in counted.items()}
        keys, refused = keyspace.KeyFacts(), permissions.Refused()
        messages = permissions.Messages()
        if thorough:
            with suppress(LockUnavailable):  # as above
                clock = run(raising.check(SyncPort(server), Keys.of(prefix, "-"), 0))
                numbers[raising.COUNTER] += clock.code == raising.UNREADABLE
            with self._perhaps("what is left of locks"):
                keys = keyspace.look_at(self._client, prefix, listed=not sharded)
            refused = permissions.refused(self._client, prefix, unneeded)
            messages = permissions.messages(self._client, prefix, sharded=sharded)
        if keys.cut_short:
            self._unseen.append(f"all keys (the first {keys.looked_at} were looked at)")
        return ServerFacts(
            alias=self._alias,
            node=f"{options.get('host')}:{options.get('port')}" if routed else "",
            sharded=sharded,
            has_all_slots=routed or not info.get("cluster_enabled") or self._has_all_slots(prefix),
            prefix=prefix,
            user=_user(options),
            db=db,
            replicas=replicas,
            after_loss=after_loss,
            guard=None if guard is None else float(guard) / 1e6,
            unneeded=unneeded,
            round_trip=round_trip,
            skew=skew,
            info=info,
            vendor=vendor,
            active_active=self._active_active(vendor, info),
            untold=numbers["untold"],
            unreadable_clocks=numbers[raising.COUNTER],
            save=save,
            refused=refused,
            messages=messages,
            keys=keys,
            unseen=tuple(self._unseen),
        )

    def _active_active(self, vendor: vendors.Vendor, info: Mapping[str, Any]) -> bool:
        """Return whether other servers accept writes, too, and merge them later."""
        if info.get("role") == "active-replica":
            return True
        with suppress(ResponseError):
            if vendor == vendors.KEYDB:  # the role of one that follows nobody is "master"
                return "yes" in self._client.config_get("active-replica").values()
            if info:  # Redis Enterprise has this section, with such fields, for Active-Active
                return any(key.startswith("crdt_") for key in self._client.info("crdt"))
        return False

    def _has_all_slots(self, prefix: str) -> bool:
        """Return whether this address serves the keys of some slots, which are anywhere."""
        pipeline = self._client.pipeline(transaction=False)
        for number in range(SLOTS_LOOKED_AT):
            pipeline.pttl(f"{prefix}:slot:{{{number}}}")
        answers = pipeline.execute(raise_on_error=False)
        return not any(isinstance(one, AskError | ClusterDownError) for one in answers)

    @contextmanager
    def _perhaps(self, what: str) -> Iterator[list[ResponseError]]:
        """Note a fact that can't be seen. The list gets the error."""
        errors: list[ResponseError] = []
        try:
            yield errors
        except ResponseError as error:
            errors.append(error)
            self._unseen.append(f"{what} ({error})")


def _user(options: Mapping[str, Any]) -> str:
    if options.get("credential_provider") is not None:
        return "<user>"  # to ask the provider again may cost something
    return str(options.get("username") or "default")


def _clock(ask: Callable[[], tuple[int, int]], tries: int = 5) -> tuple[float, float]:
    """Return the shortest round trip, and how far the server's clock is ahead, at least."""
    seen = []
    for _ in range(tries):
        began, wall = time.monotonic(), time.time()
        seconds, microseconds = ask()
        took = time.monotonic() - began
        # The server read its clock at some time within the round trip.
        seen.append((took, seconds + microseconds / 1e6 - wall - took / 2))
    took, ahead = min(seen)
    return took, max(0.0, ahead - took / 2) + min(0.0, ahead + took / 2)
