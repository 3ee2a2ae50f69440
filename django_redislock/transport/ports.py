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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from redis.exceptions import InvalidResponse, NoScriptError

from ..base import process, tokens
from ..base.clock import now
from ..base.exceptions import LockError, LockUnavailable
from ..primitives import fence, scripts, waiting
from ..primitives.contract import (
    NO_TERMS,
    Grant,
    Handed,
    Packed,
    Question,
    Request,
    Terms,
    Wakeup,
    run,
)
from ..primitives.keys import Keys, Shared, Word
from ..primitives.scripts import ask, pttls
from ..primitives.waiting import DEAF, LEAST, LINE, NEVER
from . import connections
from .cluster import unavailable
from .command import Links, carry_out, causes, fail, refused_slots, unreadable_clock
from .connections import Pool
from .inbox import Bell, Inbox, Process, Waker
from .line import Line
from .loans import Lines, apart
from .protocol import NOTHING, PING, Command, pack
from .protocol import script as packed_script
from .quorum import Requests, Round
from .server import Server, ending, joined, of_loop

BUSY_FOR = 1.0
"""Seconds for which a lock that was not free is expected not to be free."""
MOST_BUSY = 1000
"""Such locks that a process remembers."""

_DOING = {
    "acquire": "locking",
    "adopt": "restoring",
    "clear": "clearing",
    "drop": "releasing",
    "extend": "extending",
    "release": "releasing",
    "take": "locking",
}
"""The action of a script, for messages, by the last word of its name."""

stand_in: Callable[..., Coroutine[Any, Any, Any]] | None = None
"""Answers scripts in place of the servers, in tests (`testing.stubs`). It is given the port, and
what `BasePort.script` is given."""

LONGEST = 300.0
"""Seconds for which a waiter rests until it is woken, at most."""
LONGEST_AWAY = 5.0
"""The same, while Redis is away."""
LOOK_UP = 0.25
"""Seconds after which a waiter in the line looks for messages that came meanwhile."""


class _News:
    """The messages to a waiter since it began to listen."""

    notified = False
    woken = False
    """Whether `_pause` has to end."""
    grant: Grant | Handed | None = None


def _alone(keys: Sequence[str]) -> list[str]:
    """Return the keys that are sent where all keys of a script must be in one slot."""
    return [key.alone or keys[0] if isinstance(key, Shared) else key for key in keys]


def _command(
    script: str, body: str, keys: Sequence[str], args: Sequence[Word], how: str = "EVALSHA"
) -> Command:
    """Return the command that runs a script, as it is sent to a server."""
    command = packed_script(body, keys, args, how)
    return command.behind(PING) if script in scripts.WAKING else command


class BasePort:
    """The common part of both ports."""

    _in_a_task = False
    # Set on the class, since most operations end with their first script and change none.
    _boxes: Sequence[Inbox] = ()
    """The inboxes that wake this waiter."""
    _token = ""
    _news = _News()
    """Its messages. A port that does not listen gets none."""
    _own_inbox: Inbox | None = None
    wakeup: Wakeup = ""
    _line: threading.Semaphore | None = None
    """The line in which this port has its turn, until the next script has ended."""
    _until = NEVER
    """When the time for all requests ends."""
    begun: Callable[[], Any] | None = None
    """Returns the answer to the first script, which was sent before."""
    ready: Command | None = None
    """The first script, as it is sent."""
    _links: Links | None = None
    """Connections of its own. None: those of the server."""

    def __init__(
        self, server: Server, *, terms: Terms = NO_TERMS, pool: Pool | None = None
    ) -> None:
        process.notice_fork()
        self._server, self._terms = server, terms
        if pool is not None:
            self._links = pool

    now = staticmethod(now)
    uniform = staticmethod(waiting.uniform)

    def plain(self, keys: Keys) -> bool:
        if self.begun is not None:
            return True
        server = self._server
        if server.clustered or self._terms.replicas:
            return False
        until = server.busy.get(keys.lock)
        if until is None:
            return True
        inbox = server.kept(Inbox, keys.index.prefix)
        if now() < until or (inbox.awaited and inbox.waited_for(keys)):
            return False
        server.busy.pop(keys.lock, None)
        return True

    def busy(self, keys: Keys) -> None:
        self._server.busy[keys.lock] = now() + BUSY_FOR
        if len(self._server.busy) > MOST_BUSY:
            self._server.busy.clear()

    def packed(self, request: Request) -> Packed:
        script, keys, args = request
        return request, _command(script, scripts.load(script).sha, keys, args)

    def limit(self, left: float) -> None:
        replicas_timeout = self._terms.replicas_timeout if self._terms.replicas else 0.0
        self._until = now() + max(left, LEAST + replicas_timeout)

    def _end(self) -> float:
        """Return when the time of a request is over that is sent now."""
        within = self._terms.within
        return self._until if within is None or self._until != NEVER else now() + within

    def _execute(self, command: Command) -> Coroutine[Any, Any, Any]:
        """Send a command, and return its answer."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def script(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Any:
        if stand_in is not None:
            return await stand_in(self, name, keys, args)
        script = scripts.load(name)
        handled = sys.exception()
        clustered, given, mended = self._server.clustered, keys, False
        ready, self.ready = self.ready, None
        how, body = "EVALSHA", script.sha
        short = name in scripts.AT_ONCE
        if clustered:
            if short:
                return None
            keys, ready = _alone(keys), None
        try:
            while True:
                try:
                    if self.begun is not None:
                        begun, self.begun, ready = self.begun, None, None
                        answer = begun()
                    else:
                        command, ready = ready, None
                        if command is None:
                            command = _command(name, body, keys, args, how)
                        answer = await self._execute(command)
                    break
                except NoScriptError:  # after a restart, or SCRIPT FLUSH
                    if how == "EVAL":
                        raise
                    how, body = "EVAL", script.source
                except LockUnavailable as error:
                    if not mended and unreadable_clock(error):
                        mended = True
                        await fence.mend(self, given)
                        continue
                    if clustered or not refused_slots(error.__cause__):
                        raise
                    self._server.refuses_several_slots()
                    if short:
                        return None
                    clustered, keys = True, _alone(keys)
                    if len(set(self.slots(keys))) > 1:
                        raise  # the caller may ask again, slot by slot
            try:
                return scripts.AT_ONCE[name](answer) if short else answer
            except (TypeError, ValueError):
                raise self.nonsense(name, keys) from None
        except LockError as error:
            if isinstance(error, LockUnavailable):
                self._tell_where(error, name)
            # The frames below the port have the password in their variables, as AUTH has it, and
            # the command with our token, which a crash reporter must not show. What the caller was
            # handling before keeps its frames.
            for one in causes(error, handled):
                one.__traceback__ = None
            raise
        finally:
            if self._line is not None:
                self._leave_line()

    def _tell_where(self, error: LockUnavailable, script: str) -> None:
        doing = _DOING.get(script.rpartition("_")[2], "asking for")
        error.at(self._server.using, self._server.where, doing)

    def nonsense(self, script: str, keys: Sequence[str]) -> LockUnavailable:
        # The script may have done anything; a second request would most likely fail in the same
        # way.
        why = f"the answer of its script {script} can't be understood"
        error = unavailable(keys[0] if keys else "", why, doubtful=True, passing=False)
        error.__cause__ = InvalidResponse(why)
        self._tell_where(error, script)
        return error

    async def ask_all(self, question: Question) -> Sequence[Any]:
        its = Round(question)
        try:
            await self._ask_each(its)
            while left := its.left():
                await self._take_next(its, left)
            return its.all()
        finally:
            self._leave_line()

    async def _ask_each(self, its: Round) -> None:
        """Let the servers of a round be asked."""
        raise NotImplementedError

    async def _take_next(self, its: Round, seconds: float) -> None:
        """Wait for an answer, for so many seconds."""
        raise NotImplementedError

    def slots(self, keys: Sequence[str]) -> Sequence[int]:
        return self._server.slots(keys)

    def _waker(self) -> Waker:
        # New for each registration: a wake-up that is still on its way when the waiter stops
        # listening must not reach the next wait of this port.
        news = self._news = _News()

        def wake(notified: bool, grant: Grant | Handed | None) -> None:
            news.grant = grant or news.grant
            news.notified |= notified
            news.woken = True
            self._ring()

        return wake

    def _ring(self) -> None:
        """End the present `_pause`. May be called from any thread."""
        raise NotImplementedError

    async def wait(
        self, seconds: float, left: float, *, rest: float = 0.0, away: bool = False
    ) -> Grant | Handed | None:
        until = now() + left
        if not self._boxes:  # no message can come
            await self.sleep(seconds)
            await self._take_turn(until)
            self.wakeup = "poll"
            return None
        box = self._boxes[0] if len(self._boxes) == 1 else None
        if away and box is not None and box.rests_away(self._token):
            # Not all at the same moment.
            seconds = max(seconds, min(left, self.uniform(0.5, 1.0) * LONGEST_AWAY))
        elif rest and box is not None and box.rests(self._token):
            seconds = min(rest, LONGEST)
        await self._pause(seconds)
        await self._take_turn(until)
        grant, self._news.grant = self._news.grant, None
        of_process = type(grant) is Grant
        self.wakeup = "process" if of_process else "message" if self._news.notified else "poll"
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
        links = self._present_links()
        found: dict[Inbox, list[Keys]] = {}
        for its in keys:
            node = connections.node_of(links, its.lock)
            if node is None and (links is None or connections.routed(links)):
                return {}
            found.setdefault(server.kept(Inbox, prefix, node), []).append(its)
        return found

    def _present_links(self) -> Links | None:
        """Return the connections that `_execute` uses, if they are there."""
        raise NotImplementedError

    def wake_neighbours(self, keys: Keys) -> None:
        if self._own_inbox is not None:
            self._own_inbox.wake_neighbours(keys)

    async def hand_over(self, grants: Sequence[tuple[str, Grant]]) -> None:
        assert self._own_inbox is not None
        for token, grant in grants:
            self._own_inbox.wake(token, notified=True, grant=grant)
        # A thread that was woken runs only when this one releases the interpreter.
        await self.sleep(0)

    async def _pause(self, seconds: float) -> None:
        """Return when `_ring` is called, or after so many seconds."""
        raise NotImplementedError

    async def _take_turn(self, until: float) -> None:
        """Wait until then for our turn to ask. Tasks stand in no line: they share a connection."""

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
        while not boxes or not all(box.hears(its) for box, its in boxes.items()):
            if (left := until - now()) <= 0:
                return DEAF
            # When an inbox has subscribed, it wakes its waiters at once.
            await self._pause(left)
        await self._take_turn(until)
        return self._boxes[0].name

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

    def _present_links(self) -> Links:
        return self._links or self._server.links

    def _execute(self, command: Command) -> Coroutine[Any, Any, Any]:
        return carry_out(self._links or self._server.links, command, self._terms, self._end())

    async def _ask_each(self, its: Round) -> None:
        its.box = queue.SimpleQueue()
        requests = Requests(its)

        def go_on(number: int, begun: Callable[[], Any] | None) -> None:
            pool = its.members[number].pool
            port = SyncPort(its.servers[number], pool=pool, terms=Terms(its.question.within))
            port.begun = begun
            run(its.ask(port, number))

        try:
            if stand_in is None:
                requests.hear()
            # A thread for each server: a connection alone may take all the time that there is.
            for number in its.outstanding:
                apart(partial(go_on, number, requests.left(number)))
        except BaseException:
            requests.end()
            raise

    async def _take_next(self, its: Round, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            its.take(*its.box.get(timeout=seconds))

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _waker(self) -> Waker:
        # An event takes a hundred bytecodes to set, and more to wait for.
        self._woken: Bell = queue.SimpleQueue()
        return super()._waker()

    def _ring(self) -> None:
        self._woken.put(None)

    async def _pause(self, seconds: float) -> None:
        token, news = self._token, self._news
        until = now() + seconds
        box = self._boxes[0] if len(self._boxes) == 1 else None
        try:
            while not news.woken and (left := until - now()) > 0:
                if box is None or not box.read(token, self._woken, left):
                    with contextlib.suppress(queue.Empty):
                        self._woken.get(timeout=left)
        finally:
            if box is not None:
                box.rest(token)
        news.woken = False

    async def _take_turn(self, until: float) -> None:
        while not self._news.notified and self._line is None and (left := until - now()) > 0:
            line = self._server.kept(_line)
            # Set before it is true. If a signal's exception comes in between, one waiter more may
            # ask at a time; in the other order, one waiter less could ask from then on.
            self._line = line
            # For a short time only: a waiter that gets a message has to ask at once.
            if not line.acquire(timeout=min(LOOK_UP, left)):
                self._line = None
        # What woke it while it stood in line is older than the request that it sends now.
        self._news.woken = False


class AsyncPort(BasePort):
    """The port of an asyncio task. It never uses the thread pool, not even to wait."""

    _in_a_task = True

    def __init__(self, server: Server, *, terms: Terms = NO_TERMS) -> None:
        super().__init__(server, terms=terms)
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "Coroutines take locks in an event loop of asyncio, and none runs here. In trio, "
                "take the lock in a thread: trio.to_thread.run_sync(function)."
            ) from None

    def _present_links(self) -> Links | None:
        its = joined(self._loop, self._server)
        return None if its is None else its.pool

    async def _execute(self, command: Command) -> Any:
        if self._loop not in ending:
            its = joined(self._loop, self._server) or await of_loop(self._loop, self._server)
            its.busy += 1
            try:
                return await carry_out(its.pool, command, self._terms, self._end())
            finally:
                its.busy -= 1
        # The loop closes all asynchronous generators at once and in no order, our `closer`
        # among them. A generator that leaves a lock gets a connection of its own.
        pool = self._server.async_pool()
        try:
            return await carry_out(pool, command, self._terms, self._end())
        finally:
            await connections.aclose(pool)

    async def _ask_each(self, its: Round) -> None:
        its.box = asyncio.Queue()
        # Each has a connection to itself: the release of a lock may have to overtake its acquire,
        # which that server has not answered. The tasks end by themselves: a slow answer is read,
        # so that its connection stays usable.
        for number, server in enumerate(its.servers):
            port = AsyncPort(server, terms=Terms(its.question.within, alone=True))
            keep(asyncio.ensure_future(its.ask(port, number)))

    async def _take_next(self, its: Round, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                its.take(*await its.box.get())

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


PortType = type[SyncPort | AsyncPort]


def straight(
    server: Server, terms: Terms, until: float, request: Request, packed: Command | None = None
) -> int | SyncPort:
    """Carry out a request in this thread, if that takes nothing unusual, and return the number
    that a script of `AT_ONCE` answers. Otherwise return the port that goes on: what has come of
    the request is the answer to its first script. The answer may take until then."""
    script, keys, args = request
    lines, handled = server.links, sys.exception()
    begun: Callable[[], Any] | None = None
    if type(lines) is Lines and stand_in is None:
        try:
            if packed is None:
                command = pack((*keys, *args), "EVALSHA", scripts.load(script).sha, len(keys))
                answer = lines.at_once(Line.ask, command, str(args[0]), until)
            else:
                command, word, _, before = packed
                answer = lines.at_once(Line.ask, command, word, until, before)
            if type(answer) is list and len(answer) == 2:
                code, number = answer
                if code == 1 and type(number) is int:
                    return number
            if answer is not NOTHING:
                begun = lambda: answer  # noqa: E731
        except BaseException as error:
            begun = partial(fail, error, keys[0], handled)
    port = SyncPort(server, terms=terms)
    port.begun = begun
    return port


LOOK_AGAIN = 60.0
"""Seconds for which it is remembered that a server has no slots. It may be sharded later."""


SLOTS = 16
"""Slots of the keys by which a server is asked. A proxy may allow several slots of one shard."""


def find_out_slots(server: Server, prefix: str) -> bool:
    """Return `Server.clustered`, and ask the server if it is not known: it refuses a script that
    reads keys of several slots. Raises `LockUnavailable`.

    A lock finds that out by its first request. What reads the index of all locks has to know it
    before: a server with slots has none, and that would look like no locks.
    """
    if not server.clustered and now() >= server.look_at:
        keys = [f"{prefix}:slot:{number}" for number in range(SLOTS)]  # of no name
        try:
            port, read = SyncPort(server), partial(pttls, keys)
            run(ask(port, read, "inspection_processes", keys, [tokens.word()]))
        except LockUnavailable:
            if not server.clustered:
                raise
        else:
            server.look_at = now() + LOOK_AGAIN
    return server.clustered


_finishing: set[asyncio.Future[Any]] = set()


def keep(task: asyncio.Future[Any]) -> asyncio.Future[Any]:
    """Keep a reference to a task until it is done: the loop has only weak ones."""
    _finishing.add(task)
    task.add_done_callback(_finishing.discard)
    return task


def _line(_: Server) -> threading.Semaphore:
    """Make the line in which waiting threads of this process stand for one server."""
    return threading.Semaphore(LINE)
