"""One command to a server: how it is sent, its answer, and what it means when there is none.

Commands go over a connection that we check out ourselves, and not through
`Redis.execute_command`: we have to know whether a command may have reached the server when
its answer was lost, and redis-py's own retry would send it again without telling.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
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
from ..base.handlers import by_a_handler
from ..primitives import scripts
from ..primitives.contract import Terms, Word
from ..primitives.keys import name_of
from ..primitives.waiting import NEVER
from .cluster import Cluster, Send
from .multiplexed import Link, Multiplexed, NotSent, late
from .packing import pack, pack_script
from .wire import (
    ANSWER_WITHIN,
    LAST_MOMENT,
    STUMBLES,
    StrayAnswer,
    ask,
    ask_over,
    ask_plainly,
    checkout,
    closed_meanwhile,
    give_back,
    idle_socket,
    put_back,
)

# Errors that mean "not now". BUSY (a script runs for too long) and MISCONF (the disk is
# full) have no class of their own.
_PASSING = (BusyLoadingError, ReadOnlyError, OutOfMemoryError, ClusterDownError, TryAgainError)
_PASSING_CODES = ("READONLY ", "OOM ", "BUSY ", "MISCONF ", "NOREPLICAS ", "MASTERDOWN ")
_SEVERAL_SLOTS = ("CROSSSLOT", "same slot", "non local key")
_SPENT = re.compile(r"no fencing token is left in (.+:clock)\.")
"""The error of lua/fence.lua, with the key."""
_REFUSED = (AuthenticationError, AuthorizationError)

# Trouble of the network, and of a server that restarts, over which a connection may be made later.
# Everything else is a mistake in the settings, which stays: an unknown host, a certificate that is
# not accepted, a file that is missing, an option of the wrong type.
_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_LOOKUP_FAILED = {socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY}
_UNREACHABLE = {
    *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET),
    *(errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM),
    *(errno.EAGAIN, errno.EBADF, errno.ENOTCONN),
}
_SEVERAL = "Multiple exceptions"
"""What asyncio says if a host has several addresses, and none can be reached."""

_FAILURES = (RedisError, OSError, *STUMBLES)
"""Types of the exceptions that redis-py and the socket raise. `foreign` finds exceptions from
elsewhere that have such a type."""

Pool = redis.ConnectionPool | Cluster[redis.ConnectionPool]
AsyncPool = Multiplexed | Cluster[Multiplexed]


class Exchange:
    """One command over one connection of a pool. Threads and tasks share its steps."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._hand: list[Any] = []
        """The connection, while it is taken from the pool."""

    async def carry_out(
        self, command: tuple[Word, ...], terms: Terms, asking: bool = False
    ) -> Any:
        """Send the command, behind ASKING if a cluster wants that, and return its answer."""
        script = command[0] in ("EVALSHA", "EVAL")
        packed = pack(command)
        handled = sys.exception()
        until = _end(terms)
        carried_out = False
        try:
            try:
                connection = await self._connect(terms)
            except _FAILURES as error:
                mistaken = not _may_connect(error, handled, by_path="path" in self._options)
                _fail(error, command, handled, sent=False, mistaken=mistaken)
            try:
                if asking:  # on the same connection, since it holds for the next command only
                    packed = ASKING + packed
                if not script:
                    return await self._ask_plainly(connection, packed, until)
                replicas = terms.replicas > 0
                word = str(command[3 + int(command[2])])  # the first of ARGV
                answer = await self._ask(connection, packed, word, until)
                if replicas and _granted(answer):
                    carried_out = True
                    # On the same connection, since WAIT is about what this one has written.
                    packed = pack(_wait(terms))
                    confirmed = await self._ask_plainly(connection, packed, until, terms)
                    _confirm(confirmed, terms)
                return answer
            except NoScriptError:
                raise
            except BaseException as error:
                await self._after(connection, error, handled)
                sent = not isinstance(error, NotSent)
                _fail(error, command, handled, sent=sent, carried_out=carried_out)
        finally:
            # Twice, since an exception from outside may come in the middle of the first call.
            try:
                await self._give_back()
            except BaseException:
                await self._give_back()
                raise

    @property
    def _options(self) -> Mapping[str, Any]:
        """The options of its connections."""
        raise NotImplementedError

    async def _connect(self, terms: Terms) -> Any:
        """Return a connection."""
        raise NotImplementedError

    async def _ask(self, connection: Any, packed: bytes, word: str, until: float) -> Any:
        """Return the answer of a script."""
        raise NotImplementedError

    async def _ask_plainly(
        self, connection: Any, packed: bytes, until: float, confirming: Terms | None = None
    ) -> Any:
        """Return the answer of a plain command; with `confirming`, of the WAIT for these terms,
        on a connection that has no other answer to come."""
        raise NotImplementedError

    async def _after(
        self, connection: Any, error: BaseException, handled: BaseException | None
    ) -> None:
        """Close the connection if it can't be used again after this error."""
        raise NotImplementedError

    async def _give_back(self) -> None:
        """Give the connection back to the pool, if it was taken. May be repeated."""
        raise NotImplementedError


class SyncExchange(Exchange):
    """In a thread: nothing here suspends."""

    def at_once(
        self, sha: str, keys: Sequence[str], args: Sequence[Word], within: float | None
    ) -> Any:
        """Do what `carry_out` does with an EVALSHA, in few calls, if there is an idle connection;
        else return `None`."""
        hand, handled = self._hand, sys.exception()
        try:
            sock = idle_socket(self._pool, hand)
            if sock is None:
                return None
            packed = pack_script(sha, keys, args)
            try:
                return ask_over(hand[0], sock, packed, str(args[0]), within)
            except NoScriptError:
                raise
            except BaseException as error:
                fail(error, ("EVALSHA", sha, len(keys), *keys), handled, hand[0])
        finally:
            # Twice, since an exception from outside may come in the middle of the first call.
            try:
                if hand:
                    put_back(self._pool, hand)
            except BaseException:
                give_back(self._pool, hand)
                raise

    @property
    def _options(self) -> Mapping[str, Any]:
        return getattr(self._pool, "connection_kwargs", {})

    async def _connect(self, terms: Terms) -> Any:
        return checkout(self._pool, self._hand, terms.within)

    async def _ask(self, connection: Any, packed: bytes, word: str, until: float) -> Any:
        within = _left(until, connection.socket_timeout)
        return ask(connection, packed, word, within)

    async def _ask_plainly(
        self, connection: Any, packed: bytes, until: float, confirming: Terms | None = None
    ) -> Any:
        within = _left(until, connection.socket_timeout)
        return ask_plainly(connection, packed, within, clean=confirming is not None)

    async def _after(
        self, connection: Any, error: BaseException, handled: BaseException | None
    ) -> None:
        if not _keeps(error, handled):
            connection.disconnect()

    async def _give_back(self) -> None:
        give_back(self._pool, self._hand)


class AsyncExchange(Exchange):
    """In a task of an event loop."""

    _alone = False
    """Nobody else may use the connection meanwhile."""

    async def at_once(
        self, sha: str, keys: Sequence[str], args: Sequence[Word], within: float | None
    ) -> Any:
        """Do what `carry_out` does with an EVALSHA, in few calls, if the connection is there; else
        return `None`."""
        link = self._pool.ready()
        if link is None:
            return None
        packed, handled = pack_script(sha, keys, args), sys.exception()
        try:
            return await link.ask(packed, str(args[0]), NEVER if within is None else within)
        except NoScriptError:
            raise
        except BaseException as error:
            await self._after(link, error, handled)
            sent = not isinstance(error, NotSent)
            _fail(error, ("EVALSHA", sha, len(keys), *keys), handled, sent=sent)

    @property
    def _options(self) -> Mapping[str, Any]:
        options: Mapping[str, Any] = self._pool.factory.connection_kwargs
        return options

    async def _connect(self, terms: Terms) -> Any:
        shared = terms.replicas == 0 and not self._alone
        if shared and (link := self._pool.ready()) is not None:
            return link
        try:
            async with asyncio.timeout(terms.within):
                if shared:
                    return await self._pool.link()
                self._hand.append(await self._pool.link_alone())
                return self._hand[0]
        except TimeoutError as error:
            raise late(terms.within or ANSWER_WITHIN) from error

    async def _ask(self, link: Link, packed: bytes, word: str, until: float) -> Any:
        if packed.startswith(ASKING):
            link.send(ASKING)
            packed = packed.removeprefix(ASKING)
        return await link.ask(packed, word, until - now())

    async def _ask_plainly(
        self, link: Link, packed: bytes, until: float, confirming: Terms | None = None
    ) -> Any:
        patience = confirming.replicas_timeout if confirming else 0.0
        return await link.ask(packed, None, until - now(), patience)

    async def _after(
        self, connection: Link, error: BaseException, _: BaseException | None
    ) -> None:
        # The answer to a request that was cancelled is dropped when it comes. Beside lost
        # connections, a ConnectionError is an answer by which the server refuses all commands.
        if isinstance(error, redis.ConnectionError) or _demoted(_unwrapped(error)):
            self._pool.retire(connection)

    async def _give_back(self) -> None:
        if self._hand:
            self._pool.give_back(self._hand.pop())


class AloneExchange(AsyncExchange):
    """In a task, over a connection that nobody else uses meanwhile. If a request is held up, those
    that are sent later overtake it."""

    _alone = True


def sender(exchange: type[Exchange], command: tuple[Word, ...], terms: Terms) -> Send[Any]:
    """Return the function by which a cluster carries out `command`, and asks for its map."""
    until = _end(terms)

    async def send(pool: Any, words: tuple[Word, ...], asking: bool) -> Any:
        return await exchange(pool).carry_out(words, _share(words, command, terms, until), asking)

    return send


def _share(
    words: tuple[Word, ...], command: tuple[Word, ...], terms: Terms, until: float
) -> Terms:
    """Return the terms of one of the steps that a command takes on a cluster, which all end at
    `until`. A question about the cluster writes nothing, and gets half of the time at most, so
    that another node can be asked."""
    left = None if until == float("inf") else max(until - now(), LAST_MOMENT)
    if words is command:
        return terms._replace(within=left)
    return Terms(left if left is None else left / 2)


def _end(terms: Terms) -> float:
    """Return when the time of a command is over, by our clock."""
    return float("inf") if terms.within is None else now() + terms.within


def _left(until: float, own: float | None) -> float | None:
    """Return how many seconds to wait for an answer on a connection with the time-out `own`.
    `None` if its own time-out is right."""
    if until == float("inf"):
        return ANSWER_WITHIN if own is None else None
    left = max(until - now(), LAST_MOMENT)
    return None if own is not None and own <= left else min(left, own or ANSWER_WITHIN)


ASKING = b"*1\r\n$6\r\nASKING\r\n"


class TooFewReplicas(RedisError):
    """The primary has carried out the command, and too few replicas have confirmed it."""


def _granted(answer: Any) -> bool:
    """Return whether a script did what was asked: then its answer begins with 1."""
    return isinstance(answer, list) and answer[:1] == [1]


def _wait(terms: Terms) -> tuple[Word, ...]:
    within = terms.replicas_timeout
    if terms.within is not None:  # the answer has to come before we give up
        within = min(within, 0.9 * terms.within)
    return "WAIT", terms.replicas, max(1, round(within * 1000))


def _confirm(replicas: Any, terms: Terms) -> None:
    if not isinstance(replicas, int):
        raise StrayAnswer(f"an answer to WAIT of the type {type(replicas).__name__}")
    if replicas < terms.replicas:
        raise TooFewReplicas(f"{replicas} of {terms.replicas} replicas confirmed it in time")


def causes(error: BaseException, handled: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and what has led to it, up to what was being `handled` before."""
    one: BaseException | None = error
    while one is not None and one is not handled:
        yield one
        one = one.__cause__ or one.__context__


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


def _unwrapped(error: BaseException) -> BaseException:
    """Return the error that Redis 6.2 wraps into a sentence about the script, as later versions
    return it."""
    if type(error) is ResponseError and "-READONLY " in str(error):
        return ReadOnlyError(str(error))
    return error


def _demoted(error: BaseException) -> bool:
    """Return whether the primary was demoted, or will be. A new connection may lead to its
    successor."""
    return isinstance(error, ReadOnlyError) or "NOREPLICAS " in str(error)


def _keeps(error: BaseException, handled: BaseException | None) -> bool:
    """Return whether the connection can be used again after this error."""
    if foreign(error, handled):
        return False
    error = _unwrapped(error)
    if _demoted(error):
        return False
    # After other errors the answer may still come, before the next command's.
    return isinstance(error, ResponseError | TooFewReplicas)


def fail(
    error: BaseException,
    command: tuple[Any, ...],
    handled: BaseException | None,
    *connections: Any,
) -> NoReturn:
    """Raise the error for the caller of a request, and close its connection if it can't be used
    again."""
    if not _keeps(error, handled):
        for connection in connections:
            connection.disconnect()
    _fail(error, command, handled)


def _fail(
    error: BaseException,
    command: tuple[Any, ...],
    handled: BaseException | None,
    *,
    sent: bool = True,
    mistaken: bool = False,
    carried_out: bool = False,
) -> NoReturn:
    """Raise the error for the caller of a request that ended with `error`: an exception from
    elsewhere as it is, and our own error for one of redis-py or the socket."""
    if other := foreign(error, handled):
        raise other
    plain = _unwrapped(error)
    raise _translate(
        plain, command, sent=sent, mistaken=mistaken, carried_out=carried_out
    ) from plain


def refused_slots(error: LockUnavailable) -> bool:
    """Return whether the server did not carry out a script since its keys are in several slots."""
    return _of_several_slots(error.__cause__)


def unreadable_clock(error: LockUnavailable) -> bool:
    """Return whether a script ended before it did anything, since the last fencing token can't be
    read (lua/fence.lua)."""
    return "unreadable fencing token" in str(error.__cause__)


def _of_several_slots(error: BaseException | None) -> bool:
    # Most servers say CROSSSLOT. Some proxies have words of their own.
    return isinstance(error, ClusterCrossSlotError) or (
        type(error) is ResponseError and any(said in str(error) for said in _SEVERAL_SLOTS)
    )


def _of_a_database(text: str) -> bool:
    """Return whether a server refuses SELECT: that of a cluster, one with fewer databases, or
    Upstash, which has one."""
    return any(
        said in text for said in ("SELECT is not", "DB index is out of range", "0th database")
    )


def _translate(
    error: BaseException,
    command: tuple[Any, ...],
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
    key = str(command[3]) if len(command) > 3 and command[2] else ""  # some have no key
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
    if _of_several_slots(error):
        text += (
            " (it is sharded, and these keys are in several slots: see 'Sharded behind one "
            "address' in docs/topologies.md)"
        )
    if not sent and isinstance(error, ResponseError) and _of_a_database(text):
        text += (
            " (LOCATION names a database that the server does not have; a Redis Cluster has "
            "others than 0 only on Valkey 9 with cluster-databases)"
        )
    if "bad lua script" in text:
        text += " (the proxy of Tair checks scripts: set its parameter script_check_enable to 0)"
    if denied:  # the text does not name the command
        text += f" (locks need {scripts.permissions()} on the keys and channels <prefix>*)"
    answered = isinstance(error, ResponseError | BusyLoadingError | AuthenticationError)
    if isinstance(error, ResponseError):
        passing = isinstance(error, _PASSING) or any(code in text for code in _PASSING_CODES)
    else:
        passing = not mistaken and not isinstance(error, _REFUSED)
    if closed_meanwhile(error):
        text += " (another thread has closed the connection)"
    elif mistaken and not answered:
        text += " (look at LOCATION and OPTIONS of this server in CACHES)"
    return LockUnavailable(
        f"Redis could not be asked: {(why := f'{type(error).__name__}: {text}')}",
        name_of(key),
        why=why,
        # A script that a missing permission ended has done its first commands.
        doubtful=carried_out or denied or (sent and not answered),
        passing=passing,
        silent=isinstance(error, TimeoutError | redis.TimeoutError),
    )
