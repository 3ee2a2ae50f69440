"""What a process does when a test asks for it, in whichever version of the package it has.

Only public names are used here, and only those that both versions have.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from io import StringIO
from threading import Event
from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

import django_redislock
from django_redislock import (
    Lease,
    LeaseRevoked,
    LockError,
    LockNotAcquired,
    LockUnavailable,
    MultiLock,
    ReadWriteLock,
    Redlock,
    Semaphore,
    TimestampLock,
    initialise,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.inspection import Inspector
from django_redislock.periodic import Ledger, periodic
from django_redislock.signals import LockEvent, lock_acquired
from django_redislock.views import idempotent_view
from tests.worker import say

TTL = 2.0

LOCKS: dict[str, Callable[..., Any]] = {
    "mutex": lambda **options: redis_lock("job", **options),
    "after loss": lambda **options: redis_lock("job", after_loss="wait", **options),
    "semaphore": lambda **options: Semaphore("job", 1, **options),
    "read": lambda **options: ReadWriteLock("job", **options).read(),
    "write": lambda **options: ReadWriteLock("job", **options).write(),
    "several": lambda **options: MultiLock(["another", "job"], **options),
    "redlock": lambda **options: Redlock("job", using=[*settings.CACHES][1:], **options),
    "timestamp": lambda **options: TimestampLock("lock.job", **options),
    "migration": lambda **options: redis_lock("job", timestamp_key="lock.job", **options),
}


class Side:
    """The methods are what a test can ask for. They return what JSON has."""

    def __init__(self) -> None:
        self._under_way: list[Future[Any]] = []
        self._go_on = Event()
        self._calls = 0
        self._lease: Any = None
        self._learned = ""
        lock_acquired.connect(self._note)

        @periodic(every=1, name="job")
        def job() -> None:
            self._calls += 1

    def _note(self, event: LockEvent, **_: object) -> None:
        self._learned = getattr(event, "wakeup", "") or getattr(event, "learned", "")

    def package(self) -> str:
        """Where the package is that this process has."""
        return django_redislock.__path__[0]

    def forget(self) -> None:
        """Be ready for the next test."""
        assert not self._under_way
        self._go_on.clear()
        self._calls = 0

    def _begin(self, call: Callable[..., Any], *args: Any) -> None:
        """In a thread of its own, so that none holds what another one waits for."""
        thread = ThreadPoolExecutor(1)
        self._under_way.append(thread.submit(call, *args))
        thread.shutdown(wait=False)

    def result(self) -> Any:
        """Wait for the end of what was begun first."""
        return self._under_way.pop(0).result()

    # Locks. Each is acquired in a thread, or in a task, that ends.

    def wait(self, kind: str, how: str = "thread") -> None:
        """Begin to wait for a lock without limit."""
        lock = LOCKS[kind](ttl=TTL, wait=None)
        if how == "thread":
            self._begin(lock.acquire)
        else:
            self._begin(lambda: asyncio.run(lock.aacquire()))

    def granted(self) -> dict[str, int]:
        """Wait until the first waiter has its lease; return its fencing tokens."""
        self._lease = self.result()
        try:
            return dict(self._lease.fencing_tokens)
        except LockError:
            return {}  # this kind of lock has none

    def acquire(self, kind: str, how: str = "thread") -> dict[str, int]:
        self.wait(kind, how)
        return self.granted()

    def busy(self, kind: str) -> str:
        """Try to acquire a lock that is busy; return the owner that the conflict names."""
        while True:
            try:
                with LOCKS[kind](wait=0):
                    return ""
            except LockNotAcquired as conflict:
                return str(conflict.holder.owner)
            except LockUnavailable:  # the servers of a Redlock have little time to answer
                pass

    def owner(self) -> str:
        return str(self._lease.owner)

    def learned(self) -> str:
        """How the last holder learned that it has the lock."""
        return self._learned

    def renewed(self) -> None:
        """Wait until the lease is renewed."""
        left = self._lease.remaining()
        while (later := self._lease.remaining()) <= left:
            self._lease.check()
            left = later
            time.sleep(0.01)

    def extend(self) -> list[str]:
        """Extend the lease; if it was cleared, return by whom and why."""
        try:
            self._lease.extend()
        except LeaseRevoked as revoked:
            return [revoked.by, revoked.reason]
        return []

    def release(self) -> None:
        self._lease.release()

    def clear(self, kind: str) -> None:
        lock = redis_lock("job") if kind == "several" else LOCKS[kind]()
        assert lock.clear(by="eva", reason="it hangs")

    def export(self) -> str:
        return str(self._lease.export())

    def restore(self, text: str) -> None:
        self._lease = Lease.restore(text)

    def seen(self) -> dict[str, Any]:
        """What operators see of the lock."""
        inspector = Inspector()
        if (lock := inspector.get("job")) is None:
            return {}
        past = inspector.past(lock).holders
        return {
            "holders": [[one.holder.owner, one.state] for one in lock.holders],
            "waiters": [one.owner for one in inspector.waiters(lock)],
            "past": [[one.owner, one.ending] for one in past],
        }

    def hold_cache_lock(self) -> None:
        """Begin to wait for `cache.lock()`, and hold it until told to go on."""
        self._go_on.clear()

        def hold() -> None:
            with cache.lock("cached", timeout=60):
                self._go_on.wait()

        self._begin(hold)

    # Work that leaves a record. It waits until it is told to go on.

    def _work(self) -> str:
        self._calls += 1
        self._go_on.wait()
        return f"made by {os.getpid()}"

    def go_on(self) -> None:
        self._go_on.set()

    def calls(self) -> int:
        """How often work was begun here."""
        return self._calls

    def once(self) -> None:
        """Begin to do it, or to wait until it is done."""
        self._begin(once("job", wait=None)(self._work))

    def compute(self) -> None:
        self._begin(single_flight("job", wait=None)(self._work))

    def initialise(self) -> None:
        self._begin(lambda: initialise("job", self._work))

    def request(self) -> list[Any]:
        """Send a request with an idempotency key."""

        @idempotent_view(scope=lambda request: "eva")
        def view(_: HttpRequest) -> HttpResponse:
            self._calls += 1
            response = HttpResponse(b"ordered", status=201)
            response.set_cookie("order", "42")
            return response

        request = RequestFactory().post("/orders", {"a": "b"}, headers={"Idempotency-Key": "key"})
        response = view(request)
        return [response.status_code, response.content.decode(), str(response.cookies)]

    # Periodic jobs.

    def run_due(self) -> None:
        """Run the job if it is due."""
        call_command("runperiodic", "--once", stderr=StringIO())

    def pause(self) -> None:
        assert Ledger().pause("job", by="eva", reason="it hangs")

    def resume(self) -> None:
        assert Ledger().resume("job")

    def job(self) -> dict[str, Any]:
        """What operators see of the job."""
        job = Ledger().job("job")
        assert job is not None
        return {
            "state": job.state,
            "runs": [[str(run.planned), run.outcome] for run in Ledger().runs("job")],
        }


def serve() -> None:
    """Do what the test asks for, one after the other."""
    side = Side()
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        say(json.dumps(getattr(side, method)(*arguments)))
