"""The ports of threads and tasks: everything through which a primitive acts on the world.

A primitive is a coroutine that awaits nothing but its port. The methods of a `SyncPort` are
coroutines that never suspend, so that `run` finishes a primitive with one `send(None)`. Those of
an `AsyncPort` really await. A port serves one operation of one thread or task.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from redis.exceptions import InvalidResponse, NoScriptError

from ..base import fork, tokens
from ..base.background import start_or_call
from ..base.clock import now
from ..base.exceptions import LockError, LockUnavailable
from ..primitives import raising, scripts, waiting
from ..primitives.contract import NO_TERMS, Grant, Learned, Terms, Word, run
from ..primitives.keys import Keys, Shared, name_of
from ..primitives.shapes import SHAPES
from ..primitives.waiting import DEAF, LEAST, LINE
from . import pools
from .cluster import Cluster
from .command import (
    AloneExchange,
    AsyncExchange,
    AsyncPool,
    Pool,
    SyncExchange,
    causes,
    refused_slots,
    unreadable_clock,
)
from .event_loops import ending, joined, of_loop
from .inbox import Inbox, Process, Waker
from .polled import Request, Requests
from .server import Server, server_of
from .several import Answers, Member
from .wire import LAST_MOMENT

_DOING = {
    "acquire": "locking",
    "adopt": "restoring",
    "clear": "clearing",
    "extend": "extending",
    "release": "releasing",
}
"""The action of a script, for messages, by the last word of its name."""

LONGEST = 300.0
"""Seconds for which a waiter rests until it is woken, at most."""
LOOK_UP = 0.25
"""Seconds after which a waiter in the line looks for messages that came meanwhile."""


class _News:
    """The messages to a waiter since it began to listen."""

    notified = False
    woken = False
    """Whether `_pause` has to end."""
    grant: Grant | None = None


def _unreadable(script: str, keys: Sequence[str]) -> LockUnavailable:
    """Return the error for an answer that has our nonce, but not the form that the script's
    answers have. The script may have done anything; a second request would most likely fail in the
    same way."""
    why = f"the answer of its script {script} can't be understood"
    error = LockUnavailable(
        f"Redis could not be asked: {why}",
        name_of(keys[0]) if keys else None,
        why=why,
        doubtful=True,
        passing=False,
    )
    error.__cause__ = InvalidResponse(why)
    return error


def _without_frames(error: LockError, handled: BaseException | None) -> LockError:
    """Return `error` without the frames below the port. Their variables are the password, as AUTH
    has it, and the command with our token, which a crash reporter must not show. `handled` is the
    exception that the caller was handling before; it keeps its frames."""
    for one in causes(error, handled):
        one.__traceback__ = None
    return error


def _alone(keys: Sequence[str]) -> list[str]:
    """Return the keys that are sent where all keys of a script must be in one slot."""
    return [key.alone or keys[0] if isinstance(key, Shared) else key for key in keys]


class BasePort:
    """The common part of both ports."""

    _in_a_task = False
    # Set on the class, since most operations end with their first script and change none.
    _boxes: Sequence[Inbox] = ()
    """The inboxes that wake this waiter."""
    _token = ""
    _news: _News
    _own_inbox: Inbox | None = None
    learned: Learned = ""
    _line: threading.Semaphore | asyncio.Semaphore | None = None
    """The line in which this port has its turn, until the next script has ended."""
    _until = float("inf")
    """When the time for all requests ends."""

    def __init__(self, server: Server, *, terms: Terms = NO_TERMS) -> None:
        fork.look()
        self._server = server
        self._terms = terms

    now = staticmethod(now)

    def uniform(self, low: float, high: float) -> float:
        return waiting.uniform(low, high)

    def limit(self, left: float) -> None:
        replicas_timeout = self._terms.replicas_timeout if self._terms.replicas else 0.0
        self._until = now() + max(left, LEAST + replicas_timeout)

    def _within(self) -> float | None:
        """Return the seconds that a request has which is sent now."""
        if self._until == float("inf"):
            return self._terms.within
        return max(self._until - now(), LAST_MOMENT)

    def _in_time(self) -> Terms:
        """Return the terms of a request that is sent now."""
        return self._terms._replace(within=self._within())

    async def _execute(self, command: tuple[Word, ...]) -> Any:
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def script(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Any:
        script = scripts.load(name)
        args = scripts.shortened(name, args)
        handled = sys.exception()
        clustered, answer, given, mended = self._server.clustered, None, keys, False
        how, body = "EVALSHA", script.sha
        if clustered:
            keys = _alone(keys)
        try:
            while True:
                try:
                    if name in scripts.AT_ONCE and how == "EVALSHA":
                        answer = await self._at_once(body, keys, args)
                    if answer is None:
                        answer = await self._at_length(how, body, keys, args)
                    break
                except NoScriptError:  # after a restart, or SCRIPT FLUSH
                    if how == "EVAL":
                        raise
                    how, body = "EVAL", script.source
                except LockUnavailable as error:
                    if not mended and unreadable_clock(error):
                        mended = True
                        await raising.mend(self.script, given)
                        continue
                    if clustered or not refused_slots(error):
                        raise
                    self._server.refuses_several_slots()
                    clustered, keys = True, _alone(keys)
                    if len(set(map(self._server.slot, keys))) > 1:
                        raise  # the caller may ask again, slot by slot
            if not SHAPES[name](answer, len(keys)):
                raise _unreadable(name, keys)
            return answer
        except LockError as error:
            if isinstance(error, LockUnavailable):
                doing = _DOING.get(name.rpartition("_")[2], "asking for")
                error.at(self._server.using, self._server.where, doing)
            raise _without_frames(error, handled)  # noqa: B904  # its cause is set
        finally:
            if self._line is not None:
                self._leave_line()

    async def _at_once(self, sha: str, keys: Sequence[str], args: Sequence[Word]) -> Any:
        """Return the answer of the exchange's `at_once`; `None` if nothing was sent."""
        raise NotImplementedError

    async def _at_length(
        self, how: str, script: str, keys: Sequence[str], args: Sequence[Word]
    ) -> Any:
        return await self._execute((how, script, len(keys), *keys, *args))

    def slot(self, key: str) -> int:
        return self._server.slot(key)

    def _waker(self) -> Waker:
        # New for each registration: a wake-up that is still on its way when the waiter stops
        # listening must not reach the next wait of this port.
        news = self._news = _News()

        def wake(notified: bool, grant: Grant | None = None) -> None:
            news.grant = grant or news.grant
            news.notified |= notified
            news.woken = True
            self._ring()

        return wake

    def _ring(self) -> None:
        """End the present `_pause`. May be called from any thread."""
        raise NotImplementedError

    async def wait(self, seconds: float, left: float, *, rest: float = 0.0) -> Grant | None:
        if not self._boxes:  # no message can come
            await self.sleep(seconds)
            self.learned = "look"
            return None
        until = now() + left
        rests = rest and len(self._boxes) == 1 and self._boxes[0].rests(self._token)
        await self._pause(min(rest, LONGEST) if rests else seconds)
        await self._take_turn(until)
        grant, self._news.grant = self._news.grant, None
        self.learned = "process" if grant else "message" if self._news.notified else "look"
        self._news.notified = False
        # No replica has confirmed a grant that was handed over.
        return None if self._terms.replicas else grant

    def own_inbox(self, keys: Keys) -> str:
        self._own_inbox = box = next(iter(self._inboxes((keys,))), None)
        return box.name if box and box.awaited else ""

    def _inboxes(self, keys: Sequence[Keys]) -> Mapping[Inbox, Sequence[Keys]]:
        """Return the inboxes of this process for these locks, and the locks of each. There is one;
        several if several nodes of a cluster have the locks; none if a node is unknown."""
        server, prefix = self._server, keys[0].prefix
        if not server.clustered or not server.kept(Process, prefix).sharded:
            return {server.kept(Inbox, prefix): keys}
        pool = self._present_pool()
        found: dict[Inbox, list[Keys]] = {}
        for its in keys:
            node = pools.node_of(pool, its.lock)
            if node is None and (pool is None or pools.routed(pool)):
                return {}
            found.setdefault(server.kept(Inbox, prefix, node), []).append(its)
        return found

    def _present_pool(self) -> Pool | AsyncPool | None:
        """Return the pool that `_execute` uses, if it is there."""
        raise NotImplementedError

    def wake_neighbours(self, keys: Keys) -> None:
        if self._own_inbox is not None:
            self._own_inbox.wake_neighbours(keys)

    async def hand_over(self, grants: Sequence[tuple[str, Grant]]) -> None:
        assert self._own_inbox is not None
        for token, grant in grants:
            self._own_inbox.hand_over(token, grant)
        # A thread that was woken runs only when this one releases the interpreter.
        await self.sleep(0)

    async def _pause(self, seconds: float) -> None:
        """Return when `_ring` is called, or after so many seconds."""
        raise NotImplementedError

    async def _take_turn(self, until: float) -> None:
        # For a short time only: a waiter that gets a message has to ask at once.
        while not self._news.notified and self._line is None and now() < until:
            await self._stand_in_line(min(LOOK_UP, until - now()))

    async def _stand_in_line(self, seconds: float) -> None:
        """Return when it is our turn, or after so many seconds."""
        raise NotImplementedError

    def _leave_line(self) -> None:
        if self._line is not None:
            self._line.release()
            self._line = None

    async def listen(self, token: str, *, within: float, keys: Sequence[Keys]) -> str:
        boxes = self._inboxes(keys)
        if within > 0 or self._boxes:
            if not all(box.start() for box in boxes):
                return DEAF
        elif not all(box.ready(its) for box, its in boxes.items()):
            return DEAF
        if [*boxes] != [*self._boxes]:  # a slot may have moved to another node
            self._leave_inboxes()
            self._boxes, self._token = [*boxes], token
            wake = self._waker()
            for box, its in boxes.items():
                # A thread that waits for messages of several inboxes reads none.
                task = self._in_a_task or len(boxes) > 1
                box.register(token, wake, its, task=task)
        until = now() + within
        while not (heard := self._is_heard(boxes)) and (left := until - now()) > 0:
            # When an inbox has subscribed, it wakes its waiters at once.
            await self._pause(left)
            await self._take_turn(until)
        return self._boxes[0].name if heard else DEAF

    def _is_heard(self, boxes: Mapping[Inbox, Sequence[Keys]]) -> bool:
        return bool(boxes) and all(box.hears(its) for box, its in boxes.items())

    def _leave_inboxes(self) -> None:
        for box in self._boxes:
            box.forget(self._token)
        self._boxes = ()

    def unlisten(self) -> None:
        if self._boxes:
            self._leave_inboxes()
        self._leave_line()


class SyncPort(BasePort):
    """The port of a thread, or of a greenlet: it uses only what gevent patches."""

    def __init__(
        self,
        server: Server,
        *,
        terms: Terms = NO_TERMS,
        pool: Pool | None = None,
    ) -> None:
        super().__init__(server, terms=terms)
        self._pool = pool

    def _present_pool(self) -> Pool:
        return self._pool or self._server.shared_pool()

    async def _execute(self, command: tuple[Word, ...]) -> Any:
        pool = self._present_pool()
        return await self._server.execute(SyncExchange, pool, command, self._in_time())

    async def _at_once(self, sha: str, keys: Sequence[str], args: Sequence[Word]) -> Any:
        if self._terms.replicas:
            return None
        exchange = SyncExchange(self._pool or self._server.shared_pool())
        return exchange.at_once(sha, keys, args, self._within())

    async def ask_all(
        self,
        servers: Sequence[str],
        name: str,
        keys: Sequence[str],
        args: Sequence[Word],
        *,
        within: float,
        enough: Callable[[Sequence[Any]], bool],
    ) -> Sequence[Any]:
        each = [*map(server_of, servers)]
        answers = Answers(each, within, enough)
        requests = Requests(
            [server.kept(Member).pool for server in each], name, keys, args, within
        )
        box: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

        def go_on(number: int, request: Request) -> None:
            port = _RequestPort(each[number], request, within)
            try:
                answer = run(port.script(name, keys, args))
            except Exception as error:
                answer = error
            answers.remember(number, answer)
            box.put((number, answer))

        try:
            if not any(server.clustered for server in each):  # such a server gets other keys
                for number, answer in requests.heard(answers.left):
                    answers.remember(number, answer)
                    answers.take(number, answer)
            # A thread for each server: a connection alone may take all the time that there is.
            for number, request in requests.handed_over():
                start_or_call(partial(go_on, number, request), "redislock-server")
            while left := answers.left():
                with contextlib.suppress(queue.Empty):
                    answers.take(*box.get(timeout=left))
            return answers.all(keys)
        finally:
            # Twice, since an exception from outside may come in the middle of the first call.
            try:
                requests.end()
            except BaseException:
                requests.end()
                raise

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _waker(self) -> Waker:
        self._woken = threading.Event()
        return super()._waker()

    def _ring(self) -> None:
        self._woken.set()

    async def _pause(self, seconds: float) -> None:
        token, news = self._token, self._news
        until = now() + seconds
        box = self._boxes[0] if len(self._boxes) == 1 else None
        try:
            while not news.woken and (left := until - now()) > 0:
                if box is None or not box.read(token, self._woken, left):
                    self._woken.wait(left)
                    self._woken.clear()
        finally:
            if box is not None:
                box.rest(token)
        news.woken = False

    async def _stand_in_line(self, seconds: float) -> None:
        # Set before it is true. If a signal's exception comes in between, one waiter more may ask
        # at a time; in the other order, one waiter less could ask from then on.
        self._line = self._server.kept(_line)
        if not self._line.acquire(timeout=seconds):
            self._line = None


class _RequestPort(SyncPort):
    """The port of a thread to one of several servers, to which it may have sent the request."""

    _heard = False
    """Whether it has asked for the answer to that request."""

    def __init__(self, server: Server, request: Request, within: float) -> None:
        super().__init__(server, pool=request.pool, terms=Terms(within))
        self._request = request

    async def _at_once(self, *_: object) -> Any:
        return None

    async def _at_length(self, how: str, *command: Any) -> Any:
        if self._request.sent and not self._heard:
            self._heard = True
            return self._request.answer()
        return await super()._at_length(how, *command)


class AsyncPort(BasePort):
    """The port of an asyncio task. It never uses the thread pool, not even to wait."""

    _in_a_task = True

    _exchange = AsyncExchange

    def __init__(self, server: Server, *, terms: Terms = NO_TERMS) -> None:
        super().__init__(server, terms=terms)
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "Coroutines take locks in an event loop of asyncio, and none runs here. In trio, "
                "take the lock in a thread: trio.to_thread.run_sync(function)."
            ) from None

    def _present_pool(self) -> AsyncPool | None:
        its = joined(self._loop, self._server)
        return None if its is None else its.pool

    async def _execute(self, command: tuple[Word, ...]) -> Any:
        if self._loop not in ending:
            its = await of_loop(self._loop, self._server)
            its.busy += 1
            try:
                return await self._server.execute(
                    self._exchange, its.pool, command, self._in_time()
                )
            finally:
                its.busy -= 1
        # The loop closes all asynchronous generators at once and in no order, our `closer`
        # among them. A generator that leaves a lock gets a connection of its own.
        pool = self._server.async_pool()
        try:
            return await self._server.execute(self._exchange, pool, command, self._in_time())
        finally:
            await pools.aclose(pool)

    async def _at_once(self, sha: str, keys: Sequence[str], args: Sequence[Word]) -> Any:
        if self._terms.replicas:
            return None
        its = None if self._loop in ending else joined(self._loop, self._server)
        if its is None or isinstance(its.pool, Cluster):
            return None
        its.busy += 1
        try:
            return await AsyncExchange(its.pool).at_once(sha, keys, args, self._within())
        finally:
            its.busy -= 1

    async def ask_all(
        self,
        servers: Sequence[str],
        name: str,
        keys: Sequence[str],
        args: Sequence[Word],
        *,
        within: float,
        enough: Callable[[Sequence[Any]], bool],
    ) -> Sequence[Any]:
        each = [*map(server_of, servers)]
        answers = Answers(each, within, enough)
        box: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

        async def ask(number: int, server: Server) -> None:
            answer: Any
            try:
                async with asyncio.timeout(within):
                    answer = await _MemberPort(server).script(name, keys, args)
            except TimeoutError:
                answer = answers.missing(number, keys)
            except Exception as error:
                answer = error
            answers.remember(number, answer)
            box.put_nowait((number, answer))

        # The tasks end by themselves: a slow answer is read, so that its connection stays usable.
        for number, server in enumerate(each):
            keep(asyncio.ensure_future(ask(number, server)))
        while left := answers.left():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    answers.take(*await box.get())
        return answers.all(keys)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _waker(self) -> Waker:
        self._woken = asyncio.Event()
        return super()._waker()

    def _ring(self) -> None:
        if asyncio._get_running_loop() is self._loop:
            self._woken.set()
            return
        # From another thread. A loop that was closed meanwhile has no waiter.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken.set)

    # asyncio.timeout(), since wait_for() swallows cancellations before Python 3.12.

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()
        self._news.woken = False

    async def _stand_in_line(self, seconds: float) -> None:
        line = (await of_loop(self._loop, self._server)).line
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await line.acquire()
                self._line = line


LOOK_AGAIN = 60.0
"""Seconds for which it is remembered that a server has no slots. It may be sharded later."""


SLOTS = 16
"""Slots of the keys by which a server is asked. A proxy may allow several slots of one shard."""


class _Slots:
    """Whether the keys of one script must be in one slot, as a server has answered."""

    def __init__(self, _: Server) -> None:
        self._look_at = 0.0

    def find_out(self, server: Server, prefix: str) -> bool:
        # `server`, and not the first one with its address: errors name its alias.
        if not server.clustered and now() >= self._look_at:
            keys = [f"{prefix}:slot:{number}" for number in range(SLOTS)]  # of no name
            try:
                run(SyncPort(server).script("inspection_processes", keys, [tokens.word()]))
            except LockUnavailable:
                if not server.clustered:
                    raise
            else:
                self._look_at = now() + LOOK_AGAIN
        return server.clustered


def find_out_slots(server: Server, prefix: str) -> bool:
    """Return `Server.clustered`, and ask the server if it is not known: it refuses a script that
    reads keys of several slots. Raises `LockUnavailable`.

    A lock finds that out by its first request. What reads the index of all locks has to know it
    before: a server with slots has none, and that would look like no locks.
    """
    return server.kept(_Slots).find_out(server, prefix)


class _MemberPort(AsyncPort):
    """The port of a task to one of several servers. The release of a lock may have to overtake its
    acquire, which that server has not answered."""

    _exchange = AloneExchange

    async def _at_once(self, *_: object) -> Any:
        return None


_finishing: set[asyncio.Future[Any]] = set()


def keep(task: asyncio.Future[Any]) -> asyncio.Future[Any]:
    """Keep a reference to a task until it is done: the loop has only weak ones."""
    _finishing.add(task)
    task.add_done_callback(_finishing.discard)
    return task


def _line(_: Server) -> threading.Semaphore:
    """Make the line in which waiting threads of this process stand for one server."""
    return threading.Semaphore(LINE)
