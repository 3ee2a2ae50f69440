"""A process of its own that holds or waits for a lock, and does what a scenario tells it."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from django_redislock.base.clock import now
from tests.waiting import PATIENCE

from .adapters import Held, NotOurs, Peer
from .forkserver import CONTEXT


class Answer(NamedTuple):
    value: Any
    at: float
    """When it was done, on the common clock."""
    error: str
    """The name of the exception, or ""."""


class Agent:
    def __init__(self, peer: type[Peer], url: str, timeout: float | None = None) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(
            target=serve, args=(theirs, peer, url, timeout), daemon=True
        )
        self.process.start()
        theirs.close()

    def begin(self, what: str, *arguments: object) -> None:
        """Tell it to do something, and don't wait."""
        self._pipe.send((what, arguments))

    def end(self, within: float = PATIENCE) -> Answer | None:
        """What came of it; None: nothing yet."""
        return Answer(*self._pipe.recv()) if self._pipe.poll(within) else None

    def do(self, what: str, *arguments: object) -> Answer:
        """Tell it to do something, and wait until it has."""
        self.begin(what, *arguments)
        answer = self.end()
        assert answer is not None, f"{what}() does not end"
        return answer

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.join()

    def close(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self._pipe.close()


# In that process.


def serve(pipe: Connection, peer: type[Peer], url: str, timeout: float | None) -> None:
    """Obey until the test is gone. Each answer is (what came of it, when, which error)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hands = Hands(peer(url, timeout=timeout))
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        result: Any = None
        failure = ""
        try:
            result = getattr(hands, method)(*arguments)
        except Exception as error:
            failure = type(error).__name__
        pipe.send((result, now(), failure))


class Hands:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._held: Held | None = None
        self._more: list[Held] = []

    @property
    def held(self) -> Held:
        assert self._held is not None
        return self._held

    def acquire(self, name: str, ttl: float, wait: float | None) -> bool:
        self._held = self._peer.acquire(name, ttl, wait)
        return self._held is not None

    def is_ours(self) -> bool:
        return self.held.is_ours()

    def extend(self) -> bool:
        self.held.extend()
        return True

    def release(self) -> bool:
        """False: the library says that it wasn't ours any more."""
        try:
            self.held.release()
        except NotOurs:
            return False
        return True

    def token(self) -> int | None:
        return self.held.fencing_token

    def turn(self, name: str, ttl: float, seconds: float) -> tuple[float, float]:
        """Wait for the lock without limit, hold it for so long; returns from when to when."""
        assert self.acquire(name, ttl, None)
        began = now()
        time.sleep(seconds)
        ended = now()
        self.release()
        return began, ended

    def take_again(self, name: str, ttl: float, times: int) -> int:
        """Release, and try at once to take it again; returns how often that worked."""
        for count in range(times):
            self.release()
            if not self.acquire(name, ttl, 0):
                return count
            time.sleep(0.02)
        self.release()
        return times

    def hold_many(self, count: int, ttl: float) -> int:
        """Hold so many locks; returns how many threads that takes."""
        before = threading.active_count()
        for number in range(count):
            held = self._peer.acquire(f"lock {number}", ttl, 0)
            assert held is not None
            self._more.append(held)
        return threading.active_count() - before

    def forget(self) -> None:
        """Drop the lock without releasing it."""
        self._held = None
        gc.collect()

    def leave_in_child(self) -> str:
        """Fork; the child leaves the block that its parent is in. Returns what it met there."""
        reading, writing = os.pipe()
        if os.fork() == 0:
            met = ""
            try:
                self.release()
            except Exception as error:
                met = type(error).__name__
            os.write(writing, met.encode())
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as answer:
            met = answer.read().decode()
        os.wait()
        return met
