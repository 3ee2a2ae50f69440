"""One command over a connection of a redis-py pool, without redis-py's additional work.

redis-py's `get_connection()` and `release()` look for data on the socket by a read between two
changes of its time-out, and count for metrics; `read_response()` prepares for answers of any kind.
So we take connections from redis-py's default pools ourselves, and read the list of numbers with
which our scripts usually answer. Everything unusual goes through redis-py's public methods: TLS,
another kind of pool, a health check, no time-out, or a version without the attributes that are
used here.

Only this module uses private attributes of redis-py.
"""

from __future__ import annotations

import asyncio
import queue
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

from ..base import fork, tokens
from ..base.clock import now
from ..primitives.contract import run

try:
    from redis.observability.providers import get_observability_instance
except ImportError:  # it counts nothing yet

    def _metrics() -> Any:
        return None

else:

    def _metrics() -> Any:
        return get_observability_instance().get_provider_manager()


SHORT = 128
"""Bytes of an answer that is read here, at most."""
LAST_MOMENT = 0.001
"""Seconds that a step gets when its time is over. With 0 it could not wait at all."""

# The caller's list `hand` holds the connection from checkout to give_back. An exception from
# outside, such as a signal's, may come after any call in here. So no call is made between the
# removal from one list and the entry into the next one: the connection is always in one of them.


def checkout(pool: redis.ConnectionPool, hand: list[Any], within: float | None = None) -> Any:
    """Take an idle connection of a pool, or a new one, into `hand`, as `get_connection()` does.

    A new one has to connect, handshake included, `within` these seconds; with `None`, only its own
    time-outs count. The caller owes `give_back`, after an exception, too.
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
        connection.disconnect()  # its socket may still have the short time-out
        raise
    return connection


def _keeps_books(pool: Any) -> bool:
    """Return whether redis-py does more when a connection comes and goes: it keeps a cache of
    answers (`cache_config`), or counts connections for metrics."""
    return getattr(pool, "cache", None) is not None or _metrics() is not None


def _took(pool: Any, hand: list[Any], within: float | None) -> bool:
    """Take a connection from the pool, as the first part of `get_connection()` does. `False` if
    this pool's `get_connection()` works in another way."""
    how = getattr(type(pool), "get_connection", None)
    try:
        if pool.pid != fork.process:
            return False  # after a fork, get_connection() forgets the parent's connections
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
            # No calls in these three lines: between calls, Python may let another thread run,
            # which may fork, and looks for signals.
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
    """Return whether a connection was closed at the other end, or has unread answers."""
    sock = getattr(connection, "_sock", None)
    if sock is None:
        return False
    if isinstance(sock, socket.socket):
        # With TLS, data may be read from the socket already, and wait in the TLS layer.
        return bool(sock.pending() if hasattr(sock, "pending") else 0) or not _silent(sock)
    try:
        return bool(connection.can_read())
    except (redis.ConnectionError, redis.TimeoutError, OSError):
        return True


@contextmanager
def _hurried(connection: Any, within: float | None) -> Iterator[None]:
    """Let a connection be made `within` these seconds, and have its own time-outs afterwards."""
    if within is None:
        yield
        return
    until = now() + within
    try:
        timeout, connect_timeout = connection.socket_timeout, connection.socket_connect_timeout
        retry, greet = connection.retry, connection.redis_connect_func
        connection._sock  # noqa: B018  # is it there?
    except AttributeError:
        yield
        return

    def wait_for(seconds: float | None) -> None:
        # Another thread may have closed it; a socket of fakeredis has no time-out.
        if hasattr(sock := connection._sock, "settimeout"):
            sock.settimeout(seconds)

    def handshake(connection: Any) -> None:
        # From here on its parser, and its next user, go by its own time-out.
        connection.socket_timeout = timeout
        wait_for(_less(timeout, max(until - now(), LAST_MOMENT)))
        connection.on_connect() if greet is None else greet(connection)

    try:
        connection.socket_timeout = _less(timeout, within)
        connection.socket_connect_timeout = _less(connect_timeout, within)
        connection.retry = Retry(NoBackoff(), 0)
        connection.redis_connect_func = handshake
        yield
        wait_for(timeout)
    finally:
        connection.socket_timeout = timeout
        connection.socket_connect_timeout = connect_timeout
        connection.retry, connection.redis_connect_func = retry, greet


def _less(own: float | None, within: float) -> float:
    return within if own is None else min(own, within)


def _put_back(pool: Any, hand: list[Any]) -> None:
    idle, used = pool._available_connections, pool._in_use_connections
    with pool._lock:
        # No calls in these three lines, as in `_took`.
        used -= {hand[0]}
        idle += hand
        del hand[0]


def _silent(sock: Any) -> bool:
    """Return whether a socket has nothing to read and was not closed."""
    file = -1 if sock is None else sock.fileno()
    if file < 0:  # another thread has closed it
        return False
    watch = select.poll()
    watch.register(file, select.POLLIN)
    return not watch.poll(0)


def give_back(pool: redis.ConnectionPool, hand: list[Any]) -> None:
    """Return the connection in `hand` to its pool, as `release()` does. May be repeated after an
    exception from outside."""
    if not hand:
        return
    plain = type(pool) is redis.ConnectionPool and not _keeps_books(pool)
    if plain and _returns(pool, hand[0]):
        _put_back(pool, hand)
    else:  # removed from `hand` in the same step, since it may not be released twice
        pool.release(*map(list.pop, (hand,)))


def _returns(pool: Any, connection: Any) -> bool:
    """Return whether a connection just joins the idle ones of this pool."""
    try:
        its, process, used = pool.pid, connection.pid, pool._in_use_connections
        pool._available_connections, pool._lock  # noqa: B018  # are they there?
    except AttributeError:
        return False
    if getattr(connection, "_re_auth_token", None) is not None:
        return False  # release() sends the new token
    # Older versions of redis-py have no such method, and never want to reconnect.
    reconnects = getattr(connection, "should_reconnect", bool)
    return its == process == fork.process and connection in used and not reconnects()


class StrayAnswer(redis.RedisError):
    """An answer that does not belong to our request. The connection can no longer be used."""


def ask(
    connection: Any, packed: bytes, word: str, within: float | None = None, *, clean: bool = False
) -> Any:
    """Send a request to a script, whose first argument is `word`, and return its answer.

    A connection may have unread answers of earlier requests: a pipeline of the project that was
    interrupted leaves some. So only an answer with our word is believed. An error has no word;
    `_answer_before` finds out whether it is ours.

    `within` is in seconds; with `None` the connection's own time-out counts. With `clean` nothing
    is read beyond the answer, since another request follows on this connection.
    """
    sock = getattr(connection, "_sock", None)
    lean = type(sock) is socket.socket and not connection.health_check_interval and not clean
    if not lean:
        connection.send_packed_command([packed])
        sock = getattr(connection, "_sock", None)  # it may have connected just now
    if within is None:
        return _ask(sock, connection, packed, word, lean=lean)
    with _patient(sock, connection, within):
        return _ask(sock, connection, packed, word, lean=lean)


def _ask(sock: Any, connection: Any, packed: bytes, word: str, *, lean: bool) -> Any:
    if lean:
        try:
            sock.sendall(packed)
            # Other answers than a short text are left to redis-py.
            seen = sock.recv(SHORT, socket.MSG_PEEK)
            numbers = _numbers(seen, word)
            if numbers is not None:
                sock.recv(len(seen))
                return numbers
        except TimeoutError as error:
            raise redis.TimeoutError(str(error)) from error
        except OSError as error:
            raise redis.ConnectionError(str(error)) from error
    answer = _read(connection)
    if _is_ours(answer, word):
        return _said(answer)
    marker = tokens.word()
    if hasattr(sock, "sendall"):  # not over a new socket, if this one was closed meanwhile
        sock.sendall(packed_marker(marker))
    else:
        connection.send_packed_command([packed_marker(marker)], check_health=False)
    return _believed(run(_answer_before(partial(_aread, connection), marker, answer)), word)


def ask_plainly(
    connection: Any, packed: bytes, within: float | None = None, *, clean: bool = False
) -> Any:
    """Send a command that is no script, and return its answer: the one before the marker's. If
    the connection is `clean`, it is the next one."""
    marker = tokens.word()
    connection.send_packed_command([packed if clean else packed + packed_marker(marker)])
    with _patient(getattr(connection, "_sock", None), connection, within):
        if clean:
            return connection.read_response(disable_decoding=True)
        answer = run(_answer_before(partial(_aread, connection), marker))
    if isinstance(answer, redis.ResponseError):
        raise answer
    return answer


def _read(connection: Any) -> Any:
    """Return the next answer; an error is returned, not raised."""
    try:
        return connection.read_response(disable_decoding=True)
    except redis.ResponseError as error:
        return error


async def _aread(connection: Any) -> Any:
    return _read(connection)


def packed_marker(marker: str) -> bytes:
    """Return a command that no server has. In any state the server refuses it by its name, before
    it looks at permissions or anything else, and the error repeats the name."""
    return b"*1\r\n$%d\r\n%b\r\n" % (len(marker), marker.encode())


UNREAD_WITHIN = 5.0
"""Seconds in which all unread answers of earlier requests have to be read."""


async def _answer_before(
    read: Callable[[], Awaitable[Any]], marker: str, answer: Any = None
) -> Any:
    """Return the answer to the request before `marker`. Answers come in the order of the requests,
    so it is the last one before the marker's. `answer` was read already."""
    until = now() + UNREAD_WITHIN
    while now() < until:
        following = await read()
        if isinstance(following, redis.ResponseError) and marker in str(following).lower():
            return answer
        answer = following
    raise StrayAnswer("too many answers to other requests")


def _is_ours(answer: Any, word: str) -> bool:
    first = word.encode()
    if isinstance(answer, bytes):
        return answer.startswith(first) and answer[len(first) : len(first) + 1] in (b"", b"|")
    return isinstance(answer, list) and answer[:1] == [first]


def _said(answer: Any) -> Any:
    """Return the script's answer without the word. A nil is missing, and returned as `None`. A
    text is the short form of a list that begins with 1."""
    if isinstance(answer, bytes):
        return _short(answer)
    said = answer[1] if len(answer) > 1 else None
    if isinstance(said, Exception):
        raise said
    return said


def _believed(answer: Any, word: str) -> Any:
    """Return the last answer before the marker's, without its word, or raise it if it is an
    error."""
    if _is_ours(answer, word):
        return _said(answer)
    if isinstance(answer, redis.ResponseError):
        raise answer
    raise StrayAnswer(f"an answer to another request, of the type {type(answer).__name__}")


@contextmanager
def _patient(sock: Any, connection: Any, within: float | None) -> Iterator[None]:
    """Let reads wait for `within` seconds. `can_read()` swallows the TimeoutError of a signal's
    handler, so it is used only for a connection whose socket is not known."""
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
            if sock.fileno() >= 0:  # it was not closed
                sock.settimeout(connection.socket_timeout)


def _short(text: bytes) -> Any:
    try:
        return [1, *map(int, text.split(b"|")[1:])]
    except ValueError:  # it is nonsense, which has no shape
        return text


def _numbers(answer: bytes, word: str) -> Any:
    """Return the answer if it is a text that begins with our word; else `None`."""
    head, _, text = answer.partition(b"\r\n")
    if head != b"$%d" % (len(text) - 2) or text[-2:] != b"\r\n" or not _is_ours(text[:-2], word):
        return None
    return _said(text[:-2])


# On an event loop the pool is our own, and public methods are enough.


class KeptPool(aioredis.BlockingConnectionPool):
    """A pool that keeps used connections connected and ready, with one timer for all answers.

    redis-py's pool takes a condition and looks for data each time. It sets a time-out for each of
    the two halves of a command, the first one with a task of its own. A single
    `asyncio.timeout()` for both would still be an eighth of what a command costs.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._kept: list[Any] = []
        self._wanted = 0
        """The number of tasks that wait for a connection."""
        self.answer_timeout: float | None = options.get("socket_timeout")
        """Seconds that a command has for its answer."""
        self._expected: dict[Any, float] = {}
        """When the answer on each connection is due, by the clock of the loop."""
        self._timer: asyncio.TimerHandle | None = None

    async def ask(
        self, connection: Any, packed: bytes, word: str, within: float | None = None
    ) -> Any:
        """As the function `ask`."""
        writer = None if connection.health_check_interval else _writer(connection)
        if within is None:
            within = self.answer_timeout
        if writer is None or within is None:
            return await aask(connection, packed, word, within)
        loop = asyncio.get_running_loop()
        self._expected[connection] = until = loop.time() + within
        if self._timer is not None and until < self._timer.when():
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(until, self._look)
        try:
            writer.write(packed)  # can't pile up: the next request waits for this answer
            return await _afind(connection, word)
        except redis.ConnectionError as error:
            if connection in self._expected:
                raise
            raise _late(within) from error
        finally:
            self._expected.pop(connection, None)

    def _look(self) -> None:
        """Close the connections whose answers are overdue."""
        loop = asyncio.get_running_loop()
        for connection, until in list(self._expected.items()):
            if until <= loop.time():
                del self._expected[connection]
                if (writer := _writer(connection)) is not None:
                    writer.transport.abort()
        nearest = min(self._expected.values(), default=None)
        self._timer = None if nearest is None else loop.call_at(nearest, self._look)

    async def kept(self) -> Any:
        """Return a used connection that is still connected, or `None`."""
        while self._kept:
            connection = self._kept.pop()
            writer = _writer(connection)
            if writer is not None and _silent(writer.get_extra_info("socket")):
                return connection
            await super().release(connection)  # the pool looks at it itself
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
        # The handshake may contain commands of redis-py itself, which need a time-out.
        connection.socket_timeout = self.answer_timeout
        await super().ensure_connection(connection)
        connection.socket_timeout = None

    async def release(self, connection: Any) -> None:
        if connection.is_connected and not self._wanted:
            self._kept.append(connection)
        else:
            await super().release(connection)


def _writer(connection: Any) -> asyncio.StreamWriter | None:
    """Return the writer of a connection on an event loop. `None` if it is of an unusual kind."""
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


async def aask(connection: Any, packed: bytes, word: str, within: float | None) -> Any:
    """`ask` on an event loop, over any connection, within so many seconds."""
    try:
        async with asyncio.timeout(within):
            await connection.send_packed_command([packed])
            return await _afind(connection, word)
    except TimeoutError as error:
        raise _late(within) from error


async def aask_plainly(
    connection: Any, packed: bytes, within: float | None, *, clean: bool = False
) -> Any:
    """`ask_plainly` on an event loop."""
    marker = tokens.word()
    try:
        async with asyncio.timeout(within):
            if clean:
                await connection.send_packed_command([packed])
                return await connection.read_response(disable_decoding=True)
            await connection.send_packed_command([packed + packed_marker(marker)])
            answer = await _answer_before(partial(_next, connection), marker)
    except TimeoutError as error:
        raise _late(within) from error
    if isinstance(answer, redis.ResponseError):
        raise answer
    return answer


async def _afind(connection: Any, word: str) -> Any:
    answer = await _next(connection)
    if _is_ours(answer, word):
        return _said(answer)
    marker = tokens.word()
    writer = _writer(connection)
    if writer is not None:  # as in `_ask`
        writer.write(packed_marker(marker))
    else:
        await connection.send_packed_command([packed_marker(marker)], check_health=False)
    return _believed(await _answer_before(partial(_next, connection), marker, answer), word)


async def _next(connection: Any) -> Any:
    """Return the next answer; an error is returned, not raised."""
    try:
        return await connection.read_response(disable_decoding=True)
    except redis.ResponseError as error:
        return error


def _late(within: Any) -> redis.TimeoutError:
    return redis.TimeoutError(f"no answer within {within:.3g} s")
