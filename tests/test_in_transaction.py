"""`once_in_transaction`: the record is committed with the work, on SQLite and on PostgreSQL."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections, transaction
from django.db.models import QuerySet
from django.db.transaction import TransactionManagementError
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from redis import Redis

from django_redislock import LockError, LockNotAcquired, redis_lock
from django_redislock.contrib.once import once_in_transaction, step
from django_redislock.contrib.once.models import Record
from django_redislock.locks import in_transaction
from django_redislock.locks.in_transaction import RecordBusy
from django_redislock.testing import redis_unavailable
from tests.models import Shop
from tests.test_decorators import held_elsewhere
from tests.waiting import PATIENCE, eventually

on_sqlite = pytest.mark.django_db(transaction=True, databases=["default", "other"])
on_postgres = pytest.mark.django_db(transaction=True, databases=["postgres"])

READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE = 2, 3, 4
"""As psycopg numbers them, and Django's option `isolation_level`."""


def shops(using: str = DEFAULT_DB_ALIAS) -> list[str]:
    return list(Shop.objects.using(using).order_by("name").values_list("name", flat=True))


def age(using: str = DEFAULT_DB_ALIAS, **ago: float) -> None:
    """Let all records be as old as that."""
    Record.objects.using(using).update(at=timezone.now() - timedelta(**ago))


@once_in_transaction("shop:{name}")
def opened(name: str) -> str:
    Shop.objects.create(name=name)
    return name


@on_sqlite
class TestOnce:
    def test_the_first_and_the_others(self) -> None:
        """The function runs once for each name; other callers get None."""
        assert [opened("a"), opened("a"), opened("b")] == ["a", None, "b"]
        assert shops() == ["a", "b"]
        record = Record.objects.get(name="once_in_transaction:shop:a")
        assert record.done
        assert record.label.endswith("in opened")
        assert str(record) == record.name

    def test_its_statements(self) -> None:
        """The transaction begins with the INSERT, and ends with the record."""
        with CaptureQueriesContext(connections["default"]) as queries:
            opened("a")
        words = [query["sql"].split()[0] for query in queries]
        assert words == ["BEGIN", "INSERT", "SELECT", "INSERT", "UPDATE", "COMMIT"]
        assert queries[1]["sql"].startswith("INSERT OR IGNORE")

    @pytest.mark.parametrize("kind", [Exception, TimeoutError, OSError, BaseException])
    def test_an_exception(self, kind: type[BaseException]) -> None:
        """Work and record are rolled back, and the next caller is the first again."""

        @once_in_transaction("shop:{name}")
        def fails(name: str) -> None:
            Shop.objects.create(name=name)
            raise kind("no")

        with pytest.raises(kind):
            fails("a")
        assert not shops()
        assert not Record.objects.exists()
        assert opened("a") == "a"

    def test_names_that_a_collation_takes_for_the_same(self) -> None:
        """Each is another one: rows are found by a digest."""
        for name in ("a", "A", "a ", "ä", "a" * 400):
            assert opened(name[:20]) == name[:20]

    def test_a_tenant(self) -> None:
        """Each tenant has names of its own; with scope=None they are shared."""
        tenant = "one"
        with override_settings(REDISLOCK={"SCOPE": lambda: tenant}):
            assert opened("a") == "a"
            tenant = "two"
            Shop.objects.all().delete()
            assert opened("a") == "a"
        names = {"one/once_in_transaction:shop:a", "two/once_in_transaction:shop:a"}
        assert set(Record.objects.values_list("name", flat=True)) == names

    def test_another_database(self) -> None:
        """`using` is the database of record and work."""

        @once_in_transaction("shop", using="other")
        def elsewhere() -> bool:
            assert connections["other"].in_atomic_block
            return not connections["default"].in_atomic_block

        assert elsewhere() is True
        assert elsewhere() is None
        assert not Record.objects.exists()
        assert Record.objects.using("other").exists()


@on_sqlite
class TestRedis:
    def test_away(self, caplog: pytest.LogCaptureFixture) -> None:
        """The database alone decides, and the log says so."""
        with redis_unavailable():
            assert [opened("a"), opened("a")] == ["a", None]
        assert "'once_in_transaction:shop:a' is done without its lock" in caplog.text

    def test_somebody_else_is_at_work(self) -> None:
        """A second caller hears it at once, and no transaction is begun."""
        with (
            held_elsewhere("once_in_transaction:shop:a"),
            CaptureQueriesContext(connections["default"]) as queries,
            pytest.raises(LockNotAcquired, match="is held by"),
        ):
            opened("a")
        assert not queries.captured_queries
        assert opened("a") == "a"

    @on_postgres  # where threads can close their connections
    def test_waiting(self) -> None:
        """With `wait`, it gets None when the first has done it."""
        inside, go_on = threading.Event(), threading.Event()

        @once_in_transaction("job", using="postgres", wait=PATIENCE)
        def job() -> str:
            inside.set()
            assert go_on.wait(PATIENCE)
            return "done"

        def called() -> Any:
            try:
                return job()
            finally:
                connections.close_all()

        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(called)
            assert inside.wait(PATIENCE)
            second = threads.submit(called)
            go_on.set()
            assert [first.result(PATIENCE), second.result(PATIENCE)] == ["done", None]

    def test_its_lock_is_lost(self, redis: Redis) -> None:
        """It is no matter: the database decides."""

        @once_in_transaction("job")
        def job() -> str:
            redis_lock("once_in_transaction:job").clear(reason="a test")
            return "done"

        assert [job(), job()] == ["done", None]

    def test_an_error_of_another_lock(self) -> None:
        """An error of the work is that of the work."""

        @once_in_transaction("job")
        def job() -> None:
            Shop.objects.create(name="a")
            with redis_lock("another", wait=0):
                raise AssertionError

        with held_elsewhere("another"), pytest.raises(LockNotAcquired, match="'another'"):
            job()
        assert not shops()


@on_sqlite
class TestWhere:
    def test_in_a_transaction(self) -> None:
        """Its record would end with that of somebody else."""
        with transaction.atomic(), pytest.raises(TransactionManagementError, match="is open on"):
            opened("a")
        with transaction.atomic("other"):  # that is another database
            assert opened("a") == "a"

    def test_by_hand(self) -> None:
        transaction.set_autocommit(False)
        try:
            with pytest.raises(TransactionManagementError, match="is open on"):
                opened("a")
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)

    def test_in_the_transaction_of_a_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With ATOMIC_REQUESTS, that one is taken; but none within it."""
        monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            assert opened("a") == "a"
            raise ZeroDivisionError
        assert not Record.objects.exists()
        with transaction.atomic():
            assert [opened("a"), opened("a")] == ["a", None]
            with transaction.atomic(), pytest.raises(TransactionManagementError):
                opened("b")

    def test_in_one_that_does_not_see_the_record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As with MySQL's REPEATABLE READ. The transaction of the request is rolled back."""
        monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
        monkeypatch.setattr(QuerySet, "first", lambda self: None)
        with transaction.atomic():
            Shop.objects.create(name="before")
            with pytest.raises(RecordBusy):
                opened("a")
        assert not shops()

    def test_in_a_test_case(self) -> None:
        """Django's TestCase is around all of a test, and is not counted."""
        seen = []

        class InTestCase(TestCase):
            def runTest(self) -> None:  # noqa: N802  # the name that unittest calls
                seen.extend([opened("a"), opened("a")])

        result = InTestCase().run()
        assert result is not None
        assert result.wasSuccessful(), result.errors
        assert seen == ["a", None]

    def test_a_router(self) -> None:
        """If records are written elsewhere, the database has to be named."""

        class Router:
            def db_for_write(self, model: Any, **hints: Any) -> str | None:
                return "other" if model is Record else None

        with override_settings(DATABASE_ROUTERS=[Router()]):
            with pytest.raises(ImproperlyConfigured, match="write using='other'"):
                opened("a")
            decorated = once_in_transaction("shop", using="default")(lambda: "done")
            assert decorated() == "done"

    def test_in_an_event_loop(self) -> None:
        """As the ORM itself."""

        async def call() -> None:
            opened("a")

        with pytest.raises(SynchronousOnlyOperation):
            async_to_sync(call)()


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "error", "says"),
        [
            ({"using": 7}, TypeError, "using must be an alias of DATABASES"),
            ({"using": ""}, TypeError, "using must be an alias of DATABASES"),
            ({"wait": -1}, ValueError, "wait"),
            ({"wait": None}, ValueError, "wait must have an end"),
            ({"timeout": 3}, TypeError, "Write wait="),
            ({"ttl": 3}, TypeError, "ttl"),
            ({"release": "exit"}, TypeError, "release"),
        ],
    )
    def test_arguments(self, options: Any, error: type[Exception], says: str) -> None:
        with pytest.raises(error, match=says):
            once_in_transaction("job", **options)

    @pytest.mark.django_db
    def test_an_unknown_database(self) -> None:
        with pytest.raises(ImproperlyConfigured, match="'nowhere' is no alias of DATABASES"):
            once_in_transaction("job", using="nowhere")(print)()

    def test_coroutines_and_generators(self) -> None:
        """Django's transactions are synchronous."""

        async def coroutine() -> None: ...

        def generator() -> Any:
            yield

        for one in (coroutine, generator):
            with pytest.raises(TypeError, match="can't decorate the"):
                once_in_transaction("job")(one)  # type: ignore[type-var]

    def test_a_function_that_returns_a_coroutine(self) -> None:
        with pytest.raises(TypeError, match="needs its parentheses"):
            once_in_transaction(print)()

    def test_without_the_app(self) -> None:
        """The error says what to write, when the function is decorated."""
        apps = ["django_redislock", "tests"]
        with override_settings(INSTALLED_APPS=apps):
            with pytest.raises(ImproperlyConfigured, match=r"INSTALLED_APPS \+= \['django_redi"):
                once_in_transaction("job")(print)


def test_its_error_travels() -> None:
    """To other processes, as those of other locks do."""
    error = RecordBusy("job", "default", 1.5)
    for one in (pickle.loads(pickle.dumps(error)), RecordBusy(*error.args)):
        assert str(one) == str(error)
        assert "another transaction on 'default'. Waited 1.5 s." in str(one)


@on_sqlite
class TestSteps:
    def test_to_the_end(self, redis: Redis) -> None:
        """What was done before a step is committed, and the step runs without a transaction."""
        seen: list[Any] = []

        @once_in_transaction("job")
        def job() -> str:
            Shop.objects.create(name="before")
            with step("charged") as charged:
                seen.append(connections["default"].in_atomic_block)
                charged.result = "ch_1"
            with step("told") as told:
                seen.append(Record.objects.get().steps)
            Shop.objects.create(name="after")
            assert (charged.done, charged.begun, told.result) == (False, False, None)
            return "done"

        assert [job(), job()] == ["done", None]
        assert seen == [False, {"charged": ["ch_1"], "told": []}]
        assert shops() == ["after", "before"]
        assert Record.objects.get().done

    def test_a_failure_after_a_step(self) -> None:
        """The next attempt goes on at once, and finds what the step has kept."""
        seen: list[Any] = []

        @once_in_transaction("job")
        def job(fails: bool) -> str:
            Shop.objects.get_or_create(name="before")
            with step("charged") as charged:
                seen.append((charged.begun, charged.done, charged.result))
                if not charged.done:
                    charged.result = {"id": 7}
            Shop.objects.create(name="after")
            if fails:
                raise ZeroDivisionError
            return "done"

        with pytest.raises(ZeroDivisionError):
            job(True)
        assert shops() == ["before"]
        assert [job(False), job(False)] == ["done", None]
        assert seen == [(False, False, None), (True, True, {"id": 7})]
        assert shops() == ["after", "before"]

    def test_a_failure_in_a_step(self) -> None:
        """The next attempt learns that it has begun, and may have happened."""
        seen = []

        @once_in_transaction("job")
        def job() -> str:
            with step("charged") as charged:
                seen.append((charged.begun, charged.done))
                if not charged.begun:
                    raise ZeroDivisionError
            return "done"

        with pytest.raises(ZeroDivisionError):
            job()
        assert job() == "done"
        assert seen == [(False, False), (True, False)]

    @on_postgres
    def test_an_attempt_that_has_died(self) -> None:
        """It is taken over after a minute. If it lives, it fails at its next statement."""
        calls: list[str] = []

        @once_in_transaction("job", using="postgres")
        def job() -> str:
            with step("charged"):
                calls.append("charged")
                if len(calls) == 1:
                    with redis_unavailable(), ThreadPoolExecutor(1) as another:
                        with pytest.raises(RecordBusy):
                            another.submit(called).result()
                        age("postgres", seconds=61)
                        assert another.submit(called).result() == "done"
            Shop.objects.using("postgres").create(name="late")
            return "done"

        def called() -> str | None:
            try:
                return job()
            finally:
                connections.close_all()

        with pytest.raises(LockError, match="another attempt has taken it over"):
            job()
        assert calls == ["charged", "charged"]
        assert shops("postgres") == ["late"]  # of the second attempt
        assert Record.objects.using("postgres").get().done

    def test_one_that_ends_just_now(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It counted as dead, and ended between SELECT and UPDATE: it is not taken over."""
        with pytest.raises(ZeroDivisionError):
            self.job_that_fails_after_a_step()
        Record.objects.update(token="t")
        age(seconds=61)
        first = QuerySet.first

        def then_done(self: Any) -> Any:
            found = first(self)
            Record.objects.update(done=True)
            return found

        monkeypatch.setattr(QuerySet, "first", then_done)
        with pytest.raises(RecordBusy):
            self.job_that_fails_after_a_step()

    @staticmethod
    @once_in_transaction("job")
    def job_that_fails_after_a_step() -> None:
        with step("charged"):
            pass
        raise ZeroDivisionError

    def test_where_a_transaction_is_open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @once_in_transaction("job")
        def job(around: Any) -> None:
            with around, step("charged"):
                raise AssertionError

        with pytest.raises(TransactionManagementError, match=r"step\('charged'\) commits"):
            job(transaction.atomic())
        monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
        with pytest.raises(TransactionManagementError, match="non_atomic_requests"):
            with transaction.atomic():
                job(pytest.MonkeyPatch.context())

    def test_in_another_step(self) -> None:
        """The block of a step runs without a transaction, so there is nothing to commit."""

        @once_in_transaction("job")
        def job() -> None:
            with step("charged"), step("mailed"):
                raise AssertionError

        with pytest.raises(RuntimeError, match=r"step\('mailed'\) is inside of another step"):
            job()

    def test_elsewhere(self) -> None:
        with pytest.raises(RuntimeError, match="is for functions of @once_in_transaction"):
            with step("charged"):
                raise AssertionError

    def test_a_result_that_json_cant_write(self) -> None:
        @once_in_transaction("job")
        def job() -> None:
            with step("charged") as charged:
                charged.result = object()

        with pytest.raises(TypeError, match="JSON serializable"):
            job()
        assert Record.objects.get().steps == {"charged": []}


# Two transactions at a time, on PostgreSQL, without Redis.


class Two:
    """A first call that is at work, and a second one that comes meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, level: int, **options: Any) -> None:
        self.runs = 0
        self.fails = False
        self.inside, self.go_on = threading.Event(), threading.Event()
        options = {"OPTIONS": {"isolation_level": level, **options}}
        for name, value in options.items():
            monkeypatch.setitem(connections.settings["postgres"], name, value)

    def work(self) -> str:
        self.runs += 1
        if self.runs == 1:
            self.inside.set()
            assert self.go_on.wait(PATIENCE)
        Shop.objects.using("postgres").create(name=f"run {self.runs}")
        if self.fails and self.runs == 1:
            raise ZeroDivisionError
        return "done"

    def call(self, job: Callable[[], Any]) -> Any:
        """Call it in a thread of its own, with a connection of its own."""
        try:
            return job()
        except Exception as error:
            return error
        finally:
            connections.close_all()

    def called(self, job: Callable[[], Any], *, at_once: bool = False) -> list[Any]:
        """The results of both. `at_once`: the second ends before the first."""
        with redis_unavailable(), ThreadPoolExecutor(2) as threads:
            first = threads.submit(self.call, job)
            assert self.inside.wait(PATIENCE)
            second = threads.submit(self.call, job)
            if at_once:
                second.exception(PATIENCE)
            else:
                self.until_it_waits()
            self.go_on.set()
            return [first.result(PATIENCE), second.result(PATIENCE)]

    def until_it_waits(self) -> None:
        with connections["postgres"].cursor() as cursor:

            def waits() -> bool:
                cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
                return bool(cursor.fetchone()[0])

            eventually(waits)


every_level = pytest.mark.parametrize("level", [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE])


@on_postgres
class TestTwoAtATime:
    @every_level
    def test_the_second_waits(self, monkeypatch: pytest.MonkeyPatch, level: int) -> None:
        """Its INSERT waits for the COMMIT of the first. Where it can't see that, it reads it in a
        new transaction."""
        two = Two(monkeypatch, level)
        job = once_in_transaction("job", using="postgres")(two.work)
        assert two.called(job) == ["done", None]
        assert (two.runs, shops("postgres")) == (1, ["run 1"])

    @every_level
    def test_the_first_fails(self, monkeypatch: pytest.MonkeyPatch, level: int) -> None:
        """Then the second is the first."""
        two = Two(monkeypatch, level)
        two.fails = True
        failed, second = two.called(once_in_transaction("job", using="postgres")(two.work))
        assert isinstance(failed, ZeroDivisionError)
        assert (second, shops("postgres")) == ("done", ["run 2"])

    def test_it_does_not_wait_so_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a lock_timeout, the second caller gets the same error as with Redis."""
        two = Two(monkeypatch, READ_COMMITTED, options="-c lock_timeout=50")
        job = once_in_transaction("job", using="postgres")(two.work)
        first, second = two.called(job, at_once=True)
        assert first == "done"
        assert isinstance(second, LockNotAcquired)
        assert "another transaction on 'postgres'" in str(second)

    @every_level
    def test_in_the_transactions_of_requests(
        self, monkeypatch: pytest.MonkeyPatch, level: int
    ) -> None:
        """There, nobody can begin a new one: the second caller has to come again."""
        two = Two(monkeypatch, level)
        monkeypatch.setitem(connections.settings["postgres"], "ATOMIC_REQUESTS", True)
        job = once_in_transaction("job", using="postgres")(two.work)

        def request() -> Any:
            with transaction.atomic("postgres"):
                shops("postgres")  # the snapshot is taken
                return job()

        first, second = two.called(request)
        assert first == "done"
        assert second is None if level == READ_COMMITTED else isinstance(second, RecordBusy)
        assert two.runs == 1
        assert two.call(request) is None

    def test_another_error_of_the_database(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is raised as it is."""
        two = Two(monkeypatch, READ_COMMITTED, options="-c default_transaction_read_only=on")
        error = two.call(once_in_transaction("job", using="postgres")(two.work))
        assert "read-only" in str(error)
        assert not isinstance(error, (LockNotAcquired, OperationalError))

    def test_a_record_that_is_gone_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It was deleted between INSERT and SELECT: both are repeated in a new transaction."""
        claim, tried = in_transaction.Attempt._claim, []

        def without_rows(self: Any) -> None:
            rows = self._rows
            tried.append(self._rows)
            self._rows = rows.none() if len(tried) == 1 else rows
            try:
                claim(self)
            finally:
                self._rows = rows

        monkeypatch.setattr(in_transaction.Attempt, "_claim", without_rows)
        job = once_in_transaction("job", using="postgres")(lambda: "done")
        assert job() == "done"
        assert len(tried) == 2
