"""One command over a connection of a pool, without what redis-py does besides.

Its `get_connection()` and `release()` look for data on the socket by a read between two changes
of its time-out, and count for metrics; `read_response()` prepares for answers of any kind. So of a
pool as redis-py makes it by default we take the connections ourselves, and read the list of
numbers that our scripts answer with when all is well. Wherever anything is unusual, redis-py's
public methods do it: TLS, another kind of pool, a health check, no time-out, or a version without
the attributes that are used here.

All that is known of redis-py's inside is in this module.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import secrets
import select
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import redis
from redis import asyncio as aioredis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..base import fork
from ..base.clock import now
from ..base.coroutines import run

try:
    from redis.observability.providers import get_observability_instance
except ImportError:  # it counts nothing yet

    def _metrics() -> Any:
        return None

else:

    def _metrics() -> Any:
        return get_observability_instance().get_provider_manager()


SHORT = 128
"""Bytes, at most, of an answer that is read here."""
MOMENT = 0.001
"""Seconds that a step gets when its time is over: 0 would mean that it may not wait at all."""

_process = os.getpid()  # the system is not asked each time

_prefix = secrets.token_hex(8)  # of all nonces of this process
_counter = itertools.count()


# A connection is taken into a hand, a list of its user's, from which it goes back. An exception
# from outside, such as a signal's, may come after any call in here; so between two lists there is
# none, and the connection is always in one of them.


def checkout(pool: redis.ConnectionPool, hand: list[Any], within: float | None = None) -> Any:
    """Take an idle connection of a pool into `hand`, or a new one, as `get_connection()` does.

    A new one is made, handshake included, within so many seconds, whatever time-outs it has; None:
    as long as they say. After an exception, too, the caller owes `give_back`.
    """
    if _keeps_books(pool) or not _took(pool, hand, within):
        hand.append(pool.get_connection())
        return hand[0]
    connection = hand[0]
    sock = getattr(connection, "_sock", None)
    if type(sock) is socket.socket and _silent(sock):
        return connection
    try:
        with _hurried(connection, within):
            if _stale(connection):
                connection.disconnect()
            connection.connect()
    except BaseException:
        connection.disconnect()  # its socket may have the short time-out yet
        raise
    return connection


def _keeps_books(pool: Any) -> bool:
    """redis-py does more as a connection comes and goes: it has a cache of answers, by
    `cache_config`, or counts connections for metrics."""
    return getattr(pool, "cache", None) is not None or _metrics() is not None


def _took(pool: Any, hand: list[Any], within: float | None) -> bool:
    """What `get_connection()` takes from the pool, before it connects, when nobody can see the
    connection yet. False: it does so in another way."""
    how = getattr(type(pool), "get_connection", None)
    try:
        if pool.pid != _process:
            return False  # it is for get_connection() to forget what belongs to the parent
        if how is redis.ConnectionPool.get_connection:
            idle, used, lock = pool._available_connections, pool._in_use_connections, pool._lock
        elif how is redis.BlockingConnectionPool.get_connection:
            connections, timeout = pool.pool, pool.timeout
        else:
            return False
    except AttributeError:
        return False
    if how is redis.ConnectionPool.get_connection:
        with lock:
            if not idle:
                idle.append(pool.make_connection())
            # Without a call in here, Python neither lets another thread run, which may fork, nor
            # looks for signals.
            used |= {idle[-1]}
            hand += idle[-1:]
            del idle[-1]
        return True
    try:
        connection = connections.get(timeout=timeout if within is None else min(timeout, within))
    except queue.Empty:
        raise redis.ConnectionError("No connection available.") from None
    hand.append(pool.make_connection() if connection is None else connection)
    return True


def _stale(connection: Any) -> bool:
    """It is connected, and was closed at the other end or has unread answers."""
    sock = getattr(connection, "_sock", None)
    if sock is None:
        return False
    if isinstance(sock, socket.socket):
        # Of TLS, what has come may be read from the socket already.
        return bool(sock.pending() if hasattr(sock, "pending") else 0) or not _silent(sock)
    try:
        return bool(connection.can_read())
    except (redis.ConnectionError, redis.TimeoutError, OSError):
        return True


@contextmanager
def _hurried(connection: Any, within: float | None) -> Iterator[None]:
    """What is connected in here is so within so many seconds, and has its own time-outs after."""
    if within is None:
        yield
        return
    until = now() + within
    try:
        answers, connects = connection.socket_timeout, connection.socket_connect_timeout
        retry, greet = connection.retry, connection.redis_connect_func
        connection._sock  # noqa: B018  # is it there?
    except AttributeError:
        yield
        return

    def wait_for(seconds: float | None) -> None:
        # Another thread may have closed it; that of fakeredis has no time-out.
        if hasattr(sock := connection._sock, "settimeout"):
            sock.settimeout(seconds)

    def handshake(connection: Any) -> None:
        # From here on its parser, and whoever uses it next, go by its own time-out.
        connection.socket_timeout = answers
        wait_for(_less(answers, max(until - now(), MOMENT)))
        connection.on_connect() if greet is None else greet(connection)

    try:
        connection.socket_timeout = _less(answers, within)
        connection.socket_connect_timeout = _less(connects, within)
        connection.retry = Retry(NoBackoff(), 0)
        connection.redis_connect_func = handshake
        yield
        wait_for(answers)
    finally:
        connection.socket_timeout, connection.socket_connect_timeout = answers, connects
        connection.retry, connection.redis_connect_func = retry, greet


def _less(own: float | None, within: float) -> float:
    return within if own is None else min(own, within)


def _put_back(pool: Any, hand: list[Any]) -> None:
    idle, used = pool._available_connections, pool._in_use_connections
    with pool._lock:
        # As in `_took`.
        used -= {hand[0]}
        idle += hand
        del hand[0]


def _silent(sock: Any) -> bool:
    """Neither has anything come, nor was it closed."""
    file = -1 if sock is None else sock.fileno()
    if file < 0:  # another thread has closed it
        return False
    watch = select.poll()
    watch.register(file, select.POLLIN)
    return not watch.poll(0)


def give_back(pool: redis.ConnectionPool, hand: list[Any]) -> None:
    """Give back what is in `hand`, as `release()` does. If an exception from outside comes in the
    middle, it may be repeated."""
    if not hand:
        return
    plain = type(pool) is redis.ConnectionPool and not _keeps_books(pool)
    if plain and _returns(pool, hand[0]):
        _put_back(pool, hand)
    else:  # from the hand at once, since it may not be released twice
        pool.release(*map(list.pop, (hand,)))


def _returns(pool: Any, connection: Any) -> bool:
    """It goes back to the idle ones of this pool, and nothing else is to be done."""
    try:
        its, process, used = pool.pid, connection.pid, pool._in_use_connections
        pool._available_connections, pool._lock  # noqa: B018  # are they there?
    except AttributeError:
        return False
    if getattr(connection, "_re_auth_token", None) is not None:
        return False  # release() sends the new token
    # The question is new, and an older redis-py never wants that.
    reconnects = getattr(connection, "should_reconnect", bool)
    return its == process == _process and connection in used and not reconnects()


def make_nonce() -> str:
    """What no other request of any process has. Small letters and digits."""
    return f"{_prefix}{next(_counter):x}"


class NotOurs(redis.RedisError):
    """What came is no answer to our request, so the connection is of no use any more."""


def ask(
    connection: Any, packed: bytes, nonce: str, within: float | None = None, *, clean: bool = False
) -> Any:
    """Send a request to a script, which has `nonce` as its last word, and return its answer.

    Somebody may have left answers unread on this connection: a project's pipeline that was
    interrupted does. So only an answer with our nonce is believed. An error has none, and `_sure`
    finds out whose it is.

    It waits for `within` seconds; None: for as long as the connection's own time-out says. With
    `clean`, whatever comes next on this connection is ours as well.
    """
    sock = getattr(connection, "_sock", None)
    lean = type(sock) is socket.socket and not connection.health_check_interval and not clean
    if not lean:
        connection.send_packed_command([packed])
        sock = getattr(connection, "_sock", None)  # it may have connected just now
    if within is None:
        return _ask(sock, connection, packed, nonce, lean=lean)
    with _patient(sock, connection, within):
        return _ask(sock, connection, packed, nonce, lean=lean)


def _ask(sock: Any, connection: Any, packed: bytes, nonce: str, *, lean: bool) -> Any:
    if lean:
        try:
            sock.sendall(packed)
            # What is no list of a few numbers is left for redis-py.
            seen = sock.recv(SHORT, socket.MSG_PEEK)
            numbers = _numbers(seen, nonce)
            if numbers is not None:
                sock.recv(len(seen))
                return numbers
        except TimeoutError as error:
            raise redis.TimeoutError(str(error)) from error
        except OSError as error:
            raise redis.ConnectionError(str(error)) from error
    answer = _read(connection)
    if _is_ours(answer, nonce):
        return _said(answer)
    marker = make_nonce()
    if hasattr(sock, "sendall"):  # and not over another one, if it was closed meanwhile
        sock.sendall(packed_marker(marker))
    else:
        connection.send_packed_command([packed_marker(marker)], check_health=False)
    return _believed(run(_sure(partial(_aread, connection), marker, answer)), nonce)


def ask_plainly(
    connection: Any, packed: bytes, within: float | None = None, *, clean: bool = False
) -> Any:
    """`ask` for a command that is no script: its answer is what comes before a marker's; or what
    comes next, if the connection is `clean`."""
    marker = make_nonce()
    connection.send_packed_command([packed if clean else packed + packed_marker(marker)])
    with _patient(getattr(connection, "_sock", None), connection, within):
        if clean:
            return connection.read_response(disable_decoding=True)
        answer = run(_sure(partial(_aread, connection), marker))
    if isinstance(answer, redis.ResponseError):
        raise answer
    return answer


def _read(connection: Any) -> Any:
    """The next answer; an error is one."""
    try:
        return connection.read_response(disable_decoding=True)
    except redis.ResponseError as error:
        return error


async def _aread(connection: Any) -> Any:
    return _read(connection)


def packed_marker(marker: str) -> bytes:
    """A command that no server has: it is refused by its name, in whatever state the server or the
    connection is, before permissions and everything else; and the error repeats the name."""
    return b"*1\r\n$%d\r\n%b\r\n" % (len(marker), marker.encode())


PATIENCE = 5.0
"""Seconds in which all that others have left on a connection has to be read."""


async def _sure(read: Callable[[], Awaitable[Any]], marker: str, answer: Any = None) -> Any:
    """The answer to what was sent before `marker`: answers come in the order of the requests, so
    it is the last one before the marker's."""
    until = now() + PATIENCE
    while now() < until:
        following = await read()
        if isinstance(following, redis.ResponseError) and marker in str(following).lower():
            return answer
        answer = following
    raise NotOurs("too many answers that are not ours")


def _is_ours(answer: Any, nonce: str) -> bool:
    return isinstance(answer, list) and answer[:1] == [nonce.encode()]


def _said(answer: list[Any]) -> Any:
    """What the script has answered within its frame; nothing is left of a nil."""
    said = answer[1] if len(answer) > 1 else None
    if isinstance(said, Exception):
        raise said
    return said


def _believed(answer: Any, nonce: str) -> Any:
    """The last answer before the marker's: our own, or an error in its place."""
    if _is_ours(answer, nonce):
        return _said(answer)
    if isinstance(answer, redis.ResponseError):
        raise answer
    raise NotOurs(f"an answer that is not ours, of the type {type(answer).__name__}")


@contextmanager
def _patient(sock: Any, connection: Any, within: float | None) -> Iterator[None]:
    """For so many seconds. Not by `can_read()`, which swallows the TimeoutError of a signal's
    handler; so that is only for a connection whose socket we can't find."""
    if within is None:
        yield
    elif not hasattr(sock, "settimeout"):
        if not connection.can_read(within):
            raise redis.TimeoutError(f"no answer within {within:.3g} s")
        yield
    else:
        sock.settimeout(within)
        try:
            yield
        finally:
            if sock.fileno() >= 0:  # else it was closed
                sock.settimeout(connection.socket_timeout)


def _numbers(answer: bytes, nonce: str) -> list[int] | None:
    """A list of numbers beside our nonce, in Redis' protocol, if that is all of the answer."""
    frame = b"*2\r\n$%d\r\n%b\r\n*" % (len(nonce), nonce.encode())
    if not answer.startswith(frame) or answer[-2:] != b"\r\n":
        return None
    size, *numbers = answer[len(frame) :].split(b"\r\n:")
    try:
        return list(map(int, numbers)) if int(size) == len(numbers) else None
    except ValueError:  # something else is among them
        return None


# On an event loop, where the pool is our own, and public methods are enough.


class KeptPool(aioredis.BlockingConnectionPool):
    """Keeps what was used last at hand, and has one timer for all answers.

    redis-py's pool takes a condition and looks for data each time, and sets a time-out for each of
    the two halves of a command, the first one with a task of its own; `asyncio.timeout()`, for
    both together, would still be an eighth of what a command costs.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._kept: list[Any] = []
        self._wanted = 0
        """So many tasks wait for a connection that somebody releases."""
        self.answer_timeout: float | None = options.get("socket_timeout")
        """Seconds that a command has for its answer."""
        self._expected: dict[Any, float] = {}
        """The connections that owe an answer, and until when, by the clock of the loop."""
        self._timer: asyncio.TimerHandle | None = None

    async def ask(
        self, connection: Any, packed: bytes, nonce: str, within: float | None = None
    ) -> Any:
        """As the function `ask`."""
        writer = None if connection.health_check_interval else _writer(connection)
        if within is None:
            within = self.answer_timeout
        if writer is None or within is None:
            return await aask(connection, packed, nonce, within)
        loop = asyncio.get_running_loop()
        self._expected[connection] = until = loop.time() + within
        if self._timer is not None and until < self._timer.when():
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(until, self._look)
        try:
            writer.write(
                packed
            )  # what is written is answered before there is more, and can't pile up
            return await _afind(connection, nonce)
        except redis.ConnectionError as error:
            if connection in self._expected:
                raise
            raise _late(within) from error
        finally:
            self._expected.pop(connection, None)

    def _look(self) -> None:
        """Who waits for an answer that is overdue finds its connection closed."""
        loop = asyncio.get_running_loop()
        for connection, until in list(self._expected.items()):
            if until <= loop.time():
                del self._expected[connection]
                if (writer := _writer(connection)) is not None:
                    writer.transport.abort()
        nearest = min(self._expected.values(), default=None)
        self._timer = None if nearest is None else loop.call_at(nearest, self._look)

    async def kept(self) -> Any:
        """One that was used and is connected yet; None: there is none."""
        while self._kept:
            connection = self._kept.pop()
            writer = _writer(connection)
            if writer is not None and _silent(writer.get_extra_info("socket")):
                return connection
            await super().release(connection)  # for the pool's own look at it
        return None

    async def get_connection(self, *_: object, **__: object) -> Any:
        if (connection := await self.kept()) is not None:
            return connection
        self._wanted += 1
        try:
            return await super().get_connection()  # type: ignore[no-untyped-call]
        finally:
            self._wanted -= 1

    async def ensure_connection(self, connection: Any) -> None:
        # To connect may be to say hello, which is a command of redis-py's own.
        connection.socket_timeout = self.answer_timeout
        await super().ensure_connection(connection)
        connection.socket_timeout = None

    async def release(self, connection: Any) -> None:
        if connection.is_connected and not self._wanted:
            self._kept.append(connection)
        else:
            await super().release(connection)


def _writer(connection: Any) -> asyncio.StreamWriter | None:
    """That of a connection in an event loop; None: it is no ordinary one."""
    writer = getattr(connection, "_writer", None)
    return writer if isinstance(writer, asyncio.StreamWriter) else None


async def acheckout(pool: aioredis.ConnectionPool, within: float | None) -> Any:
    """`checkout` on an event loop."""
    if isinstance(pool, KeptPool) and (connection := await pool.kept()) is not None:
        return connection
    try:
        async with asyncio.timeout(within):
            return await pool.get_connection()
    except TimeoutError as error:
        raise _late(within) from error


async def aask(connection: Any, packed: bytes, nonce: str, within: float | None) -> Any:
    """`ask` on an event loop, over any connection, within so many seconds."""
    try:
        async with asyncio.timeout(within):
            await connection.send_packed_command([packed])
            return await _afind(connection, nonce)
    except TimeoutError as error:
        raise _late(within) from error


async def aask_plainly(
    connection: Any, packed: bytes, within: float | None, *, clean: bool = False
) -> Any:
    """`ask_plainly` on an event loop."""
    marker = make_nonce()
    try:
        async with asyncio.timeout(within):
            if clean:
                await connection.send_packed_command([packed])
                return await connection.read_response(disable_decoding=True)
            await connection.send_packed_command([packed + packed_marker(marker)])
            answer = await _sure(partial(_next, connection), marker)
    except TimeoutError as error:
        raise _late(within) from error
    if isinstance(answer, redis.ResponseError):
        raise answer
    return answer


async def _afind(connection: Any, nonce: str) -> Any:
    answer = await _next(connection)
    if _is_ours(answer, nonce):
        return _said(answer)
    marker = make_nonce()
    writer = _writer(connection)
    if writer is not None:  # as in `_ask`
        writer.write(packed_marker(marker))
    else:
        await connection.send_packed_command([packed_marker(marker)], check_health=False)
    return _believed(await _sure(partial(_next, connection), marker, answer), nonce)


async def _next(connection: Any) -> Any:
    """The next answer; an error is one."""
    try:
        return await connection.read_response(disable_decoding=True)
    except redis.ResponseError as error:
        return error


def _late(within: Any) -> redis.TimeoutError:
    return redis.TimeoutError(f"no answer within {within:.3g} s")


def _after_fork() -> None:
    global _process, _prefix
    _process = os.getpid()
    _prefix = secrets.token_hex(8)


fork.in_child(_after_fork)
