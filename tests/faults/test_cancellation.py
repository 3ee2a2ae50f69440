"""asyncio tasks that are cancelled, once or twice, wherever they wait for something.

The synchronous twin of these tests is test_interruptions.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any

import pytest
from django.test import override_settings
from redis import Redis

from django_redislock import Lease, LeaseState, redis_lock
from django_redislock.transport.ports import AsyncPort
from tests.faults.remains import queued, remains
from tests.lines import opened
from tests.waiting import PATIENCE

pytestmark = pytest.mark.parametrize(
    "again", [0, 1, 2, 3], ids=["once", "twice", "2 later", "3 later"]
)
"""So many suspensions later the task is cancelled again, while it undoes what it has done."""


class CancelledAt:
    """Runs `coroutine`, and cancels the task that does so at the suspensions with these numbers.

    A suspension is a moment at which the task gives way to others: the only moments at which
    asyncio cancels one.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], numbers: Collection[int]) -> None:
        self._coroutine = coroutine
        self._numbers = numbers
        self.suspensions = 0

    async def run(self) -> Any:
        return await self

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        step, value = self._coroutine.send, None
        while True:
            try:
                waits_for = step(value)
            except StopIteration as done:
                return done.value
            self.suspensions += 1
            if self.suspensions in self._numbers:
                task.cancel()
            step = self._coroutine.send
            try:
                value = yield waits_for
            except BaseException as error:
                step, value = self._coroutine.throw, error


Act = Callable[[], Coroutine[Any, Any, Lease | None]]
Around = Callable[[], AbstractAsyncContextManager[str]]
"""Makes what the task works in, and tells the prefix of its keys."""


async def at_every_suspension(redis: Redis, again: int, around: Around, act: Act) -> int:
    """Cancel a task that acts at one suspension after the other, until there are no more.

    Returns how many there are. Each time the task is cancelled, nothing remains, and the lock can
    be had at once.
    """
    for number in count(1):
        async with around() as prefix:
            driver = CancelledAt(act(), {number, number + again})
            task = asyncio.create_task(driver.run())
            await asyncio.wait([task])
        if driver.suspensions < number:
            if (lease := task.result()) is not None:
                await lease.arelease()
            assert not remains(redis, prefix=prefix)
            return number - 1
        assert task.cancelled(), f"at suspension {number} it went on"
        if again:
            # The second time it does not wait for the end of what it undoes.
            await until(lambda prefix=prefix: not remains(redis, prefix=prefix))
        assert not remains(redis, prefix=prefix), f"after suspension {number}"
        async with redis_lock("job", wait=0):
            pass
    raise AssertionError("unreachable")


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not happened():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def connected() -> AsyncIterator[str]:
    async with redis_lock("warm up"):
        pass
    yield "redislock"


@asynccontextmanager
async def connecting() -> AsyncIterator[str]:
    """The connections of this loop are closed: the next command has to connect first."""
    for shared in opened():
        await shared.pool.aclose()
    yield "redislock"


@pytest.mark.parametrize("around", [connected, connecting])
def test_acquire(redis: Redis, around: Around, again: int) -> None:
    """Of a lock that is free."""
    acquire = redis_lock("job").aacquire
    assert asyncio.run(at_every_suspension(redis, again, around, acquire)) >= 1


@pytest.mark.parametrize("around", [connected, connecting])
def test_a_block(redis: Redis, around: Around, again: int) -> None:
    """Entering and leaving it."""

    async def block() -> None:
        async with redis_lock("job"):
            await asyncio.sleep(0)

    assert asyncio.run(at_every_suspension(redis, again, around, block)) >= 3


def test_release(redis: Redis, again: int) -> None:
    """Whoever is cancelled while releasing has released."""
    lease: Lease | None = None

    @asynccontextmanager
    async def held() -> AsyncIterator[str]:
        nonlocal lease
        lease = await redis_lock("job").aacquire(wait=0)
        assert lease is not None
        yield "redislock"
        assert lease.state == LeaseState.RELEASED

    async def release() -> None:
        assert lease is not None
        await lease.arelease()

    assert asyncio.run(at_every_suspension(redis, again, held, release)) >= 1


def test_release_to_a_neighbour(redis: Redis, again: int) -> None:
    """Whoever is cancelled while telling the next one of its process has told it, or that one
    finds out."""
    lease: Lease | None = None

    @asynccontextmanager
    async def awaited() -> AsyncIterator[str]:
        nonlocal lease
        lease = await redis_lock("job").aacquire(wait=0)
        assert lease is not None
        neighbour = asyncio.create_task(redis_lock("job").aacquire(wait=PATIENCE))
        await until(lambda: queued(redis, 1))
        yield "redislock"
        successor = await neighbour
        assert successor is not None
        await successor.arelease()

    async def release() -> None:
        assert lease is not None
        await lease.arelease()

    assert asyncio.run(at_every_suspension(redis, again, awaited, release)) >= 2


@pytest.mark.parametrize("elsewhere", [False, True], ids=["a neighbour's", "another process's"])
@pytest.mark.parametrize("cold", [False, True], ids=["listening", "not listening yet"])
def test_wait(
    redis: Redis, cold: bool, elsewhere: bool, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queueing, waiting, being handed the lock, by a message if another process has held it."""
    numbers = count(1)
    if elsewhere:
        monkeypatch.setattr(AsyncPort, "own_inbox", lambda self, keys: "")

    @asynccontextmanager
    async def taken() -> AsyncIterator[str]:
        """Somebody holds the lock until somebody waits for it, or does so no more."""
        held, over = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with redis_lock("job", wait=0):
                held.set()
                await until(lambda: queued(redis, 1, prefix=prefix) or over.is_set())

        # A process begins to listen when it waits for the first time under a prefix.
        prefix = f"redislock-{again}-{next(numbers)}" if cold else "redislock"
        with override_settings(REDISLOCK={"PREFIX": prefix}):
            holder = asyncio.create_task(hold())
            await held.wait()
            yield prefix
            over.set()
            await holder

    async def wait() -> Lease | None:
        return await redis_lock("job").aacquire(wait=PATIENCE)

    # Where an answer is there already, it does not give way.
    assert asyncio.run(at_every_suspension(redis, again, taken, wait)) >= (
        3 if cold and not elsewhere else 2
    )
