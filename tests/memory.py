"""The mutex's server in plain Python: what lua/mutex_*.lua say, on a clock that tests move.

It exists so that a primitive can be stepped through one command at a time, in every order.
That it says the same as the Lua is itself tested, in test_memory.py.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

CLAIM_WINDOW = 1.0
SIGN_OF_LIFE = 5.0
MINUTE = 60.0


@dataclass
class _Name:
    """All that the server knows of one name."""

    value: bytes | None = None
    expires: float = float("inf")
    queue: dict[str, int] = field(default_factory=dict)
    waiters: dict[str, tuple[float, int, str, str, str]] = field(default_factory=dict)
    fence: int = 0
    released: str = ""
    gone: dict[str, bytes] = field(default_factory=dict)

    def leave_queue(self, token: str) -> None:
        self.queue.pop(token, None)
        self.waiters.pop(token, None)


def _token(value: bytes | None) -> str | None:
    return None if value is None else value[:32].decode()


class MemoryServer:
    """Redis, as far as the mutex is concerned. `time` is in seconds."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0
        self.names: dict[str, _Name] = {}
        self.index: dict[str, float] = {}
        self.listening: dict[str, Callable[[str], object]] = {}
        """Who is told: channel → function of the token."""

    def call(self, script: str, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        """Run a script, with the answer that redis-py would give."""
        if script == "mutex_extend":
            return self._extend(keys, args)
        if script == "mutex_holder":
            return self._holder(keys[0])
        return getattr(self, script.removeprefix("mutex"))(self._name(keys[0]), *args)

    def _now(self) -> int:
        return round(self.time * 1e6)

    def _name(self, lock: str) -> _Name:
        name = self.names.setdefault(lock, _Name())
        if self.time >= name.expires:
            name.value, name.expires = None, float("inf")
        return name

    def _grant(
        self, name: _Name, key: str, token: str, ttl: int, lives: float, owner: str, label: str
    ) -> str:
        name.fence = max(self._now(), name.fence + 1)
        name.value = f"{token}|{name.fence}|{self._now()}|{ttl}|{owner}|{label}".encode()
        name.expires = self.time + lives
        self.index[key] = name.expires
        return str(name.fence)

    def _hand_over(self, name: _Name, key: str, caller: str | None = None) -> str | None:
        while name.queue:
            first = min(name.queue, key=lambda token: (name.queue[token], token))
            if first == caller:
                return first
            waiter = name.waiters.get(first)
            name.leave_queue(first)
            if waiter is None:
                continue
            seen, ttl, inbox, owner, label = waiter
            if self.time - seen < SIGN_OF_LIFE and inbox in self.listening:
                self._grant(name, key, first, ttl, CLAIM_WINDOW, owner, label)
                self.listening[inbox](first)
                return first
        return None

    def _acquire(
        self,
        name: _Name,
        token: str,
        key: str,
        ttl: int,
        owner: str,
        label: str,
        inbox: str,
        ticket: str,
    ) -> list[Any]:
        if _token(name.value) == token:
            assert name.value is not None
            name.expires = self.index[key] = self.time + ttl / 1000
            _, fence, acquired, *_ = name.value.split(b"|")
            return [1, fence, acquired]
        if token in name.gone:
            return [-1, name.gone[token]]
        place = ticket or str(self._now())
        if inbox:
            name.queue.setdefault(token, int(place))
            name.waiters[token] = self.time, ttl, inbox, owner, label
        if name.value is None and self._hand_over(name, key, token) in (None, token):
            name.leave_queue(token)
            fence = self._grant(name, key, token, ttl, ttl / 1000, owner, label)
            return [1, fence.encode(), str(self._now()).encode()]
        before = sorted(name.queue, key=lambda waiting: (name.queue[waiting], waiting))
        position = before.index(token) if token in before else len(before)
        if not inbox:
            name.leave_queue(token)
        pttl = -1 if name.expires == float("inf") else round((name.expires - self.time) * 1000)
        now = str(self._now()).encode()
        return [0, name.value, pttl, now, position, (place if inbox else ticket).encode()]

    def _release(self, name: _Name, token: str, key: str, withdraw: int) -> list[Any]:
        why = name.gone.get(token)
        held = _token(name.value) == token
        if held:
            name.value, name.released = None, token
            if self._hand_over(name, key) is None:
                self.index.pop(key, None)
        else:
            name.leave_queue(token)
        if withdraw and why is None:
            name.gone[token] = b"withdrawn"
        return [1] if held or name.released == token else [0, name.value, why]

    def _clear(self, name: _Name, token: str, key: str, by: str, reason: str) -> int:
        if name.value is None or _token(name.value) != token:
            return 0
        name.value = None
        name.gone[token] = f"cleared|{by}|{reason}".encode()
        if self._hand_over(name, key) is None:
            self.index.pop(key, None)
        return 1

    def _extend(self, keys: Sequence[str], args: Sequence[str | int]) -> list[list[Any]]:
        replies: list[list[Any]] = []
        for lock, token, key, ttl in zip(
            keys[:-1:2], args[0::3], args[1::3], args[2::3], strict=True
        ):
            name = self._name(lock)
            if _token(name.value) == token:
                assert name.value is not None
                fields = name.value.split(b"|", 5)
                name.value = b"|".join([*fields[:3], str(ttl).encode(), *fields[4:]])
                name.expires = self.index[str(key)] = self.time + int(ttl) / 1000
                replies.append([1])
            else:
                replies.append([0, name.value, name.gone.get(str(token))])
        return replies

    def _holder(self, lock: str) -> list[Any] | None:
        name = self._name(lock)
        if name.value is None:
            return None
        return [name.value, round((name.expires - self.time) * 1000), str(self._now()).encode()]


class Pause:
    """An await at which the test decides who goes on."""

    def __init__(self, at: str) -> None:
        self.at = at

    def __await__(self) -> Generator[Pause, None, None]:
        yield self


class SteppedIO:
    """A port that stops before each command is carried out, and again before its answer."""

    def __init__(self, server: MemoryServer, inbox: str = "inbox") -> None:
        self.server = server
        self.inbox = inbox
        self.wake_at: float | None = None
        """While it waits: until when."""
        self.told: set[str] = set()
        self._token = ""
        server.listening[inbox] = self.told.add

    def now(self) -> float:
        return self.server.time

    async def script(self, name: str, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        await Pause(f"send {name}")
        answer = self.server.call(name, keys, args)
        await Pause(f"answer {name}")
        return answer

    async def sleep(self, seconds: float) -> None:
        await self._until(self.server.time + seconds)

    async def listen(self, token: str, *, within: float) -> str:
        self._token = token
        return self.inbox

    async def wait(self, seconds: float) -> None:
        await self._until(self.server.time + seconds)
        self.told.discard(self._token)

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

    async def finish(self, coroutine: Coroutine[Any, Any, object]) -> None:
        await coroutine


class Actor:
    """A coroutine on a `SteppedIO` that is run from pause to pause."""

    def __init__(self, name: str, io: SteppedIO, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.name = name
        self.io = io
        self.done = False
        self.result: Any = None
        self._coroutine = coroutine

    def step(self) -> None:
        """Run to the next pause."""
        try:
            self._coroutine.send(None)
        except StopIteration as stop:
            self.done, self.result = True, stop.value

    def kill(self) -> None:
        """As SIGKILL does: nothing more is sent, and its inbox is closed."""
        self.done = True
        self.io.server.listening.pop(self.io.inbox, None)
        self._coroutine.close()
