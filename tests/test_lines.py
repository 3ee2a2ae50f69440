"""Lines: a command over a connection that was borrowed from its pool."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import redis.exceptions
from django.core.cache import caches
from django.test import override_settings
from redis import BlockingConnectionPool, ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from devtools.redis_server import RedisServer
from django_redislock import LockUnavailable, redis_lock
from django_redislock.base import tokens
from django_redislock.base.clock import now
from django_redislock.primitives import scripts
from django_redislock.primitives.contract import run
from django_redislock.primitives.keys import Keys
from django_redislock.primitives.waiting import NEVER
from django_redislock.transport import loans, protocol
from django_redislock.transport.command import carry_out
from django_redislock.transport.loans import lines_of
from django_redislock.transport.protocol import short_answer
from django_redislock.transport.server import server_of
from tests.caches import caches as at
from tests.faults.interruption import KINDS, OURS, every_place
from tests.lines import missing, taken
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


def ask(
    pool: Any, body: str = "return {1, 2}", until: float = NEVER, *before: protocol.Word
) -> Any:
    """Ask a server to run a script, over a line; behind another command."""
    text = scripts._FRAME.format(body)
    command = protocol.script(text, [], [tokens.word()], "EVAL")
    if before:
        command = command.behind(protocol.pack(before))
    return run(carry_out(lines_of(pool), command, until=until))


@pytest.fixture
def pool(redis_server: RedisServer) -> Iterator[ConnectionPool]:
    pool = ConnectionPool.from_url(redis_server.url, socket_timeout=PATIENCE)
    yield pool
    pool.disconnect()


@pytest.mark.parametrize("script", ANSWERS)
def test_it_reads_what_redis_py_reads(pool: ConnectionPool, script: str) -> None:
    """Whatever the answer, and what comes after it on the same line."""
    theirs = Redis(connection_pool=pool).eval(script, 0)
    for _ in range(2):
        assert ask(pool, script) == theirs
        assert ask(pool) == [1, 2]


BEFORE = [("PING",), ("NOTHING",), ("ECHO", "x" * 100_000), ("LRANGE", "nothing", 0, -1)]
"""Commands before another one, with answers of all kinds."""


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("script", ANSWERS)
def test_an_answer_behind_another_one(
    pool: ConnectionPool, script: str, before: tuple[Any, ...]
) -> None:
    """The first one is skipped, whatever it is: on a new line, and on one that is kept."""
    theirs = Redis(connection_pool=pool).eval(script, 0)
    for _ in range(2):
        assert ask(pool, script, NEVER, *before) == theirs
        assert ask(pool) == [1, 2]
    with pytest.raises(redis.exceptions.NoScriptError):
        unknown = protocol.script("0" * 40, [], ["abc"]).behind(protocol.PING)
        run(carry_out(lines_of(pool), unknown))
    assert ask(pool) == [1, 2]


def test_an_error_is_theirs(pool: ConnectionPool) -> None:
    """An answer that is an error is raised, and the line goes on."""
    ask(pool)
    for _ in range(2):
        with pytest.raises(redis.exceptions.NoScriptError):
            run(carry_out(lines_of(pool), protocol.script("0" * 40, [], ["abc"])))
        assert ask(pool) == [1, 2]
    assert len(pool._in_use_connections) + len(pool._available_connections) == 1


@pytest.mark.parametrize("name", ["job", "Rechnung 42, größer", "注文"])
@pytest.mark.parametrize("prefix", ["redislock", "größe"])
@pytest.mark.parametrize("verbatim", [False, True])
def test_a_script_is_packed_as_redis_py_packs_it(name: str, prefix: str, verbatim: bool) -> None:
    """Whatever letters the names have."""
    its = Keys.verbatim(prefix, name.encode()) if verbatim else Keys.of(prefix, name)
    connection = redis.Connection()
    for keys in (its.mutex("f" * 32), its.permits("f" * 32)):
        for args in (["f" * 32], ["f" * 32, 30_000, "web-1:2080|größer", "", 17]):
            words = ("EVALSHA", "0" * 40, len(keys), *keys, *args)
            plain = [word.encode() if isinstance(word, str) else word for word in words]
            wanted = b"".join(connection.pack_command(*plain))
            assert protocol.script("0" * 40, keys, args).packed == wanted


def test_half_an_answer_is_none() -> None:
    """A short text is taken for the answer when all of it is there, and begins with our token."""
    mine = "mine" * 8
    for number in (1, 1732423423423423):
        text = f"{mine}|{number}".encode()
        answer = b"$%d\r\n%b\r\n" % (len(text), text)
        assert short_answer(answer, mine) == [1, number]
        for end in range(len(answer)):
            assert short_answer(answer[:end], mine) is None
        assert short_answer(answer + b"*1\r\n:1\r\n", mine) is None
        assert short_answer(answer, "nine" * 8) is None
        assert short_answer(b"$60" + answer[3:], mine) is None
        assert short_answer(b"$%d" % (83 - len(text)) + answer[3:], mine) is None
    assert short_answer(b"$32\r\n%b\r\n" % mine.encode(), mine) == [1]
    for other in (b"$31\r\n%b\r\n", b"$33\r\n%b|\r\n", b"$36\r\n%b|5|6\r\n"):
        assert short_answer(other % mine.encode(), mine) is None


keeping = pytest.mark.skipif(redis.VERSION < (8,), reason="redis-py keeps no count")
"""Before redis-py 8, a pool with a limit keeps no line."""


def test_nobody_else_has_the_connection_of_a_line(pool: ConnectionPool) -> None:
    """While it is kept, the pool does not hand it out; and it is used again and again."""
    ask(pool)
    (line,) = lines_of(pool)._idle or [None]
    theirs = pool.get_connection()
    assert line is None or theirs is not line.connection
    ask(pool)
    assert taken(pool) == 1
    pool.release(theirs)


def test_a_handshake_that_hangs_is_not_waited_for(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose socket another thread has closed: another connection carries the request out,
    once. The one that comes late goes back."""
    borrow, goes_on, late = pool.get_connection, threading.Event(), threading.Event()
    attempts: list[None] = []

    def hanging(*args: Any) -> Any:
        attempts.append(None)
        if len(attempts) > 1:
            return borrow(*args)
        assert goes_on.wait(PATIENCE)
        try:
            return borrow(*args)
        finally:
            late.set()

    with monkeypatch.context() as patch:
        patch.setattr(pool, "get_connection", hanging)
        counted = f"return redis.call('INCR', '{tokens.word()}')"
        assert ask(pool, counted) == 1
        goes_on.set()
        assert late.wait(PATIENCE)
        assert len(attempts) == 2
    eventually(lambda: taken(pool) <= 1)
    assert ask(pool, counted) == 2


@keeping
def test_a_line_goes_back_to_its_pool(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some seconds, whether somebody uses it meanwhile or not. So redis-py can authenticate
    it anew, for instance."""
    monkeypatch.setattr(loans, "LENT", 1.0)
    ask(pool)
    connection = lines_of(pool)._idle[0].connection
    assert connection in pool._in_use_connections
    connection._re_auth_token = object()
    anew = threading.Event()
    connection.re_auth = anew.set
    assert anew.wait(PATIENCE)
    eventually(lambda: connection in pool._available_connections)
    assert not lines_of(pool)._idle


def test_as_many_as_the_pool_allows(redis_server: RedisServer) -> None:
    """A small pool gets its connections back at once."""
    pool = ConnectionPool.from_url(redis_server.url, max_connections=1)
    ask(pool)
    connection = pool.get_connection()
    with pytest.raises(LockUnavailable, match="connections") as caught:
        ask(pool)
    assert not caught.value.doubtful
    pool.release(connection)
    ask(pool)
    pool.disconnect()


@pytest.mark.parametrize("limit", [100, 12])
def test_a_crowd(redis_server: RedisServer, limit: int) -> None:
    """All threads lock at once, and then all use the cache at once: locks take no connection away
    from the project."""
    together = threading.Barrier(limit - 2)

    def work(number: int) -> None:
        together.wait(PATIENCE)
        with redis_lock(f"job {number}"):
            together.wait(PATIENCE)
        together.wait(PATIENCE)
        client = caches["default"].client.get_client()
        connection = client.connection_pool.get_connection()
        together.wait(PATIENCE)
        client.connection_pool.release(connection)

    its = entry(f"{redis_server.url}&client_name=crowd{limit}", max_connections=limit)
    with override_settings(CACHES=its), ThreadPoolExecutor(limit - 2) as threads:
        for _ in range(2):
            for _ in threads.map(work, range(limit - 2)):
                pass


def test_a_connection_that_was_closed_meanwhile(redis: Redis) -> None:
    """It is not used, and nothing is doubtful."""
    with redis_lock("job"):
        pass
    redis.client_kill_filter(_type="normal", skipme=True)
    lease = redis_lock("job").acquire(wait=0)
    assert not lease._claim.doubtful
    lease.release()


def test_a_pool_that_another_thread_disconnects(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just when we have borrowed a connection: nothing is sent, and nobody waits for an answer."""
    borrow = pool.get_connection

    def disconnected() -> Any:
        connection = borrow()
        pool.disconnect()
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(pool, "get_connection", disconnected)
        with pytest.raises(LockUnavailable, match="disconnected the pool") as caught:
            ask(pool)
    assert not caught.value.doubtful
    assert not missing(pool)
    assert ask(pool) == [1, 2]


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
    return at(url, CONNECTION_POOL_KWARGS=options)


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
    """One that blocks gets its connection back."""
    pool = BlockingConnectionPool.from_url(redis_server.url, max_connections=1, timeout=PATIENCE)
    for _ in range(3):
        assert ask(pool) == [1, 2]
        pool.release(pool.get_connection())
    pool.disconnect()


def test_a_version_with_two_methods_only(pool: ConnectionPool) -> None:
    """Lines need no more of a pool than `get_connection` and `release`."""

    class Another:
        """All that is left of a pool."""

        get_connection = staticmethod(pool.get_connection)
        release = staticmethod(pool.release)

    another = Another()
    for _ in range(3):
        assert ask(another) == [1, 2]
        assert not pool._in_use_connections


def test_a_python_that_does_not_count_readers(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sockets are read all the same."""
    monkeypatch.setattr(loans, "_KEEPS_NUMBER", False)
    for _ in range(2):
        assert ask(pool) == [1, 2]


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
    """Also by a server that accepts it and then says nothing, whatever the pool's time-outs."""
    pool = POOLS[kind](silent)
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(LockUnavailable) as caught:
            ask(pool, until=now() + 0.2)
        assert caught.value.silent
        assert not caught.value.doubtful
        assert time.monotonic() - began < 2


def test_a_connection_of_a_full_pool_is_waited_for_in_time(redis_server: RedisServer) -> None:
    """In one that waits for longer by itself."""
    pool = BlockingConnectionPool.from_url(redis_server.url, max_connections=1, timeout=PATIENCE)
    first = pool.get_connection()
    began = time.monotonic()
    with pytest.raises(LockUnavailable) as caught:
        ask(pool, until=now() + 0.1)
    assert not caught.value.doubtful
    assert time.monotonic() - began < 2
    pool.release(first)
    assert ask(pool) == [1, 2]
    pool.disconnect()


@pytest.mark.parametrize("own", [7.5, None])
def test_haste_leaves_nothing_behind(redis_server: RedisServer, own: float | None) -> None:
    """Whoever uses the connection next has the time-outs of the project."""
    pool = ConnectionPool.from_url(
        redis_server.url, socket_timeout=own, socket_connect_timeout=own, max_connections=5
    )
    assert ask(pool, until=now() + 1) == [1, 2]
    connection = pool.get_connection()
    assert connection._sock.gettimeout() == own
    pool.release(connection)
    pool.disconnect()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("options", [{}, {"max_connections": 5}], ids=["kept", "borrowed"])
def test_interruptions_leave_nothing_behind(
    redis_server: RedisServer, options: dict[str, Any]
) -> None:
    """Wherever an exception from outside comes, in what Python does there, too, the pool loses no
    connection, and the next request has its own answer."""
    pool = ConnectionPool.from_url(redis_server.url, socket_timeout=7.5, **options)

    kept: list[BaseException] = []

    def act(number: int) -> None:
        threads.submit(ask, pool).result()  # so that there is a line, if one is kept
        try:
            assert ask(pool, f"return {{1, {number}}}", now() + PATIENCE) == [1, number]
        except BaseException as error:
            kept.append(error)  # with its traceback
            raise

    threads = ThreadPoolExecutor(1)
    act(0)
    places = list(every_place(act, kinds=KINDS, folders=[OURS, contextlib.__file__]))
    assert len(kept) > 20
    assert not [f"{place}: {place.instead}" for place in places if place.instead]
    eventually(lambda: not missing(pool))
    assert not taken(pool)
    pool.disconnect()
    threads.shutdown()
    places.clear()
    kept.clear()
    gc.collect()  # while its warnings are ignored


def test_a_line_that_is_kept_and_lost(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traceback of an error keeps the line that has brought it. When a signal's exception
    comes as that line is taken, nobody has it, and a lender ends it."""
    monkeypatch.setattr(loans, "LENT", 0.2)
    ask(pool)
    with pytest.raises(LockUnavailable) as kept:
        ask(pool, "return redis.error_reply('no')")
    lines_of(pool)._idle.clear()
    assert missing(pool) == 1
    eventually(lambda: not missing(pool))
    assert kept.value.__cause__ is not None


@pytest.mark.parametrize("lent", [False, True])
def test_a_line_in_use_is_not_lost(pool: ConnectionPool, lent: bool) -> None:
    """However often it is looked at, and long after it should have gone back."""
    script = protocol.script("return {ARGV[1], {1, 2}}", [], [tokens.word()], "EVAL")

    def steps(line: Any, until: float) -> Any:
        for _ in range(3):
            line.loan.look(line.until + 1)
        return line.ask(script.packed, script.word, until)

    if not lent:
        ask(pool)
    assert lines_of(pool).do(steps, NEVER) == [1, 2]
    eventually(lambda: not missing(pool))


def test_a_connection_that_was_closed_is_made_again(pool: ConnectionPool, redis: Redis) -> None:
    """The closed one is seen before anything is sent."""
    ask(pool)
    redis.client_kill_filter(_type="normal", skipme=True)
    assert ask(pool, until=now() + 5) == [1, 2]


def without_notifications() -> dict[str, Any]:
    """redis-py 7 can't connect over a Unix socket with them."""
    if not version("redis").startswith("7."):
        return {}
    from redis.maint_notifications import MaintNotificationsConfig

    return {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}


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


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("MOVED 3999 127.0.0.1:6381", redis.exceptions.MovedError),
        ("ASK 3999 127.0.0.1:6381", redis.exceptions.AskError),
        ("CLUSTERDOWN The cluster is down", redis.exceptions.ClusterDownError),
        (
            "CROSSSLOT Keys in request don't hash to the same slot",
            redis.exceptions.ClusterCrossSlotError,
        ),
        ("MASTERDOWN Link with MASTER is down", redis.exceptions.MasterDownError),
        (
            "TRYAGAIN Multiple keys request during rehashing of slot",
            redis.exceptions.TryAgainError,
        ),
    ],
)
@pytest.mark.parametrize("knows", [True, False])
def test_errors_of_a_cluster(
    text: str, kind: type[Exception], knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where redis-py's parser does not know them, as that of redis-py 5."""
    if not knows:
        parser = SimpleNamespace(parse_error=redis.ResponseError)
        monkeypatch.setattr(protocol, "DefaultParser", parser)
    error = protocol._error(text)
    assert type(error) is kind
    if isinstance(error, redis.exceptions.AskError):
        assert (error.host, error.port) == ("127.0.0.1", 6381)
