"""One connection for all tasks of an event loop.

1.  Requests of all tasks go out over one connection, and its answers come back in their order. A
    connection is ours alone, so an answer that does not belong to the oldest request ends it.
2.  A request that is cancelled before it is written was never sent. Later, its answer is dropped
    when it comes, and the connection stays.
3.  When the answer to the oldest request is overdue, the connection is closed. Then nothing is
    known of all requests that were written, and their callers ask again with their tokens.
4.  A connection that has ended never begins anew: the next request makes another one. So nothing
    that is late can touch what came after it.
5.  WAIT holds its connection up until replicas answer. So a request that needs it has a connection
    to itself meanwhile.

redis-py makes the connections: it knows addresses, TLS, passwords, Sentinel and the handshake.
From then on they are ours, since its own reader serves one request at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import redis
from redis import asyncio as aioredis

from ..base.clock import now
from ..primitives.contract import Terms
from ..primitives.waiting import NEVER
from .maintenance import hand_on
from .protocol import (
    ANSWER_WITHIN,
    FULL,
    NOTHING,
    PUSH,
    STUMBLES,
    NotSent,
    Sendable,
    StrayAnswer,
    believed,
    is_last,
    reader,
)

GRACE = 0.02
"""Seconds more for an overdue answer. The loop may have stood still: it has to read first what
came meanwhile."""
MOST_PENDING = 4096
"""Requests without an answer on one connection. More of them wait in our memory, not in that of
the server."""
FEW = 16
"""With fewer requests under way, each is written at once. With more, those of one turn of the loop
are written together. If all were, client and server would work in turns, never together."""


def _made(pool: Any) -> Any:
    """Return a new connection of a pool, which is not connected yet. Raises `DataError` if
    redis-py does not take its options."""
    try:
        return pool.make_connection()
    except (redis.ConnectionError, *STUMBLES) as error:
        if str(error) == FULL:
            raise
        raise redis.DataError(str(error)) from error


class Multiplexed:
    """The connections of one event loop to one server. `factory` makes them."""

    def __init__(self, factory: aioredis.ConnectionPool) -> None:
        self.factory = factory
        self.answer_within: float = (
            factory.connection_kwargs.get("socket_timeout") or ANSWER_WITHIN
        )
        """Seconds that a request has for its answer."""
        self._shared: Link | None = None
        """The connection that takes requests."""
        self._connecting: asyncio.Task[Link] | None = None
        self.links: set[Link] = set()
        """All connections that are not closed yet."""
        self._idle: list[Link] = []
        """Connections that wait for a request that needs one to itself."""
        self._alone = asyncio.Semaphore(factory.max_connections)
        self.room = asyncio.Event()
        """Set when the shared connection takes more requests, or ends."""

    @property
    def by_path(self) -> bool:
        """Whether the server has a Unix socket."""
        return "path" in self.factory.connection_kwargs

    def ready(self) -> Link | None:
        """Return the connection that all tasks share, if it takes one more request at once."""
        link = self._shared
        if link is None or link.full:
            return None
        if link.idles_too_long():
            self.retire(link)
            return None
        return link

    async def link(self) -> Link:
        """As `ready`, when there is one."""
        while (link := self.ready()) is None:
            if self._shared is None:
                await self._connect()
            else:
                self.room.clear()
                await self.room.wait()
        return link

    async def link_alone(self) -> Link:
        """Return a connection that nobody else uses until it is released."""
        await self._alone.acquire()
        try:
            while self._idle:
                link = self._idle.pop()
                if link.alive and not link.idles_too_long():
                    return link
                self.retire(link)
            return await self._open()
        except BaseException:
            self._alone.release()
            raise

    def release(self, link: Link) -> None:
        """Release a connection of `link_alone`."""
        self._alone.release()
        if link.alive and not link.pending:
            self._idle.append(link)
        else:
            self.retire(link)

    async def exchange(self, its: Sendable, terms: Terms, until: float) -> Any:
        """Send this over a connection, and return the answer. With `replicas`, or `alone`, nobody
        else uses it meanwhile. Raises `NotSent` if there is none until then."""
        alone = terms.alone or terms.replicas > 0
        link = None if alone else self.ready()
        try:
            if link is None:
                within = None if until == NEVER else until - now()
                try:
                    async with asyncio.timeout(within):
                        link = await (self.link_alone() if alone else self.link())
                except TimeoutError:
                    full = alone and self._alone.locked()
                    error = redis.TimeoutError(FULL) if full else late(within or ANSWER_WITHIN)
                    raise NotSent(str(error)) from error
                except Exception as error:
                    raise NotSent(str(error)) from error
            return await its.over(link, until)
        finally:
            if alone and link is not None:
                self.release(link)

    async def _connect(self) -> None:
        """Wait for a connection that all tasks share. The first one that needs it makes it."""
        task = self._connecting
        if task is None:
            task = self._connecting = asyncio.ensure_future(self._open())
            task.add_done_callback(self._connected)
        await asyncio.wait([task])  # a task that is cancelled leaves it to the others
        if not task.cancelled():  # as asyncio.run() does with all tasks: then it is made once more
            task.result()

    def _connected(self, task: asyncio.Task[Link]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._shared = task.result()

    async def _open(self) -> Link:
        connection = _made(self.factory)
        try:
            # All tasks wait for this attempt, so it needs its time-outs, for the commands of the
            # handshake, too. Later `Link` looks at the time itself.
            connection.socket_timeout = self.answer_within
            connection.socket_connect_timeout = (
                connection.socket_connect_timeout or self.answer_within
            )
            await connection.connect()
            connection.socket_timeout = None
            link = Link(self, connection)
            if not link.alive:
                raise redis.ConnectionError("Connection closed by server.")
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self.links.add(link)
        return link

    def retire(self, link: Link) -> None:
        """Send nothing more over a connection. It is closed when its last answer has come."""
        if self._shared is link:
            self._shared = None
            self.room.set()
        link.close_when_done()

    def disconnect(self, *, inuse_connections: bool) -> None:
        """Close all connections, those in use when their last answers have come. The name and
        the argument are those of redis-py's pools."""
        assert not inuse_connections
        for link in list(self.links):
            self.retire(link)

    async def aclose(self) -> None:
        """Close all connections, also those to sentinels, at the end of the loop."""
        for link in list(self.links):
            await link.aclose()
        manager = getattr(self.factory, "sentinel_manager", None)
        for sentinel in manager.sentinels if manager else ():
            await sentinel.connection_pool.disconnect()


Request = tuple[asyncio.Future[Any], str | None, float]
"""The future of its caller; the word with which a script's answer begins; and when its answer is
overdue."""


class Link(asyncio.Protocol):
    """One connection, from its handshake to its end."""

    def __init__(self, owner: Multiplexed, connection: Any) -> None:
        self._owner = owner
        self._connection = connection
        self._handling: asyncio.Future[Any] | None = None
        """What redis-py does with the last push. The loop has only a weak reference to it."""
        self._loop = asyncio.get_running_loop()
        self.pending: deque[Request] = deque()
        """The requests that were written, the oldest one first."""
        self._unwritten: list[tuple[asyncio.Future[Any], str | None, float, bytes, int]] = []
        self._nobody: asyncio.Future[Any] = self._loop.create_future()
        """The future of answers that are skipped."""
        self._nobody.cancel()
        self._used = self._loop.time()
        """When it was last used."""
        self._paused = False
        self._closing = False
        self._most_idle: float = getattr(connection, "health_check_interval", 0)
        self._timer: asyncio.TimerHandle | None = None
        self._suspect: asyncio.Future[Any] | None = None
        """The oldest request when its answer was overdue for the first time."""
        self._closed = asyncio.Event()
        self._reader = reader()
        self._writer = getattr(connection, "_writer", None)
        self._transport: Any
        if isinstance(self._writer, asyncio.StreamWriter):
            # Nothing is left for redis-py to close.
            connection._writer = None
            self._transport = self._writer.transport
            self._transport.set_protocol(self)
        else:
            self._transport = _ByMethods(self, connection)
        self.alive = not self._transport.is_closing()

    @property
    def full(self) -> bool:
        return self._paused or len(self.pending) + len(self._unwritten) >= MOST_PENDING

    def idles_too_long(self) -> bool:
        """Return whether it may have been cut meanwhile, without a word. redis-py sends a PING
        after such a time."""
        most = self._most_idle
        return most > 0 and not self.pending and self._loop.time() - self._used > most

    def exchange(
        self,
        packed: bytes,
        word: str | None,
        until: float,
        patience: float = 0.0,
        before: int = 0,
    ) -> asyncio.Future[Any]:
        """Send a request, and return the future of its answer, for which the caller waits until
        then, by our clock. After the usual time and `patience` the connection counts as dead. The
        answers to so many commands `before` it are skipped."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._unwritten.append((future, word, patience, packed, before))
        if len(self._unwritten) == 1:
            if len(self.pending) < FEW:
                self._write()
            else:
                self._loop.call_soon(self._write)
        within = until - now()
        if within < self._owner.answer_within + patience:
            later = self._loop.call_later
            timer = later(within, later, GRACE, _give_up, future, within)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def _write(self) -> None:
        if not self.alive or self._transport.is_closing():
            self._end(redis.ConnectionError("Connection closed by server."))
            return
        requests, self._unwritten = self._unwritten, []
        self._used = time = self._loop.time()
        packed = []
        for future, word, patience, its, before in requests:
            if not future.done():
                due = time + self._owner.answer_within + patience
                self.pending += [(self._nobody, None, due)] * before
                self.pending.append((future, word, due))
                packed.append(its)
        if packed:
            if self._timer is None:
                self._timer = self._loop.call_at(self.pending[0][2], self._look)
            self._transport.write(b"".join(packed))

    def _look(self) -> None:
        """Look whether the oldest answer is overdue."""
        self._timer = None
        if not self.pending:
            return
        future, _, due = self.pending[0]
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._look)
        elif self._suspect is not future:
            self._suspect = future
            self._timer = self._loop.call_later(GRACE, self._look)
        else:
            self._end(late(self._owner.answer_within))

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not NOTHING:
                if type(answer) is not PUSH:
                    self.answered(answer)
                elif (handling := hand_on(self._connection, answer)) is not None:
                    self._handling = asyncio.ensure_future(handling)
        except Exception as error:
            self._end(error)

    def answered(self, answer: Any) -> None:
        """Give an answer to the oldest request."""
        if not self.pending:
            raise StrayAnswer("an answer without a request")
        future, word, _ = self.pending[0]
        answer = believed(answer, word)
        if is_last(answer):
            self._owner.retire(self)
        self.pending.popleft()
        if not future.done():
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        self._used = self._loop.time()
        if not self.full:
            self._owner.room.set()
        if self._closing and not self.pending:
            self._transport.close()

    def close_when_done(self) -> None:
        """Close it after the last answer, if it is not closed before."""
        self._closing = True
        if not self.pending and not self._unwritten:
            self._transport.close()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._owner.room.set()

    def eof_received(self) -> None:
        self._end(redis.ConnectionError("Connection closed by server."))

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or redis.ConnectionError("Connection closed by server."))
        self._owner.links.discard(self)
        self._closed.set()

    def _end(self, error: Exception) -> None:
        """All requests fail, and the connection is closed."""
        if not isinstance(error, redis.RedisError | OSError):  # what came can't be read
            error = redis.InvalidResponse(f"{type(error).__name__}: {error}")
        if self.alive:
            self.alive = False
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        sent, self.pending = self.pending, deque()
        unsent, self._unwritten = self._unwritten, []
        # An exception for each: a traceback belongs to one task.
        for future, *_ in sent:
            if not future.done():
                future.set_exception(type(error)(*error.args))
        for future, *_ in unsent:
            if not future.done():
                future.set_exception(NotSent(str(error)))
        self._owner.retire(self)

    async def aclose(self) -> None:
        self._end(NotSent("the event loop ends"))
        await self._closed.wait()


class _ByMethods:
    """The transport of a connection of which nothing but the public methods is known: of another
    version of redis-py, or of a fake."""

    def __init__(self, link: Link, connection: Any) -> None:
        self._link = link
        self._connection = connection
        self._data: list[bytes] = []
        self._something = asyncio.Event()
        self._task = asyncio.ensure_future(self._serve())
        self._task.add_done_callback(self._ended)

    def write(self, data: bytes) -> None:
        self._data.append(data)
        self._something.set()

    async def _serve(self) -> None:
        try:
            while True:
                await self._something.wait()
                self._something.clear()
                data, self._data = self._data, []
                sent = len(self._link.pending)
                await self._connection.send_packed_command(data)
                for _ in range(sent):
                    try:
                        answer = await self._connection.read_response(disable_decoding=True)
                    except redis.ResponseError as error:
                        answer = error
                    self._link.answered(answer)
        finally:
            await self._connection.disconnect(nowait=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        self._link.connection_lost(error if isinstance(error, Exception) else None)

    def is_closing(self) -> bool:
        return self._task.done()

    def close(self) -> None:
        self._task.cancel()

    abort = close


def _give_up(future: asyncio.Future[Any], within: float) -> None:
    """Give up one answer, before which others may still come."""
    if not future.done():
        future.set_exception(late(within))


def late(within: float) -> redis.TimeoutError:
    """The error for an answer that did not come in so many seconds."""
    return redis.TimeoutError(f"no answer within {within:.3g} s")
