"""One command to a server: how it is sent, its answer, and what it means when there is none.

Commands go over a connection that we check out ourselves, and not through
`Redis.execute_command`: we have to know whether a command may have reached the server when
its answer was lost, and redis-py's own retry would send it again without telling.
"""

from __future__ import annotations

import socket
import ssl
import sys
from typing import Any, NoReturn

import redis
from redis import asyncio as aioredis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    InvalidResponse,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from ..base.clock import now
from ..base.coroutines import run
from ..base.exceptions import LockError, LockUnavailable
from ..primitives import scripts
from ..primitives.contract import NO_TERMS, Terms, Word
from ..primitives.keys import name_of
from .cluster import Cluster, Send
from .wire import (
    MOMENT,
    KeptPool,
    NotOurs,
    aask,
    aask_plainly,
    acheckout,
    ask,
    ask_plainly,
    checkout,
    give_back,
    make_nonce,
)

FOREGROUND_TIMEOUT = 5.0
"""Seconds that we wait for an answer where the CACHES entry sets no SOCKET_TIMEOUT: as redis-py
does from version 8 on."""

# Answers that say "not now". BUSY (a script runs for too long) and MISCONF (the disk is
# full) have no class of their own.
_PASSING = (BusyLoadingError, ReadOnlyError, OutOfMemoryError, ClusterDownError, TryAgainError)
_PASSING_CODES = ("READONLY ", "OOM ", "BUSY ", "MISCONF ", "NOREPLICAS ", "MASTERDOWN ")
_REFUSED = (AuthenticationError, AuthorizationError)

# What a network may do to a handshake of TLS, and to the question for an address.
_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_NO_SUCH_HOST = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}

# What redis-py stumbles over when another thread disconnects the pool meanwhile, as
# DJANGO_REDIS_CLOSE_CONNECTION does after each request: its socket or its parser is None by then
# (AttributeError, and TypeError when the None is called or unpacked), or the number of a closed
# socket is asked for (ValueError). From elsewhere they are mistakes, and none of Redis' making.
_STUMBLES = (AttributeError, TypeError, ValueError)

_FAILURES = (RedisError, OSError, *_STUMBLES)
"""The types of what redis-py and the socket raise; `_foreign` knows what else has such a type."""

Pool = redis.ConnectionPool | Cluster[redis.ConnectionPool]
AsyncPool = aioredis.ConnectionPool | Cluster[aioredis.ConnectionPool]


def execute(pool: Pool, command: tuple[Word, ...], terms: Terms = NO_TERMS) -> Any:
    """Send one command and return its answer as bytes; one round trip.

    To a cluster, a script. Raises `LockUnavailable` when there is no answer in time, or when too
    few replicas have what it wrote; `LockError` when the key isn't ours.
    """
    if isinstance(pool, Cluster):
        return run(pool.execute(command, sender(command, terms)))
    return _execute(pool, command, terms)


def sender(command: tuple[Word, ...], terms: Terms) -> Send[redis.ConnectionPool]:
    """What a cluster needs to carry out `command`, and to learn where."""
    until = _end(terms)

    async def send(pool: redis.ConnectionPool, words: tuple[Word, ...], asking: bool) -> Any:
        return _execute(pool, words, _terms_of(words, command, terms, until), asking)

    return send


def _terms_of(
    words: tuple[Word, ...], command: tuple[Word, ...], terms: Terms, until: float
) -> Terms:
    """One of the steps that a command takes on a cluster, which all end at `until`. A question
    about the cluster writes nothing, and takes half of the time at most, so that another node can
    be asked."""
    left = None if until == float("inf") else max(until - now(), MOMENT)
    if words is command:
        return terms._replace(within=left)
    return Terms(left if left is None else left / 2)


def _execute(
    pool: redis.ConnectionPool, command: tuple[Word, ...], terms: Terms, asking: bool = False
) -> Any:
    hand: list[Any] = []
    try:
        return _exchange(pool, hand, command, terms, asking)
    finally:
        # Twice, since an exception from outside may come in the middle of it.
        try:
            give_back(pool, hand)
        except BaseException:
            give_back(pool, hand)
            raise


def _exchange(
    pool: redis.ConnectionPool,
    hand: list[Any],
    command: tuple[Word, ...],
    terms: Terms,
    asking: bool,
) -> Any:
    """Over a connection that is taken into `hand`."""
    nonce = make_nonce()
    packed = _packed((*command, nonce) if _is_script(command) else command)
    handled = sys.exception()
    until = _end(terms)
    try:
        connection = checkout(pool, hand, terms.within)
    except _FAILURES as error:
        _fail(error, command, handled, sent=False)
    carried_out = False
    try:
        own = connection.socket_timeout
        if asking:  # on the same connection, since it is said of the next command
            packed = ASKING + packed
        within = _left(until, own)
        if not _is_script(command):
            return ask_plainly(connection, packed, within)
        answer = ask(connection, packed, nonce, within, clean=terms.replicas > 0)
        if terms.replicas and _granted(answer):
            carried_out = True
            # On the same connection, since WAIT is about what this one has written.
            within = _left(until, own)
            confirmed = ask_plainly(connection, _packed(_wait(terms)), within, clean=True)
            _confirm(confirmed, terms)
        return answer
    except NoScriptError:
        raise
    except BaseException as error:
        if not _keeps(error, handled):
            connection.disconnect()
        _fail(error, command, handled, carried_out=carried_out)


async def aexecute(pool: AsyncPool, command: tuple[Word, ...], terms: Terms = NO_TERMS) -> Any:
    """`execute` on an event loop."""
    if not isinstance(pool, Cluster):
        return await _aexecute(pool, command, terms)

    until = _end(terms)

    async def send(pool: aioredis.ConnectionPool, words: tuple[Word, ...], asking: bool) -> Any:
        return await _aexecute(pool, words, _terms_of(words, command, terms, until), asking)

    return await pool.execute(command, send)


async def _aexecute(
    pool: aioredis.ConnectionPool, command: tuple[Word, ...], terms: Terms, asking: bool = False
) -> Any:
    nonce = make_nonce()
    packed = _packed((*command, nonce) if _is_script(command) else command)
    handled = sys.exception()
    until = _end(terms)
    try:
        connection = await acheckout(pool, terms.within)
    except _FAILURES as error:
        _fail(error, command, handled, sent=False)
    carried_out = False
    try:
        if asking:
            packed = ASKING + packed
        if not _is_script(command):
            own = FOREGROUND_TIMEOUT
            return await aask_plainly(connection, packed, _left(until, own) or own)
        if isinstance(pool, KeptPool):
            within = _left(until, pool.answer_timeout)
            answer = await pool.ask(connection, packed, nonce, within)
        else:
            within = _left(until, connection.socket_timeout)
            answer = await aask(connection, packed, nonce, within)
        if terms.replicas and _granted(answer):
            carried_out = True
            within = min(FOREGROUND_TIMEOUT + terms.replicas_timeout, max(until - now(), MOMENT))
            confirmed = await aask_plainly(connection, _packed(_wait(terms)), within, clean=True)
            _confirm(confirmed, terms)
        return answer
    except NoScriptError:
        raise
    except BaseException as error:
        if not _keeps(error, handled):
            await connection.disconnect(nowait=True)
        _fail(error, command, handled, carried_out=carried_out)
    finally:
        await pool.release(connection)


def _end(terms: Terms) -> float:
    """When the time of a command is over."""
    return float("inf") if terms.within is None else now() + terms.within


def _left(until: float, own: float | None) -> float | None:
    """Seconds that the answer has, of a connection with the time-out `own`. None: just that."""
    if until == float("inf"):
        return FOREGROUND_TIMEOUT if own is None else None
    left = max(until - now(), MOMENT)
    return None if own is not None and own <= left else min(left, own or FOREGROUND_TIMEOUT)


ASKING = b"*1\r\n$6\r\nASKING\r\n"


def _is_script(command: tuple[Word, ...]) -> bool:
    return command[0] in ("EVALSHA", "EVAL")


def _packed(command: tuple[Word, ...]) -> bytes:
    """In Redis' protocol; in UTF-8, whatever encoding the CACHES entry has for the project's own
    values. Keys of others may be any bytes (keys.py).

    redis-py's own way, for whatever type and encoding, takes three times as long.
    """
    if bytes not in map(type, command):
        texts = list(map(str, command))
        text = "".join([f"${len(word)}\r\n{word}\r\n" for word in texts])
        if text.isascii():  # so that characters are bytes
            return f"*{len(texts)}\r\n{text}".encode()
    words = [
        word if isinstance(word, bytes) else str(word).encode(errors="surrogateescape")
        for word in command
    ]
    sized = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"*%d\r\n%b" % (len(words), b"".join(sized))


class TooFewReplicas(RedisError):
    """The primary has carried it out, and too few replicas have confirmed it."""


def _granted(answer: Any) -> bool:
    """Our scripts answer with a number first, which is 1 when they did what was asked."""
    return isinstance(answer, list) and answer[:1] == [1]


def _wait(terms: Terms) -> tuple[Word, ...]:
    within = terms.replicas_timeout
    if terms.within is not None:  # the answer has to be there before we give up on it
        within = min(within, 0.9 * terms.within)
    return "WAIT", terms.replicas, max(1, round(within * 1000))


def _confirm(replicas: Any, terms: Terms) -> None:
    if not isinstance(replicas, int):
        raise NotOurs(f"an answer to WAIT of the type {type(replicas).__name__}")
    if replicas < terms.replicas:
        raise TooFewReplicas(f"{replicas} of {terms.replicas} replicas confirmed it in time")


def _foreign(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """What to raise if neither redis-py nor the socket raised `error`: what a signal's handler
    raised, or a mistake. `handled` is what was being handled before the request.

    A handler may raise a TimeoutError, which redis-py wraps into one of its own, so we look where
    it was raised. What is thrown into a thread without a handler (`PyThreadState_SetAsyncExc`, a
    greenlet's `throw`) has no such place: an OSError from there is taken for the socket's.
    """
    one: BaseException | None = error
    while one is not None and one is not handled:
        if _by_a_handler(one):
            return one
        one = one.__cause__ or one.__context__
    if isinstance(error, RedisError | OSError):
        return None
    return None if isinstance(error, _STUMBLES) and _by_redis_py(error) else error


def _by_a_handler(error: BaseException) -> bool:
    """A signal's handler raised it: a function that is given the frame which it interrupts."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        for given in trace.tb_frame.f_locals.values():
            if given is interrupted or (isinstance(given, tuple) and interrupted in given):
                return True
    return False


def _by_redis_py(error: BaseException) -> bool:
    """Its own code raised it, or something written in C that it called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return module.partition(".")[0] == "redis"


def _hopeless(error: BaseException, handled: BaseException | None) -> bool:
    """To connect again would fail in the same way, since the settings don't fit: a certificate
    that is not accepted, TLS at one end only, a host that no name server knows."""
    one: BaseException | None = error
    while one is not None and one is not handled:
        if isinstance(one, ssl.SSLError) and not isinstance(one, _CUT_OFF):
            return True
        if isinstance(one, socket.gaierror) and one.errno in _NO_SUCH_HOST:
            return True
        if isinstance(one, InvalidResponse):
            return True
        one = one.__cause__ or one.__context__
    return False


def _unwrapped(error: BaseException) -> BaseException:
    """What Redis 6.2 says within a sentence about the script, and later ones say plainly."""
    if type(error) is ResponseError and "-READONLY " in str(error):
        return ReadOnlyError(str(error))
    return error


def _keeps(error: BaseException, handled: BaseException | None) -> bool:
    """The connection may be used again after this."""
    if _foreign(error, handled):
        return False
    error = _unwrapped(error)
    if isinstance(error, ReadOnlyError) or "NOREPLICAS " in str(error):
        # It leads to a primary that was demoted, or will be; a new one may find its successor.
        return False
    # Else the answer may still come, and would be taken for that of the next command.
    return isinstance(error, ResponseError | TooFewReplicas)


def _fail(
    error: BaseException,
    command: tuple[Any, ...],
    handled: BaseException | None,
    *,
    sent: bool = True,
    carried_out: bool = False,
) -> NoReturn:
    """Raise what a request that ended with `error` owes its caller: what came from elsewhere as it
    is, and our own error for what redis-py and the socket raised."""
    if foreign := _foreign(error, handled):
        raise foreign
    plain = _unwrapped(error)
    raise _translate(plain, command, handled, sent=sent, carried_out=carried_out) from plain


def _translate(
    error: BaseException,
    command: tuple[Any, ...],
    handled: BaseException | None,
    *,
    sent: bool,
    carried_out: bool = False,
) -> Exception:
    """Our error for one of redis-py's."""
    hopeless = not sent and _hopeless(error, handled)
    # redis.asyncio wraps what goes wrong in the handshake over a Unix socket.
    if type(error) is redis.ConnectionError and isinstance(error.__cause__, RedisError):
        error = error.__cause__
    key = str(command[3]) if len(command) > 3 and command[2] else ""  # some scripts have none
    text = str(error)
    if "WRONGTYPE" in text:
        return LockError(
            f"The key {key!r}, or one of those beside it, is of another type than such a lock "
            f"has, and we leave it alone. If the name is locked elsewhere as another kind (as a "
            f"mutex, as a semaphore or a read-write lock), give them different names. Else it is "
            f"neither a lock of ours nor a plain string: delete it if it is a leftover, or set "
            f"REDISLOCK['PREFIX'] to something else.",
            name_of(key),
        )
    # In a script there is no class for it. Redis 7.0 says the first, Valkey the second.
    denied = isinstance(error, redis.exceptions.NoPermissionError) or any(
        said in text for said in ("can't run this command", "ACL failure in script")
    )
    if isinstance(error, AskError | ClusterCrossSlotError):  # slots.py follows, or avoids it
        text += " (it is a node of a Redis Cluster: see CONNECTION_FACTORY in docs/topologies.md)"
    if denied:  # nor does it say which command it was
        text += f" (locks need {scripts.permissions()} on the keys and channels <prefix>*)"
    answered = isinstance(error, ResponseError | BusyLoadingError | AuthenticationError)
    if isinstance(error, _REFUSED) or hopeless:
        passing = False
    elif isinstance(error, ResponseError):
        passing = isinstance(error, _PASSING) or any(code in text for code in _PASSING_CODES)
    else:
        passing = True
    return LockUnavailable(
        f"Redis could not be asked: {(why := f'{type(error).__name__}: {text}')}",
        name_of(key),
        why=why,
        # A script that was ended for want of a permission has left what it did before.
        doubtful=carried_out or denied or (sent and not answered),
        passing=passing,
        silent=isinstance(error, TimeoutError | redis.TimeoutError),
    )
