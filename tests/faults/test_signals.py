"""SIGINT and SIGTERM in the middle of acquiring, waiting, working and releasing.

Where the middle is, is no matter of luck: the proxy holds the command back, or its answer.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from redis import Redis

from django_redislock import redis_lock
from tests.faults.proxy import Fault, Proxy, script
from tests.faults.remains import late, queued, remains, seen
from tests.processes import Start, Worker
from tests.waiting import PATIENCE, eventually

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
    worker = start("tests.faults.signals_programs:work", url=beside.url)
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
        int, start("tests.faults.signals_programs:limits_at_random", "1").says().split()
    )
    assert sent > 20
    assert (swallowed, lost) == (0, 0)
