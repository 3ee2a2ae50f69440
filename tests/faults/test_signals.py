"""SIGINT and SIGTERM in the middle of acquiring, waiting, working and releasing.

Where the middle is, is no matter of luck: the proxy holds the command back, or its answer.
"""

from __future__ import annotations

import logging
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from redis import Redis

from django_redislock import redis_lock
from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.server import server_of
from tests.faults.proxy import Fault, Proxy, script
from tests.faults.remains import late, queued, remains, seen
from tests.lines import missing
from tests.processes import Start, Worker
from tests.waiting import PATIENCE, eventually
from tests.worker import say, told

KEY = "redislock:{job}"

Middle = Callable[[Worker, Proxy, Redis], Iterator[None]]

# In the middle of what the signal comes. Each of them lets go, afterwards, what it has held back:
# it arrives when its sender has gone.


def acquire_is_sent(worker: Worker, proxy: Proxy, redis: Redis) -> Iterator[None]:
    rule = proxy.on(script("mutex_acquire"), Fault.HOLD_REQUEST)
    worker.go_on()
    rule.happened()
    yield
    rule.let_go()


def acquire_is_answered(worker: Worker, proxy: Proxy, redis: Redis) -> Iterator[None]:
    rule = proxy.on(script("mutex_acquire"), Fault.HOLD_REPLY)
    worker.go_on()
    eventually(lambda: redis.exists(KEY))
    yield
    rule.let_go()


def wait(worker: Worker, proxy: Proxy, redis: Redis) -> Iterator[None]:
    with redis_lock("job"):
        worker.go_on()
        eventually(lambda: queued(redis, 1))
        yield


def body(worker: Worker, proxy: Proxy, redis: Redis) -> Iterator[None]:
    worker.go_on()
    assert worker.says() == "holding"
    yield


def release_is_sent(worker: Worker, proxy: Proxy, redis: Redis) -> Iterator[None]:
    rule = proxy.on(script("mutex_release"), Fault.HOLD_REQUEST)
    worker.go_on()
    assert worker.says() == "holding"
    worker.go_on()
    rule.happened()
    yield
    rule.let_go()


def release_is_answered(worker: Worker, proxy: Proxy, redis: Redis) -> Iterator[None]:
    rule = proxy.on(script("mutex_release"), Fault.HOLD_REPLY)
    worker.go_on()
    assert worker.says() == "holding"
    worker.go_on()
    eventually(lambda: not redis.exists(KEY))
    yield
    rule.let_go()


MIDDLES = [
    acquire_is_sent,
    acquire_is_answered,
    wait,
    body,
    release_is_sent,
    release_is_answered,
]


@pytest.mark.parametrize("middle", MIDDLES, ids=lambda middle: middle.__name__)
def test_a_signal(start: Start, beside: Proxy, redis: Redis, middle: Middle) -> None:
    """One that raises (Ctrl-C, SIGTERM with a handler that exits, as web servers and task queues
    have it) leaves nothing. One that kills leaves a lease, which the next
    one gets when its ttl is over."""
    worker = start("tests.faults.test_signals:work", url=beside.url)
    for number, raised in (
        (signal.SIGINT, "KeyboardInterrupt"),
        (signal.SIGTERM, "SystemExit"),
    ):
        assert worker.says() == "ready"
        with contextmanager(middle)(worker, beside, redis):
            worker.signal(number)
            assert worker.says() == raised
            others = [KEY, "redislock:index"] if middle is wait else []
            # By the watchdog: the exception does not wait for it.
            eventually(lambda others=others: remains(redis) == others)
        with redis_lock("job", wait=PATIENCE):
            pass
        eventually(lambda: not remains(redis))

    assert worker.says() == "ready"
    with contextmanager(middle)(worker, beside, redis):
        worker.signal(signal.SIGTERM)
        assert worker.ends() == -signal.SIGTERM
        left = seen(redis)
    with redis_lock("job", wait=PATIENCE) as lease:
        if middle in (acquire_is_answered, body):
            assert left is not None
            late(lease, left)

    def passed_on() -> bool:
        """Nothing is left after the next one."""
        with redis_lock("job", wait=PATIENCE):
            pass
        return not remains(redis)

    # What arrives when its process has gone may cost a claim window, or a lease, and its end
    # is noted by the next one.
    eventually(passed_on)


def test_limits_at_random(start: Start) -> None:
    """Exceptions of real signals come out, and afterwards the process has its connection, and no
    lock that it waits for itself."""
    sent, swallowed, lost = map(
        int, start("tests.faults.test_signals:limits_at_random", "1").says().split()
    )
    assert sent > 20
    assert (swallowed, lost) == (0, 0)


# What the processes run.


def leave(number: int, frame: FrameType | None) -> None:
    """What web servers, task queues and our users do on SIGTERM."""
    sys.exit(0)


def work() -> None:
    """Take the lock, hold it until told to go on, release it: once for each kind of signal."""
    for handler in (signal.SIG_DFL, leave, signal.SIG_DFL):
        signal.signal(signal.SIGTERM, handler)
        # What the watchdog takes back of the last one must not be taken for what comes now.
        eventually(lambda: not watchdog(server_of("default"))._to_release)
        say("ready")
        told()
        try:
            with redis_lock("job", ttl=1.5, wait=None):
                say("holding")
                told()
        except (KeyboardInterrupt, SystemExit) as error:
            say(type(error).__name__)


class Limit(Exception):
    """As a soft time limit."""


def limits_at_random(seconds: str) -> None:
    """Take lock after lock, while signals come at random moments."""
    # The locks of `logging` stay locked if an exception comes just after they were taken: those of
    # its handlers, and the one that it takes when a logger is asked for a level the first time.
    logging.disable()
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logging.getLogger("django_redislock").isEnabledFor(level)
    sent: list[Limit] = []
    came_out = 0

    def limit(number: int, frame: FrameType | None) -> None:
        sent.append(Limit(len(sent)))
        raise sent[-1]

    moments = random.Random(17)
    with redis_lock("job"):
        pass
    pool = server_of("default").shared_pool()
    before = missing(pool)
    signal.signal(signal.SIGALRM, limit)
    names, ends = 0, time.monotonic() + float(seconds)
    while time.monotonic() < ends:
        known = len(sent)
        names += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.00005, 0.002))
            while len(sent) == known:
                with redis_lock(f"job {names}"):
                    pass
        except Limit as error:
            came_out += error is sent[-1]
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    eventually(lambda: not watchdog(server_of("default"))._to_release)
    with redis_lock("job", wait=PATIENCE):
        pass
    eventually(lambda: missing(pool) <= before)
    say(len(sent), len(sent) - came_out, max(missing(pool) - before, 0))
