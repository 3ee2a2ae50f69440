"""Another process that holds locks and waits for them, as the test tells it."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import suppress
from typing import Any

from tests.processes import Worker
from tests.waiting import PATIENCE, eventually
from tests.worker import say


class Hands(Worker):
    """It is told in lines what to do, and answers each with a line."""

    def __init__(self, url: str) -> None:
        super().__init__("tests.browser.hands:obey", url=url)

    def do(self, what: str, *arguments: Any) -> Any:
        self.process.stdin.write(json.dumps([what, *arguments]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.says())

    def hold(self, name: str, label: str = "", ttl: float = 600.0) -> None:
        """Acquire a free lock."""
        self.wait_for(name, label, ttl)
        self.gets(name)

    def wait_for(self, name: str, label: str = "", ttl: float = 600.0, *, as_: str = "") -> None:
        """Begin to wait for a lock; the server knows of it soon. Whoever waits for one that this
        process holds, or waits for, is called otherwise: `as_`."""
        assert self.do("wait_for", as_ or name, name, label, ttl) is None

    def state(self, as_: str) -> str:
        """`waiting`, or the state of its lease."""
        return str(self.do("state", as_))

    def gets(self, as_: str) -> None:
        """Wait until it holds the lock for which it waits."""
        eventually(lambda: self.state(as_) == "held")

    def is_told(self, as_: str) -> str:
        """What its next use of the lease raises; "" when it is still good."""
        return str(self.do("extend", as_))

    def release(self, as_: str) -> None:
        assert self.do("release", as_) is None

    def let_go(self) -> None:
        """Release all that it holds, and what it waits for as soon as it gets that."""
        assert self.do("let_go") is None

    def is_free(self) -> None:
        """Wait until it holds nothing, and waits for nothing, after `let_go`."""
        assert self.do("is_free") is None


class _Obedience:
    """What is done in the other process. A thread for each lock, since each is a holder."""

    def __init__(self) -> None:
        self.leases: dict[str, Any] = {}
        self.threads: list[threading.Thread] = []
        self.over = False

    def wait_for(self, as_: str, name: str, label: str, ttl: float) -> None:
        from django_redislock import redis_lock

        lock = redis_lock(name, label=label, ttl=ttl, wait=PATIENCE)

        def wait() -> None:
            self.leases[as_] = lease = lock.acquire()
            if lease is not None:
                lease._watchdog.write_down()  # a reader does not wait until it is a second old
            if self.over:
                self.give_back(as_)

        called = f"worker-{len(self.threads) + 1}"
        self.threads.append(threading.Thread(target=wait, name=called, daemon=True))
        self.threads[-1].start()

    def state(self, as_: str) -> str:
        lease = self.leases.get(as_)
        return "waiting" if lease is None else str(lease.state)

    def extend(self, as_: str) -> str:
        try:
            self.leases[as_].extend()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def release(self, as_: str) -> None:
        self.leases.pop(as_).release()

    def let_go(self) -> None:
        self.over = True
        for as_ in list(self.leases):
            self.give_back(as_)

    def is_free(self) -> None:
        for thread in self.threads:
            thread.join()
        self.threads.clear()
        self.over = False

    def give_back(self, as_: str) -> None:
        from django_redislock import LockError

        lease = self.leases.pop(as_, None)
        if lease is not None:
            with suppress(LockError):  # a test has cleared it, or broken it otherwise
                lease.release()


def obey() -> None:
    obedience = _Obedience()
    while line := sys.stdin.readline():
        what, *arguments = json.loads(line)
        say(json.dumps(getattr(obedience, what)(*arguments)))
