"""Where connections are: idle in a pool, idle as lines of ours, in use, or of an event loop."""

from __future__ import annotations

from typing import Any

from redis import ConnectionPool

from django_redislock.transport.loans import lines_of
from django_redislock.transport.server import EventLoops, OfLoop, every


def taken(pool: ConnectionPool) -> int:
    """How many connections of a pool somebody uses."""
    return len(pool._in_use_connections) - len(lines_of(pool)._idle)


def missing(pool: ConnectionPool) -> int:
    """How many connections that a pool has made are neither idle in the pool nor idle lines."""
    return int(pool._created_connections) - len(idle(pool))


def idle(pool: ConnectionPool) -> list[Any]:
    """The connections that nobody uses."""
    return [*pool._available_connections, *(line.connection for line in lines_of(pool)._idle)]


def unread(pool: ConnectionPool) -> list[Any]:
    """The idle connections over which something has come that nobody has read."""
    return [one for one in idle(pool) if one._sock is not None and one.can_read()]


def opened() -> list[OfLoop]:
    """What the event loops of this process have for all servers."""
    return [its for loops in every(EventLoops) for its in loops.copy().values()]
