"""`once` and `deduplicate` in a Django project: transactions, forms, bad input."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from redis import Redis

from django_redislock import (
    LeaseLost,
    LockError,
    LockNotAcquired,
    current_lease,
    deduplicate,
    inspection,
    once,
    redis_lock,
)
from django_redislock.lease import claims
from django_redislock.lease.watchdog import Watchdog
from django_redislock.locks import once as only_once
from django_redislock.settings import naming
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{once:job}"
RECORD = f"{KEY}:record"

commits = partial(once, "job", release="commit")


def do(run: once | None = None) -> bool:
    """Whether this one was the first."""
    with run or once("job") as first:
        return first


def elsewhere(run: once | None = None) -> bool:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(do, run).result(PATIENCE)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestTransactions:
    @pytest.fixture(autouse=True)
    def _patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A busy machine may take longer than a moment."""
        monkeypatch.setattr(only_once, "ROLLBACK_RELEASE", PATIENCE)

    def test_done_after_the_commit(self, redis: Redis) -> None:
        """Until then it is under way; the record comes when the lock goes."""
        seen = []

        def look() -> None:
            seen.append((redis.exists(RECORD), redis.exists(KEY)))

        with transaction.atomic():
            with commits() as first:
                transaction.on_commit(look)
            look()
            assert first
            assert elsewhere() is False
            with pytest.raises(LockNotAcquired):
                elsewhere(once("job", wait=0.05))
        look()
        assert seen == [(0, 1), (0, 1), (1, 0)]
        assert do() is False

    def test_not_done_after_a_rollback(self, redis: Redis) -> None:
        """What did not happen may be tried again, by this very thread, too, and at once."""
        for _ in range(10):
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                assert do(commits())
                raise ZeroDivisionError
        assert not redis.exists(RECORD)
        with transaction.atomic():
            assert do(commits())
        assert do(commits()) is False

    def test_done_under_a_lease_that_is_released_later(self, redis: Redis) -> None:
        """After a rollback, this thread goes on under the lease that the watchdog has not released
        yet. What it does then is done from the commit on, and recorded by the release."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Watchdog, "_release_pending", lambda _: None)
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                assert do(commits())
                raise ZeroDivisionError
            with transaction.atomic():
                assert do(commits())
            assert do(commits()) is False
            assert not redis.exists(RECORD)
        eventually(lambda: redis.exists(RECORD))
        assert elsewhere() is False

    def test_again_while_it_is_released(
        self, monkeypatch: pytest.MonkeyPatch, redis: Redis
    ) -> None:
        """After a rollback the watchdog does that, and we are not in our own way."""
        releasing = threading.Event()
        release = claims.release

        async def late(*args: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                releasing.set()
                eventually(lambda: redis.exists(f"{KEY}:queue"))
            return await release(*args)

        monkeypatch.setattr(claims, "release", late)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            assert do(commits())
            raise ZeroDivisionError
        assert releasing.wait(PATIENCE)
        assert do(commits())

    def test_again_before_it_is_released(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nor is a lease that nobody has begun to release."""
        release, again = Watchdog._release_pending, threading.Event()

        def late(watchdog: Watchdog) -> None:
            assert again.wait(PATIENCE)
            release(watchdog)

        monkeypatch.setattr(Watchdog, "_release_pending", late)
        try:
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                assert do(commits())
                raise ZeroDivisionError
            assert do(commits())
        finally:
            again.set()

    def test_twice_in_one_transaction(self) -> None:
        """The second one finds it done, as far as this transaction goes."""
        with transaction.atomic():
            assert [do(commits()) for _ in range(3)] == [True, False, False]
        assert do() is False

    def test_again_in_one_transaction_after_an_exception(self) -> None:
        """What has failed is not done, though the lock is held until the commit."""
        with transaction.atomic():
            with pytest.raises(ZeroDivisionError), commits():
                raise ZeroDivisionError
            assert do(commits())
        assert do() is False

    def test_a_savepoint_that_is_rolled_back(self, redis: Redis) -> None:
        """It is not done, whatever becomes of the transaction."""
        with transaction.atomic():
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                assert do(commits())
                raise ZeroDivisionError
        assert not redis.exists(RECORD)
        assert eventually(elsewhere)

    def test_on_commit_raises(self, redis: Redis) -> None:
        """What was committed is done all the same: our step comes before those of the body."""

        def fails() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), transaction.atomic(), commits():
            transaction.on_commit(fails)
        gc.collect()  # the traceback has the last one who would release the lock
        eventually(lambda: not redis.exists(KEY))
        assert redis.exists(RECORD)

    def test_release_exit_does_not_wait(self, redis: Redis) -> None:
        """The default is done when the block is left."""
        with transaction.atomic():
            assert do()
            assert redis.exists(RECORD)
            assert not redis.exists(KEY)

    def test_a_lost_lease_stops_the_commit(self, redis: Redis) -> None:
        """While there is still time to roll back."""
        reached = []
        with pytest.raises(LeaseLost), transaction.atomic():
            transaction.on_commit(lambda: reached.append("commit"))
            with commits():
                redis_lock("once:job").clear(reason="test")
                lease = current_lease()
                with pytest.raises(LeaseLost):
                    lease.extend()
        assert not reached
        assert not redis.exists(RECORD)

    def test_a_lost_lease_and_a_commit_all_the_same(self, redis: Redis) -> None:
        """Who catches the error has been told that it is not done."""
        with transaction.atomic(), pytest.raises(LeaseLost), commits():
            redis.delete(KEY)
            with pytest.raises(LeaseLost):
                current_lease().extend()
        assert not redis.exists(RECORD)

    def test_a_lease_that_is_lost_before_the_commit(self, redis: Redis) -> None:
        """What was committed is done, unless somebody else is at it meanwhile."""
        with transaction.atomic():
            assert do(commits())
            redis.delete(KEY)
        assert redis.get(RECORD) == b"done"
        redis.delete(RECORD)
        with ThreadPoolExecutor(1) as thread:
            with transaction.atomic():
                assert do(commits())
                redis.delete(KEY)
                taken = thread.submit(redis_lock("once:job").acquire).result(PATIENCE)
            assert not redis.exists(RECORD)
            taken.release()

    def test_lose_does_not_wait_for_the_commit(self, redis: Redis) -> None:
        """At most once: a rollback is no reason to try again."""
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            with commits(on_failure="lose"):
                assert redis.get(RECORD) == b"begun"
            assert redis.get(RECORD) == b"begun"
            raise ZeroDivisionError
        eventually(lambda: not redis.exists(KEY))
        assert do() is False

    def test_managed_by_hand(self, redis: Redis) -> None:
        """Nobody could tell when that ends: refused before the body, and noticed after it."""
        connection = connections["default"]
        connection.ensure_connection()
        try:
            connection.set_autocommit(False)
            with pytest.raises(TransactionManagementError, match=r"Use transaction\.atomic\(\)"):
                do(commits())
            connection.set_autocommit(True)
            with pytest.raises(TransactionManagementError), commits():
                connection.set_autocommit(False)
        finally:
            connection.rollback()
            connection.set_autocommit(True)
        assert not redis.exists(RECORD)
        assert not redis.exists(KEY)

    async def test_in_a_coroutine(self, redis: Redis) -> None:
        """The transaction is that of the thread in which the ORM works."""

        async def work() -> None:
            async with commits() as first:
                assert first
            assert not redis.exists(RECORD)

        block = transaction.atomic()
        await sync_to_async(block.__enter__)()
        await work()
        await sync_to_async(block.__exit__)(None, None, None)
        assert redis.exists(RECORD)
        assert not redis.exists(KEY)


class TestForms:
    def test_the_dotted_path(self, redis: Redis) -> None:
        """Without a name, a function is done once whatever its arguments."""

        @once()
        def work(number: int) -> int:
            return number

        assert (work(1), work(2)) == (1, None)
        (key,) = redis.keys("redislock:*:record")
        assert b"{once:tests.test_only_once.TestForms." in key

    def test_a_function_as_its_name(self) -> None:
        """It gets the arguments."""

        @deduplicate(lambda message: f"{message['queue']}:{message['id']}")
        def consume(message: dict[str, Any]) -> str:
            return current_lease().name

        assert consume({"queue": "q", "id": 7}) == "deduplicate:q:7"
        assert consume({"queue": "q", "id": 7}) is None

    def test_methods(self) -> None:
        """Of every kind."""

        class Importer:
            source = "bank"

            @once("method:{self.source}")
            def method(self) -> str:
                return "method"

            @once("class:{cls.source}")
            @classmethod
            def of_class(cls) -> str:
                return "class"

            @staticmethod
            @once("static")
            def static() -> str:
                return "static"

        importer = Importer()
        assert [importer.method(), importer.of_class(), importer.static()] == [
            "method",
            "class",
            "static",
        ]
        assert [importer.method(), importer.of_class(), importer.static()] == [None] * 3

    def test_its_lock_is_a_mutex_like_others(self) -> None:
        """It is listed and shown by a name that tells what it is, with where it was taken."""
        with once("job"):
            (lock,) = inspection.Inspector().page().items
            assert (lock.name, lock.kind, lock.state) == ("once:job", "mutex", "held")
            assert lock.holder.label.startswith("tests/test_only_once.py")
        once("of:{number}")(lambda number: None)
        assert "once:of:*" in naming.patterns

    def test_nested(self) -> None:
        """Different ones may be nested, and each is left on its own."""
        shared = once("outer")
        with shared as outer, once("inner") as inner:
            assert current_lease().name == "once:inner"
            assert outer
            assert inner
        with shared as outer, shared as again:
            assert (outer, again) == (False, False)
        assert not shared._entered

    def test_left_by_another_thread(self, redis: Redis) -> None:
        """It was entered here, and is done when it is left there."""
        job = once("job")
        assert job.__enter__() is True
        with ThreadPoolExecutor(1) as thread:
            thread.submit(job.__exit__, None, None, None).result(PATIENCE)
        assert redis.exists(RECORD)
        assert not redis.exists(KEY)

    async def test_cancelled(self, redis: Redis) -> None:
        """A task that is cancelled has not done it."""
        inside = asyncio.Event()

        async def work() -> None:
            async with once("job"):
                inside.set()
                await asyncio.sleep(PATIENCE)

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not redis.exists(RECORD)
        assert not redis.exists(KEY)

    def test_interrupted(self, redis: Redis) -> None:
        """Nor has what Ctrl-C has ended."""
        with pytest.raises(KeyboardInterrupt), once("job"):
            raise KeyboardInterrupt
        assert not redis.exists(RECORD)
        assert not redis.exists(KEY)

    def test_settings(self, settings: Any) -> None:
        """Those of locks hold, but for WAIT and ON_CONFLICT."""
        settings.REDISLOCK = {
            "ON_CONFLICT": "raise",
            "LOCKS": {"once:*": {"TTL": 5, "WAIT": None}},
        }
        inside, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with once("job"):
                assert current_lease().ttl == 5
                inside.set()
                leave.wait(PATIENCE)

        with ThreadPoolExecutor(1) as thread:
            holding = thread.submit(hold)
            inside.wait(PATIENCE)
            assert do() is False
            leave.set()
            holding.result(PATIENCE)


class TestBadInput:
    @pytest.mark.parametrize("kind", [once, deduplicate])
    @pytest.mark.parametrize(
        ("arguments", "error", "match"),
        [
            ({"ttl": 0}, ValueError, r"ttl must be between 0\.1 and .* or None \(no limit\)"),
            ({"ttl": float("nan")}, ValueError, "ttl must be between"),
            ({"ttl": "day"}, TypeError, "ttl must be a number of seconds, such as 3600"),
            ({"ttl": True}, TypeError, "ttl must be a number"),
            ({"wait": -1}, ValueError, "wait must be 0 or more seconds"),
            ({"on_conflict": "wait"}, ValueError, "on_conflict must be 'skip' or 'raise'"),
            ({"on_failure": "keep"}, ValueError, "on_failure must be 'retry' or 'lose'"),
            ({"release": "end"}, ValueError, "release must be 'exit'"),
            ({"using": ""}, TypeError, "using must be an alias of CACHES"),
            ({"timeout": 3}, TypeError, r"timeout= is refused"),
            ({"renew": False}, TypeError, r"has no argument 'renew'"),
        ],
        ids=str,
    )
    def test_arguments(self, kind: Any, arguments: Any, error: Any, match: str) -> None:
        """Each is named, with what to write, where it is written."""
        with pytest.raises(error, match=match):
            kind("job", **arguments)

    @pytest.mark.parametrize(
        ("name", "error", "match"),
        [
            ("", ValueError, "name is empty"),
            (7, TypeError, "name must be a str"),
            ("job:{pk}", ValueError, "name contains a brace"),
            ("a\nb", ValueError, "can't be printed"),
            ("x" * 510, ValueError, "512 are allowed"),
            (None, TypeError, r"elsewhere write once\('warm-cache'\)"),
            (str, TypeError, r"elsewhere write once\('warm-cache'\)"),
        ],
        ids=repr,
    )
    def test_names(self, name: Any, error: Any, match: str, redis: Redis) -> None:
        """As those of locks."""
        with pytest.raises(error, match=match):
            do(once(name))
        with pytest.raises(error, match=match):
            once(name).forget()
        assert not redis.keys("redislock*")

    def test_templates(self) -> None:
        """They fail when the module is imported."""
        with pytest.raises(ValueError, match=r"'once:\{pk\}' needs the argument 'pk'"):
            once("{pk}")(lambda number: None)
        with pytest.raises(ValueError, match="name is empty"):
            once("")(lambda: None)

    def test_a_name_that_is_none(self) -> None:
        """A function that makes no name is told when it is called."""
        with pytest.raises(TypeError, match="name must be a str"):
            once(lambda: 7)(lambda: None)()  # type: ignore[arg-type, return-value]

    def test_what_it_decorates(self) -> None:
        """Functions and coroutines, and what else is told with what to write."""

        def generator() -> Iterator[int]:
            yield 1

        async def asynchronous() -> Any:
            yield 1

        for function in (generator, asynchronous):
            with pytest.raises(TypeError, match="can't decorate the"):
                once("job")(function)
        with pytest.raises(TypeError, match="decorates the methods"):
            once("job")(type("Importer", (), {}))
        with pytest.raises(TypeError, match="once needs its parentheses"):
            once(lambda: None)()

        async def hidden() -> None: ...

        def hides() -> Any:
            return hidden()

        with pytest.raises(TypeError, match="does not look like a coroutine function"):
            once("job")(hides)()
        assert do()

    async def test_in_an_event_loop(self) -> None:
        """It would stop it."""
        with pytest.raises(SynchronousOnlyOperation):
            do()

    def test_a_cache_that_is_not_there(self) -> None:
        """It is told as for a lock."""
        with pytest.raises(ImproperlyConfigured):
            do(once("job", using="nowhere"))

    def test_a_key_of_another_type(self, redis: Redis) -> None:
        """It is an error, and is not overwritten."""
        redis.rpush(RECORD, "stranger")
        with pytest.raises(LockError, match="It was left alone"):
            do()
        assert redis.lrange(RECORD, 0, -1) == [b"stranger"]
        assert not redis.exists(KEY)
