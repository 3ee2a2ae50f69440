"""One command over a connection of a redis-py pool, without redis-py's additional work.

redis-py's `get_connection()` and `release()` look for data on the socket by a read between two
changes of its time-out, and count for metrics; `read_response()` prepares for answers of any kind.
So we take connections from redis-py's default pools ourselves, and read the short text with which
our scripts usually answer. Everything unusual goes through redis-py's public methods: TLS, another
kind of pool, a health check, or a version without the attributes that are used here.

docs/versions.md lists the private attributes of redis-py that the package uses, and what happens
without them.
"""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import ceil
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..base import fork, polling, tokens
from ..base.clock import now
from ..base.rlocks import ONCE
from ..primitives.waiting import LEAST, NEVER
from .reader import NOTHING, PUSH, reader

try:
    from redis.observability.providers import get_observability_instance
except ImportError:  # it counts nothing yet

    def _metrics() -> Any:
        return None

else:

    def _metrics() -> Any:
        return get_observability_instance().get_provider_manager()


T = TypeVar("T")

MOST = 65_536
"""Bytes that are read at a time."""
ANSWER_WITHIN = 5.0
"""Seconds that we wait for an answer if the CACHES entry sets no SOCKET_TIMEOUT. It is redis-py's
default from version 8 on."""
LAST_MOMENT = 0.001
"""Seconds that a step gets when its time is over. With 0 it could not wait at all."""
FULL = "Too many connections"
"""What redis-py says if a plain pool may make no more connections."""
FULL_PAUSE = 0.01
"""Seconds between two looks at a full pool."""

_KEEPS_NUMBER = hasattr(socket.socket, "_io_refs")
"""Whether a socket counts its readers, and keeps its number after `close()` until there are none.

If another thread closes a connection, a thread that waits for its data is woken at once. But one
that is about to wait would wait for the data of the next socket of this process, if that had got
the number. So each thread that reads is counted, in one step with the `try` statement that ends
it: in between is no call, after which an exception from outside could come."""

STUMBLES = (AttributeError, TypeError, ValueError, RecursionError)
"""What redis-py raises for wrong options, for answers that are no answers, and when another thread
closes a connection (`closed_meanwhile`). Other code raises them for mistakes."""

# The caller's list `hand` holds the connection from checkout to give_back. An exception from
# outside, such as a signal's, may come after any call in here. So no call is made between the
# removal from one list and the entry into the next one: the connection is always in one of them.


def checkout(pool: redis.ConnectionPool, hand: list[Any], within: float | None = None) -> Any:
    """Take an idle connection of a pool, or a new one, into `hand`, as `get_connection()` does.

    A new one has to connect, handshake included, `within` these seconds; with `None`, only its own
    time-outs count. A pool that is full is waited for, for `LEAST` at most. The caller owes
    `give_back`, after an exception, too.
    """
    until = NEVER if within is None else now() + within
    give_up = min(until, now() + LEAST)
    while True:
        try:
            if _keeps_books(pool) or not _took(pool, hand, within):
                hand.append(pool.get_connection())
                return hand[0]
            break
        except redis.ConnectionError as error:
            if str(error) != FULL or now() >= give_up:
                raise
        time.sleep(FULL_PAUSE)
    within = None if within is None else max(until - now(), LAST_MOMENT)
    connection = hand[0]
    sock = getattr(connection, "_sock", None)
    if type(sock) is socket.socket and not _idled_too_long(connection) and _silent(sock):
        return connection
    try:
        with _connecting(connection, within):
            if _stale(connection):
                connection.disconnect()
            connection.connect()
    except BaseException:
        connection.disconnect()  # its socket may still have the short time-out
        raise
    return connection


def idle_socket(pool: Any, hand: list[Any]) -> socket.socket | None:
    """Take an idle connection of redis-py's plain pool into `hand`, and return its socket if a
    request can go out over it as it is: the most frequent case of `checkout`, in few calls.

    With `None` it may have taken one that needs more care.
    """
    sock = plain_socket(pool, hand)
    return sock if sock is not None and _silent(sock) else None


def plain_socket(pool: Any, hand: list[Any]) -> socket.socket | None:
    """Do what `idle_socket` does, but for the look whether the socket was closed, or has unread
    answers."""
    if type(pool) is not redis.ConnectionPool or _keeps_books(pool):
        return None
    try:
        process, lock = pool.pid, pool._lock
        idle, used = pool._available_connections, pool._in_use_connections
    except AttributeError:
        return None
    if process != fork.process or type(idle) is not list or type(used) is not set:
        return None
    locked: list[bool] = []
    try:
        locked += map(lock.acquire, ONCE)
        if not idle:
            return None
        # No calls in these three lines, as in `_took`.
        used |= {idle[-1]}
        hand += idle[-1:]
        del idle[-1]
    finally:
        if locked:
            lock.release()
    connection = hand[0]
    sock = getattr(connection, "_sock", None)
    if type(sock) is not socket.socket or connection.health_check_interval or not _KEEPS_NUMBER:
        return None
    return sock


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
            if type(idle) is not list or type(used) is not set:
                return False
        elif how is redis.BlockingConnectionPool.get_connection:
            connections, timeout = pool.pool, pool.timeout
        else:
            return False
    except AttributeError:
        return False
    if how is redis.ConnectionPool.get_connection:
        locked: list[bool] = []
        try:
            locked += map(lock.acquire, ONCE)
            if not idle:
                idle.append(made(pool))
            # No calls in these three lines: between calls, Python may let another thread run,
            # which may fork, and looks for signals.
            used |= {idle[-1]}
            hand += idle[-1:]
            del idle[-1]
        finally:
            if locked:
                lock.release()
        return True
    try:
        connection = connections.get(timeout=timeout if within is None else min(timeout, within))
    except queue.Empty:
        raise redis.ConnectionError("No connection available.") from None
    hand.append(made(pool) if connection is None else connection)
    return True


def made(pool: Any) -> Any:
    """Return a new connection of a pool, which is not connected yet. Raises `DataError` if
    redis-py does not take its options."""
    try:
        return pool.make_connection()
    except (redis.ConnectionError, *STUMBLES) as error:
        if str(error) == FULL:
            raise
        raise redis.DataError(str(error)) from error


def _stale(connection: Any) -> bool:
    """Return whether a connection was closed at the other end, has unread answers, or idled for
    too long."""
    sock = getattr(connection, "_sock", None)
    if sock is None:
        return False
    if _idled_too_long(connection):
        return True
    if isinstance(sock, socket.socket):
        # With TLS, data may be read from the socket already, and wait in the TLS layer.
        return bool(sock.pending() if hasattr(sock, "pending") else 0) or not _silent(sock)
    try:
        return bool(connection.can_read())
    except (redis.ConnectionError, redis.TimeoutError, OSError):
        return True


def _idled_too_long(connection: Any) -> bool:
    """Return whether a connection may have been cut meanwhile, without a word. redis-py sends a
    PING after such a time. A new connection takes no longer than its answer, and the PING would
    wait for as long as the connection's own time-out, whatever time the request has."""
    if not getattr(connection, "health_check_interval", 0):
        return False
    return bool(time.monotonic() > getattr(connection, "next_health_check", NEVER))


def closed_meanwhile(error: BaseException) -> bool:
    """Return whether redis-py has stumbled over a connection that another thread has closed, as
    DJANGO_REDIS_CLOSE_CONNECTION does after each request: its socket or its parser is None by
    then, or a closed file."""
    if isinstance(error, AttributeError):
        return error.obj is None
    if isinstance(error, TypeError):
        return "NoneType" in str(error)
    return isinstance(error, ValueError) and "closed file" in str(error)


@contextmanager
def _connecting(connection: Any, within: float | None) -> Iterator[None]:
    """Let a connection be made `within` these seconds, and have its own time-outs afterwards.

    If another thread closes it meanwhile, redis-py would connect once more in the middle of the
    handshake: this raises `redis.ConnectionError` instead.
    """
    until = now() + (within or 0.0)
    try:
        timeout, connect_timeout = connection.socket_timeout, connection.socket_connect_timeout
        retry, greet = connection.retry, connection.redis_connect_func
        connection._sock  # noqa: B018  # is it there?
    except AttributeError:
        yield
        return
    greeting: list[Any] = []

    def handshake(connection: Any) -> None:
        # From here on its parser, and its next user, go by its own time-out.
        connection.socket_timeout = timeout
        sock = connection._sock
        if greeting:
            raise redis.ConnectionError("Another thread has closed the connection.")
        left = None
        if within is not None and hasattr(sock, "settimeout"):
            left = _less(timeout, max(until - now(), LAST_MOMENT))
        greets = connection.on_connect if greet is None else partial(greet, connection)
        try:
            greeting.append(sock)
            _patiently(sock, connection, left, greets)
        finally:
            greeting.clear()

    try:
        if within is not None:
            connection.socket_timeout = _less(timeout, within)
            connection.socket_connect_timeout = _less(connect_timeout, within)
            connection.retry = Retry(NoBackoff(), 0)
        connection.redis_connect_func = handshake
        yield
    finally:
        connection.socket_timeout = timeout
        connection.socket_connect_timeout = connect_timeout
        connection.retry, connection.redis_connect_func = retry, greet


def _less(own: float | None, within: float) -> float:
    return within if own is None else min(own, within)


def _silent(sock: Any) -> bool:
    """Return whether a socket has nothing to read and was not closed."""
    file = -1 if sock is None else sock.fileno()
    if file < 0:  # another thread has closed it
        return False
    watch = polling.poll()
    watch.register(file, polling.POLLIN)
    return not watch.poll(0)


def give_back(pool: redis.ConnectionPool, hand: list[Any]) -> None:
    """Return the connection in `hand` to its pool, as `release()` does. May be repeated after an
    exception from outside."""
    if not hand:
        return
    plain = type(pool) is redis.ConnectionPool and not _keeps_books(pool)
    if plain and _returns(pool, hand[0]):
        put_back(pool, hand)
    else:  # removed from `hand` in the same step, since it may not be released twice
        pool.release(*map(list.pop, (hand,)))


def _returns(pool: Any, connection: Any) -> bool:
    """Return whether a connection just joins the idle ones of this pool."""
    try:
        its, process, used = pool.pid, connection.pid, pool._in_use_connections
        idle, _ = pool._available_connections, pool._lock  # are they there?
        token = connection._re_auth_token
    except AttributeError:
        return False
    if type(idle) is not list or type(used) is not set or token is not None:
        return False  # with a new token, release() sends it
    # Older versions of redis-py have no such method, and never want to reconnect.
    reconnects = getattr(connection, "should_reconnect", bool)
    return its == process == fork.process and connection in used and not reconnects()


class StrayAnswer(redis.RedisError):
    """An answer that does not belong to our request. The connection can no longer be used."""


def ask(connection: Any, packed: bytes, word: str, within: float | None = None) -> Any:
    """Send a request to a script, whose first argument is `word`, and return its answer.

    A connection may have unread answers of earlier requests: a pipeline of the project that was
    interrupted leaves some. So only an answer with our word is believed. An error has no word;
    `_answer_before` finds out whether it is ours.

    `within` is in seconds; with `None` the connection's own time-out counts.
    """
    connection.send_packed_command([packed])
    sock: Any = getattr(connection, "_sock", None)  # it may have connected just now
    read = partial(_answer, connection, sock, partial(_read, connection), word)
    return _patiently(sock, connection, within, read)


def _answer(connection: Any, sock: Any, read: Callable[[], Any], word: str) -> Any:
    answer = read()
    if is_ours(answer, word):
        return said(answer)
    marker = tokens.word()
    if hasattr(sock, "sendall"):  # not over a new socket, if this one was closed meanwhile
        sock.sendall(packed_marker(marker))
    else:
        connection.send_packed_command([packed_marker(marker)], check_health=False)
    return _believed(_answer_before(read, marker, answer), word)


class _Answers:
    """The answers that come over a plain socket. redis-py's parser does not know what was read
    from it already."""

    def __init__(self, sock: socket.socket, seen: bytes) -> None:
        self._sock = sock
        self._reader = reader()
        self._reader.feed(seen)

    def read(self) -> Any:
        """Return the next answer; an error is returned, not raised."""
        while (answer := self._reader.gets()) is NOTHING or type(answer) is PUSH:
            if answer is NOTHING:
                some = self._sock.recv(MOST)
                if not some:
                    raise redis.ConnectionError("Connection closed by server.")
                self._reader.feed(some)
        if isinstance(answer, redis.ConnectionError):  # the server refuses all commands
            raise answer
        return answer


def ask_over(
    connection: Any, sock: socket.socket, packed: bytes, word: str, within: float | None
) -> Any:
    """Do what `ask` does, over a plain socket of a connection, with fewer calls for a short
    answer."""
    sock._io_refs += 1  # type: ignore[attr-defined]
    try:
        sock.sendall(packed)
        own = sock.gettimeout()
        if own is None or (within is not None and within < own):
            # The socket keeps its own time-out: to change it twice would take as long.
            _await(sock, ANSWER_WITHIN if within is None else within)
        seen = sock.recv(MOST)
        answer = short_answer(seen, word)
        if answer is not None:
            return answer
    except OSError as error:
        raise _as_redis_py(error) from error
    finally:
        sock._io_refs -= 1  # type: ignore[attr-defined]
        if connection._sock is not sock:
            sock.close()
    return answer_over(connection, sock, seen, word, within)


def answer_over(
    connection: Any, sock: socket.socket, seen: bytes, word: str, within: float | None
) -> Any:
    """Return the answer to a request that was sent over a plain socket, where `seen` has come
    already."""
    read = partial(_answer, connection, sock, _Answers(sock, seen).read, word)
    try:
        return _patiently(sock, connection, within, read)
    except OSError as error:
        raise _as_redis_py(error) from error


def _as_redis_py(error: OSError) -> redis.RedisError:
    """Return the error of a socket as redis-py would raise it."""
    kind = redis.TimeoutError if isinstance(error, TimeoutError) else redis.ConnectionError
    return kind(str(error))


def _await(sock: socket.socket, seconds: float) -> None:
    """Wait for an answer. Raises `TimeoutError`."""
    watch = polling.poll()
    try:
        watch.register(sock, polling.POLLIN)
    except ValueError as error:  # another thread has closed it
        raise OSError(str(error)) from error
    if not watch.poll(ceil(seconds * 1000)):
        raise TimeoutError(f"no answer within {seconds:.3g} s")


def put_back(pool: Any, hand: list[Any]) -> None:
    """Return a connection of `idle_socket` to its pool: the most frequent case of `give_back`."""
    if not _returns(pool, hand[0]):
        pool.release(*map(list.pop, (hand,)))
        return
    idle, used, lock = pool._available_connections, pool._in_use_connections, pool._lock
    locked: list[bool] = []
    try:
        locked += map(lock.acquire, ONCE)
        # No calls in these three lines, as in `_took`.
        used -= {hand[0]}
        idle += hand
        del hand[0]
    finally:
        if locked:
            lock.release()


def ask_plainly(
    connection: Any, packed: bytes, within: float | None = None, *, clean: bool = False
) -> Any:
    """Send a command that is no script, and return its answer: the one before the marker's. If
    the connection is `clean`, it is the next one."""
    marker = tokens.word()
    connection.send_packed_command([packed if clean else packed + packed_marker(marker)])
    read = partial(_read, connection)
    if not clean:
        read = partial(_answer_before, read, marker)
    answer = _patiently(getattr(connection, "_sock", None), connection, within, read)
    if isinstance(answer, redis.ResponseError):
        raise answer
    return answer


def _read(connection: Any) -> Any:
    """Return the next answer; an error is returned, not raised."""
    try:
        return connection.read_response(disable_decoding=True)
    except redis.ResponseError as error:
        return error


def packed_marker(marker: str) -> bytes:
    """Return a command that no server has. In any state the server refuses it by its name, before
    it looks at permissions or anything else, and the error repeats the name."""
    return b"*1\r\n$%d\r\n%b\r\n" % (len(marker), marker.encode())


UNREAD_WITHIN = 5.0
"""Seconds in which all unread answers of earlier requests have to be read."""


def _answer_before(read: Callable[[], Any], marker: str, answer: Any = None) -> Any:
    """Return the answer to the request before `marker`, where `read` gets the next one. Answers
    come in the order of the requests, so it is the last one before the marker's. `answer` was read
    already."""
    until = now() + UNREAD_WITHIN
    while now() < until:
        following = read()
        if isinstance(following, redis.ResponseError) and marker in str(following).lower():
            return answer
        answer = following
    raise StrayAnswer("too many answers to other requests")


def is_ours(answer: Any, word: str) -> bool:
    """Return whether a script's answer begins with this word."""
    first = word.encode()
    if isinstance(answer, bytes):
        return answer.startswith(first) and answer[len(first) : len(first) + 1] in (b"", b"|")
    return isinstance(answer, list) and answer[:1] == [first]


def said(answer: Any) -> Any:
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
    if is_ours(answer, word):
        return said(answer)
    if isinstance(answer, redis.ResponseError):
        raise answer
    raise StrayAnswer(f"an answer to another request, of the type {type(answer).__name__}")


def _patiently(sock: Any, connection: Any, within: float | None, read: Callable[[], T]) -> T:
    """Return what `read` reads from a connection, each time waiting for `within` seconds; with
    `None`, for as long as its own time-out says.

    `can_read()` swallows the TimeoutError of a signal's handler, so it is used only for a
    connection whose socket is not known.
    """
    if not hasattr(sock, "settimeout"):
        if within is not None and not connection.can_read(within):
            raise redis.TimeoutError(f"no answer within {within:.3g} s")
        return read()
    counts = _KEEPS_NUMBER and hasattr(sock, "_io_refs")
    if counts:
        sock._io_refs += 1
    try:
        if within is not None:
            sock.settimeout(within)
        return read()
    finally:
        if counts:
            sock._io_refs -= 1
        if connection._sock is not sock:
            sock.close()
        elif within is not None:
            sock.settimeout(connection.socket_timeout)


def _short(text: bytes) -> Any:
    try:
        return [1, *map(int, text.split(b"|")[1:])]
    except ValueError:  # it is nonsense, which has no shape
        return text


def short_answer(seen: bytes, word: str) -> Any:
    """Return the answer to our request, if this is all of it, and it is a text that begins with
    our word; else `None`."""
    size, found, rest = seen.partition(word.encode())
    if not found or size != b"$%d\r\n" % (len(word) + len(rest) - 2) or rest[-2:] != b"\r\n":
        return None
    if len(rest) == 2:
        return [1]
    return _short(rest[:-2]) if rest[:1] == b"|" else None


def whole_answer(seen: bytes, word: str) -> Any:
    """Return the answer to our request if this is all of it, else `NOTHING`. Raises redis-py's
    errors."""
    answer = short_answer(seen, word)
    if answer is not None:
        return answer
    its = reader()
    its.feed(seen)
    found = its.gets()
    return said(found) if is_ours(found, word) else NOTHING
