"""One command to a server: how it is sent, its answer, and what it means when there is none.

Commands go over a connection that we check out ourselves, and not through
`Redis.execute_command`: we have to know whether a command may have reached the server when
its answer was lost, and redis-py's own retry would send it again without telling.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from ..base.clock import now
from ..base.exceptions import LockError, LockUnavailable
from ..base.process import by_a_handler
from ..primitives import scripts
from ..primitives.contract import NO_TERMS, Terms, run
from ..primitives.keys import Word, name_of
from ..primitives.waiting import NEVER, chance
from .cluster import Cluster, Node, unavailable
from .connections import AsyncPool, Pool
from .line import Line
from .loans import Lines, lines_of
from .multiplexed import Link, Multiplexed
from .protocol import FULL, STUMBLES, Command, NotSent, StrayAnswer, closed_meanwhile, pack

# Errors that mean "not now". BUSY (a script runs for too long) and MISCONF (the disk is
# full) have no class of their own.
_PASSING = (BusyLoadingError, ReadOnlyError, OutOfMemoryError, ClusterDownError, TryAgainError)
_PASSING_CODES = ("READONLY ", "OOM ", "BUSY ", "MISCONF ", "NOREPLICAS ", "MASTERDOWN ")
_SEVERAL_SLOTS = ("CROSSSLOT", "same slot", "non local key")
_NO_DATABASE = ("SELECT is not", "DB index is out of range", "0th database")
"""What a server says to SELECT: that of a cluster, one with fewer databases, or Upstash."""
_SPENT = re.compile(r"no fencing token is left in (.+:clock)\.")
"""The error of lua/fence.lua, with the key."""
_REFUSED = (AuthenticationError, AuthorizationError)
_ANSWERED = (ResponseError, BusyLoadingError, AuthenticationError)

# Trouble of the network, and of a server that restarts, over which a connection may be made later.
# Everything else is a mistake in the settings, which stays: an unknown host, a certificate that is
# not accepted, a file that is missing, an option of the wrong type.
_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_LOOKUP_FAILED = {socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY}
_OF_OURS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
"""This host has no files, memory or ports left."""
_UNREACHABLE = {
    *_OF_OURS,
    *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET),
    *(errno.EAGAIN, errno.EBADF, errno.ENOTCONN),
}
_NO_ROOM = re.compile(f"{FULL}|No connection available|max number of clients").search
"""Finds what redis-py says of a pool, and a server of its clients."""
_SEVERAL = "Multiple exceptions"
"""What asyncio says if a host has several addresses, and none can be reached."""

_OF_ONE_SERVER = (Lines, Multiplexed)
Links = Lines | Pool | AsyncPool
"""What requests go out by. Those of a pool go out by its lines."""


async def carry_out(
    links: Links,
    command: Command,
    terms: Terms = NO_TERMS,
    until: float = NEVER,
) -> Any:
    """Send a command over one of these connections, and return its answer as bytes. It takes one
    round trip, and has time until then, by our clock. A cluster takes scripts only.

    Raises `LockUnavailable` if there is no answer in time, or if too few replicas confirm what the
    command wrote; `LockError` if a key has a wrong type.
    """
    if not isinstance(links, _OF_ONE_SERVER):
        if isinstance(links, Cluster):
            return await links.execute(command, carry_out, terms, until)
        links = lines_of(links)
    handled = sys.exception()
    its = _Confirmed(command, terms) if terms.replicas else command
    try:
        return await links.exchange(its, terms, until)
    except BaseException as error:
        done = isinstance(its, _Confirmed) and its.carried_out
        fail(error, command.key, handled, carried_out=done, by_path=links.by_path)


class _Confirmed:
    """A command that replicas confirm: on the same connection, since WAIT is about what that has
    written."""

    carried_out = False

    def __init__(self, command: Command, terms: Terms) -> None:
        self._command, self._terms = command, terms

    async def over(self, link: Line | Link, until: float) -> Any:
        answer = await self._command.over(link, until)
        terms = self._terms
        if isinstance(answer, list) and answer[:1] == [1]:  # it was granted
            self.carried_out = True
            wait = pack(_wait(terms, until))
            _confirm(await link.exchange(wait, None, until, terms.replicas_timeout), terms)
        return answer


def primaries(pool: Pool) -> list[redis.ConnectionPool]:
    """Return a pool for each server that has locks: several for a cluster only.

    Raises `LockUnavailable`.
    """
    if not isinstance(pool, Cluster):
        return [pool]
    return run(pool.primaries(carry_out))


def primary_at(pool: Pool, node: Node | None) -> redis.ConnectionPool:
    """Return the pool of a node of a cluster. None: of any node, each of which gets all messages
    that are published; or of the only server. Raises `LockUnavailable`."""
    if node is not None and isinstance(pool, Cluster):
        return pool.pool(node)
    return chance.choice(primaries(pool))


class TooFewReplicas(RedisError):
    """The primary has carried out the command, and too few replicas have confirmed it."""


def _wait(terms: Terms, until: float) -> tuple[Word, ...]:
    # The answer has to come before we give up.
    within = min(terms.replicas_timeout, 0.9 * (until - now()))
    return "WAIT", terms.replicas, max(1, round(within * 1000))


def _confirm(replicas: Any, terms: Terms) -> None:
    if not isinstance(replicas, int):
        raise StrayAnswer(f"an answer to WAIT of the type {type(replicas).__name__}")
    if replicas < terms.replicas:
        raise TooFewReplicas(f"{replicas} of {terms.replicas} replicas confirmed it in time")


def causes(error: BaseException, handled: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and all that has led to it, up to what was being `handled` before. An
    object that is raised again and again may have led to itself."""
    pending: list[BaseException | None] = [error]
    seen = {id(None), id(handled)}
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            pending += one.__context__, one.__cause__


def foreign(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """Return the exception to raise if neither redis-py nor the socket raised `error`, but a
    signal's handler, or a mistake in code. `handled` is what the caller was handling before.

    A handler may raise a TimeoutError, which redis-py wraps into one of its own, so we look where
    it was raised. An exception that is thrown into a thread (`PyThreadState_SetAsyncExc`, a
    greenlet's `throw`) has no such place: an OSError of this kind is taken for the socket's.
    """
    for one in causes(error, handled):
        if by_a_handler(one):
            return one
    if isinstance(error, RedisError | OSError):
        return None
    return None if isinstance(error, STUMBLES) and _by_redis_py(error) else error


def _by_redis_py(error: BaseException) -> bool:
    """Return whether redis-py raised it, or C code that redis-py called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return module.partition(".")[0] == "redis"


def _may_connect(error: BaseException, handled: BaseException | None, *, by_path: bool) -> bool:
    """Return whether another attempt to connect may succeed: whether all that has led to `error`
    may pass by itself. `by_path`: the server has a Unix socket, which is not there while it
    restarts."""
    if str(error) == FULL:
        return True
    return all(_may_pass(one, by_path=by_path) for one in causes(error, handled))


def _may_pass(error: BaseException, *, by_path: bool) -> bool:
    if isinstance(error, ssl.SSLError):
        return isinstance(error, _CUT_OFF)
    if isinstance(error, socket.gaierror):
        return error.errno in _LOOKUP_FAILED
    if isinstance(error, OSError):
        return (
            isinstance(error, ConnectionError | TimeoutError)
            or error.errno in _UNREACHABLE
            or (by_path and error.errno == errno.ENOENT)
            or str(error).startswith(_SEVERAL)
        )
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | EOFError):
        return True
    return closed_meanwhile(error) or not isinstance(error, Exception)  # a cancellation


def _is_away(error: BaseException, handled: BaseException | None) -> bool:
    """Return whether there was no connection, or no answer in time, and not for want of something
    here."""
    no = isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError)
    return no and not any(
        isinstance(one, _ANSWERED) or _NO_ROOM(str(one)) or getattr(one, "errno", 0) in _OF_OURS
        for one in causes(error, handled)
    )


def fail(
    error: BaseException,
    key: str,
    handled: BaseException | None,
    *,
    carried_out: bool = False,
    by_path: bool = False,
) -> NoReturn:
    """Raise the error for the caller of a request that ended with `error`: an exception from
    elsewhere as it is, and our own error for one of redis-py or the socket. A script that the
    server does not know is sent again."""
    if isinstance(error, NoScriptError):
        raise error
    sent = not isinstance(error, NotSent)
    if not sent and error.__cause__ is not None:
        error = error.__cause__
    if other := foreign(error, handled):
        raise other
    mistaken = not sent and not _may_connect(error, handled, by_path=by_path)
    its = _translate(error, key, sent=sent, mistaken=mistaken, carried_out=carried_out)
    if isinstance(its, LockUnavailable):
        its.away = its.passing and _is_away(error, handled)
    raise its from error


def unreadable_clock(error: LockUnavailable) -> bool:
    """Return whether a script ended before it did anything, since the last fencing token can't be
    read (lua/fence.lua)."""
    return "unreadable fencing token" in str(error.__cause__)


def refused_slots(error: BaseException | None) -> bool:
    """Return whether the server did not carry out a script since its keys are in several slots."""
    # Most servers say CROSSSLOT. Some proxies have words of their own.
    return isinstance(error, ClusterCrossSlotError) or (
        type(error) is ResponseError and any(said in str(error) for said in _SEVERAL_SLOTS)
    )


def _translate(
    error: BaseException,
    key: str,
    *,
    sent: bool,
    mistaken: bool,
    carried_out: bool,
) -> Exception:
    """Return our error for one of redis-py's. `mistaken`: no connection can be made with the
    present settings."""
    # redis.asyncio wraps errors of the handshake over a Unix socket.
    if type(error) is redis.ConnectionError and isinstance(error.__cause__, RedisError):
        error = error.__cause__
    text = str(error)
    if "WRONGTYPE" in text:
        return LockError(
            f"The key {key!r}, or another key of this lock, has a type that such a lock does not "
            f"use, so it was left alone. If the name is locked elsewhere as another kind (as a "
            f"mutex, as a semaphore or a read-write lock), give them different names. Otherwise "
            f"another program wrote it: delete it if it is a leftover, or change "
            f"REDISLOCK['PREFIX'].",
            name_of(key),
        )
    if spent := _SPENT.search(text):
        return LockError(
            f"No fencing token is left above the one in the key {spent[1]!r}, which another "
            f"program has written. Delete this key: the next tokens come from the server's clock, "
            f"and `manage.py redislock fence` raises them above those that rows have seen.",
            name_of(key),
        )
    # For a script there is no class of error. The first text is Redis 7.0's, the second Valkey's.
    denied = isinstance(error, redis.exceptions.NoPermissionError) or any(
        said in text for said in ("can't run this command", "ACL failure in script")
    )
    if isinstance(error, AskError):  # cluster.py handles it
        text += (
            " (it is a node of a Redis Cluster: the CONNECTION_FACTORY of its entry in CACHES "
            "must be a ClusterConnectionFactory, see docs/topologies.md)"
        )
    if refused_slots(error):
        text += (
            " (it is sharded, and these keys are in several slots: see 'Sharded behind one "
            "address' in docs/topologies.md)"
        )
    refused = not sent and isinstance(error, ResponseError)
    if refused and any(said in text for said in _NO_DATABASE):
        text += (
            " (LOCATION names a database that the server does not have; a Redis Cluster has "
            "others than 0 only on Valkey 9 with cluster-databases)"
        )
    if "bad lua script" in text:
        text += " (the proxy of Tair checks scripts: set its parameter script_check_enable to 0)"
    off = isinstance(error, ResponseError) and scripts.switched_off(text)
    if off:
        text = text.partition(", with args")[0]  # they have the token
        text += (
            f" ({scripts.NEEDED}: allow both to this user, in the server's configuration and at a "
            f"proxy in front of it)"
        )
    elif denied:  # the text does not name the command
        text += f" (locks need {scripts.permissions()} on the keys and channels <prefix>*)"
    answered = isinstance(error, _ANSWERED)
    if isinstance(error, ResponseError):
        passing = isinstance(error, _PASSING) or any(code in text for code in _PASSING_CODES)
    else:
        passing = not mistaken and not isinstance(error, _REFUSED)
    if closed_meanwhile(error):
        text += " (another thread has closed the connection)"
    elif mistaken and not answered:
        text += " (look at LOCATION and OPTIONS of this server in CACHES)"
    return unavailable(
        key,
        f"{type(error).__name__}: {text}",
        # A script that a missing permission ended has done its first commands.
        doubtful=carried_out or (denied and not off) or (sent and not answered),
        passing=passing,
        silent=isinstance(error, TimeoutError | redis.TimeoutError),
    )
