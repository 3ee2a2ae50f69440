"""How the server says at once that somebody else has changed a lock.

1.  The connection of the inbox subscribes to the channel of invalidations, and knows its number at
    the server (`Inbox.redirect`).
2.  The watchdog's connection asks the server to send them there (`CLIENT TRACKING ON REDIRECT`):
    for keys that it names (`OPTIN`), and not for changes that it makes itself (`NOLOOP`).
3.  It names keys by reading them. The first change of a key, by anybody else, is a message, and so
    are its deletion, its expiry and its eviction; then the server forgets that the key was read.
    So each renewal, which changes the key, is followed by another reading.
4.  The message makes the watchdog renew the lease. The answer says whether it is lost, and why.

All of this may fail without harm: then a loss is noticed by the next renewal, as without it.

Source: the Redis documentation of client-side caching.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from .packing import pack
from .wire import checkout, give_back


def track(pool: redis.ConnectionPool, redirect: int, keys: Sequence[str], within: float) -> bool:
    """Let the connection with the number `redirect` hear of the next change of each of these keys.
    Returns whether all of them exist.

    Raises `RedisError` or `OSError` if the server does not do so, or does not answer `within`
    these seconds.
    """
    commands = [
        ("CLIENT", "TRACKING", "ON", "REDIRECT", redirect, "OPTIN", "NOLOOP"),
        ("CLIENT", "CACHING", "YES"),
        ("EXISTS", *keys),
    ]
    hand: list[Any] = []
    try:
        connection = checkout(pool, hand, within)
        try:
            connection.send_packed_command([pack(command) for command in commands])
            if not connection.can_read(timeout=within):
                raise redis.TimeoutError(f"no answer within {within:.3g} s")
            answers = [connection.read_response() for _ in commands]
        except BaseException:
            connection.disconnect()  # there may be answers to come
            raise
    finally:
        give_back(pool, hand)
    return bool(answers[-1] == len(keys))
