"""Answers that no script of ours gives: each of them is an error that the caller expects, and none
is a lease.

A real socket answers each script, as a server that only resembles Redis would. Some answers have
no nonce or a wrong one; others have the right nonce around nonsense.
"""

from __future__ import annotations

import asyncio
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.resources import files
from itertools import count
from typing import Any

import pytest
from django.core.cache import caches
from django.test import override_settings
from redis.exceptions import RedisError

from devtools.luacheck import SCRIPTS
from django_redislock import (
    LockNotAcquired,
    LockUnavailable,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    TimestampLock,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.inspection import Inspector
from django_redislock.lease.watchdog import watchdog
from django_redislock.primitives import ledger, mutex, scripts
from django_redislock.primitives.contract import Claim, run
from django_redislock.primitives.keys import Keys
from django_redislock.transport import protocol
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of

Answer = Callable[[bytes], bytes]
"""Of a script that has brought this nonce."""
Operation = Callable[["Server", Answer], Any]
"""It gets the second one to the request that matters."""


def port() -> SyncPort:
    return SyncPort(server_of("default"))


def bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


BODIES = {
    "an integer": b":7\r\n",
    "a huge integer": b":%d\r\n" % 10**30,
    "text": bulk(b"what?"),
    "a status": b"+OK\r\n",
    "empty": b"*0\r\n",
    "short": b"*1\r\n:5\r\n",
    "nils": b"*2\r\n_\r\n_\r\n",
    "a refusal without reason": b"*1\r\n:0\r\n",
    "a short refusal": b"*3\r\n:0\r\n:0\r\n:0\r\n",
    "a granted huge number": b"*3\r\n:1\r\n:%d\r\n:%d\r\n" % (10**30, 10**30),
    "a granted text": b"*3\r\n:1\r\n" + bulk(b"x") + bulk(b"y"),
    "a grant of a text": b"*2\r\n:1\r\n" + bulk(b"x"),
    "a grant of a huge number": b"*2\r\n:1\r\n:%d\r\n" % 10**30,
    "a granted list": b"*3\r\n:1\r\n*1\r\n:1\r\n*1\r\n:1\r\n",
    "granted for ever": b"*3\r\n:1\r\n:%d\r\n:%d\r\n" % (10**18, 10**18),
    "text for the code": b"*4\r\n" + bulk(b"1") + b":1\r\n:1\r\n:1\r\n",
    "a list for the code": b"*3\r\n*1\r\n:1\r\n:1\r\n:1\r\n",
    "an unknown code": b"*7\r\n" + b":9\r\n" * 7,
    "nested": b"*1\r\n*1\r\n*1\r\n*0\r\n",
    "a bad ticket": b"*2\r\n:2\r\n" + bulk(b"\xff"),
    "a bad position": b"*2\r\n:0\r\n*3\r\n:99\r\n_\r\n_\r\n",
    "many": b"*9\r\n" + b":1\r\n" * 9,
    "a map": b"%1\r\n$1\r\na\r\n:1\r\n",
    "deep": b"*1\r\n" * 3000 + b":1\r\n",
    "no number": b":abc\r\n",
    "a number without an end": b":%b\r\n" % (b"9" * 5000),
    "no length": b"*x\r\n",
    "no protocol": b"HTTP/1.1 400 Bad Request\r\n",
}
"""Answers that are nonsense to every script in `OPERATIONS`."""

ANSWERS: dict[str, Answer] = {
    **{
        f"our own: {name}": lambda nonce, body=body: b"*2\r\n" + bulk(nonce) + body
        for name, body in BODIES.items()
    },
    **{f"without a nonce: {name}": lambda _, body=body: body for name, body in BODIES.items()},
    "another's grant": lambda _: (
        b"*2\r\n" + bulk(b"0123456789abcdef01") + b"*3\r\n:1\r\n:1\r\n:1\r\n"
    ),
    "a grant without a nonce": lambda _: b"*3\r\n:1\r\n:1\r\n:1\r\n",
    "nil without a nonce": lambda _: b"_\r\n",
    "an error without a name": lambda _: b"-\r\n",
    "an address without an address": lambda _: b"-MOVED nowhere\r\n",
    "at once: no number": lambda nonce: bulk(nonce + b"|x|y"),
    "at once: nothing": lambda nonce: bulk(nonce + b"|"),
    "at once: too many": lambda nonce: bulk(nonce + b"|5|6|7|8"),
    "at once: another's": lambda _: bulk(b"0123456789abcdef0123456789abcdef|5|6"),
}


SHORT = {scripts.load(name).sha.encode() for name in scripts.AT_ONCE}


class Server(socketserver.ThreadingTCPServer):
    """Speaks enough of Redis' protocol for redis-py to connect."""

    daemon_threads = True
    allow_reuse_address = True
    answer: Answer
    message = b""
    """What it says when somebody has subscribed."""
    free = True
    """Whether it answers short requests as others. Else it says that it has done nothing."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scripts: list[bytes] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server_address[1]}/0"


class Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    server: Server

    def handle(self) -> None:
        with suppress(OSError):  # the client may go at any time:
            while line := self.rfile.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int(self.rfile.readline()[1:])
                    words.append(self.rfile.read(size + 2)[:-2])
                self.wfile.write(self._answer(words))

    def _answer(self, words: list[bytes]) -> bytes:
        command = words[0].upper()
        if command in (b"EVALSHA", b"EVAL"):
            self.server.scripts.append(words[1])
            nonce = words[3 + int(words[2])]  # the first of ARGV
            if not self.server.free and words[1] in SHORT:
                return b"*1\r\n" + bulk(nonce)
            return self.server.answer(nonce)
        if command == b"HELLO":
            return b"%1\r\n+proto\r\n:3\r\n" if words[1:2] == [b"3"] else b"*2\r\n+proto\r\n:2\r\n"
        if command == b"PING":
            return b"+PONG\r\n"
        if command == b"SUBSCRIBE":
            return (
                b"*3\r\n" + bulk(b"subscribe") + bulk(words[1]) + b":1\r\n" + self.server.message
            )
        if command == b"CLIENT" and words[1].upper() == b"ID":
            return b":7\r\n"
        if command in (b"AUTH", b"SELECT", b"CLIENT"):
            return b"+OK\r\n"
        return b"-ERR unknown command '%b', with args beginning with: \r\n" % words[0]


@pytest.fixture(scope="module")
def _server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server(_server: Server) -> Iterator[Server]:
    one = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": _server.url,
        "OPTIONS": {
            "CLIENT_CLASS": "django_redislock.client.LockingClient",
            "CONNECTION_POOL_KWARGS": {"protocol": 3, "socket_timeout": 5},
        },
    }
    with override_settings(CACHES={"default": one}):
        _server.free = True
        server_of("default").busy.clear()  # the lock was not free in the test before
        yield _server
        # It would go on to ask this server for what could not be undone.
        watchdog(server_of("default"))._to_release.clear()


def own(*numbers: int) -> Answer:
    """A list of these, with our nonce."""
    body = b"*%d\r\n" % len(numbers) + b"".join(b":%d\r\n" % number for number in numbers)
    return lambda nonce: b"*2\r\n" + bulk(nonce) + body


AT = 1_732_423_423_423_424
GRANT = own(1, AT, AT)


def short_grant(nonce: bytes) -> bytes:
    return bulk(nonce + b"|%d" % AT)


def held(lock: Any, grant: Answer, then: Callable[[Any], Any], *, free: bool = False) -> Operation:
    """What is done with a lease, which was granted well."""

    def operation(server: Server, bad: Answer) -> Any:
        server.answer, server.free = grant, free
        try:
            lease = lock("shapes", wait=0).acquire()
        except LockUnavailable as error:
            raise AssertionError("it was not granted") from error
        server.answer, server.free = bad, True
        try:
            return then(lease)
        finally:
            lease._watchdog.forget(lease._claim)
            lease._lifetime.end()

    return operation


def plain(call: Callable[[], Any]) -> Operation:
    def operation(server: Server, bad: Answer) -> Any:
        server.answer = bad
        return call()

    return operation


def extend(lease: Any) -> Any:
    return run(lease._claim.primitive.extend(port(), [lease._claim], [10.0]))


def release(lease: Any) -> Any:
    return lease.release()


def the_lock() -> Any:
    return caches["default"].lock("shapes", timeout=10, blocking=False)


def release_of_the_cache(server: Server, bad: Answer) -> Any:
    lock = the_lock()
    server.answer, server.free = GRANT, False
    assert lock.acquire()
    server.answer, server.free = bad, True
    return lock.release()


_numbers = count()


def another() -> str:
    """Return a new name: a record waits for what is still to be released on its own name."""
    return f"shapes:{next(_numbers)}"


def enter(lock: Any) -> None:
    with lock:
        raise AssertionError("the block runs")


async def aenter(lock: Any) -> None:
    async with lock:
        raise AssertionError("the block runs")


@single_flight("shapes", ttl=10, wait=0)
def computed() -> str:
    raise AssertionError("it is computed")


def two(_: str, **options: Any) -> Any:
    return MultiLock(["shapes", "other"], **options)


def semaphore(name: str, **options: Any) -> Any:
    return Semaphore(name, 3, **options)


def write(name: str, **options: Any) -> Any:
    return ReadWriteLock(name, **options).write()


KEYS = Keys.of("redislock", "shapes")


def new() -> Claim:
    return Claim(keys=KEYS, token="t" * 32, ttl=10.0, owner="o", label="l", primitive=mutex)


def claim() -> Any:
    wanted = ledger.Wanted(tick=AT)
    return run(ledger.claim(port(), new(), "job", "r" * 16, wanted))


def adopt() -> Any:
    return run(mutex.adopt(port(), "s" * 32, new()))


SEEN = [b"t" * 32]

OPERATIONS: dict[str, Operation] = {
    "mutex": plain(lambda: enter(redis_lock("shapes", wait=0))),
    "mutex, async": plain(lambda: asyncio.run(aenter(redis_lock("shapes", wait=0)))),
    "read, async": plain(lambda: asyncio.run(aenter(ReadWriteLock("shapes", wait=0).read()))),
    "once, async": plain(lambda: asyncio.run(aenter(once(another())))),
    "semaphore": plain(lambda: enter(Semaphore("shapes", 3, wait=0))),
    "read": plain(lambda: enter(ReadWriteLock("shapes", wait=0).read())),
    "write": plain(lambda: enter(ReadWriteLock("shapes", wait=0).write())),
    "multi": plain(lambda: enter(two("", wait=0))),
    "timestamp": plain(lambda: enter(TimestampLock("shapes", wait=0))),
    "once": plain(lambda: enter(once(another()))),
    "single_flight": plain(computed),
    "cache.lock": plain(lambda: the_lock().acquire()),
    "release": held(redis_lock, GRANT, release),
    "short release": held(redis_lock, short_grant, release, free=True),
    "extend": held(redis_lock, GRANT, extend),
    "semaphore, release": held(semaphore, GRANT, release),
    "semaphore, extend": held(semaphore, GRANT, extend),
    "downgrade": held(write, GRANT, lambda lease: lease.downgrade()),
    "multi, release": held(two, own(1, AT, AT, AT), release),
    "multi, extend": held(two, own(1, AT, AT, AT), extend),
    "timestamp, release": held(TimestampLock, own(1, AT), release),
    "timestamp, extend": held(TimestampLock, own(1, AT), extend),
    "cache.lock, release": release_of_the_cache,
    "holder": plain(lambda: redis_lock("shapes").holder()),
    "timestamp, holder": plain(lambda: TimestampLock("shapes").holder()),
    "list": plain(lambda: Inspector("default").page()),
    "discover": plain(lambda: Inspector("default").discover()),
    "show": plain(lambda: Inspector("default").get("shapes")),
    "past": plain(lambda: Inspector("default").past("shapes")),
    "clear": plain(lambda: run(mutex.clear(port(), KEYS, SEEN, "me", "why"))),
    "adopt": plain(adopt),
    "ledger, claim": plain(claim),
    "ledger, known": plain(lambda: run(ledger.known(port(), [KEYS]))),
    "ledger, read": plain(lambda: run(ledger.read(port(), ["job"], [KEYS]))),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_nonsense(server: Server, operation: str) -> None:
    """It is an error of ours, and of redis-py where its lock is replaced; no block is entered."""
    expected = RedisError if operation.startswith("cache.lock") else LockUnavailable
    wrong = {}
    for name, answer in ANSWERS.items():
        try:
            wrong[name] = repr(OPERATIONS[operation](server, answer))
        except expected:
            pass
        except Exception as error:
            wrong[name] = repr(error)
    assert not wrong


BUSY = bulk(b"s" * 32 + b"+%d||30000|web-1:7:Main|shop.py:3" % AT)
"""What is at the key of a lock that somebody else holds."""

MESSAGES = BODIES | {
    name: b"*3\r\n" + bulk(kind) + bulk(channel) + data
    for name, kind, channel, data in (
        ("a message of a number", b"message", b"redislock:inbox:x", b":7\r\n"),
        ("keys that are no keys", b"message", b"__redis__:invalidate", b"*1\r\n:7\r\n"),
        ("nobody's", b"message", b"redislock:inbox:x", bulk(b"\xff" * 32)),
        ("a subscription that nobody wants", b"subscribe", b"\xff", b"*0\r\n"),
    )
}
"""Nonsense where messages come."""


@pytest.mark.parametrize("message", MESSAGES)
def test_nonsense_where_messages_come(server: Server, message: str) -> None:
    """A thread or a task that waits is told that the lock is busy, and nothing else."""
    ticket = bulk(b"%d" % AT)
    body = BUSY + b":9000\r\n" + b":%d\r\n:0\r\n" % AT + ticket + b"_\r\n"
    server.answer = lambda nonce: b"*2\r\n" + bulk(nonce) + b"*8\r\n:0\r\n" + body + b":1\r\n"
    server.free = False
    server.message = MESSAGES[message]
    with pytest.raises(LockNotAcquired):
        enter(redis_lock("shapes", wait=0.1))
    with pytest.raises(LockNotAcquired):
        asyncio.run(aenter(redis_lock("shapes", wait=0.1)))


def test_it_is_said_which_script(server: Server) -> None:
    """And it is not asked for again, since the answer would be the same."""
    server.answer = ANSWERS["our own: short"]
    with pytest.raises(LockUnavailable, match=r"mutex_take can't be understood") as caught:
        redis_lock("shapes", wait=60).acquire()
    assert caught.value.doubtful
    assert not caught.value.passing


def test_a_map_is_no_list() -> None:
    """hiredis makes a dict of it, whose keys could be taken for the answer. It is read as without
    hiredis."""
    word = "0123456789abcdef0123456789abcdef"
    plain = protocol.PlainReader()
    plain.feed(b"*2\r\n" + bulk(word.encode()) + BODIES["a map"])
    read = protocol.believed(plain.gets(), word)
    assert read == protocol.believed([word.encode(), {b"a": 1}], word) == [b"a", 1]


def test_every_file_is_used() -> None:
    """Each one in lua/ is a script, or a part of one."""
    used: dict[str, str] = {}
    for name in SCRIPTS:
        scripts._add(used, name.removesuffix(scripts.GUARDED), "mutex_guard")
    lua = files("django_redislock.primitives").joinpath("lua")
    assert {path.name for path in lua.iterdir()} == {f"{name}.lua" for name in used}


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_says_what_it_is(name: str) -> None:
    """Its purpose comes first, then KEYS, ARGV and the answer."""
    file = f"{name.removesuffix(scripts.GUARDED)}.lua"
    source = files("django_redislock.primitives").joinpath("lua", file).read_text()
    head = source[: source.index("\n\n")]
    assert not head.startswith("-- Part")
    assert "\n-- Returns  " in head
    assert ("\n-- KEYS     " in head) == ("KEYS" in scripts.load(name).source)
