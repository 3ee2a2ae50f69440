"""A command over a connection of a pool: the short way says what redis-py's own says."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import redis.exceptions
from django.test import override_settings
from redis import BlockingConnectionPool, ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from devtools.redis_server import RedisServer
from django_redislock import redis_lock
from django_redislock.base import tokens
from django_redislock.primitives import scripts
from django_redislock.primitives.keys import Keys, ScriptKeys
from django_redislock.transport import wire
from django_redislock.transport.packing import pack, pack_script
from django_redislock.transport.server import server_of
from tests.faults.caches import caches
from tests.faults.interruption import KINDS, OURS, every_place
from tests.waiting import PATIENCE, eventually

ANSWERS = [
    "return {1}",
    "return {1, 1732423423423423, 1732423423423424}",
    "return {}",
    "return {0, 'text', false}",
    "return {1, {2, 3}}",
    "return {1, '5\\r\\n:6'}",
    "return {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}",
    "return 'text'",
    "return 7",
    "return false",
    "return {ok = 'fine'}",
    "return string.rep('x', 100000)",
]
"""Scripts, some of whose answers are read the short way, and some of which only look like it."""


def framed(script: str) -> str:
    return scripts._FRAME.format("", script)


def ask(connection: Any, script: str, within: float | None = None) -> Any:
    word = tokens.word()
    packed = pack(("EVAL", framed(script), 0, word))
    return wire.ask(connection, packed, word, within)


def checkout(pool: Any, within: float | None = None) -> Any:
    hand: list[Any] = []
    try:
        return wire.checkout(pool, hand, within)
    except BaseException:
        wire.give_back(pool, hand)
        raise


def give_back(pool: Any, connection: Any) -> None:
    wire.give_back(pool, [connection])


@pytest.fixture
def pool(redis_server: RedisServer) -> Iterator[ConnectionPool]:
    pool = ConnectionPool.from_url(redis_server.url, socket_timeout=PATIENCE)
    yield pool
    pool.disconnect()


@pytest.mark.parametrize("script", ANSWERS)
def test_it_reads_what_redis_py_reads(pool: ConnectionPool, script: str) -> None:
    """Whatever the answer, and what comes after it on the same connection."""
    connection = checkout(pool)
    connection.send_command("EVAL", script, 0)
    theirs = connection.read_response(disable_decoding=True)
    assert ask(connection, script) == theirs
    assert ask(connection, "return {1, 2}") == [1, 2]
    give_back(pool, connection)


def test_an_error_is_theirs(pool: ConnectionPool) -> None:
    """An answer that is an error is raised, and the connection goes on."""
    connection = checkout(pool)
    with pytest.raises(redis.exceptions.NoScriptError):
        wire.ask(connection, pack(("EVALSHA", "0" * 40, 0, "abc")), "abc")
    assert ask(connection, "return {1, 2}") == [1, 2]
    give_back(pool, connection)


@pytest.mark.parametrize("name", ["job", "Rechnung 42, größer", "注文"])
@pytest.mark.parametrize("prefix", ["redislock", "größe"])
@pytest.mark.parametrize("last", ["", ":holders"])
@pytest.mark.parametrize("verbatim", [False, True])
def test_a_script_is_packed_as_any_command(
    name: str, prefix: str, last: str, verbatim: bool
) -> None:
    """From parts that are put together once for names of one length."""
    its = Keys.verbatim(prefix, name.encode()) if verbatim else Keys.of(prefix, name)
    keys = ScriptKeys(its, "f" * 32, last)
    for args in (["f" * 32], ["f" * 32, 30_000, "web-1:2080|größer", "", 17]):
        wanted = pack(("EVALSHA", "0" * 40, len(keys), *keys, *args))
        assert pack_script("0" * 40, keys, args) == wanted


def test_half_an_answer_is_none() -> None:
    """A short text is taken for the answer when all of it is there, and begins with our word."""
    text = b"mine|1732423423423423|1732423423423424"
    answer = b"$%d\r\n%b\r\n" % (len(text), text)
    assert wire.short_answer(answer, "mine") == [1, 1732423423423423, 1732423423423424]
    for end in range(len(answer)):
        assert wire.short_answer(answer[:end], "mine") is None
    assert wire.short_answer(answer + b"*1\r\n:1\r\n", "mine") is None
    assert wire.short_answer(answer, "nine") is None
    assert wire.short_answer(b"$4\r\nmine\r\n", "mine") == [1]


def test_a_connection_comes_and_goes_as_with_redis_py(pool: ConnectionPool) -> None:
    """Each of the two ways finds what the other has given back."""
    first = checkout(pool)
    give_back(pool, first)
    assert pool.get_connection() is first
    second = checkout(pool)
    assert second is not first
    pool.release(first)
    assert checkout(pool) is first
    give_back(pool, first)
    give_back(pool, second)


def test_as_many_as_the_pool_allows(redis_server: RedisServer) -> None:
    """What is checked out the short way counts."""
    pool = ConnectionPool.from_url(redis_server.url, max_connections=1)
    connection = checkout(pool)
    with pytest.raises(redis.exceptions.ConnectionError):
        pool.get_connection()
    give_back(pool, connection)
    pool.disconnect()


def test_a_connection_that_was_closed_meanwhile(redis: Redis) -> None:
    """It is not used, and nothing is doubtful."""
    with redis_lock("job"):
        pass
    redis.client_kill_filter(_type="normal", skipme=True)
    lease = redis_lock("job").acquire(wait=0)
    assert not lease._claim.doubtful
    lease.release()


def test_a_connection_with_somebody_elses_answer(redis: Redis) -> None:
    """Code of the project that was ended between sending and reading: its answer is not ours."""
    pool = server_of("default").shared_pool()
    assert isinstance(pool, ConnectionPool)
    theirs = pool.get_connection()
    theirs.send_command("EVAL", "return {1, 2, 3}", 0)
    eventually(lambda: select.select([theirs._sock], [], [], 0)[0])
    pool.release(theirs)
    with redis_lock("job") as lease:
        assert redis.get("redislock:{job}").split(b"|")[1] == b"%d" % lease.fencing_token


def entry(url: str, **options: Any) -> dict[str, Any]:
    return caches(url, CONNECTION_POOL_KWARGS=options)


@pytest.mark.parametrize(
    "options",
    [{"health_check_interval": 1}, {"socket_timeout": None}, {"protocol": 2}, {"protocol": 3}],
    ids=str,
)
def test_what_is_unusual(redis_server: RedisServer, options: dict[str, Any]) -> None:
    """The public way does it."""
    url = redis_server.url + f"&client_name={next(iter(options))}{next(iter(options.values()))}"
    with override_settings(CACHES=entry(url, **options, **without_notifications())):
        for _ in range(3):
            with redis_lock("job") as lease:
                lease.extend()


def test_another_pool(redis_server: RedisServer) -> None:
    """One that is no plain pool of redis-py has its own ways."""
    pool = BlockingConnectionPool.from_url(redis_server.url, max_connections=1, timeout=PATIENCE)
    connection = checkout(pool)
    assert ask(connection, "return {1, 2}") == [1, 2]
    give_back(pool, connection)
    assert pool.get_connection() is connection
    pool.release(connection)
    pool.disconnect()


def test_a_version_without_what_is_used_here(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redis-py that calls its inside something else is used by its public methods."""

    class Another:
        """All that is left of a pool."""

        get_connection = staticmethod(pool.get_connection)
        release = staticmethod(pool.release)

    monkeypatch.setattr("redis.ConnectionPool", Another)
    connection = checkout(Another(), PATIENCE)
    assert ask(connection, "return {1, 2}") == [1, 2]
    give_back(Another(), connection)
    assert pool.get_connection() is connection
    pool.release(connection)


def test_a_python_that_does_not_count_readers(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sockets are read all the same."""
    monkeypatch.setattr(wire, "_KEEPS_NUMBER", False)
    give_back(pool, checkout(pool))
    hand: list[Any] = []
    assert wire.idle_socket(pool, hand) is None
    assert ask(hand[0], "return {1, 2}", PATIENCE) == [1, 2]
    give_back(pool, *hand)


class Silent(NamedTuple):
    """Listens and never says a word, as a server that is stopped."""

    port: int
    path: str


@pytest.fixture
def silent() -> Iterator[Silent]:
    with (
        TemporaryDirectory() as directory,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        unix.bind(path := f"{directory}/silent")
        unix.listen()
        yield Silent(tcp.getsockname()[1], path)


SLOW: dict[str, Any] = {"socket_timeout": PATIENCE, "socket_connect_timeout": PATIENCE}


def sentinel_pool(port: int, **options: Any) -> SentinelConnectionPool:
    """One whose sentinels name the primary at once."""
    manager = Sentinel([])
    manager.discover_master = lambda service_name: ("127.0.0.1", port)
    return SentinelConnectionPool("shop", manager, **options)


POOLS: dict[str, Callable[[Silent], ConnectionPool]] = {
    "tcp": lambda it: ConnectionPool(port=it.port, **SLOW),
    "tcp with retries": lambda it: ConnectionPool(
        port=it.port, retry=Retry(NoBackoff(), 5), retry_on_timeout=True, **SLOW
    ),
    "no time-outs": lambda it: ConnectionPool(
        port=it.port, socket_timeout=None, socket_connect_timeout=None
    ),
    "unix": lambda it: ConnectionPool.from_url(f"unix://{it.path}", **SLOW),
    "tls": lambda it: ConnectionPool.from_url(f"rediss://127.0.0.1:{it.port}", **SLOW),
    "blocking": lambda it: BlockingConnectionPool(port=it.port, timeout=PATIENCE, **SLOW),
    "sentinel": lambda it: sentinel_pool(it.port, **SLOW),
}


@pytest.mark.parametrize("kind", POOLS)
def test_a_connection_is_made_in_time(silent: Silent, kind: str) -> None:
    """Also by a server that accepts it and then says nothing, whatever the pool's time-outs; and
    the pool gets it back."""
    pool = POOLS[kind](silent)
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(redis.exceptions.TimeoutError):
            checkout(pool, 0.2)
        assert time.monotonic() - began < 2
    connection = pool.make_connection()
    assert connection.socket_timeout == pool.connection_kwargs["socket_timeout"]


def test_a_connection_of_a_full_pool_is_waited_for_in_time(redis_server: RedisServer) -> None:
    """In one that waits for longer by itself."""
    pool = BlockingConnectionPool.from_url(redis_server.url, max_connections=1, timeout=PATIENCE)
    first = checkout(pool, 5)
    began = time.monotonic()
    with pytest.raises(redis.exceptions.ConnectionError, match="No connection available"):
        checkout(pool, 0.1)
    assert time.monotonic() - began < 2
    give_back(pool, first)
    assert checkout(pool, 5) is first
    pool.disconnect()


@pytest.mark.parametrize("own", [7.5, None])
def test_haste_leaves_nothing_behind(redis_server: RedisServer, own: float | None) -> None:
    """Whoever uses the connection next has the time-outs and retries of the project."""
    pool = ConnectionPool.from_url(
        redis_server.url,
        socket_timeout=own,
        socket_connect_timeout=own,
        retry=Retry(NoBackoff(), 3),
    )
    fresh = pool.make_connection()
    connection = checkout(pool, 2)
    assert ask(connection, "return {1, 2}", 1) == [1, 2]
    give_back(pool, connection)
    assert pool.get_connection() is connection  # which has looked for data, by its own time-out
    assert connection.socket_timeout == fresh.socket_timeout == own
    assert connection.socket_connect_timeout == fresh.socket_connect_timeout
    assert connection._sock.gettimeout() == own
    assert connection.retry._retries == 3
    assert connection.redis_connect_func is None
    pool.release(connection)
    pool.disconnect()


def test_interrupted_haste_leaves_nothing_behind(redis_server: RedisServer) -> None:
    """Wherever an exception from outside comes, in what Python does there, too."""

    def act(_: int) -> None:
        pool = ConnectionPool.from_url(redis_server.url, socket_timeout=7.5)
        hand: list[Any] = []
        pools.append(pool)
        try:
            wire.checkout(pool, hand, 2)
        finally:
            wire.give_back(pool, hand)

    pools: list[ConnectionPool] = []
    act(0)
    folders = [OURS, contextlib.__file__]
    places = list(every_place(act, kinds=KINDS, folders=folders))
    assert len(places) > 20
    for place, pool in zip(places, pools[1:], strict=False):
        for connection in pool._available_connections:
            assert connection.socket_timeout == 7.5, str(place)
            if connection._sock is not None:
                assert connection._sock.gettimeout() == 7.5, str(place)
        pool.disconnect()


def test_a_connection_that_was_closed_is_made_again_in_time(
    pool: ConnectionPool, redis: Redis
) -> None:
    """The closed one is seen before anything is sent."""
    give_back(pool, checkout(pool))
    redis.client_kill_filter(_type="normal", skipme=True)
    connection = checkout(pool, 2)
    assert ask(connection, "return {1, 2}") == [1, 2]
    give_back(pool, connection)


def without_notifications() -> dict[str, Any]:
    """redis-py 7 can't connect over a Unix socket with them."""
    if not version("redis").startswith("7."):
        return {}
    from redis.maint_notifications import MaintNotificationsConfig

    return {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}


@pytest.mark.parametrize("what", ["metrics", "token"])
def test_what_redis_py_does_besides(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Where it counts connections, or a connection has to authenticate anew, it does so."""
    give_back(pool, checkout(pool))
    called = []
    for name in ("get_connection", "release"):
        way = getattr(pool, name)
        monkeypatch.setattr(
            pool, name, lambda *its, name=name, way=way: (called.append(name), way(*its))[1]
        )
    if what == "metrics":
        monkeypatch.setattr(wire, "_metrics", object)
    connection = checkout(pool)
    if what == "token":
        connection._re_auth_token = object()
        connection.re_auth = lambda: called.append("re_auth")
    give_back(pool, connection)
    assert called[:2] == (
        ["get_connection", "release"] if what == "metrics" else ["release", "re_auth"]
    )


def test_with_a_cache_of_answers(redis_server: RedisServer) -> None:
    """What redis-py's connections have in threads only is left out in an event loop."""
    cache = pytest.importorskip("redis.cache")

    async def main() -> None:
        async with redis_lock("job") as lease:
            await lease.aextend()

    url = redis_server.url + "&client_name=cached"
    options = {"protocol": 3, "cache_config": cache.CacheConfig(), **without_notifications()}
    with override_settings(CACHES=entry(url, **options)):
        asyncio.run(main())
