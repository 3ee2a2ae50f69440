"""Event loops that end while a task of theirs holds the lock or waits for it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import warnings

import pytest
from redis import Redis

from django_redislock import redis_lock
from tests.faults.remains import late, remains, seen
from tests.processes import Start
from tests.waiting import PATIENCE, eventually
from tests.worker import say, told


def test_asyncio_run_ends(start: Start, redis: Redis) -> None:
    """It cancels its tasks, and so their blocks are left: nothing remains."""
    worker = start("tests.faults.test_loops:run")
    assert worker.says() == "holding True"
    assert seen(redis)
    worker.go_on()
    assert worker.says() == "ended"
    assert not remains(redis)


@pytest.mark.parametrize("lock", ["temporary", "kept"])
def test_a_loop_is_closed_with_a_lease_held(start: Start, redis: Redis, lock: str) -> None:
    """Without shutdown its task never goes on. Nothing hangs, and when it is garbage, the lock is
    free within its ttl, for nobody renews it any more; also when the lock object lives on."""
    worker = start("tests.faults.test_loops:close", lock)
    assert worker.says() == "closed"
    worker.go_on()
    assert worker.says() == "forgotten"
    with redis_lock("job", wait=PATIENCE):
        pass
    eventually(lambda: not remains(redis))
    worker.go_on()
    assert worker.ends() == 0


def test_a_loop_is_closed_with_a_waiter(start: Start, redis: Redis) -> None:
    """It does not come for the lock that it is handed: that costs a few seconds."""
    with redis_lock("job"):
        worker = start("tests.faults.test_loops:close", "waiting")
        assert worker.says() == "closed"
    handed = seen(redis)
    assert handed is not None
    with redis_lock("job", wait=PATIENCE) as lease:
        late(lease, handed)
    worker.go_on()
    assert worker.says() == "forgotten"
    eventually(lambda: not remains(redis))
    worker.go_on()
    assert worker.ends() == 0


# What the processes run.


kept = redis_lock("job", ttl=1)


async def hold(lock: redis_lock, holding: asyncio.Event) -> None:
    async with lock:
        holding.set()
        await asyncio.Event().wait()


def run() -> None:
    """asyncio.run() ends while a task of its own still holds the lock."""

    async def main() -> None:
        holding = asyncio.Event()
        task = asyncio.create_task(hold(redis_lock("job"), holding))
        await holding.wait()
        say("holding", not task.done())
        told()

    asyncio.run(main())
    say("ended")
    told()


def close(what: str) -> None:
    """Close a loop without a word to the task that holds the lock, or waits for it."""
    # asyncio's own complaints about it.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore", ResourceWarning)
    loop = asyncio.new_event_loop()
    holding = asyncio.Event()
    lock = kept if what == "kept" else redis_lock("job", ttl=1, wait=None)
    task = loop.create_task(hold(lock, holding))

    async def waiting() -> None:
        with Redis.from_url(os.environ["REDISLOCK_TEST_URL"]) as redis:
            while not redis.exists("redislock:{job}:queue"):
                await asyncio.sleep(0.001)

    loop.run_until_complete(waiting() if what == "waiting" else holding.wait())
    loop.close()
    say("closed")
    told()
    del task, loop, lock, holding
    gc.collect()
    say("forgotten")
    told()
