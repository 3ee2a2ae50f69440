"""A Redis in memory, on a clock that tests move, which runs the real scripts of the mutex.

It exists so that a primitive can be stepped through one command at a time, in every order.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import cache, partial
from typing import Any

from lupa.lua51 import LuaRuntime

from django_redislock.primitives import queued, scripts
from django_redislock.primitives.contract import Grant, Handed, Packed, Request, Wakeup
from django_redislock.primitives.keys import Keys

CLAIM_WINDOW = 1.0
"""Seconds that a waiter has to confirm a lock that was handed to it."""
SIGN_OF_LIFE = 5.0

lua = LuaRuntime(unpack_returned_tuples=True)


@cache
def compiled(source: str) -> Any:
    return lua.eval(f"function(KEYS, ARGV, redis) {source}\nend")


def _answer(value: Any) -> Any:
    """What a client of Redis reads when a script returns this."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return 1 if value else None
    if isinstance(value, int | float):
        return int(value)
    items: list[Any] = []
    while value and (item := value[len(items) + 1]) is not None:
        items.append(_answer(item))
    return items if value is not None else None


class MemoryServer:
    """Redis, as far as the mutex needs it. `time` is in seconds."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0
        """The time that passes, for everybody alike."""
        self.ahead = 0.0
        """By how much the server's clock differs from it, which somebody may set. It gives the
        fencing tokens and the places in the queue, and every TTL ends by it."""
        self.plain = True
        """Whether it may be asked by short requests."""
        self.data: dict[str, Any] = {}
        """By key: a text, a list of texts, or a dict, which is a hash or a sorted set."""
        self.ends: dict[str, float] = {}
        """By key: when its TTL ends, by the server's clock."""
        self.listening: dict[str, Callable[[str], object]] = {}
        """Who is told: channel → function of the message."""
        self.random = random.Random(0)
        """Its own: from Python's, which Hypothesis seeds, other threads draw, too. One that an
        earlier test has left, and that finds no sentinel any more, does so in redis-py."""
        self._redis = lua.table_from({"call": self.command, "pcall": self.command})

    def call(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script, with the answer that the port would give."""
        words = [its.decode() if isinstance(its, bytes) else str(its) for its in args]
        run = compiled(scripts.load(script).source)
        answer = run(lua.table_from(keys), lua.table_from(words), self._redis)
        if not isinstance(answer, str):
            return _answer(answer[2])
        _, at_once, number = answer.partition("|")
        return [1, int(number)] if at_once else [1]

    def flush(self) -> None:
        """FLUSHDB, as django-redis' cache.clear() does it. Who listens goes on listening."""
        self.data.clear()
        self.ends.clear()

    @property
    def clock(self) -> float:
        return self.time + self.ahead

    def at(self, key: str) -> Any:
        """What is at a key, or None."""
        if key in self.ends and self.clock >= self.ends[key]:
            del self.data[key], self.ends[key]
        return self.data.get(key)

    def command(self, name: str, *args: Any) -> Any:
        """Carry out a command of a script."""
        its = COMMANDS[name](self, *args)
        return lua.table_from(its) if isinstance(its, list) else False if its is None else its

    def _time(self) -> list[str]:
        now = str(round(self.clock * 1e6))
        return [now[:-6], now[-6:]]

    def _keep(self, key: str, its: Any) -> None:
        """What is empty is gone."""
        if its:
            self.data[key] = its
        else:
            self._del(key)

    def _get(self, key: str) -> Any:
        return self.at(key)

    def _getrange(self, key: str, first: str, last: str) -> str:
        return (self.at(key) or "")[int(first) : int(last) + 1]

    def _set(self, key: str, value: str, *how: str) -> Any:
        old = self.at(key)
        self.data[key] = value
        if "KEEPTTL" not in how:
            self.ends.pop(key, None)
        if "PX" in how:
            self._pexpire(key, how[-1])
        return old if "GET" in how else True

    def _setrange(self, key: str, at: str, text: str) -> None:
        value = self.data[key]
        self.data[key] = value[: int(at)] + text + value[int(at) + len(text) :]

    def _del(self, *keys: str) -> None:
        for key in keys:
            self.data.pop(key, None)
            self.ends.pop(key, None)

    def _exists(self, *keys: str) -> int:
        return sum(self.at(key) is not None for key in keys)

    def _pexpire(self, key: str, millis: str) -> None:
        if self.at(key) is not None:
            self.ends[key] = self.clock + float(millis) / 1000

    def _pttl(self, key: str) -> int:
        if self.at(key) is None:
            return -2
        return round((self.ends[key] - self.clock) * 1000) if key in self.ends else -1

    # Hashes and sorted sets.

    def _hget(self, key: str, field: str) -> Any:
        return (self.at(key) or {}).get(field)

    def _hset(self, key: str, *pairs: str) -> None:
        its = dict(zip(pairs[::2], pairs[1::2], strict=True))
        self._keep(key, {**(self.at(key) or {}), **its})

    def _hdel(self, key: str, *fields: str) -> None:
        its = self.at(key) or {}
        self._keep(key, {field: its[field] for field in its if field not in fields})

    _zrem = _hdel

    def _zadd(self, key: str, *pairs: str) -> int:
        its, lower = self.at(key) or {}, pairs[0] == "LT"
        before = len(its)
        for score, member in zip(pairs[lower::2], pairs[lower + 1 :: 2], strict=True):
            its[member] = min(float(score), its.get(member, math.inf)) if lower else float(score)
        self._keep(key, its)
        return len(its) - before

    def _zscore(self, key: str, member: str) -> str | None:
        score = (self.at(key) or {}).get(member)
        return None if score is None else f"{score:.17g}"

    def _zcard(self, key: str) -> int:
        return len(self.at(key) or ())

    def _order(self, key: str) -> list[tuple[float, str]]:
        return sorted((score, member) for member, score in (self.at(key) or {}).items())

    def _zrange(self, key: str, first: str, last: str, *scores: str) -> list[str]:
        """One member: the first or the last one."""
        found = [(member, f"{score:.17g}") for score, member in self._order(key)[int(first) :][:1]]
        return [its for one in found for its in one[: 1 + len(scores)]]

    def _zrank(self, key: str, member: str) -> int | None:
        order = [its for _, its in self._order(key)]
        return order.index(member) if member in order else None

    def _zcount(self, key: str, least: str, most: str) -> int:
        return sum(score <= float(most) for score in (self.at(key) or {}).values())

    def _zremrangebyrank(self, key: str, first: str, last: str) -> None:
        self._hdel(key, *(member for _, member in self._order(key)[: int(last) + 1]))

    # Lists.

    def _lrange(self, key: str, first: str, last: str) -> list[str]:
        return (self.at(key) or [])[int(first) : int(last) + 1]

    def _lindex(self, key: str, at: str) -> str | None:
        return next(iter(self._lrange(key, at, at)), None)

    def _lset(self, key: str, at: str, text: str) -> None:
        self.data[key][int(at)] = text

    def _lpush(self, key: str, text: str) -> None:
        self.data[key] = [text, *(self.at(key) or [])]

    def _lpop(self, key: str) -> None:
        self._keep(key, self.data[key][1:])

    def _ltrim(self, key: str, first: str, last: str) -> None:
        self._keep(key, self._lrange(key, first, last))

    # Messages.

    def _pubsub(self, what: str, channel: str) -> list[Any]:
        return [channel, int(channel in self.listening)]

    def _publish(self, channel: str, message: str) -> None:
        self.listening.get(channel, str)(message)

    _spublish = _publish


COMMANDS = {name[1:].upper(): its for name, its in vars(MemoryServer).items() if callable(its)}
"""Each is a method of the server. Its arguments are texts, and numbers where Lua has these."""


class Pause:
    """An await at which the test decides who goes on."""

    def __init__(self, at: str) -> None:
        self.at = at

    def __await__(self) -> Generator[Pause, None, None]:
        yield self


class SteppedIO:
    """A port that stops before each command is carried out, and again before its answer."""

    def plain(self, keys: Keys) -> bool:
        return self.server.plain

    def busy(self, keys: Keys) -> None:
        pass

    def packed(self, request: Request) -> Packed:
        return request, None

    def __init__(self, server: MemoryServer, inbox: str = "inbox:1") -> None:
        self.server = server
        self.inbox = inbox
        self.wake_at: float | None = None
        """While it waits: until when."""
        self.wakeup: Wakeup = ""
        self.told: set[str] = set()
        self.granted: Grant | Handed | None = None
        self.request: Callable[[], Any] | None = None
        """What was sent and is not carried out yet."""
        self._token = ""
        self.neighbours: list[SteppedIO] = []
        """Of the same process, and with the same inbox."""
        server.listening[inbox] = self.tell

    def uniform(self, low: float, high: float) -> float:
        return self.server.random.uniform(low, high)

    def now(self) -> float:
        return self.server.time

    async def script(self, name: str, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        self.request = partial(self.server.call, name, keys, args)
        await Pause(f"send {name}")
        answer, self.request = self.request(), None
        await Pause(f"answer {name}")
        return answer

    def limit(self, left: float) -> None:
        pass

    def slots(self, keys: Sequence[str]) -> Sequence[int]:
        return [0] * len(keys)

    async def sleep(self, seconds: float) -> None:
        await self._until(self.server.time + seconds)

    async def listen(self, token: str, *, within: float, keys: Sequence[Keys]) -> str:
        self._token = token
        return self.inbox

    def tell(self, message: str, since: float = 0.0) -> None:
        """Wake the waiter if the message is for it, which came over a connection of then."""
        token, handed = queued.read_message(message, since)
        if token == self._token:
            self.told.add(token)
            self.granted = handed or self.granted

    async def wait(
        self, seconds: float, left: float = 0.0, *, rest: float = 0.0, away: bool = False
    ) -> Grant | Handed | None:
        await self._until(self.server.time + seconds)
        self.wakeup = "message" if self._token in self.told else "poll"
        self.told.discard(self._token)
        grant, self.granted = self.granted, None
        return grant

    def own_inbox(self, keys: Keys) -> str:
        return self.inbox if self.neighbours else ""

    def wake_neighbours(self, keys: Keys) -> None:
        for other in self.neighbours:
            other.told.add(other._token)

    async def hand_over(self, grants: Sequence[tuple[str, Grant]]) -> None:
        for token, grant in grants:
            for other in self.neighbours:
                if other._token == token:
                    other.granted = grant
                    other.told.add(token)

    async def _until(self, time: float) -> None:
        self.wake_at = time
        await Pause("wait")
        self.wake_at = None

    def runnable(self) -> bool:
        """Not asleep, or told that it has the lock, or its time has come."""
        return (
            self.wake_at is None
            or self._token in self.told
            or self.server.time >= self.wake_at - 1e-9
        )

    def unlisten(self) -> None:
        self._token = ""


class Actor:
    """A coroutine on a `SteppedIO` that is run from pause to pause."""

    def __init__(self, name: str, port: SteppedIO, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.name = name
        self.io = port
        self.done = False
        self.result: Any = None
        self.at = ""
        """The pause that it came to."""
        self._coroutine = coroutine

    def step(self) -> None:
        """Run to the next pause."""
        self._run(self._coroutine.send, None)

    def throw(self, error: BaseException) -> None:
        """Run to the next pause after `error`, which is what this one ends with."""
        self._run(self._coroutine.throw, error)

    def _run(self, resume: Callable[[Any], Pause], what: BaseException | None) -> None:
        try:
            self.at = resume(what).at
        except StopIteration as stop:
            self.done, self.result, self.at = True, stop.value, ""

    def kill(self) -> None:
        """As SIGKILL does: nothing more is sent, and its inbox is closed."""
        self.done = True
        self.io.server.listening.pop(self.io.inbox, None)
        self._coroutine.close()
