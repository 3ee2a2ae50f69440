"""How a waiter learned that it has the lock: from its process, by a message, or by looking."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis

from django_redislock import Semaphore, once, redis_lock
from django_redislock.inspection import Inspector
from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.inbox import Inbox
from django_redislock.transport.ports import BasePort
from django_redislock.transport.server import server_of
from tests.processes import Worker
from tests.waiting import PATIENCE, eventually


def waits() -> None:
    with redis_lock("job", wait=PATIENCE, ttl=60):
        pass


def listens(redis: Redis, name: str = "job") -> None:
    """Wait until a waiter has said to which inbox messages are to go."""
    eventually(
        lambda: any(
            says.split(b"|")[2] not in (b"", b"-")
            for says in redis.hvals(f"redislock:{{{name}}}:waiters")
        )
    )


def test_without_a_wait(learned: list[str]) -> None:
    waits()
    assert learned == [""]


def test_from_the_process(redis: Redis, learned: list[str]) -> None:
    """A thread hands the lock to another one."""
    with ThreadPoolExecutor(1) as threads:
        with redis_lock("job"):
            waiter = threads.submit(waits)
            listens(redis)
        waiter.result(PATIENCE)
    assert learned == ["", "process"]


def test_by_a_message(redis: Redis, learned: list[str], start: Callable[..., Worker]) -> None:
    """Another process hands it over."""
    worker = start("hold", "30")
    worker.holds()
    with ThreadPoolExecutor(1) as threads:
        waiter = threads.submit(waits)
        listens(redis)
        worker.go_on()
        waiter.result(PATIENCE)
    assert learned == ["message"]


def test_by_looking(redis: Redis, learned: list[str]) -> None:
    """Nobody says that a lease has ended."""
    redis_lock("job", ttl=0.3, renew=False).acquire()
    learned.clear()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(waits).result(PATIENCE)
    assert learned == ["poll"]


@contextmanager
def no_messages(redis: Redis) -> Iterator[None]:
    """Nobody may publish on this server."""
    redis.acl_setuser("default", enabled=True, commands=["-publish"])
    try:
        yield
    finally:
        redis.acl_setuser("default", enabled=True, commands=["+publish"])


def nothing_was_counted(redis: Redis) -> None:
    """Neither by now nor later in the background."""
    watchdog(server_of("default")).settle(PATIENCE)
    assert Inspector().missed_wakeups() == 0
    assert not redis.exists("redislock:missed_wakeups")


class TestUntold:
    """Handovers that no message announces are counted at the server."""

    def test_by_another_process(
        self, redis: Redis, learned: list[str], start: Callable[..., Worker]
    ) -> None:
        """The waiter listens, is handed the lock, and finds out by itself."""
        worker = start("hold", "30")
        worker.holds()
        with ThreadPoolExecutor(1) as threads, no_messages(redis):
            waiter = threads.submit(waits)
            listens(redis)
            worker.go_on()
            waiter.result(PATIENCE)
        assert learned == ["poll"]
        eventually(lambda: Inspector().missed_wakeups() == 1)
        assert redis.get("redislock:missed_wakeups") == b"1"

    @pytest.mark.parametrize(
        ("name", "holder", "lock"),
        [
            ("job", Semaphore("job", 1), Semaphore("job", 1, wait=PATIENCE)),
            ("once:job", redis_lock("once:job"), once("job", ttl=60, wait=PATIENCE)),
        ],
        ids=["permits", "a record"],
    )
    def test_other_kinds(
        self, name: str, holder: Any, lock: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those with permits, and those with a record."""

        def take() -> None:
            with lock:
                pass

        with ThreadPoolExecutor(1) as threads, no_messages(redis):
            with holder:
                waiter = threads.submit(take)
                listens(redis, name)
                # So that it is released as if by another process.
                monkeypatch.setattr(BasePort, "own_inbox", lambda *_: "")
            waiter.result(PATIENCE)
        eventually(lambda: Inspector().missed_wakeups() == 1)

    def test_a_message_that_takes_its_time(
        self, redis: Redis, learned: list[str], start: Callable[..., Worker], monkeypatch: Any
    ) -> None:
        """It was not missed."""
        tell = Inbox._tell

        def late(inbox: Inbox, *args: Any, **options: Any) -> None:
            time.sleep(0.2)
            tell(inbox, *args, **options)

        monkeypatch.setattr(Inbox, "_tell", late)
        test_by_a_message(redis, learned, start)
        nothing_was_counted(redis)

    def test_what_does_not_count(self, redis: Redis, start: Callable[..., Worker]) -> None:
        """A message that came, a handover within the process, and a lease that has ended."""
        test_by_a_message(redis, ["message"], start)
        with ThreadPoolExecutor(1) as threads:
            with redis_lock("job"):
                waiter = threads.submit(waits)
                listens(redis)
            waiter.result(PATIENCE)
            redis_lock("job", ttl=0.3, renew=False).acquire()
            threads.submit(waits).result(PATIENCE)
        nothing_was_counted(redis)
