"""Processes that are killed while they hold, wait, or have just been woken."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from redis import Redis

from django_redislock import Lease, redis_lock
from tests.faults.proxy import Fault, Proxy, script
from tests.faults.remains import late, queued, remains, seen
from tests.memory import SIGN_OF_LIFE
from tests.processes import Start, Worker
from tests.waiting import PATIENCE, eventually
from tests.worker import say, told

KEY = "redislock:{job}"


def hold_many(*names: str) -> None:
    """Hold several locks whose leases end at different times, in a process of its own."""
    with ExitStack() as blocks:
        for number, name in enumerate(names):
            blocks.enter_context(redis_lock(name, ttl=1.5 + number / 10))
        say("holding")
        told()


def inboxes(redis: Redis) -> int:
    return len(redis.pubsub_channels("redislock:inbox:*"))


def kill_waiters(redis: Redis, *waiters: Worker) -> None:
    """Kill them, and wait until the server knows: their connections were closed by the kernel."""
    before = inboxes(redis)
    for waiter in waiters:
        waiter.kill()
    eventually(lambda: inboxes(redis) == before - len(waiters))


def test_the_holder(start: Start, redis: Redis, others: ThreadPoolExecutor) -> None:
    """Its waiter is in within the rest of the lease + 100 ms, with a larger fencing token.

    All times are the server's. On a machine that has much else to do, some of them are late for
    that; the third best of seven, which end at different times, says what the lock itself takes.
    Waiters that only looked every now and then would hardly be so lucky three times.
    """
    names = [f"job {number}" for number in range(7)]
    holder = start("tests.faults.test_kills:hold_many", *names)
    assert holder.says() == "holding"
    waiting = [others.submit(redis_lock(name, wait=PATIENCE).acquire) for name in names]
    for name in names:
        eventually(lambda name=name: queued(redis, 1, name))
    holder.kill()
    left = [seen(redis, name) for name in names]
    gaps = []
    for name, before, waiter in zip(names, left, waiting, strict=True):
        assert before is not None
        lease = waiter.result(PATIENCE)
        assert lease is not None
        assert lease.fencing_token > before.fencing_token
        gaps.append(late(lease, before))
        lease.check()
        lease.release()
        assert not remains(redis, name)
    assert sorted(gaps)[2] < 0.1


def test_the_first_waiter(start: Start, redis: Redis, others: ThreadPoolExecutor) -> None:
    """It costs nobody anything: the one behind it has the lock in the step of the release."""
    with redis_lock("job"):
        head, behind = two_waiters(start("wait"), redis, others)
        kill_waiters(redis, head)
    handed = seen(redis)
    assert handed is not None, "it was never free in between"
    lease = behind.result(PATIENCE)
    assert lease is not None
    assert lease.token == handed.token
    lease.release()
    assert not remains(redis)


def test_all_waiters(start: Start, redis: Redis) -> None:
    """The lock is free in the step of the release, and whoever comes next is in at once."""
    with redis_lock("job"):
        waiters = [start("wait") for _ in range(3)]
        eventually(lambda: queued(redis, 3))
        kill_waiters(redis, *waiters)
    assert not remains(redis)
    with redis_lock("job", wait=0):
        pass
    assert not remains(redis)


def test_everybody(start: Start, redis: Redis) -> None:
    """Holder and waiters: whoever comes next is in when the lease ends, past the dead."""
    holder = start("hold", "1")
    holder.holds()
    waiters = [start("wait") for _ in range(2)]
    eventually(lambda: queued(redis, 2))
    holder.kill()
    kill_waiters(redis, *waiters)
    before = seen(redis)
    with redis_lock("job", wait=PATIENCE) as lease:
        if before is not None:
            late(lease, before)
        lease.check()
    assert not remains(redis)


@pytest.mark.parametrize("end", [Worker.kill, Worker.stop])
def test_a_waiter_before_it_confirms(
    start: Start,
    beside: Proxy,
    redis: Redis,
    others: ThreadPoolExecutor,
    end: Callable[[Worker], None],
) -> None:
    """It was handed the lock, got no message and asks, and is killed or stopped: the next one has
    the lock when it would have been passed over. What it has sent before, and arrives later, takes
    nothing from that one; if it goes on, it waits for its turn."""
    with redis_lock("job") as first:
        woken, behind = two_waiters(start("wait", url=beside.url), redis, others)
        confirming = beside.on(script("mutex_acquire"), Fault.HOLD_REQUEST)
        beside.deaf = True
    handed = seen(redis)
    assert handed is not None
    assert handed.token != first.token
    assert handed.ends - handed.acquired <= SIGN_OF_LIFE + 0.005
    confirming.happened()
    end(woken)
    lease = behind.result(PATIENCE)
    assert lease is not None
    assert lease.token != handed.token
    assert lease.fencing_token > handed.fencing_token
    late(lease, handed)
    confirming.let_go()
    eventually(lambda: redis.zcard(f"{KEY}:queue") == 1)  # of a killed one, for nobody
    woken.signal(signal.SIGCONT)
    lease.check()
    lease.release()
    if end is Worker.stop:
        assert woken.holds() > lease.fencing_token
        woken.go_on()
        assert woken.ends() == 0
    eventually(lambda: not remains(redis))


def two_waiters(
    first: Worker, redis: Redis, others: ThreadPoolExecutor
) -> tuple[Worker, Future[Lease | None]]:
    """Wait until a process waits for the lock, and a thread of this process behind it."""
    eventually(lambda: queued(redis, 1))
    behind = others.submit(redis_lock("job", wait=PATIENCE).acquire)
    eventually(lambda: queued(redis, 2))
    return first, behind


def test_a_waiter_after_it_has_confirmed(
    start: Start, beside: Proxy, redis: Redis, others: ThreadPoolExecutor
) -> None:
    """It does not know that it holds the lock, but it does: the next one is in after its lease."""
    with redis_lock("job"):
        woken = start("wait", "2", url=beside.url)
        eventually(lambda: queued(redis, 1))
        confirming = beside.on(script("mutex_acquire"), Fault.HOLD_REPLY)
        beside.deaf = True
    eventually(lambda: confirming.carried_out)
    before = seen(redis)
    assert before is not None
    behind = others.submit(redis_lock("job", wait=PATIENCE).acquire)
    eventually(lambda: queued(redis, 1))
    woken.kill()
    lease = behind.result(PATIENCE)
    assert lease is not None
    assert lease.fencing_token > before.fencing_token
    late(lease, before)
    lease.release()
    assert not remains(redis)
