"""What one server tells of itself, to the user as whom locks come to it. Judged in rules.py.

It is asked by a bounded number of bounded commands, over a pool of its own. What that user may not
ask, or what the server does not know (managed ones have no CONFIG), is noted as not seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from ..settings import conf, configured
from ..transport import pools
from ..transport.server import server_of
from . import keyspace, permissions


class Away(Exception):
    """It could not be asked. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What was seen. Times are seconds."""

    alias: str
    prefix: str
    user: str
    db: int
    """The number of its database."""
    replicas: int
    """How many have to confirm a lock."""
    unneeded: frozenset[str] = frozenset()
    """Commands that locks don't send to it."""
    round_trip: float
    skew: float
    """How far its clock is ahead of ours, at least; negative: behind."""
    node: str = ""
    """Its address, when it is a node of a cluster."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Of the command INFO. Empty: not seen."""
    save: str | None = None
    """When it writes its data to the disk; None: not seen."""
    refused: permissions.Refused = field(default_factory=permissions.Refused)
    keys: keyspace.Seen = field(default_factory=keyspace.Seen)
    unseen: tuple[str, ...] = ()
    """What could not be seen, and why."""


def look(alias: str, *, thorough: bool = True) -> list[Server]:
    """Ask the server of an alias, or each primary of its cluster; if not `thorough`, nothing that
    takes longer than a moment, and no command that is meant to fail. Raises `Away`."""
    pool, clients = None, []
    try:
        pool = server_of(alias).background_pool()
        for its in pools.primaries(pool):
            clients.append(redis.Redis(connection_pool=its))
            with suppress(NoPermissionError):
                clients[-1].ping()  # what fails here is not one question, but all of them
    except Exception as error:  # a provider of credentials, for one, may raise anything
        if pool is not None:
            pools.close(pool)
        raise _away(alias, error) from error
    try:
        return [_Asking(client, alias).look(thorough=thorough) for client in clients]
    except (RedisError, OSError) as error:
        raise _away(alias, error) from error
    finally:
        pools.close(pool)


def _away(alias: str, error: Exception) -> Away:
    what = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Away(f"Redis could not be asked through CACHES[{alias!r}]: {what}")


class _Asking:
    def __init__(self, client: redis.Redis, alias: str) -> None:
        self._client = client
        self._alias = alias
        self._unseen: list[str] = []

    def look(self, *, thorough: bool) -> Server:
        prefix, clustered = conf.prefix(), server_of(self._alias).clustered
        round_trip, skew = 0.0, 0.0
        with self._perhaps("its clock"):
            round_trip, skew = _clock(self._client.time)
        info: Mapping[str, Any] = {}
        with self._perhaps("version, role, eviction, persistence, replicas"):
            info = self._client.info()
        save = None
        with self._perhaps("whether it saves its data"):
            save = str(self._client.config_get("save").get("save", ""))
        options = self._client.connection_pool.connection_kwargs
        db, replicas = int(options.get("db") or 0), configured.replicas(self._alias)
        unneeded = permissions.unneeded(database=db, replicas=replicas, clustered=clustered)
        seen, refused = keyspace.Seen(), permissions.Refused()
        if thorough:
            with self._perhaps("what is left of locks"):
                seen = keyspace.look(self._client, prefix, listed=not clustered)
            refused = permissions.refused(self._client, prefix, unneeded)
        if seen.cut_short:
            self._unseen.append(f"all keys (the first {seen.looked_at} were looked at)")
        return Server(
            alias=self._alias,
            node=f"{options.get('host')}:{options.get('port')}" if clustered else "",
            prefix=prefix,
            user=_user(options),
            db=db,
            replicas=replicas,
            unneeded=unneeded,
            round_trip=round_trip,
            skew=skew,
            info=info,
            save=save,
            refused=refused,
            keys=seen,
            unseen=tuple(self._unseen),
        )

    @contextmanager
    def _perhaps(self, what: str) -> Iterator[None]:
        try:
            yield
        except ResponseError as error:
            self._unseen.append(f"{what} ({error})")


def _user(options: Mapping[str, Any]) -> str:
    if options.get("credential_provider") is not None:
        return "<user>"  # asking it again may not be for nothing
    return str(options.get("username") or "default")


def _clock(ask: Callable[[], tuple[int, int]], tries: int = 5) -> tuple[float, float]:
    """The shortest round trip, and how far the server's clock is ahead, at least."""
    seen = []
    for _ in range(tries):
        began, wall = time.monotonic(), time.time()
        seconds, microseconds = ask()
        took = time.monotonic() - began
        # It was read at some time in between.
        seen.append((took, seconds + microseconds / 1e6 - wall - took / 2))
    took, ahead = min(seen)
    return took, max(0.0, ahead - took / 2) + min(0.0, ahead + took / 2)
