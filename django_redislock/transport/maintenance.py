"""What a managed server says before and after it goes away for a moment.

redis-py 8 asks Redis Software and Redis Cloud for such pushes. They come over each connection,
between the answers. The readers of this package hand them on to redis-py, which allows more time
or connects to another address. And before the server goes away, all leases of this process are
renewed, so that each of them has its whole ttl. Several aliases may lead to that server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from redis import asyncio as aioredis

GOES = (b"FAILING_OVER", b"MIGRATING", b"MOVING", b"SMIGRATING")
"""The first words of pushes after which the server goes away."""
KINDS = (*GOES, b"FAILED_OVER", b"MIGRATED", b"SMIGRATED")

renewals: list[Callable[[], object]] = []
"""What renews all leases."""


def is_notice(answer: Any) -> bool:
    """Return whether this is a push about maintenance."""
    return isinstance(answer, list) and bool(answer) and answer[0] in KINDS


def hand_on(connection: redis.Connection | aioredis.Connection, push: Any) -> Any:
    """Let redis-py handle a push about maintenance, and renew all leases if the server goes away.

    Returns what is to be awaited if the connection is one of `redis.asyncio`, and `None` if
    redis-py does not handle it.
    """
    if not is_notice(push):
        return None
    if push[0] in GOES:
        for renew in renewals:
            renew()
    if getattr(connection, "maint_notifications_config", None) is None:  # before redis-py 8
        return None
    parser = getattr(connection, "_parser", None)
    handle = getattr(parser, "handle_push_response", None)
    return None if handle is None else handle(push)
