"""What the world is told of locks: signals, log lines, and that no listener breaks a lock."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, fields
from datetime import datetime
from typing import Any

import pytest
from django.dispatch import Signal
from redis import Redis

from django_redislock import LeaseLost, LeaseRevoked, LockNotAcquired, redis_lock, signals
from django_redislock.primitives.waiting import WaitLog
from django_redislock.signals import LockEvent
from tests.processes import Worker
from tests.test_decorators import held_elsewhere
from tests.waiting import PATIENCE, eventually

SIGNALS: dict[str, Signal] = {
    "acquired": signals.lock_acquired,
    "not acquired": signals.lock_not_acquired,
    "released": signals.lock_released,
    "unknown": signals.lock_unknown,
    "lost": signals.lock_lost,
    "cleared": signals.lock_cleared,
}


@pytest.fixture
def connect() -> Iterator[Callable[..., None]]:
    """Connect receivers to signals, until the end of the test."""
    connected: list[tuple[Signal, Any]] = []

    def connect(receiver: Any, *outcomes: str) -> None:
        for outcome in outcomes or SIGNALS:
            SIGNALS[outcome].connect(receiver)
            connected.append((SIGNALS[outcome], receiver))

    yield connect
    for signal, receiver in connected:
        signal.disconnect(receiver)


@pytest.fixture
def events(connect: Any) -> list[LockEvent]:
    """All events, in the order in which receivers got them."""
    seen: list[LockEvent] = []

    def receive(event: LockEvent, **kwargs: Any) -> None:
        assert kwargs["sender"] is LockEvent
        seen.append(event)

    connect(receive)
    return seen


def lose_and_end() -> None:
    """For a worker."""
    from django.conf import settings

    def slow(event: LockEvent, **kwargs: Any) -> None:
        time.sleep(0.05)  # so that the process could have ended before
        os.write(1, f"told of {event.outcome}\n".encode())

    signals.lock_lost.connect(slow)
    lease = redis_lock("job", ttl=0.6).acquire()
    with Redis.from_url(settings.CACHES["default"]["LOCATION"]) as client:
        client.delete("redislock:{job}")
    with pytest.raises(LeaseLost):
        lease.release()


def outcomes(events: list[LockEvent]) -> list[str]:
    return [event.outcome for event in events]


def block() -> None:
    with redis_lock("job") as lease:
        lease.check()


async def async_block() -> None:
    async with redis_lock("job") as lease:
        lease.check()


class TestEvents:
    def test_a_block(self, events: list[LockEvent]) -> None:
        """The lock is acquired before the body and released after it; each event names lock and
        holder."""
        with redis_lock("job", label="here") as lease:
            assert outcomes(events) == ["acquired"]
        acquired, released = events
        for event in events:
            assert (event.name, event.using) == ("job", "default")
            assert (event.owner, event.label) == (lease.owner, "here")
            assert event.fencing_token == lease.fencing_token
        assert 0 <= acquired.waited < PATIENCE
        assert acquired.held is None
        assert released.outcome == "released"
        assert 0 < released.held < PATIENCE
        with pytest.raises(FrozenInstanceError):  # no receiver changes what the next one sees
            acquired.name = "another"  # type: ignore[misc]

    def test_an_async_block(self, connect: Any) -> None:
        """A receiver that is a coroutine is awaited in the task that holds the lock."""
        seen = []

        async def receive(event: LockEvent, **kwargs: Any) -> None:
            await asyncio.sleep(0)
            seen.append((event.outcome, asyncio.current_task()))

        connect(receive)

        async def task() -> asyncio.Task[Any] | None:
            await async_block()
            return asyncio.current_task()

        ran = asyncio.run(task())
        assert [outcome for outcome, _ in seen] == ["acquired", "released"]
        # Django awaits receivers together, in tasks of their own; but in this loop.
        assert {receiver.get_loop() for _, receiver in seen} == {ran.get_loop()}

    def test_receivers_of_both_kinds(self, events: list[LockEvent], connect: Any) -> None:
        """Asynchronous receivers get events of synchronous blocks, and the other way round."""
        seen = []

        async def receive(event: LockEvent, **kwargs: Any) -> None:
            seen.append(event)

        connect(receive)
        block()
        asyncio.run(async_block())
        assert outcomes(seen) == outcomes(events) == ["acquired", "released"] * 2

    def test_not_acquired(self, events: list[LockEvent]) -> None:
        """The event names the holder and the time waited, however the lock was asked for."""
        with held_elsewhere() as lease:
            events.clear()
            assert redis_lock("job").acquire(wait=0) is None
            with pytest.raises(LockNotAcquired), redis_lock("job", wait=0.05):
                pass
            redis_lock("job", wait=0, on_conflict="skip")(lambda: None)()
            tried = events.copy()
        assert outcomes(tried) == ["not acquired"] * 3
        assert {event.holder.owner for event in tried} == {lease.owner}
        assert {event.owner for event in tried} != {lease.owner}
        assert 0.05 <= tried[1].waited < PATIENCE
        assert {event.fencing_token for event in tried} == {None}

    def test_a_lost_lease(self, redis: Redis, events: list[LockEvent]) -> None:
        """The event says why, and no event says that the lock was released."""
        with pytest.raises(LeaseLost):
            with redis_lock("job", ttl=0.3) as lease:
                redis.delete("redislock:{job}")
                eventually(lambda: len(events) == 2)
        assert outcomes(events) == ["acquired", "lost"]
        assert events[1].fencing_token == lease.fencing_token
        assert events[1].why == "it expired before it was renewed, or its key was deleted"
        assert 0 < events[1].held < PATIENCE

    def test_cleared(self, events: list[LockEvent]) -> None:
        """The operator's event says by whom and why; the holder's says that its lease is lost."""
        lease = redis_lock("job", label="here", ttl=1.5).acquire()
        redis_lock("job").clear(by="Ada", reason="stuck")
        eventually(lambda: len(events) == 3)
        cleared, lost = events[1:]
        assert (cleared.outcome, cleared.by, cleared.why) == ("cleared", "Ada", "stuck")
        assert (cleared.owner, cleared.label) == (lease.owner, "here")
        assert cleared.fencing_token == lease.fencing_token
        assert (lost.outcome, lost.why) == ("lost", "cleared by Ada (stuck)")

    def test_clearing_nothing_is_no_event(self, events: list[LockEvent]) -> None:
        """Clearing a free lock sends no event."""
        redis_lock("job").clear(reason="to be sure")
        assert events == []

    def test_a_reentrant_block_holds_one_lease(self, events: list[LockEvent]) -> None:
        """The lease is acquired once and released once."""
        lock = redis_lock("job", reentrant=True)
        with lock, lock:
            pass
        assert outcomes(events) == ["acquired", "released"]


class TestReceivers:
    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_one_that_raises(
        self, events: list[LockEvent], connect: Any, caplog: Any, asynchronous: bool
    ) -> None:
        """The exception is logged, other receivers are called, and the block has its lock."""

        def bad(event: LockEvent, **kwargs: Any) -> None:
            raise RuntimeError(f"no receiver for {event.outcome}")

        async def abad(event: LockEvent, **kwargs: Any) -> None:
            raise RuntimeError

        connect(abad if asynchronous else bad)
        asyncio.run(async_block()) if asynchronous else block()
        assert outcomes(events) == ["acquired", "released"]
        assert [r.name for r in caplog.records if r.exc_info] == ["django.dispatch"] * 2

    @pytest.mark.parametrize("outcome", ["lost", "released"])
    def test_one_that_hangs_in_the_background(
        self, redis: Redis, connect: Any, outcome: str
    ) -> None:
        """Leases are renewed while a receiver is busy with one that was lost or dropped."""
        thinking, go_on = threading.Event(), threading.Event()

        def slow(event: LockEvent, **kwargs: Any) -> None:
            thinking.set()
            assert go_on.wait(PATIENCE)

        connect(slow, outcome)
        try:
            ended = redis_lock("ended", ttl=0.3).acquire()
            if outcome == "lost":
                redis.delete("redislock:{ended}")
            else:
                ended._abandon()
            assert thinking.wait(PATIENCE)
            with redis_lock("job", ttl=0.3):
                for _ in range(3):
                    before = redis.pexpiretime("redislock:{job}")
                    eventually(
                        lambda before=before: redis.pexpiretime("redislock:{job}") != before
                    )
                signals.lock_released.disconnect(slow)  # or leaving this block would call it, too
        finally:
            go_on.set()

    def test_cancelled_in_a_receiver(self, redis: Redis, connect: Any) -> None:
        """A task that is cancelled while a receiver runs does not keep its lock."""
        hearing = threading.Event()

        async def slow(event: LockEvent, **kwargs: Any) -> None:
            hearing.set()
            await asyncio.sleep(PATIENCE)

        connect(slow, "acquired")

        async def cancelled() -> None:
            task = asyncio.create_task(redis_lock("job").aacquire())
            while not hearing.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        eventually(lambda: not redis.exists("redislock:{job}"))

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_a_receiver_that_cancels_itself(self, connect: Any, asynchronous: bool) -> None:
        """The block that holds the lock is not cancelled."""

        async def cancelled(event: LockEvent, **kwargs: Any) -> None:
            raise asyncio.CancelledError

        connect(cancelled)
        asyncio.run(async_block()) if asynchronous else block()

    def test_a_receiver_that_is_interrupted(
        self, redis: Redis, connect: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Ctrl-C is raised and not logged; the lock is not kept."""

        def interrupted(event: LockEvent, **kwargs: Any) -> None:
            raise KeyboardInterrupt

        connect(interrupted, "acquired")
        with pytest.raises(KeyboardInterrupt), redis_lock("job"):
            pytest.fail("the block ran")
        eventually(lambda: not redis.exists("redislock:{job}"))
        signals.lock_acquired.disconnect(interrupted)
        # The watchdog has looked again, and does not miss it.
        with redis_lock("another", ttl=0.3):
            before = redis.pexpiretime("redislock:{another}")
            eventually(lambda: redis.pexpiretime("redislock:{another}") != before)
        assert "dropped without being released" not in caplog.text

    def test_at_the_end_of_the_process(self, start: Callable[..., Worker]) -> None:
        """A loss just before the end of the process is still reported."""
        worker = start("tests.test_signals:lose_and_end")
        assert worker.says() == "told of lost"

    def test_after_fork(self, redis: Redis, connect: Any) -> None:
        """A child reports its own losses, although the parent's thread is not in it."""
        read, write = os.pipe()

        def tell(event: LockEvent, **kwargs: Any) -> None:
            os.write(write, f"{os.getpid()} {event.name}\n".encode())

        connect(tell, "lost")
        with os.fdopen(read) as told:
            lease = redis_lock("parent", ttl=0.3).acquire()
            redis.delete("redislock:{parent}")
            assert told.readline() == f"{os.getpid()} parent\n"
            child = os.fork()
            if child == 0:
                try:
                    lease = redis_lock("child", ttl=0.3).acquire()
                    redis_lock("child").clear(reason="to be told")
                    eventually(lambda: lease._lifetime.lost)
                    threading.Event().wait(PATIENCE)
                finally:
                    os._exit(0)
            try:
                assert told.readline() == f"{child} child\n"
            finally:
                os.kill(child, 9)
                os.waitpid(child, 0)
        os.close(write)
        assert lease is not None


class TestLog:
    def records(self, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
        return [record for record in caplog.records if hasattr(record, "lock_outcome")]

    def test_cleared_by_nobody_who_is_named(
        self, redis: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It says so, as the error of the holder does."""
        caplog.set_level(logging.INFO, "django_redislock")
        with pytest.raises(LeaseRevoked), held_elsewhere():
            redis_lock("job").clear(reason="")
        assert "'job' was cleared by an operator (no reason given). It" in caplog.text

    def test_a_line_per_event(self, redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
        """Each event is a log line with its own level, also without receivers."""
        caplog.set_level(logging.DEBUG, "django_redislock")
        with held_elsewhere():
            redis_lock("job").acquire(wait=0)
        lease = redis_lock("job", ttl=0.3, label="here").acquire()
        redis_lock("job").clear(by="Ada", reason="stuck")
        eventually(lambda: lease._lifetime.lost)
        eventually(lambda: len(self.records(caplog)) == 6)
        assert [(r.levelname, r.lock_outcome) for r in self.records(caplog)] == [
            ("DEBUG", "acquired"),
            ("INFO", "not acquired"),
            ("DEBUG", "released"),
            ("DEBUG", "acquired"),
            ("INFO", "cleared"),
            ("WARNING", "lost"),
        ]
        messages = [record.getMessage() for record in self.records(caplog)]
        assert messages[4].startswith("'job' was cleared by Ada (stuck). It was held by ")
        assert "(here) since" in messages[4]
        assert messages[5] == (
            "The lease on 'job' is lost: cleared by Ada (stuck). It was taken at here."
        )

    def test_extra_fields(self, caplog: pytest.LogCaptureFixture) -> None:
        """Each field of the event is a field of the log record."""
        caplog.set_level(logging.DEBUG, "django_redislock")
        with redis_lock("job", label="here") as lease:
            pass
        for record in self.records(caplog):
            assert record.lock_name == "job"
            assert record.lock_fencing_token == lease.fencing_token
            for field in fields(LockEvent):
                assert hasattr(record, f"lock_{field.name}")

    def test_extra_is_json(self, caplog: pytest.LogCaptureFixture) -> None:
        """Formatters can write each record as JSON, that of a conflict and of a wait, too."""
        caplog.set_level(logging.DEBUG, "django_redislock")
        with held_elsewhere():
            redis_lock("job").acquire(wait=0)
            seen = redis_lock("job").holder()
            WaitLog("job").busy("job", seen, waited=5.0)
        conflict, wait = (r for r in caplog.records if getattr(r, "lock_holder", None))
        for record in (conflict, wait):
            written = json.loads(json.dumps(vars(record)))["lock_holder"]
            assert written["owner"] == seen.owner
            assert datetime.fromisoformat(written["acquired_at"]) == seen.acquired_at

    def test_nothing_is_made_that_nobody_wants(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without receivers, at the usual log level, a block makes no event."""
        monkeypatch.setattr("django_redislock.lease.claims.LockEvent", None)
        with redis_lock("job"):
            pass
