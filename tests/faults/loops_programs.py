"""What the processes of test_loops.py run."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import warnings

from redis import Redis

from django_redislock import redis_lock
from tests.worker import say, told

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
