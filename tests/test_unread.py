"""Answers that somebody has left unread on a connection: none of them is taken for ours.

A pipeline of the project that is interrupted between two answers, by Ctrl-C or a soft time limit,
gives its connection back so.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from django.core.cache import caches
from django.test import override_settings
from redis import Redis
from redis._parsers import _RESP2Parser

from devtools.redis_server import RedisServer
from django_redislock import redis_lock
from django_redislock.primitives import scripts
from django_redislock.transport.server import server_of
from tests.test_lines import entry as caches_entry
from tests.test_lines import without_notifications
from tests.waiting import eventually

pytestmark = pytest.mark.slow

Commands = list[tuple[Any, ...]]

WRONGTYPE = "return redis.error_reply('WRONGTYPE Operation against a key')"
FRAMED = scripts._FRAME.format("return {1, 1732423423423423, 1732423423423424}")

AT_ONCE = "return ARGV[1] .. '|1732423423423423'"
ANOTHER = "0123456789abcdef0123456789abcdef"

LEFT: dict[str, Commands] = {
    "a grant": [("EVAL", "return {1, 1732423423423423, 1732423423423424}", 0)] * 3,
    "another's grant": [("EVAL", FRAMED, 0, ANOTHER)] * 3,
    "another's grant at once": [("EVAL", AT_ONCE, 0, ANOTHER)] * 3,
    "a refusal": [("EVAL", "return {0, 'x', 1, '1', 1, '1', false}", 0)] * 2,
    "released": [("EVAL", "return {1}", 0)] * 3,
    "extended": [("EVAL", "return {}", 0)] * 3,
    "set_many": [("SET", "redislock:a", "x")] * 5,
    "get_many": [("MGET", "redislock:a", "redislock:b")] * 2,
    "large": [("EVAL", "return string.rep('x', 100000)", 0)] * 3,
    "a transaction": [("MULTI",), ("SET", "redislock:a", 1), ("INCR", "redislock:a"), ("EXEC",)],
    "errors": [("EVAL", WRONGTYPE, 0)] * 3,
    "no script": [("EVALSHA", "0" * 40, 0)] * 3,
    "a map": [("CONFIG", "GET", "maxmemory*")] * 2,
    "nothing": [("GET", "redislock:none")] * 2,
    "a push": [("SUBSCRIBE", "redislock:none"), ("UNSUBSCRIBE", "redislock:none")],
}

parsers = pytest.mark.parametrize("parser", [None, _RESP2Parser], ids=["parser", "python"])
protocols = pytest.mark.parametrize("protocol", [2, 3])
arrivals = pytest.mark.parametrize("arrival", ["in the socket", "in the parser", "on its way"])


def sent(left: str, arrival: str) -> Commands:
    """What is sent, and not all of it read."""
    if arrival == "on its way":
        return [("BLPOP", "redislock:none", "0.01"), *LEFT[left]]
    return [("PING",), *LEFT[left]] if arrival == "in the parser" else LEFT[left]


def entry(server: RedisServer, protocol: int, parser: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"protocol": protocol} | ({"parser_class": parser} if parser else {})
    if protocol == 3:
        options |= without_notifications()
    return caches_entry(f"{server.url}&client_name=p{protocol}{parser is None}", **options)


def readable(sock: Any) -> bool:
    """Whether something has come. Unlike select(), poll() knows descriptors above 1023."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


@arrivals
@protocols
@parsers
def test_in_threads(
    redis_server: RedisServer, redis: Redis, arrival: str, protocol: int, parser: Any
) -> None:
    """Each request gets its own answer, whatever is unread on the connection of the pool."""
    with override_settings(CACHES=entry(redis_server, protocol, parser)):
        pool: Any = server_of("default").shared_pool()

        def leave(left: str) -> None:
            connection = pool.get_connection()
            commands = sent(left, arrival)
            connection.send_packed_command(connection.pack_commands(commands))
            if arrival != "on its way":
                eventually(lambda: readable(connection._sock))
            if arrival == "in the parser":
                connection.read_response()
            pool.release(connection)

        for left in LEFT:
            check(redis, partial(leave, left))
            if arrival == "in the socket":
                caches["default"].set("redislock:b", "mine")
                assert caches["default"].get("redislock:b") == "mine"
        pool.disconnect()


def check(redis: Redis, leave: Callable[[], None]) -> None:
    """A lock of which each request goes over a connection with something unread."""
    leave()
    lease = redis_lock("job").acquire(wait=0)
    value = redis.get("redislock:{job}")
    assert value.split(b"|")[:2] == [lease.token.encode(), b"%d" % lease.fencing_token]
    leave()
    with ThreadPoolExecutor() as others:
        assert others.submit(redis_lock("job").acquire, wait=0).result() is None
    redis.pexpire("redislock:{job}", 10_000)
    leave()
    lease.extend()
    assert redis.pttl("redislock:{job}") > 20_000
    leave()
    lease.release()
    assert not redis.exists("redislock:{job}")
