"""A proxy that shards its keys over plain Redis servers, as managed services do.

    with Sharding() as sharding:
        sharding.url

It knows no CLUSTER, and refuses scripts whose keys are in several slots. A SCAN goes through all
shards, and a script without keys to one of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self

from redis import Redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from devtools.redis_server import RedisServer
from tests.faults.proxy import Streams, read_answer, read_command
from tests.waiting import PATIENCE

SHARDS = 2

AZURE = (
    "CROSSSLOT Keys in request don't hash to the same slot (context='', command='eval', "
    "original-slot='1', wrong-slot='2', first-key='a', violating-key='b')"
)
ALIBABA = "ERR 'EVAL' command keys must in same slot"
"""How services refuse a script."""

ANYWHERE = {"CLIENT", "INFO", "PING", "PUBLISH", "PUBSUB", "SELECT", "TIME"}


class Sharding:
    def __init__(self) -> None:
        self.refusal = AZURE
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._shards: list[RedisServer] = []
        self._exit = ExitStack()
        self._broken: int | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        """The loop has only weak references to them."""

    def __enter__(self) -> Self:
        self._shards = [self._exit.enter_context(RedisServer()) for _ in range(SHARDS)]
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(PATIENCE)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._exit.close()

    def keys(self) -> list[int]:
        """The number of keys in each shard."""
        found = []
        for shard in self._shards:
            with Redis.from_url(shard.url) as client:
                found.append(client.dbsize())
        return found

    def flush(self) -> None:
        for shard in self._shards:
            with Redis.from_url(shard.url) as client:
                client.flushall()

    def shard_of(self, name: str) -> int:
        """The number of the shard that has the lock of a name."""
        return _shard(key_slot(f"redislock:{{{name}}}".encode()))

    @contextmanager
    def broken(self, number: int) -> Iterator[None]:
        """One shard answers an error to everything."""
        self._broken = number
        try:
            yield
        finally:
            self._broken = None

    @contextmanager
    def silent(self, number: int) -> Iterator[None]:
        """One shard answers nothing."""
        self._shards[number].pause()
        try:
            yield
        finally:
            self._shards[number].resume()

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        listener = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        )
        self.url = f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        ready.set()
        self._loop.run_forever()
        listener.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shards = _Connections(self._shards)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    frame, words = await read_command(reader)
                    if words[0].upper() == b"SUBSCRIBE":
                        await self._subscribed(frame, reader, writer, shards)
                        return
                    writer.write(await self._answer(frame, words, shards))
        except asyncio.CancelledError:
            pass
        finally:
            shards.close()
            writer.close()
            self._tasks.discard(task)

    async def _answer(self, frame: bytes, words: list[bytes], shards: _Connections) -> bytes:
        command = words[0].decode().upper()
        if command in ("EVAL", "EVALSHA"):
            slots = {key_slot(key) for key in words[3 : 3 + int(words[2])]}
            if len(slots) > 1:
                return f"-{self.refusal}\r\n".encode()
            shard = _shard(min(slots, default=0))
            if shard == self._broken:
                return b"-CLUSTERDOWN The shard is down\r\n"
            return await shards.ask(shard, frame)
        if command == "SCAN":
            return await _scan(words, shards)
        if command == "HELLO":  # it decides on the protocol
            shards.hello = frame
            return await shards.ask(0, frame)
        if command in ANYWHERE:
            return await shards.ask(0, frame)
        if len(words) < 2 or command in ("CLUSTER", "CONFIG"):
            return f"-ERR unknown command '{command}'\r\n".encode()
        return await shards.ask(_shard(key_slot(words[1])), frame)

    async def _subscribed(
        self,
        frame: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        shards: _Connections,
    ) -> None:
        """A message may be published in each shard. Other answers are the first one's."""

        async def listen(number: int) -> None:
            while answer := await read_answer(streams[number][0]):
                if number == 0 or b"\r\nmessage\r\n" in answer:
                    writer.write(answer)

        streams = [await shards.open(number) for number in range(SHARDS)]
        listening = [asyncio.ensure_future(listen(number)) for number in range(SHARDS)]
        try:
            while True:
                for _, to_shard in streams:
                    to_shard.write(frame)
                frame, _ = await read_command(reader)
        finally:
            for one in listening:
                one.cancel()
            await asyncio.gather(*listening, return_exceptions=True)


def _shard(slot: int) -> int:
    return slot * SHARDS // REDIS_CLUSTER_HASH_SLOTS


class _Connections:
    """The connections to the shards for one client, which are opened when they are needed."""

    hello = b""

    def __init__(self, shards: list[RedisServer]) -> None:
        self._shards = shards
        self._open: dict[int, Streams] = {}

    async def open(self, number: int) -> Streams:
        if number not in self._open:
            path = self._shards[number].url.removeprefix("unix://").partition("?")[0]
            self._open[number] = await asyncio.open_unix_connection(path)
            if self.hello:
                await self.ask(number, self.hello)
        return self._open[number]

    async def ask(self, number: int, frame: bytes) -> bytes:
        from_shard, to_shard = await self.open(number)
        to_shard.write(frame)
        return await read_answer(from_shard)

    def close(self) -> None:
        for _, to_shard in self._open.values():
            to_shard.close()


async def _scan(words: list[bytes], shards: _Connections) -> bytes:
    """A cursor of ours has the number of its shard."""
    cursor, number = divmod(int(words[1]), SHARDS)
    answer = await shards.ask(number, _packed([words[0], b"%d" % cursor, *words[2:]]))
    head, _, rest = answer.partition(b"\r\n")  # an array of the cursor and the keys
    _, its, keys = rest.split(b"\r\n", 2)
    following = int(its) * SHARDS + number if int(its) else (number + 1) % SHARDS
    text = b"%d" % following
    return b"%b\r\n$%d\r\n%b\r\n%b" % (head, len(text), text, keys)


def _packed(words: list[Any]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)
