"""A TCP proxy before a Redis that loses, delays and cuts what a test tells it to.

    with Proxy(server) as proxy:
        rule = proxy.on(script("mutex_acquire"), Fault.LOSE_REPLY)
        ...                             # works through proxy.url
        rule.happened()                 # waits for it

It understands the protocol well enough to know which answer belongs to which command, so that
a fault hits one command of one connection and nothing else. A connection that subscribes is
passed through as it is; `cut_subscribers`, `deaf` and `forget` are what can happen to it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
import sys
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Self

from devtools.redis_server import RedisServer
from django_redislock.primitives import scripts
from tests.waiting import PATIENCE, eventually

Matcher = Callable[[list[bytes]], bool]


class Fault(Enum):
    """What happens to a command. A lost message silences its connection, as in a network."""

    LOSE_REQUEST = auto()
    """It never arrives, and the connection is silent from then on."""
    LOSE_REPLY = auto()
    """It is carried out, and nothing comes back on this connection any more."""
    RESET_BEFORE = auto()
    """The connection is reset, and the command has not been carried out."""
    RESET_AFTER = auto()
    """It is carried out, and then the connection is reset."""
    HOLD_REQUEST = auto()
    """It arrives when the rule lets go, even when the client has gone by then."""
    HOLD_REPLY = auto()
    """It is carried out at once; the answer is passed on when the rule lets go."""
    HOLD_HALF = auto()
    """As before, but half of the answer is passed on at once."""
    SWAP_REPLY = auto()
    """Its answer and that to the next command that the rule hits change places."""
    REFUSE = auto()
    """The proxy answers itself, mostly with an error, as the service of a vendor may do."""
    PUSH = auto()
    """Something that the client has not asked for comes before the answer."""


SHORT = {
    "mutex_acquire": "mutex_take",
    "mutex_release": "mutex_drop",
    "permits_acquire": "permits_take",
    "permits_release": "permits_drop",
    "record_acquire": "mutex_take",
    "record_release": "mutex_drop",
}
"""The short requests that come before some scripts (`lease.claims`)."""


def script(*names: str, short: bool = True) -> Matcher:
    """Matches calls of lua/<name>.lua, and of the `short` request that comes before."""
    before = [SHORT[name] for name in names if short and name in SHORT]
    loaded = [scripts.load(name) for name in (*names, *before)]
    wanted = {text.encode() for its in loaded for text in (its.sha, its.source)}
    return lambda words: len(words) > 1 and words[1] in wanted


def command(name: str) -> Matcher:
    """Matches a plain command, such as "SET"."""
    return lambda words: words[0].upper() == name.upper().encode()


def anything(words: list[bytes]) -> bool:
    """Matches every command, those that open a connection included."""
    return True


class Rule:
    """A fault that waits for its command, so many times."""

    def __init__(
        self, proxy: Proxy, matches: Matcher, fault: Fault, times: int, chance: float
    ) -> None:
        self.fault = fault
        self.says = b""
        """What the proxy says itself."""
        self.count = 0
        """How many commands it has hit."""
        self.carried_out = 0
        """How many of them the server has answered, whoever got to know."""
        self._proxy = proxy
        self._matches = matches
        self.times = times
        self._chance = chance
        self._let_go = asyncio.Event()
        self.swapped = 0
        """How many answers have changed places."""
        self._waits: tuple[bytes, asyncio.Future[bytes]] | None = None
        """The first of two answers, and where it waits for the other."""

    def applies(self, words: list[bytes], dice: random.Random) -> bool:
        if self.count >= self.times or not self._matches(words):
            return False
        if self._chance < 1 and dice.random() >= self._chance:
            return False
        self.count += 1
        return True

    def happened(self, times: int = 1) -> None:
        """Wait until it has hit so many commands."""
        eventually(lambda: self.count >= times)

    def let_go(self) -> None:
        """It is over: pass on what it holds back, and hit nothing more."""
        self.times = 0
        self._proxy.soon(self._let_go.set)

    async def gone(self) -> None:
        await self._let_go.wait()

    async def swap(self, answer: bytes) -> bytes:
        """Return the answer to another command that the rule hits; or this one, if there is no
        other soon."""
        if self._waits is not None:
            (other, its), self._waits = self._waits, None
            its.set_result(answer)
            self.swapped += 2
            return other
        mine: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waits = answer, mine
        await asyncio.wait([mine], timeout=0.05)
        if mine.done():
            return mine.result()
        self._waits = None
        return answer


class Proxy:
    """Listens on a free TCP port, and forwards to the Unix socket of `server`."""

    def __init__(self, server: RedisServer, *, seed: int = 0) -> None:
        self._server = server
        self.dice = random.Random(seed)
        self._rules: list[Rule] = []
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[_Connection] = set()
        self._listener: asyncio.Server | None = None
        self._cut = False
        self.announces: Rule | None = None
        """What lets clients ask for pushes about maintenance."""
        self._number = next(_numbers)
        self.subscribers: set[asyncio.StreamWriter] = set()
        """The clients that have subscribed and are connected now."""
        self.deaf = False
        """Whether what is published gets lost, while the subscribers' connections stay."""
        self.slow = 0.0
        """Seconds by which each answer comes later."""
        self.late = (0.0, 0.0)
        """Seconds by which what is published comes later, at least and at most."""
        self.doubles = False
        """Whether it comes twice."""
        self.port = 0
        self.connected = 0
        """How many connections clients have opened so far."""
        self.open = 0
        """How many connections of clients are open now."""

    @property
    def url(self) -> str:
        # The fragment means nothing, but pools are remembered by URL, and the kernel may give
        # the port of an earlier proxy.
        return f"redis://127.0.0.1:{self.port}/0#{self._number}"

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(PATIENCE)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.soon(self._loop.stop)
        self._thread.join(PATIENCE)

    def on(self, matches: Matcher, fault: Fault, *, times: int = 1, chance: float = 1.0) -> Rule:
        """From now on, do this to the next `times` commands that match, or to a share of them."""
        rule = Rule(self, matches, fault, times, chance)
        self._rules.append(rule)
        return rule

    def refuse(self, matches: Matcher, error: str) -> Rule:
        """From now on, answer commands that match with an error."""
        rule = self.on(matches, Fault.REFUSE, times=sys.maxsize)
        rule.says = f"-{error}\r\n".encode()
        return rule

    def announce(self) -> None:
        """From now on, clients may ask for pushes about maintenance, as at Redis Cloud."""
        asks = b"MAINT_NOTIFICATIONS"
        self.announces = self.on(lambda words: asks in words, Fault.REFUSE, times=sys.maxsize)
        self.announces.says = b"+OK\r\n"

    def push(self, *words: str | int) -> int:
        """Push this to all clients that have asked for it. Return how many there are."""

        async def push() -> int:
            told = [one for one in self._connections if one.told]
            for one in told:
                one.push(pushed(*words))
            return len(told)

        return asyncio.run_coroutine_threadsafe(push(), self._loop).result(PATIENCE)

    def push_before(self, matches: Matcher, *words: str | int) -> Rule:
        """Push this before the answer to the next command that matches."""
        rule = self.on(matches, Fault.PUSH)
        rule.says = pushed(*words)
        return rule

    def cut(self) -> None:
        """Reset all connections, and each new one at once, until `mend`."""
        self._cut = True
        self.soon(self._reset_all)

    def mend(self) -> None:
        self._cut = False

    def heal(self) -> None:
        """Pass everything on from now on."""
        self.mend()
        for rule in self._rules:
            rule.let_go()

    def cut_subscribers(self) -> None:
        """Reset the connections that have subscribed; new ones get through."""
        self.soon(lambda: [_reset(writer) for writer in self.subscribers])

    def forget(self, fault: Fault) -> None:
        """Forget the connections that are open now, as a firewall or a load balancer does with
        connections that were idle for too long: neither end is told. From then on, what comes
        from a client gets lost (`LOSE_REQUEST`), or is answered with a reset (`RESET_BEFORE`);
        what comes from the server gets lost. New connections get through."""
        assert fault in (Fault.LOSE_REQUEST, Fault.RESET_BEFORE)
        done = threading.Event()

        def forget() -> None:
            for connection in self._connections:
                connection.forgotten = fault
            done.set()

        self.soon(forget)
        assert done.wait(PATIENCE)

    def soon(self, call: Callable[[], object]) -> None:
        """Call it in the proxy's own thread."""
        self._loop.call_soon_threadsafe(call)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._listener = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        assert self._listener is not None
        self._listener.close()
        self._reset_all()
        # Also those that were accepted just now, and have not begun.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await asyncio.sleep(0)  # lets the last transports close

    def _reset_all(self) -> None:
        for writer in list(self._writers):
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        if self._cut:
            _reset(writer)
            return
        self._writers.add(writer)
        self.open += 1
        try:
            await self._between(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one of both has gone, or the proxy ends
        finally:
            self.open -= 1
            self._writers.discard(writer)
            writer.close()

    async def _between(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = self._server.url.removeprefix("unix://").partition("?")[0]
        to_server = await asyncio.open_unix_connection(path)
        connection = _Connection(self, (reader, writer), to_server)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            to_server[1].close()

    def verdict(self, words: list[bytes]) -> Rule | None:
        """The rule that hits this command, if any."""
        for rule in self._rules:
            if rule.applies(words, self.dice):
                return rule
        return None


_numbers = itertools.count(1)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Connection:
    """One client's connection, and ours to the server for it."""

    def __init__(self, proxy: Proxy, client: Streams, server: Streams) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._answers: asyncio.Queue[Rule | None] = asyncio.Queue()
        """For each command under way, in order: what becomes of its answer."""
        self._silent = False
        self.told = False
        """Whether the client has asked for pushes about maintenance."""
        self.forgotten: Fault | None = None
        """What becomes of what the client sends, since the proxy has forgotten the connection."""

    def push(self, frame: bytes) -> None:
        self._to_client.write(frame)

    async def run(self) -> None:
        answers = asyncio.ensure_future(self._pass_answers())
        try:
            await self._pass_commands()
            # The client has closed it; what it has sent before is on its way nevertheless.
            await self._answers.join()
        finally:
            answers.cancel()

    async def _pass_commands(self) -> None:
        while True:
            try:
                frame, words = await read_command(self._from_client)
            except (asyncio.IncompleteReadError, OSError):
                return
            if words[0].upper() in (b"SUBSCRIBE", b"MONITOR", b"PSYNC"):
                self._to_server.write(frame)
                await self._pass_through()
                return
            rule = self._proxy.verdict(words) if self.forgotten is None else None
            fault = rule.fault if rule else self.forgotten
            if fault is Fault.RESET_BEFORE:
                _reset(self._to_client)
                return
            if self._silent and fault is not Fault.LOSE_REPLY:
                continue
            if fault is Fault.LOSE_REQUEST:
                self._silent = True
                continue
            if rule is not None and fault is Fault.HOLD_REQUEST:
                await rule.gone()
            self._answers.put_nowait(rule)
            if fault is Fault.REFUSE:
                self.told |= rule is self._proxy.announces
                continue
            self._to_server.write(frame)
            await self._to_server.drain()

    async def _pass_answers(self) -> None:
        while True:
            rule = await self._answers.get()
            if rule is not None and rule.fault is Fault.REFUSE:
                self._to_client.write(rule.says)
                self._answers.task_done()
                continue
            try:
                frame = await read_answer(self._from_server)
            except (asyncio.IncompleteReadError, OSError):
                _reset(self._to_client)  # the server has gone
                return
            finally:
                self._answers.task_done()
            if rule is not None:
                rule.carried_out += 1
            fault = rule.fault if rule else None
            if fault is Fault.LOSE_REPLY:
                self._silent = True
            elif fault is Fault.RESET_AFTER:
                _reset(self._to_client)
                return
            elif rule is not None and fault is Fault.HOLD_REPLY:
                await rule.gone()
            elif rule is not None and fault is Fault.HOLD_HALF:
                half = len(frame) // 2
                self._to_client.write(frame[:half])
                await rule.gone()
                frame = frame[half:]
            elif rule is not None and fault is Fault.SWAP_REPLY:
                frame = await rule.swap(frame)
            elif rule is not None and fault is Fault.PUSH:
                frame = rule.says + frame
            if self._proxy.slow:
                await asyncio.sleep(self._proxy.slow)
            if not self._silent and self.forgotten is None:
                self._to_client.write(frame)

    async def _pass_through(self) -> None:
        """Both ways, until one of them closes it: a subscriber is told without asking."""
        await self._answers.join()

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                if target is self._to_client and (self._proxy.deaf or self.forgotten):
                    continue
                if self.forgotten is Fault.RESET_BEFORE:
                    _reset(self._to_client)
                    return
                if self.forgotten:
                    continue
                if target is self._to_client:
                    await asyncio.sleep(self._proxy.dice.uniform(*self._proxy.late))
                for _ in range(1 + (target is self._to_client and self._proxy.doubles)):
                    target.write(data)
                await target.drain()

        ways = [
            asyncio.ensure_future(copy(self._from_client, self._to_server)),
            asyncio.ensure_future(copy(self._from_server, self._to_client)),
        ]
        self._proxy.subscribers.add(self._to_client)
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._proxy.subscribers.discard(self._to_client)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close it with a reset."""
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def pushed(*words: str | int) -> bytes:
    """A push as a server sends it."""
    each = [f":{word}" if isinstance(word, int) else f"+{word}" for word in words]
    return "\r\n".join([f">{len(words)}", *each, ""]).encode()


async def read_command(reader: asyncio.StreamReader) -> tuple[bytes, list[bytes]]:
    """The next command as it came, and its words."""
    frame = await reader.readuntil(b"\r\n")
    words = []
    for _ in range(int(frame[1:])):
        head = await reader.readuntil(b"\r\n")
        body = await reader.readexactly(int(head[1:]) + 2)
        frame += head + body
        words.append(body[:-2])
    return frame, words


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """The next answer as it came, of RESP2 or RESP3."""
    frame = await reader.readuntil(b"\r\n")
    kind, number = frame[:1], frame[1:-2]
    if kind in b"$=!" and number != b"-1":
        frame += await reader.readexactly(int(number) + 2)
    elif kind in b"*~>%":
        parts = max(0, int(number)) * (2 if kind == b"%" else 1)
        for _ in range(parts):
            frame += await read_answer(reader)
    return frame
