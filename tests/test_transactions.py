"""release="commit": the lock outlives the block until the database transaction has ended."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import DatabaseError, connections, transaction
from django.db.transaction import TransactionManagementError
from django.http import HttpRequest, StreamingHttpResponse
from django.test import RequestFactory, override_settings
from redis import Redis

from django_redislock import (
    EarlyReleaseWarning,
    Lease,
    LeaseLost,
    LeaseState,
    LockError,
    LockNotAcquired,
    LockReentered,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    redis_lock,
)
from django_redislock.views import lock_view
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

KEY = "redislock:{job}"
Held = Callable[[], bool]


@pytest.fixture
def held(redis: Redis) -> Held:
    """Whether the lock is held, as the server sees it."""
    return lambda: bool(redis.exists(KEY))


def lock(**options: Any) -> redis_lock:
    return redis_lock("job", release="commit", **options)


def test_it_is_released_after_the_commit(held: Held) -> None:
    """The next holder never reads rows that are not committed yet."""
    seen = []
    with transaction.atomic():
        transaction.on_commit(lambda: seen.append(("before ours", held())))
        with lock() as lease:
            pass
        assert held()
        assert lease.state == LeaseState.HELD
        transaction.on_commit(lambda: seen.append(("after ours", held())))
    assert seen == [("before ours", True), ("after ours", False)]
    assert lease.state == LeaseState.RELEASED


def test_it_is_released_after_a_rollback(held: Held) -> None:
    """Django drops what was to be called on commit, and that ends the lock, too."""
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        with lock():
            pass
        assert held()
        raise ZeroDivisionError
    eventually(lambda: not held())


def test_without_a_transaction_it_is_released_at_exit(held: Held) -> None:
    """Autocommit has committed everything by then."""
    with lock():
        assert held()
    assert not held()


def test_a_transaction_inside_of_the_block_is_none_around_it(held: Held) -> None:
    """It has ended when the block is left."""
    with lock(), transaction.atomic():
        assert held()
    assert not held()


def test_a_committed_savepoint_waits_for_the_transaction(held: Held) -> None:
    """Its rows are not visible to others before the outermost commit."""
    with transaction.atomic():
        with transaction.atomic(), lock():
            pass
        assert held()
    assert not held()


def test_a_savepoint_that_is_rolled_back_ends_it(held: Held) -> None:
    """What was done under the lock is undone then, so there is nothing left to wait for."""
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            with lock():
                pass
            raise ZeroDivisionError
        eventually(lambda: not held())


def test_a_savepoint_that_is_rolled_back_after_a_lock_around_it(held: Held) -> None:
    """A lock that was left outside of the savepoint waits for the whole transaction."""
    with transaction.atomic():
        with lock(), pytest.raises(ZeroDivisionError), transaction.atomic():
            raise ZeroDivisionError
        assert held()
    assert not held()


def test_savepoints_that_are_managed_by_hand(held: Held) -> None:
    """Django keeps no account of them, so it is the transaction that counts."""
    with transaction.atomic():
        # savepoint() is deprecated since Django 6.1, where it has the other name.
        savepoint = getattr(transaction, "savepoint_create", transaction.savepoint)()
        with lock():
            pass
        transaction.savepoint_rollback(savepoint)
        assert held()
    assert not held()


def test_two_databases(held: Held) -> None:
    """It waits for every transaction that is open, whichever ends last."""
    with transaction.atomic(using="other"):
        with transaction.atomic():
            with lock():
                pass
            assert held()
        let_the_watchdog_release()
        assert held()
    assert not held()


def let_the_watchdog_release() -> None:
    """Return when it has done all that it had been told to release in the background."""
    lease = redis_lock("another").acquire()
    lease._abandon()
    eventually(lambda: redis_lock("another").holder() is None)


def test_two_databases_of_which_one_rolls_back(held: Held) -> None:
    """Commit here, rollback there: both are ends."""
    with pytest.raises(ZeroDivisionError), transaction.atomic(using="other"):
        with transaction.atomic(), lock():
            pass
        assert held()
        raise ZeroDivisionError
    eventually(lambda: not held())


def test_the_same_transaction_may_take_it_again(held: Held) -> None:
    """A loop over rows that locks each one would else wait for its own commit."""
    with transaction.atomic():
        with lock() as first:
            pass
        with lock() as second:
            assert second is first
            with pytest.raises(LockReentered):
                redis_lock("job").acquire()
        assert held()
    assert not held()


@pytest.mark.parametrize("first", ["task", "thread"])
@pytest.mark.parametrize("second", ["task", "thread"])
@pytest.mark.parametrize(
    "one",
    [
        redis_lock("job", release="commit", wait=1),
        redis_lock("job", release="commit", wait=0),
        Semaphore("job", 1, release="commit", wait=1),
        ReadWriteLock("job", release="commit", wait=1).write(),
        MultiLock(["job", "tool"], release="commit", wait=1),
    ],
    ids=repr,
)
def test_tasks_of_a_transaction_take_it_again(
    held: Held, one: redis_lock, first: str, second: str
) -> None:
    """It is the thread's, in which the ORM of each of them works."""

    @one
    def in_thread() -> None:
        assert held()

    @one
    async def in_task() -> None:
        assert held()

    calls: dict[str, Callable[[], None]] = {"task": async_to_sync(in_task), "thread": in_thread}
    with transaction.atomic():
        calls[first]()
        calls[second]()
        assert held()
    assert not held()


async def test_a_task_that_is_cancelled_while_it_takes_it_again(held: Held) -> None:
    """It leaves nothing behind, although the thread of the transaction answers later."""
    atomic, busy, free = transaction.atomic(), threading.Event(), threading.Event()
    await sync_to_async(atomic.__enter__)()
    async with lock(ttl=600):
        pass

    def work() -> None:
        busy.set()
        assert free.wait(PATIENCE)

    working = asyncio.create_task(sync_to_async(work)())
    assert await asyncio.to_thread(busy.wait, PATIENCE)
    task = asyncio.create_task(redis_lock("job").aacquire())
    await asyncio.sleep(0)  # it asks in the thread, which is busy
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    free.set()
    await working
    await sync_to_async(atomic.__exit__)(None, None, None)
    await asyncio.to_thread(eventually, lambda: not held())


def test_a_transaction_streams_twice(held: Held) -> None:
    """A response that was sent leaves the lock to the transaction of its thread."""

    @lock_view("job")
    def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(["a", "b"])

    with transaction.atomic():
        for _ in range(2):
            response = view(RequestFactory().get("/"))
            assert response.status_code == 200
            response.close()
        assert held()
    assert not held()


def test_a_task_is_not_in_the_block_of_its_thread() -> None:
    """The block may end, and the transaction go on: the task waits, or gets nothing."""
    with transaction.atomic():
        with lock():
            pass
        with lock():
            assert async_to_sync(redis_lock("job", release="commit").aacquire)(wait=0) is None


def test_a_transaction_has_one_place_of_a_semaphore(redis: Redis) -> None:
    """However often it takes one, one after the other: else two transactions that do could have
    all places, and wait for each other. At the same time it may have several."""
    places = Semaphore("job", 2, wait=0, release="commit")
    with transaction.atomic():
        with places as lease:
            pass
        for _ in range(3):
            with places as again:
                assert again is lease
            assert redis.zcard(KEY) == 1
        with places as again, places as second:
            assert again is lease
            assert second is not lease
            with pytest.raises(LockReentered), places:
                pass
            assert redis.zcard(KEY) == 2
    assert not redis.exists(KEY)


def test_a_transaction_may_be_tried_again_at_once(held: Held) -> None:
    """Its lock is released in the background, and until then it is not in its own way."""
    for _ in range(50):
        with pytest.raises(ZeroDivisionError), transaction.atomic(), lock():
            raise ZeroDivisionError
    with transaction.atomic(), lock():
        pass
    eventually(lambda: not held())


def test_a_callback_that_raises_before_ours(held: Held) -> None:
    """Django then calls none of the later ones; the lock is released all the same."""

    def fails() -> None:
        raise ZeroDivisionError

    try:
        with transaction.atomic():
            transaction.on_commit(fails)
            with lock():
                pass
    except ZeroDivisionError:
        pass
    eventually(lambda: not held())


def test_a_release_that_fails_after_the_commit(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the project's own functions are called all the same."""
    reached = []
    with transaction.atomic():
        with lock():
            pass
        transaction.on_commit(lambda: reached.append("commit"))
        redis.setrange(KEY, 32, "+")  # so the release does more than the least
        redis.set(f"{KEY}:queue", "no queue")
    assert reached == ["commit"]
    assert "could not be released after a commit" in caplog.text


def test_a_lease_that_was_lost_stops_the_commit(redis: Redis) -> None:
    """When the block is left there is still time to roll back."""
    reached = []
    with pytest.raises(LeaseLost), transaction.atomic():
        transaction.on_commit(lambda: reached.append("commit"))
        with lock(ttl=0.3) as lease:
            redis.delete(KEY)
            eventually(lambda: lease.state == LeaseState.LOST)
    assert not reached


def test_a_loss_between_exit_and_commit_is_logged(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can be done about it any more but to say so."""
    with transaction.atomic():
        with lock():
            pass
        redis.delete(KEY)
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert "'job' was lost before its transaction was committed" in record.getMessage()


def test_a_lease_that_was_released_early(held: Held) -> None:
    """Who releases inside of the block has done so; nothing is left to wait for."""
    with transaction.atomic():
        with lock() as lease:
            lease.release()
        assert not held()


def test_an_inner_block_that_waits_for_the_commit(held: Held) -> None:
    """What the inner one asks for counts, also when the outer one did not."""
    with transaction.atomic():
        with redis_lock("job"), lock(reentrant=True):
            pass
        assert held()
    assert not held()


def test_it_is_renewed_until_the_commit(redis: Redis) -> None:
    """A transaction that takes longer than the lease keeps it."""
    with transaction.atomic():
        with lock(ttl=0.3) as lease:
            pass
        for _ in range(4):
            before = redis.pexpiretime("redislock:{job}")
            eventually(lambda before=before: redis.pexpiretime("redislock:{job}") > before)
        lease.check()
    assert not redis.exists(KEY)


def test_transactions_that_are_managed_by_hand_are_refused() -> None:
    """Nobody could tell when they end; better no lock than one that is released too early."""
    connection = connections["default"]
    connection.ensure_connection()
    connection.set_autocommit(False)
    try:
        with pytest.raises(TransactionManagementError, match=r"Use transaction\.atomic\(\)"):
            with lock():
                pytest.fail("entered")
    finally:
        connection.rollback()
        connection.set_autocommit(True)


def test_a_broken_connection_ends_it(held: Held) -> None:
    """A connection that is closed in the middle of a transaction has rolled it back."""
    with pytest.raises(DatabaseError), transaction.atomic(using="other"):
        with lock():
            pass
        assert held()
        connections["other"].close()
        raise DatabaseError
    eventually(lambda: not held())


def test_a_writer_is_no_reader_before_the_commit(redis: Redis) -> None:
    """Readers would be let in, and read what was there before. After the commit it may be one."""
    catalogue = ReadWriteLock("job", release="commit")

    def beside() -> Lease | None:
        with ThreadPoolExecutor(1) as another:
            return another.submit(lambda: catalogue.read().acquire(wait=0)).result()

    with catalogue.write() as lease:
        with transaction.atomic():
            with pytest.raises(LockError, match="after the atomic block"):
                lease.downgrade()
            assert beside() is None
        lease.downgrade()
        with transaction.atomic():
            lease.downgrade()  # once more, of a reader
        found = beside()
        found.release()
    assert not redis.exists(KEY)


def test_a_transaction_that_reads_is_no_writer() -> None:
    """With wait=0, too: its block would run beside other readers."""
    catalogue = ReadWriteLock("catalogue", release="commit")
    with transaction.atomic():
        with catalogue.read():
            pass
        writer = ReadWriteLock("catalogue", release="commit", wait=0).write()
        with pytest.raises(LockNotAcquired), writer:
            pytest.fail("it runs as a reader")
        with pytest.raises(LockReentered, match="a reader can't become a writer"):
            catalogue.write().acquire()


async def test_a_task_that_writes_is_no_reader_before_the_commit(redis: Redis) -> None:
    """The transaction is that of the thread in which its ORM works."""
    async with ReadWriteLock("job", release="commit").write() as lease:
        atomic = transaction.atomic()
        await sync_to_async(atomic.__enter__)()
        try:
            with pytest.raises(LockError, match="after the atomic block"):
                await lease.adowngrade()
        finally:
            await sync_to_async(atomic.__exit__)(None, None, None)
        await lease.adowngrade()
    assert not redis.exists(KEY)


class TestWarn:
    """`release="warn"`: a block that ends inside an open transaction is told."""

    @pytest.fixture(autouse=True)
    def _setting(self) -> Iterator[None]:
        with override_settings(REDISLOCK={"RELEASE": "warn"}):
            yield

    @pytest.mark.parametrize("database", ["default", "other"])
    def test_an_open_transaction(self, database: str, held: Held) -> None:
        """The warning names the line and the database; the lock is released all the same."""
        with transaction.atomic(database):
            with pytest.warns(EarlyReleaseWarning, match=f"shop.py:7 .* '{database}'"):
                with redis_lock("job", label="shop.py:7"):
                    pass
            assert not held()

    def test_by_hand(self) -> None:
        """A transaction that is managed by hand is open as well."""
        connection = connections["default"]
        connection.ensure_connection()
        connection.set_autocommit(False)
        try:
            with pytest.warns(EarlyReleaseWarning), redis_lock("job"):
                pass
        finally:
            connection.set_autocommit(True)

    def test_in_a_coroutine(self) -> None:
        """The thread of the ORM is asked, as for release="commit"."""

        async def work() -> None:
            async with redis_lock("job"):
                pass

        with transaction.atomic(), pytest.warns(EarlyReleaseWarning):
            async_to_sync(work)()

    def test_the_outermost_of_two_blocks(self) -> None:
        """Only the block that releases warns."""
        with redis_lock("job"), transaction.atomic():
            with redis_lock("job", reentrant=True):
                pass

    def test_where_nothing_is_open(self) -> None:
        """Around the transaction, or without one, there is nothing to say."""
        with redis_lock("job"), transaction.atomic():
            pass

    def test_where_the_code_knows(self) -> None:
        """What the code says beats the setting."""
        with transaction.atomic():
            with redis_lock("job", release="exit"):
                pass
            with redis_lock("job", release="commit"):
                pass

    def test_an_exception(self) -> None:
        """A block that fails rolls back what it wrote, most likely, and has an error to tell."""
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            with redis_lock("job"):
                raise ZeroDivisionError


@pytest.mark.django_db(transaction=False)
class TestWarnInTestCase:
    """The atomic block that Django puts around each test is not the project's."""

    @pytest.fixture(autouse=True)
    def _setting(self) -> Iterator[None]:
        with override_settings(REDISLOCK={"RELEASE": "warn"}):
            yield

    def test_alone(self) -> None:
        """It does not warn."""
        with redis_lock("job"):
            pass

    def test_inside_one_of_the_project(self) -> None:
        """It warns of a block within."""
        with transaction.atomic(), pytest.warns(EarlyReleaseWarning), redis_lock("job"):
            pass
