"""What holds a lease in this process, in any order: blocks, acquires, transactions, responses."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import transaction
from django.http import StreamingHttpResponse
from django.test import RequestFactory
from redis import Redis

from django_redislock import (
    Lease,
    LeaseLost,
    LeaseState,
    LockReentered,
    LockUnavailable,
    current_lease,
    redis_lock,
)
from django_redislock.signals import LockEvent, lock_lost
from django_redislock.testing import locks_always_free
from django_redislock.transport.ports import SyncPort
from django_redislock.views import lock_view
from tests.contract.api import Meanwhile
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    return Meanwhile(monkeypatch)


@pytest.fixture
def lost() -> Iterator[list[str]]:
    """The names of the leases that are said to be lost."""
    names: list[str] = []

    def receive(event: LockEvent, **_: Any) -> None:
        names.append(event.name)

    lock_lost.connect(receive)
    yield names
    lock_lost.disconnect(receive)


def take() -> Lease:
    lease = redis_lock("job").acquire(wait=0)
    assert lease is not None
    return lease


# In one thread.


@pytest.mark.parametrize("seed", range(200))
def test_random_programs(seed: int) -> None:
    """The lease is released with its last hold, and not before: a release ends an acquire that no
    block has entered, or else the innermost block; and a block that has released ends nothing."""
    chance = random.Random(seed)
    with locks_always_free():
        lock = redis_lock("job", reentrant=True)
        lease = lock.acquire()
        assert lease is not None
        acquires = 1
        blocks: list[ExitStack] = []
        holding: list[ExitStack] = []
        for _ in range(12):
            step = chance.choice(
                ["again", "enter", "lock", "release", "release", "leave", "leave"]
            )
            if step == "again":
                assert lock.acquire() is lease
                acquires += 1
            elif step in ("enter", "lock"):
                blocks.append(ExitStack())
                assert blocks[-1].enter_context(lock if step == "lock" else lease) is lease
                if step == "enter":
                    acquires -= bool(acquires)
                holding.append(blocks[-1])
            elif step == "release":
                lease.release()
                if acquires:
                    acquires -= 1
                elif holding:
                    holding.pop()
            elif blocks:
                left = blocks.pop()
                left.close()
                if left in holding:
                    holding.remove(left)
            ended = not acquires and not holding
            assert (lease.state == LeaseState.RELEASED) == ended, step
            if ended:
                break
        for block in reversed(blocks):
            block.close()


def test_it_is_never_held_again(redis: Redis) -> None:
    """After the last hold has ended, the same thread gets another lease."""
    lock = redis_lock("job", reentrant=True)
    with lock as first:
        first.release()
        with lock as second:
            assert second is not first
        assert not redis.exists(KEY)


def test_a_generator_that_releases(redis: Redis) -> None:
    """It ends its own hold, and not that of the block around it."""

    @redis_lock("job", reentrant=True)
    def work() -> Iterator[None]:
        current_lease().release()
        yield

    with redis_lock("job") as outer:
        list(work())
        outer.check()
    assert not redis.exists(KEY)


def test_a_block_inside_of_a_generator(redis: Redis) -> None:
    """A block of the same lease holds it beside the generator, which goes on under the lock."""

    @redis_lock("job")
    def work() -> Iterator[Lease]:
        with current_lease():
            pass
        yield current_lease()

    for lease in work():
        lease.check()
    assert not redis.exists(KEY)


@pytest.mark.parametrize("left", [0, 1])
def test_blocks_that_are_left_in_disorder(redis: Redis, left: int) -> None:
    """Whichever is left first, the other one is the current one, and then none."""
    locks = redis_lock("job"), redis_lock("other")
    leases = [lock.__enter__() for lock in locks]
    locks[left].__exit__(None, None, None)
    assert current_lease() is leases[1 - left]
    locks[1 - left].__exit__(None, None, None)
    assert not redis.exists(KEY, "redislock:{other}")


async def test_a_block_that_is_left_in_another_context(redis: Redis) -> None:
    """The context in which it was entered has its outer block again."""
    async with redis_lock("outer") as outer:
        lock = redis_lock("job")
        await lock.__aenter__()

        async def leave() -> None:
            await lock.__aexit__(None, None, None)

        await asyncio.create_task(leave())
        assert current_lease() is outer
    assert not redis.exists(KEY)


# What outlives a block.


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize("databases", [["default"], ["default", "other"]], ids=["one", "two"])
def test_a_release_while_transactions_hold_it(redis: Redis, databases: list[str]) -> None:
    """The block is over, so there is nothing to release before all of them have ended."""
    with ExitStack() as transactions:
        for database in databases:
            transactions.enter_context(transaction.atomic(database))
        with redis_lock("job", release="commit") as lease:
            pass
        for _ in range(3):
            lease.release()
        lease.check()
        assert redis.exists(KEY)
    assert lease.state == LeaseState.RELEASED
    assert not redis.exists(KEY)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_release_between_two_commits(redis: Redis) -> None:
    """The transaction that is still open keeps the lock."""
    with transaction.atomic("other"):
        with transaction.atomic():
            with redis_lock("job", release="commit") as lease:
                pass
        lease.release()
        lease.check()
        assert redis.exists(KEY)
    assert not redis.exists(KEY)


@pytest.mark.django_db(transaction=True)
def test_a_release_while_a_response_is_sent(redis: Redis) -> None:
    """The response has the lock until it is closed."""

    @lock_view(lambda request: "job")
    def view(request: Any) -> StreamingHttpResponse:
        leases.append(current_lease())
        return StreamingHttpResponse(iter([b"one"]))

    leases: list[Lease] = []
    response = view(RequestFactory().get("/"))
    leases[0].release()
    assert redis.exists(KEY)
    response.close()
    assert not redis.exists(KEY)


# Several at the same moment.


@pytest.mark.parametrize(
    "call",
    [Lease.extend, Lease.export, Lease.check, Lease.__enter__],
    ids=["extend", "export", "check", "enter"],
)
def test_while_it_is_being_released(
    redis: Redis, meanwhile: Meanwhile, lost: list[str], call: Callable[[Lease], Any]
) -> None:
    """Whatever needs the lease is told that it was released. That is no loss."""
    lease = take()

    def too_late() -> None:
        with pytest.raises(LeaseLost, match="it was released"):
            call(lease)

    meanwhile(too_late)
    lease.release()
    assert lease.state == LeaseState.RELEASED
    assert not redis.exists(KEY)
    assert not lost


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
def test_a_release_while_it_is_extended(
    redis: Redis, meanwhile: Meanwhile, lost: list[str], answered: bool
) -> None:
    """The extension is too late, and that is no loss."""
    lease = take()
    meanwhile(lease.release, answered=answered)
    with pytest.raises(LeaseLost, match="it was released"):
        lease.extend()
    assert lease.state == LeaseState.RELEASED
    assert not redis.exists(KEY)
    assert not lost


def test_a_release_that_failed_while_another_one_succeeded(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is released, so nobody has to repeat it."""
    script = SyncPort.script
    lease = take()

    async def fail(self: SyncPort, *call: Any) -> Any:
        monkeypatch.setattr(SyncPort, "script", script)
        lease.release()
        raise LockUnavailable("the cable is cut", doubtful=True, passing=False)

    monkeypatch.setattr(SyncPort, "script", fail)
    lease.release()
    assert lease.state == LeaseState.RELEASED
    assert not redis.exists(KEY)


def test_a_callback_that_comes_with_the_loss(redis: Redis) -> None:
    """Each is called once, also if it is added at the very moment of the loss."""
    lease = take()
    told: list[int] = []
    redis.delete(KEY)
    start = threading.Barrier(2)

    def add() -> None:
        start.wait(PATIENCE)
        for number in range(100):
            lease.on_lost(lambda _, number=number: told.append(number))

    adding = threading.Thread(target=add)
    adding.start()
    start.wait(PATIENCE)
    with pytest.raises(LeaseLost):
        lease.extend()
    adding.join(PATIENCE)
    eventually(lambda: len(told) == 100)
    assert sorted(told) == [*range(100)]


# By several threads and tasks.


def test_a_lease_that_was_handed_on(redis: Redis) -> None:
    """The thread that took it may try again at once, before the other one has entered it and
    after. It is told if it would wait, for that could be for itself."""
    lease = take()
    assert redis_lock("job").acquire(wait=0) is None
    with pytest.raises(LockReentered, match="write `with lease:` there"):
        redis_lock("job").acquire()
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with lease:
            entered.set()
            leave.wait(PATIENCE)

    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(work)
        assert entered.wait(PATIENCE)
        assert redis_lock("job").acquire(wait=0) is None
        waiter = redis_lock("job", wait=PATIENCE)
        leave.set()
        with waiter:
            working.result(PATIENCE)
    assert not redis.exists(KEY)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["thread", "task"])
def test_it_comes_back_to_the_outer_block(redis: Redis, asynchronous: bool) -> None:
    """A thread or task that waits for others, which have entered its lease, is the holder again
    when they have left it."""

    def work(lease: Lease) -> None:
        with lease:
            assert current_lease() is lease

    async def awork(lease: Lease) -> None:
        async with lease:
            assert current_lease() is lease

    async def outer() -> None:
        async with redis_lock("job") as lease:
            await asyncio.gather(*(asyncio.create_task(awork(lease)) for _ in range(3)))
            async with redis_lock("job", reentrant=True) as inner:
                assert inner is lease

    if asynchronous:
        asyncio.run(outer())
    else:
        with redis_lock("job") as lease, ThreadPoolExecutor(3) as threads:
            for working in [threads.submit(work, lease) for _ in range(3)]:
                working.result(PATIENCE)
            with redis_lock("job", reentrant=True) as inner:
                assert inner is lease
            with pytest.raises(LockReentered):
                redis_lock("job").acquire(wait=0)
    assert not redis.exists(KEY)


async def test_cancel_on_lost_of_the_outer_block_and_of_a_task_inside(redis: Redis) -> None:
    """Each is cancelled for its own block, whichever has entered the lease last."""

    async def inside(lease: Lease, entered: asyncio.Event) -> None:
        async with lease:
            entered.set()
            await asyncio.sleep(PATIENCE)

    with pytest.raises(LeaseLost):
        async with redis_lock("job", cancel_on_lost=True) as lease:
            entered = asyncio.Event()
            task = asyncio.create_task(inside(lease, entered))
            await entered.wait()
            redis.delete(KEY)
            with pytest.raises(LeaseLost):
                await lease.aextend()
            await asyncio.sleep(PATIENCE)
    with pytest.raises(LeaseLost):
        await task


@pytest.mark.parametrize("_", range(50))
def test_two_threads_that_enter_it_at_once(redis: Redis, _: int) -> None:
    """Each has a hold of its own: the first that leaves does not release for the other."""
    lease = take()
    start, inside = threading.Barrier(2), threading.Barrier(2)
    one_has_left = threading.Event()

    def work(number: int) -> None:
        start.wait(PATIENCE)
        with lease:
            inside.wait(PATIENCE)
            if number:
                assert one_has_left.wait(PATIENCE)
                lease.check()
        one_has_left.set()

    with ThreadPoolExecutor(2) as threads:
        for working in [threads.submit(work, number) for number in range(2)]:
            working.result(PATIENCE)
    assert not redis.exists(KEY)


@pytest.mark.parametrize("entered", [0, 1])
def test_left_too_often(redis: Redis, entered: int) -> None:
    """A lock that is left by hand, and was not entered, says so beside the exception that is
    under way, in coroutines as well."""
    lock = redis_lock("job")
    for _ in range(entered):
        with lock:
            pass
    error = ZeroDivisionError()
    with pytest.raises(RuntimeError, match="was not entered"):
        lock.__exit__(ZeroDivisionError, error, None)
    with pytest.raises(RuntimeError, match="was not entered"):
        asyncio.run(lock.__aexit__(ZeroDivisionError, error, None))
