"""The server of mutex and record in plain Python: what their Lua says, on a clock that tests move.

It exists so that a primitive can be stepped through one command at a time, in every order.
That it says the same as the Lua is itself tested, in test_memory.py.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django_redislock.primitives import queued
from django_redislock.primitives.contract import Grant, Handed, Wakeup
from django_redislock.primitives.keys import Keys
from django_redislock.primitives.waiting import DEAF

CLAIM_WINDOW = 1.0
"""Seconds that a waiter has to confirm a lock that was handed to it."""
SIGN_OF_LIFE = 5.0
MINUTE = 60.0
HOLDERS = 6
A_SECOND = 1_000_000
"""µs after which a holder is written down."""


@dataclass
class _Name:
    """All that the server knows of one name."""

    value: bytes | None = None
    expires: float = float("inf")
    queue: dict[str, int] = field(default_factory=dict)
    waiters: dict[str, tuple[float, int, str, str]] = field(default_factory=dict)
    """Token → when it was seen, ttl, inbox, and what it says of itself."""
    queue_expires: float = float("inf")
    """Of queue and waiters."""
    history: list[tuple[str, int | None]] = field(default_factory=list)
    """The last holders that are written down, the newest first: token, and for how long it held
    the lock, in µs."""
    gone: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    """Token → why, and until when that is known."""

    def expire(self, now: float) -> None:
        """Forget what has run out."""
        if now >= self.expires:
            self.value, self.expires = None, float("inf")
        if now >= self.queue_expires:
            self.queue.clear()
            self.waiters.clear()
            self.queue_expires = float("inf")
        for token in [token for token, (_, until) in self.gone.items() if now >= until]:
            del self.gone[token]

    def why(self, token: str) -> bytes | None:
        return self.gone[token][0] if token in self.gone else None

    def leave_queue(self, token: str) -> None:
        self.queue.pop(token, None)
        self.waiters.pop(token, None)

    def mark(self, mark: str) -> None:
        assert self.value is not None
        self.value = self.value[:32] + mark.encode() + self.value[33:]

    def write_down(self, token: str, lasted: int | None = None) -> None:
        if self.history and self.history[0][0] == token:
            self.history.pop(0)
        self.history = [(token, lasted), *self.history[: HOLDERS - 1]]


def _token(value: bytes | None) -> str | None:
    return None if value is None else value[:32].decode()


def _mark(value: bytes) -> str:
    return value[32:33].decode()


def _fields(value: bytes) -> list[bytes]:
    """Fencing token, time of acquiring, ttl, owner and label."""
    fence, acquired_us, *more = value[33:].split(b"|", 3)
    return [fence, acquired_us or fence, *more]


def _value_of(start: str, *fields: str) -> bytes:
    """The value of a token with its mark, and of these fields."""
    fence, acquired_us, *more = fields
    return (start + "|".join([fence, "" if acquired_us == fence else acquired_us, *more])).encode()


def understands(inbox: str) -> bool:
    """Whether a message to it may say for how long the lock is handed over."""
    return re.search(r"m[0-9a-f]+$", inbox) is not None


def _outlives(ttl: float) -> float:
    return max(MINUTE, 3 * ttl)


class MemoryServer:
    """Redis, as far as the mutex is concerned. `time` is in seconds."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0
        """The time that passes, for everybody alike."""
        self.ahead = 0.0
        """By how much the server's clock differs from it, which somebody may set. It gives the
        fencing tokens and the places in the queue, and every TTL ends by it."""
        self.plain = True
        """Whether it may be asked by short requests."""
        self.fence: int | None = None
        """The last fencing token that was given."""
        self.guard: int | None = None
        """The time since which nothing was forgotten, in µs, by the server's clock."""
        self.restored = False
        """A renewal has said which one it was."""
        self.names: dict[str, _Name] = {}
        """By the key of the lock, as the index."""
        self.index: dict[str, float] = {}
        self.records: dict[str, bytes] = {}
        """By key; here they have no TTL."""
        self.listening: dict[str, Callable[[str], object]] = {}
        """Who is told: channel → function of the message."""
        self.own_inbox = ""
        """During a release: the inbox of the process that asks."""
        self.granted: list[bytes] = []
        """And its waiters that have got the lock by it, each with its fencing token."""
        self.random = random.Random(0)
        """Its own: from Python's, which Hypothesis seeds, other threads draw, too. One that an
        earlier test has left, and that finds no sentinel any more, does so in redis-py."""

    def call(self, script: str, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        """Run a script, with the answer that the port would give."""
        match script:
            case "mutex_extend":
                return self._extend(keys, args)
            case "mutex_put_back":
                return self._put_back(keys, args)
            case "mutex_write_down":
                return self._write_down(keys, args)
            case "mutex_holder":
                return self._holder(keys[0])
            case "mutex_take":
                token, ttl, says = args
                return self._take(keys, token, int(ttl), says)
            case "mutex_drop":
                return self._drop(keys, *args)
            case "server_time":
                return str(self._now()).encode()
            case "record_get":
                return self.records.get(keys[0])
            case "record_write":
                return self._write(keys[0], self._name(keys[1]), *args)
        without_notes = {"mutex_acquire": 5, "mutex_acquire_guarded": 5, "mutex_release": 3}
        args = args[: without_notes.get(script)]
        return getattr(self, script.removeprefix("mutex"))(self._name(keys[0]), keys[0], *args)

    def flush(self) -> None:
        """FLUSHDB, as django-redis' cache.clear() does it. Who listens goes on listening."""
        self.names.clear()
        self.index.clear()
        self.records.clear()
        self.fence = self.guard = None

    @property
    def clock(self) -> float:
        return self.time + self.ahead

    def _now(self) -> int:
        return round(self.clock * 1e6)

    def _name(self, lock: str) -> _Name:
        name = self.names.setdefault(lock, _Name())
        name.expire(self.clock)
        return name

    def _grant(
        self, name: _Name, key: str, token: str, ttl: int, lives: float, says: str, mark: str
    ) -> str:
        self.fence, self.restored = max(self._now(), (self.fence or 0) + 1), False
        name.value = _value_of(token + mark, str(self.fence), str(self._now()), str(ttl), says)
        name.expires = self.clock + lives
        if mark != "|":
            self.index[key] = name.expires
        return str(self.fence)

    def _hand_over(self, name: _Name, key: str, caller: str | None = None) -> str | None:
        unseen: tuple[Any, ...] | None = None
        while name.queue:
            first = min(name.queue, key=lambda token: (name.queue[token], token))
            if first == caller:
                return first
            waiter = name.waiters.get(first)
            name.leave_queue(first)
            if waiter is None:
                continue
            seen, ttl, inbox, says = waiter
            own = inbox == self.own_inbox and inbox in self.listening
            if own and self.clock - seen < SIGN_OF_LIFE:
                fence = self._grant(name, key, first, ttl, ttl / 1000, says, "+")
                self.granted += first.encode(), fence.encode()
                return first
            told = self.listening.get(inbox)
            since = self._now() - round(seen * 1e6)
            if told is not None and understands(inbox) and 0 <= since < CLAIM_WINDOW * 1e6:
                lives = min(ttl, (round(SIGN_OF_LIFE * 1e6) - since) // 1000)
                fence = self._grant(name, key, first, ttl, lives / 1000, says, "+")
                told(f"{first}|{fence}|{self._now()}|{lives}")
                return first
            if told is not None:
                told(first)
            if told is not None or inbox == DEAF:
                if self.clock - seen < SIGN_OF_LIFE:
                    return self._hand(name, key, first, ttl, says)
                unseen = unseen or (first, ttl, says)
        return self._hand(name, key, *unseen) if unseen else None

    def _hand(self, name: _Name, key: str, to: str, ttl: int, says: str) -> str:
        self._grant(name, key, to, ttl, CLAIM_WINDOW, says, "?")
        return to

    def _acquire(
        self, name: _Name, key: str, token: str, ttl: int, says: str, inbox: str, ticket: str
    ) -> list[Any]:
        if _token(name.value) == token:
            assert name.value is not None
            mark = _mark(name.value)
            if mark == "?" or not self.clock + ttl / 1000 < name.expires < float("inf"):
                name.expires = self.clock + ttl / 1000
                if mark != "|":
                    self.index[key] = name.expires
            if mark == "?":
                name.mark("+")
            fence, acquired_us, *_ = _fields(name.value)
            return [1, acquired_us, fence]
        if token in name.gone:
            return [-1, name.why(token), 1]
        if name.value is None and not name.queue:
            return self._granted(name, key, token, ttl, says, "|")
        place = ticket or str(max([self._now(), *(last + 1 for last in name.queue.values())]))
        if inbox:
            name.queue[token] = min(name.queue.get(token, int(place)), int(place))
            place = str(name.queue[token])
            name.waiters[token] = self.clock, ttl, inbox, says
            name.queue_expires = self.clock + MINUTE
        if name.value is None and self._hand_over(name, key, token) in (None, token):
            name.leave_queue(token)
            return self._granted(name, key, token, ttl, says, "+")
        assert name.value is not None
        pttl = -1 if name.expires == float("inf") else round((name.expires - self.clock) * 1000)
        value = name.value
        if inbox and _mark(value) == "|":
            name.mark("+")
            self.index[key] = self.clock + max(0, pttl) / 1000
        before = sorted(name.queue, key=lambda waiting: (name.queue[waiting], waiting))
        position = before.index(token) if token in before else len(before)
        if not inbox:
            name.leave_queue(token)
        times = [time for _, time in name.history[:2] if time is not None]
        lasted = str(times[0]).encode() if times and not inbox else None
        now = str(self._now()).encode()
        return [0, value, pttl, now, position, place.encode(), lasted, 1]

    def _granted(
        self, name: _Name, key: str, token: str, ttl: int, says: str, mark: str
    ) -> list[Any]:
        fence = self._grant(name, key, token, ttl, ttl / 1000, says, mark)
        return [1, str(self._now()).encode(), fence.encode()]

    def _take(self, keys: Sequence[str], token: str, ttl: int, says: str) -> list[Any] | None:
        name, behind = self._name(keys[0]), (self.fence or 0) >= self._now()
        if name.value is not None or name.queue or token in name.gone or behind:
            return None
        if any(key in self.records for key in keys[3:-1]):
            return None
        return [1, int(self._grant(name, keys[0], token, ttl, ttl / 1000, says, "|"))]

    def _drop(self, keys: Sequence[str], token: str) -> list[Any] | None:
        name = self._name(keys[0])
        if name.value is None or name.value[:33] != f"{token}|".encode():
            return None
        name.value = None
        return [1, 1]

    def _acquire_guarded(
        self, name: _Name, key: str, token: str, ttl: int, says: str, inbox: str, ticket: str
    ) -> list[Any]:
        if name.value is None and token not in name.gone and (left := self._pause(ttl)):
            if not inbox:
                name.leave_queue(token)
            now = str(self._now())
            return [4, left, now.encode(), (ticket or now).encode()]
        return self._acquire(name, key, token, ttl, says, inbox, ticket)

    def _pause(self, ttl: int) -> int:
        """For how many more ms a lock with this ttl is given to nobody new."""
        if self.guard is None or self.guard > self._now():
            self.guard = self._now()
        return max(0, ttl - (self._now() - self.guard) // 1000)

    def _put_back(self, keys: Sequence[str], args: Sequence[str | int]) -> list[Any]:
        reply: list[Any] = [0]
        _, withdrawn, *leases = args
        put = zip(keys[:-3:2], leases[::3], leases[1::3], leases[2::3], strict=True)
        for position, (lock, text, lives, until) in enumerate(put, 1):
            name, value = self._name(lock), str(text).encode()
            fence, _, ttl, _ = _fields(value)
            token, ends = value[:32].decode(), self.clock + int(lives) / 1000
            why = name.why(token)
            if _token(name.value) == token:
                if name.expires == float("inf") or name.expires < ends:
                    name.expires = ends
                reply[0] = 1
            elif (
                name.value is not None
                or (why and not (withdrawn and why == b"withdrawn"))
                or self._now() >= int(until)
                or not self._pause(int(ttl))
            ):
                reply.append([position, name.value, why])
            else:
                name.value, name.expires = value, ends
                self.index[lock] = ends
                if int(fence) > (self.fence or 0):
                    self.fence, self.restored = int(fence), True
                reply[0] = 1
        return reply

    def _release(
        self, name: _Name, key: str, token: str, withdraw: int, own_inbox: str = ""
    ) -> list[Any]:
        self.own_inbox, self.granted = own_inbox, []
        value, why = name.value, name.why(token)
        held = _token(value) == token
        if held:
            assert value is not None
            name.value = None
            lasted = self._now() - int(_fields(value)[1])
            newest = bool(name.history) and name.history[0][0] == token
            if _mark(value) == "+" and (lasted >= A_SECOND or newest):
                name.write_down(token, lasted)
            if self._hand_over(name, key) is None and _mark(value) != "|":
                self.index.pop(key, None)
        else:
            name.leave_queue(token)
        if withdraw and why is None:
            name.gone[token] = b"withdrawn", self.clock + MINUTE
        self.own_inbox = ""
        if held:
            return [1, str(self._now()).encode(), self.granted] if self.granted else [1]
        return [0, name.value, why, 1]

    def _clear(self, name: _Name, key: str, _: str, by: str, reason: str, seen: str) -> int:
        value = name.value
        if value is None or _token(value) != seen:
            return 0
        _, acquired_us, ttl, _ = _fields(value)
        name.value = None
        if _mark(value) != "?":
            until = self.clock + _outlives(int(ttl) / 1000)
            name.gone[seen] = f"cleared|{by}|{reason}".encode(), until
            name.write_down(seen, self._now() - int(acquired_us))
        if self._hand_over(name, key) is None:
            self.index.pop(key, None)
        return 1

    def _extend(self, keys: Sequence[str], args: Sequence[str | int]) -> list[Any]:
        reply: list[Any] = [0]
        _, store, *leases = args
        number, newest = len(leases) // 2, 0
        held = zip(keys[:number], leases[::2], leases[1::2], strict=True)
        for position, (lock, token, ttl) in enumerate(held, 1):
            name = self._name(lock)
            if _token(name.value) == token:
                assert name.value is not None
                fence, acquired_us, _, says = _fields(name.value)
                if store:
                    words = [fence.decode(), acquired_us.decode(), str(ttl), says.decode()]
                    name.value = _value_of(name.value[:33].decode(), *words)
                lives = self.clock + int(ttl) / 1000
                if name.expires == float("inf") or name.expires < lives:
                    name.expires = lives
                    if _mark(name.value) != "|":
                        self.index[lock] = lives
                newest = max(newest, int(fence))
                reply[0] = 1
            else:
                why = name.why(str(token)) if len(keys) > number + 2 else None
                reply.append([position, name.value, why])
        if self.restored or self.fence is None:
            self.fence, self.restored = max(newest, self.fence or 0) or None, True
        return reply

    def _write_down(self, keys: Sequence[str], args: Sequence[str | int]) -> int:
        written = 0
        for lock, token in zip(keys[:-1:2], args[1:], strict=True):
            name = self._name(lock)
            if _token(name.value) == token and name.value and _mark(name.value) != "?":
                name.mark("+")
                name.write_down(str(token))
                self.index[lock] = min(name.expires, 1e12)
                written += 1
        return written

    def _adopt(
        self, name: _Name, key: str, token: str, new_token: str, ttl: int, says: str
    ) -> list[Any]:
        if name.value is None or _token(name.value) not in (token, new_token):
            return [0, name.value, name.why(token)]
        fence, acquired_us, *_ = _fields(name.value)
        words = [fence.decode(), acquired_us.decode(), str(ttl), says]
        name.value = _value_of(f"{new_token}+", *words)
        lives = 0.0 if name.expires == float("inf") else name.expires
        name.expires = self.index[key] = max(lives, self.clock + ttl / 1000)
        if name.history and name.history[0][0] == token:
            name.history.pop(0)
        name.write_down(new_token)
        name.gone[token] = b"withdrawn", self.clock + MINUTE
        return [1, fence, acquired_us]

    def _write(
        self, record: str, name: _Name, token: str, value: bytes, ttl: int | str, held: int
    ) -> list[Any]:
        if _token(name.value) != token and (held or name.value or name.why(token)):
            return [0, name.value, name.why(token)]
        self.records[record] = value
        return [1]

    def _holder(self, lock: str) -> list[Any] | None:
        name = self._name(lock)
        if name.value is None:
            return None
        return [name.value, round((name.expires - self.clock) * 1000), str(self._now()).encode()]


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

    def __init__(self, server: MemoryServer, inbox: str = "inbox") -> None:
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

    def slot(self, key: str) -> int:
        return 0

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
        self, seconds: float, left: float = 0.0, *, rest: float = 0.0
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
