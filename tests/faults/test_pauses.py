"""Processes that are stopped, or stop themselves, for longer than they may.

A pause is the one thing that no lease can exclude: for a moment there are two who believe that
they hold the lock. So the first is told before it does anything else, and the database refuses
what it writes nevertheless.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from django_redislock import LeaseLost, redis_lock
from tests.faults.remains import SLACK, late, queued, remains, seen
from tests.faults.test_kills import two_waiters
from tests.faults.torture.history import Journal
from tests.faults.torture.register import RegisterServer, Writer
from tests.memory import SIGN_OF_LIFE
from tests.processes import Start, Worker
from tests.waiting import PATIENCE, eventually
from tests.worker import say, told

KEY = "redislock:{job}"


@pytest.fixture
def register(tmp_path: Path) -> Iterator[Path]:
    """Where something listens that refuses late writers, as a database does."""
    journal = Journal(tmp_path / "journal", "register")
    with RegisterServer(tmp_path / "register", journal):
        yield tmp_path / "register"
    journal.close()


@pytest.mark.parametrize("pause", ["stopped", "busy in C"])
def test_the_holder(start: Start, redis: Redis, register: Path, pause: str) -> None:
    """It goes on while the next one works: it is told before its next step, writes nothing, and
    leaves the lease of the other alone."""
    holder = start("tests.faults.test_pauses:work", "0.7", str(register), pause)
    first = holder.holds()
    if pause == "stopped":
        holder.stop()
    with redis_lock("job", wait=PATIENCE) as lease:
        assert lease.fencing_token > first
        with closing(Writer(register, "second")) as second:
            assert second.write(1, lease.fencing_token)
        holder.signal(signal.SIGCONT)
        holder.go_on()
        assert holder.lines(5) == [
            "check: lost",
            "write: refused",
            "extend: lost",
            "on_lost: called",
            "exit: lost",
        ]
        assert holder.ends() == 0
        lease.check()
        after = seen(redis)
        assert after is not None
        assert after.token == lease.token
    assert not remains(redis)


@pytest.mark.parametrize("pause", ["stopped", "busy in C"])
def test_a_lost_lease_does_not_come_back(
    start: Start, redis: Redis, register: Path, pause: str
) -> None:
    """Also when nobody else has taken the lock: neither the thread that renews it nor its
    release bring the key back, or the holder would be told yes and no."""
    holder = start("tests.faults.test_pauses:work", "0.5", str(register), pause)
    holder.holds()
    if pause == "stopped":
        holder.stop()
    eventually(lambda: not redis.exists(KEY))
    holder.signal(signal.SIGCONT)
    holder.go_on()
    assert holder.says() == "check: lost"
    assert holder.says() == "write: accepted", "nobody came later"
    assert holder.lines(3) == ["extend: lost", "on_lost: called", "exit: lost"]
    assert holder.ends() == 0
    assert set(remains(redis)) <= {"redislock:index"}, "which forgets it after a minute"
    with redis_lock("job", wait=0):
        pass
    assert not remains(redis)


def test_the_holder_within_its_lease(start: Start, redis: Redis, register: Path) -> None:
    """It has lost nothing, and goes on renewing."""
    holder = start("tests.faults.test_pauses:work", "20", str(register), "stopped")
    holder.holds()
    holder.stop()
    holder.signal(signal.SIGCONT)
    holder.go_on()
    assert holder.lines(4) == ["check: held", "write: accepted", "extend: held", "exit: released"]
    assert holder.ends() == 0
    assert not remains(redis)


def test_a_task(start: Start, redis: Redis) -> None:
    """With `cancel_on_lost` it is cancelled as soon as its process goes on, and its block raises
    LeaseLost."""
    holder = start("tests.faults.test_pauses:follow", "0.7")
    first = holder.holds()
    holder.stop()
    with redis_lock("job", wait=PATIENCE) as lease:
        assert lease.fencing_token > first
        holder.signal(signal.SIGCONT)
        assert holder.says() == "exit: lost"
        assert holder.ends() == 0
        lease.check()
    assert not remains(redis)


def test_the_first_waiter(start: Start, redis: Redis, others: ThreadPoolExecutor) -> None:
    """It is handed the lock and does not come: the one behind it is in when it would have been
    passed over. When it goes on, it finds that it was, and has its turn then."""
    with redis_lock("job"):
        stopped, behind = two_waiters(start("wait"), redis, others)
        stopped.stop()
    handed = seen(redis)
    assert handed is not None
    assert handed.ends - handed.acquired <= SIGN_OF_LIFE + 0.005
    lease = behind.result(PATIENCE)
    assert lease is not None
    assert lease.token != handed.token
    late(lease, handed)
    stopped.signal(signal.SIGCONT)
    eventually(lambda: queued(redis, 1))
    lease.check()
    lease.release()
    assert stopped.holds() > lease.fencing_token
    stopped.go_on()
    assert stopped.ends() == 0
    assert not remains(redis)


def test_all_waiters(start: Start, redis: Redis) -> None:
    """Together they cost whoever comes next as much as the first one alone: by then the others are
    passed over. And then they wait."""
    with redis_lock("job"):
        waiters = []
        for number in range(2):
            waiters.append(start("wait"))
            eventually(lambda number=number: queued(redis, number + 1))
        for waiter in waiters:
            waiter.stop()
    handed = seen(redis)
    assert handed is not None
    with redis_lock("job", wait=PATIENCE) as lease:
        assert lease._grant.acquired_us / 1e6 - handed.acquired < SIGN_OF_LIFE + SLACK
        for waiter in waiters:
            waiter.signal(signal.SIGCONT)
        eventually(lambda: queued(redis, 2))
        lease.check()
    tokens = [lease.fencing_token]
    for waiter in waiters:
        tokens.append(waiter.holds())
        waiter.go_on()
        assert waiter.ends() == 0
    assert tokens == sorted(tokens)
    assert not remains(redis)


@pytest.mark.parametrize("pause", ["stopped", "busy in C"])
def test_a_waiter_that_was_handed_the_lock(
    start: Start, redis: Redis, register: Path, pause: str
) -> None:
    """Its body pauses for three seconds from the beginning, before anything has renewed its lease.
    It keeps the lock."""
    for _ in range(10):
        holder, seconds = handed_over(start, redis, str(register), pause)
        if seconds <= SIGN_OF_LIFE:
            break
        holder.go_on()  # the message was late, on a busy machine, and so it has asked
        assert holder.ends() == 0
    else:
        pytest.fail("all waiters had to ask")
    if pause == "stopped":
        holder.stop()
    time.sleep(3)
    holder.signal(signal.SIGCONT)
    holder.go_on()
    assert holder.lines(4) == ["check: held", "write: accepted", "extend: held", "exit: released"]
    assert holder.ends() == 0
    assert not remains(redis)


def handed_over(start: Start, redis: Redis, *args: str) -> tuple[Worker, float]:
    """Let a process wait for the lock, and release it. Return it as soon as it has the lock, and
    for how long it has been given that."""

    def waiter() -> list[bytes]:
        found: list[bytes] = redis.hvals(f"{KEY}:waiters")
        return found

    with redis_lock("job"):
        process = start("tests.faults.test_pauses:work", "30", *args)
        eventually(lambda: queued(redis, 1))
        first = waiter()
        # When it has asked again, it has an answer that is younger than its connection.
        eventually(lambda: waiter() not in ([], first))
    process.holds()
    handed = seen(redis)
    assert handed is not None
    return process, handed.ends - handed.acquired


# What the processes run.


def keep_the_interpreter() -> None:
    """Wait for a line from the test in a call to C that lets no other thread run.

    PyDLL keeps the interpreter's lock where CDLL would let it go: so does a regular expression
    that backtracks for minutes, or an extension that computes.
    """
    word = ctypes.create_string_buffer(1)
    ctypes.PyDLL(None).read(0, word, 1)


def work(ttl: str, path: str, pause: str) -> None:
    """Hold the lock and pause; then say what each thing that a holder may do has come to."""
    register = Writer(Path(path), "first")
    noticed = threading.Event()
    try:
        with redis_lock("job", ttl=float(ttl), on_lost=lambda lease: noticed.set()) as lease:
            assert register.write(1, lease.fencing_token)
            say("holding", lease.fencing_token)
            if pause == "stopped":
                told()
            else:
                keep_the_interpreter()
            try:
                lease.check()
                say("check: held")
            except LeaseLost:
                say("check: lost")
            late = register.write(2, lease.fencing_token)
            say("write:", "accepted" if late else "refused")
            try:
                lease.extend()
                say("extend: held")
            except LeaseLost:
                say("extend: lost")
            if lease.state == "lost":
                assert noticed.wait(PATIENCE)
                say("on_lost: called")
    except LeaseLost:
        say("exit: lost")
    else:
        say("exit: released")


def follow(ttl: str) -> None:
    """Hold the lock in a task that waits for something else."""

    async def main() -> None:
        try:
            async with redis_lock("job", ttl=float(ttl), cancel_on_lost=True) as lease:
                say("holding", lease.fencing_token)
                await asyncio.Event().wait()
        except LeaseLost:
            say("exit: lost")

    asyncio.run(main())
