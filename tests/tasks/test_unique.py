"""`unique` on real queues: one task waits and one runs, for each name."""

from __future__ import annotations

import inspect
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import pytest
from django.db import connections, transaction
from redis import Redis

from django_redislock import LockNotAcquired, LockUnavailable, redis_lock
from tests.tasks.events import TRIES, Log
from tests.tasks.queues import Queue
from tests.waiting import PATIENCE, eventually

unique = pytest.importorskip("django_redislock.tasks").unique

only_celery = pytest.mark.parametrize("started", ["celery"], indirect=True)
only_django = pytest.mark.parametrize("started", ["django-tasks-db"], indirect=True)


def items(log: Log, pk: str) -> list[int]:
    """Which of the calls have run, in order."""
    return [event.item for event in log.of("begin", pk)]


def finish(queue: Queue, log: Log, pk: str) -> None:
    """Let all that is in the queue come to its end, and a last plain task after it."""
    queue.settle()
    last = f"{pk}-last"
    queue.call(queue.tasks.plain, last)
    log.wait("end", last)


def only_the_next(queue: Queue, log: Log, pk: str) -> None:
    """The name is free, and nothing of it was in the queue."""
    queue.call(queue.tasks.reindex, pk, 1)
    log.wait("end", pk)
    finish(queue, log, pk)
    assert items(log, pk) == [1]


class TestCoalescing:
    def test_five_calls_are_one_task(self, unattended: Queue, log: Log, pk: str) -> None:
        """While a task waits, calls return its handle."""
        queue = unattended
        handles = [queue.call(queue.tasks.reindex, pk, item) for item in range(5)]
        assert len({queue.id_of(handle) for handle in handles}) == 1
        assert len({type(handle) for handle in handles}) == 1
        queue.start()
        [event] = log.wait("end", pk)
        assert event.id == queue.id_of(handles[0])
        finish(queue, log, pk)
        assert items(log, pk) == [0]

    def test_calls_while_one_runs_are_one_more(self, queue: Queue, log: Log, pk: str) -> None:
        """Seven calls around a running task are two runs, one after the other."""
        first = queue.call(queue.tasks.reindex, pk, gate=True)
        log.wait("begin", pk)
        handles = [queue.call(queue.tasks.reindex, pk, item) for item in range(1, 7)]
        [second] = {queue.id_of(handle) for handle in handles}
        assert second != queue.id_of(first)
        log.open(pk)
        log.wait("end", pk, count=2)
        finish(queue, log, pk)
        assert items(log, pk) == [0, 1]
        assert log.most(pk) == 1

    def test_names_are_apart(self, queue: Queue, log: Log, pk: str) -> None:
        """Tasks of other names run at the same time."""
        names = [f"{pk}-{letter}" for letter in "ab"]
        for name in names:
            queue.call(queue.tasks.reindex, name, gate=True)
        for name in names:
            log.wait("begin", name)
        for name in names:
            log.open(name)
        for name in names:
            log.wait("end", name)

    def test_a_lock_of_the_same_name(self, queue: Queue, log: Log, pk: str) -> None:
        """Claims and locks don't exclude each other."""
        with redis_lock(f"reindex:{pk}"):
            queue.call(queue.tasks.reindex, pk)
            log.wait("end", pk)

    def test_until_the_end(self, queue: Queue, log: Log, pk: str) -> None:
        """With until="end", a call while the task runs returns the handle of the running one."""
        first = queue.call(queue.tasks.shared, pk, gate=True)
        log.wait("begin", pk)
        again = queue.call(queue.tasks.shared, pk, 1)
        assert queue.id_of(again) == queue.id_of(first)
        log.open(pk)
        log.wait("end", pk)
        # The claim ends soon after the body.
        log.until(lambda: 2 in items(log, pk), again=lambda: queue.call(queue.tasks.shared, pk, 2))
        assert 1 not in items(log, pk)


class TestConflicts:
    def test_raise_names_who_waits(self, unattended: Queue, log: Log, pk: str) -> None:
        queue = unattended
        queue.call(queue.tasks.report, pk)
        with pytest.raises(LockNotAcquired) as conflict:
            queue.call(queue.tasks.report, pk, 1)
        assert conflict.value.name == f"task:report:{pk}"
        queue.start()
        log.wait("end", pk)

    def test_raise_names_who_runs(self, queue: Queue, log: Log, pk: str) -> None:
        """The holder is the process of the worker in which the task runs."""
        queue.call(queue.tasks.report, pk, gate=True)
        [running] = log.wait("begin", pk)
        with pytest.raises(LockNotAcquired, match=f"report:{pk}") as conflict:
            queue.call(queue.tasks.report, pk, 1)
        assert str(running.pid) in str(conflict.value)
        log.open(pk)
        log.wait("end", pk)

    def test_skip(self, unattended: Queue, log: Log, pk: str) -> None:
        queue = unattended
        assert queue.call(queue.tasks.skipped, pk) is not None
        assert queue.call(queue.tasks.skipped, pk, 1) is None
        queue.start()
        log.wait("end", pk)
        finish(queue, log, pk)
        assert items(log, pk) == [0]

    def test_replace(self, unattended: Queue, log: Log, pk: str) -> None:
        """The last call replaces the one that waits, which does nothing when it starts."""
        queue = unattended
        handles = [queue.call(queue.tasks.latest, pk, item) for item in range(3)]
        assert len({queue.id_of(handle) for handle in handles}) == 3
        queue.start()
        log.wait("end", pk)
        finish(queue, log, pk)
        assert items(log, pk) == [2]


class TestTransactions:
    def test_a_rollback(self, queue: Queue, log: Log, pk: str) -> None:
        """Nothing was enqueued, and the name was never taken."""
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            queue.call(queue.tasks.reindex, pk)
            raise ZeroDivisionError
        only_the_next(queue, log, pk)

    def test_a_commit(self, queue: Queue, log: Log, pk: str) -> None:
        """It is enqueued on commit and not before; further calls in the transaction coalesce."""
        with transaction.atomic():
            for item in range(3):
                queue.call(queue.tasks.reindex, pk, item)
            finished = f"{pk}-plain"
            if queue.name != "django-tasks-db":  # whose tasks are part of the transaction
                queue.call(queue.tasks.plain, finished)
                log.wait("end", finished)
            assert items(log, pk) == []
        log.wait("end", pk)
        finish(queue, log, pk)
        assert items(log, pk) == [0]

    def test_a_task_that_runs_before_the_commit(
        self, unattended: Queue, log: Log, pk: str
    ) -> None:
        """It has not seen what the transaction writes, so there is one more."""
        queue = unattended
        if queue.name == "django-tasks-db":
            pytest.skip("its worker waits for the transaction: one writes to SQLite at a time")
        queue.call(queue.tasks.reindex, pk)
        with transaction.atomic():
            queue.call(queue.tasks.reindex, pk, 1)
            queue.start()
            log.wait("end", pk)
        log.wait("end", pk, count=2)
        finish(queue, log, pk)
        assert items(log, pk) == [0, 1]

    def test_a_call_beside_a_transaction(self, queue: Queue, log: Log, pk: str) -> None:
        """It runs, though the transaction is still open and may be rolled back."""

        def beside() -> None:
            try:
                queue.call(queue.tasks.reindex, pk, 1)
            finally:
                connections.close_all()

        with transaction.atomic(), ThreadPoolExecutor() as others:
            queue.call(queue.tasks.reindex, pk)
            others.submit(beside).result()
            log.wait("end", pk)
        log.wait("end", pk, count=2)
        finish(queue, log, pk)
        assert items(log, pk) == [1, 0]

    def test_a_rollback_to_a_savepoint(self, queue: Queue, log: Log, pk: str) -> None:
        with transaction.atomic():
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                queue.call(queue.tasks.reindex, pk)
                raise ZeroDivisionError
        only_the_next(queue, log, pk)


class TestFailures:
    @pytest.mark.slow
    def test_a_killed_worker(self, queue: Queue, log: Log, pk: str) -> None:
        """A new call runs when the lease of the dead has ended: its ttl is 3 seconds.

        It is parked until then. The worker that parked it looks after it, but for RQ's, whose
        process ends with each job: there it is the next call.
        """
        queue.call(queue.tasks.reindex, pk, gate=True)
        log.wait("begin", pk)
        queue.kill()
        killed = log.now()
        queue.start()
        queue.call(queue.tasks.reindex, pk, 1)
        again = partial(queue.call, queue.tasks.reindex, pk, 2) if queue.name == "rq" else int
        log.until(lambda: 1 in items(log, pk), again=again)
        begun = next(event for event in log.of("begin", pk) if event.item == 1)
        assert begun.at - killed < 25_000  # three, and the start of the worker

    @pytest.mark.slow
    def test_a_killed_worker_of_a_claim_until_the_end(
        self, queue: Queue, log: Log, pk: str
    ) -> None:
        """The lease is the claim, whatever the queue believes of the dead task."""
        first = queue.id_of(queue.call(queue.tasks.shared, pk, gate=True))
        log.wait("begin", pk)
        queue.kill()
        queue.start()
        log.until(lambda: 1 in items(log, pk), again=lambda: queue.call(queue.tasks.shared, pk, 1))
        assert all(event.id != first for event in log.of("begin", pk)[1:])

    @pytest.mark.slow
    @pytest.mark.parametrize("started", ["celery-prefork"], indirect=True)
    def test_a_killed_task_that_comes_again(self, queue: Any, log: Log, pk: str) -> None:
        """Celery delivers it again while the lease of the killed process lives. It runs when that
        has ended, and to its end."""
        queue.call(queue.tasks.late, pk)
        (killed,) = log.wait("begin", pk)
        os.kill(killed.pid, signal.SIGKILL)
        _, again = log.wait("begin", pk, count=2)
        assert again.id == killed.id
        log.open(pk)
        log.wait("end", pk)
        finish(queue, log, pk)
        assert items(log, pk) == [0, 0]

    @pytest.mark.parametrize("name", ["flaky", "flaky_report"])
    def test_a_retry(self, queue: Queue, log: Log, pk: str, name: str) -> None:
        """A retry is no conflict with itself, and all retries of the queue are left to it."""
        if not queue.retries:
            pytest.skip("it has no retries")
        task = getattr(queue.tasks, name)
        queue.call(task, pk)
        log.wait("end", pk)
        assert len(items(log, pk)) == TRIES
        # The name is free again.
        log.until(lambda: 1 in items(log, pk), again=lambda: queue.call(task, pk, 1))

    def test_no_redis(self, queue: Queue, log: Log, pk: str, settings: Any) -> None:
        """Without an answer nothing is enqueued."""
        caches = settings.CACHES
        away = {**caches["default"], "LOCATION": "redis://127.0.0.1:1/0"}
        settings.CACHES = {**caches, "default": away}
        with pytest.raises(LockUnavailable):
            queue.call(queue.tasks.reindex, pk)
        settings.CACHES = caches
        only_the_next(queue, log, pk)


@only_celery
class TestCanvas:
    def test_a_chord_of_equal_members(self, queue: Any, log: Log, pk: str) -> None:
        """No member is dropped, for the chord counts them; and they run one after the other."""
        from celery import chord

        tasks = queue.tasks
        members = [tasks.reindex.s(pk, item) for item in range(3)]
        assert chord(members)(tasks.total.s()).get(timeout=PATIENCE) == 3
        log.wait("end", pk, count=3)
        assert sorted(items(log, pk)) == [0, 1, 2]
        assert log.most(pk) == 1

    def test_a_chord_while_one_runs(self, queue: Any, log: Log, pk: str) -> None:
        from celery import chord

        tasks = queue.tasks
        tasks.shared.delay(pk, gate=True)
        log.wait("begin", pk)
        result = chord([tasks.shared.s(pk, 1), tasks.shared.s(pk, 2)])(tasks.total.s())
        log.open(pk)
        assert result.get(timeout=PATIENCE) == 2
        assert log.most(pk) == 1

    def test_a_chain(self, queue: Any, log: Log, pk: str) -> None:
        from celery import chain

        tasks = queue.tasks
        chain(tasks.reindex.si(pk, 0), tasks.reindex.si(pk, 1), tasks.plain.si(pk, 2))()
        log.wait("end", pk, count=3)
        assert items(log, pk) == [0, 1, 2]


class TestSettle:
    @pytest.mark.slow
    def test_the_last_call_runs(self, queue: Queue, log: Log, pk: str) -> None:
        """The last call's arguments run, a second after it."""
        for item in range(3):
            queue.call(queue.tasks.digest, pk, item)
        called = log.now()
        [event] = log.wait("begin", pk)
        finish(queue, log, pk)
        assert items(log, pk) == [2]
        assert event.at - called > 900

    @pytest.mark.slow
    def test_calls_without_end(self, queue: Queue, log: Log, pk: str) -> None:
        """After `at_most` seconds it runs, although calls never end."""
        called, numbers = log.now(), count()
        log.until(
            lambda: items(log, pk),
            again=lambda: queue.call(queue.tasks.digest, pk, next(numbers)),
        )
        assert log.of("begin", pk)[0].at - called > 1900


@only_django
class TestDjangoTasks:
    @pytest.mark.parametrize("name", ["reindex", "shared"])
    def test_the_immediate_backend(
        self, queue: Queue, log: Log, pk: str, name: str, redis: Redis
    ) -> None:
        """The task ends before `enqueue` returns, and leaves no claim."""
        task = getattr(queue.tasks, name).using(backend="immediate")
        results = [task.enqueue(pk, item) for item in range(2)]
        log.wait("end", pk, count=2)
        assert items(log, pk) == [0, 1]
        assert [result.status for result in results] == ["SUCCESSFUL"] * 2
        assert not list(redis.scan_iter(match=f"redislock*{pk}*"))

    def test_a_backend_that_defers_nothing(self, queue: Queue, pk: str, redis: Redis) -> None:
        """A task that settles is refused, and has no name."""
        task = queue.tasks.digest.using(backend="immediate")
        with pytest.raises(TypeError, match="leave settle out, or use another backend"):
            task.enqueue(pk)
        assert not redis.exists(f"redislock:{{task:digest:{pk}}}:claim")

    def test_a_coroutine_runs(self, queue: Any, pk: str) -> None:
        """Under its lease, whoever calls it."""
        from asgiref.sync import async_to_sync

        task = queue.tasks.coroutine.using(backend="immediate")
        results = [task.enqueue(pk), async_to_sync(task.aenqueue)(pk)]
        assert [result.status for result in results] == ["SUCCESSFUL"] * 2
        assert queue.tasks.leases == [f"task:coroutine:{pk} held"] * 2

    def test_a_coroutine_enqueues(self, queue: Queue, log: Log, pk: str) -> None:
        from asgiref.sync import async_to_sync

        first = async_to_sync(queue.tasks.reindex.aenqueue)(pk, gate=True)
        log.wait("begin", pk)
        second, third = (async_to_sync(queue.tasks.reindex.aenqueue)(pk, item) for item in (1, 2))
        assert second.id == third.id != first.id
        log.open(pk)
        log.wait("end", pk, count=2)


class TestWrongUse:
    def test_below_the_decorator(self) -> None:
        """Of a function that is no task."""
        with pytest.raises(TypeError, match="above"):
            unique("job:{pk}")(lambda pk: None)

    def test_an_unknown_argument(self, queue: Queue) -> None:
        with pytest.raises(ValueError, match="nothing"):
            unique("job:{nothing}")(queue.tasks.plain)


@only_celery
class TestRetries:
    def test_redis_is_away_at_a_start(self, queue: Any, log: Log, pk: str, settings: Any) -> None:
        """It is a retry of Celery, which has its own number of them."""
        from celery.exceptions import Retry

        task = queue.tasks.reindex
        its = task.app.tasks[task.name]
        caches = settings.CACHES
        away = {**caches["default"], "LOCATION": "redis://127.0.0.1:1/0"}
        settings.CACHES = {**caches, "default": away}
        its.push_request(id="x", args=(pk,), kwargs={}, called_directly=False, delivery_info={})
        try:
            with pytest.raises(Retry):
                its.run(pk)
        finally:
            its.pop_request()
            settings.CACHES = caches


def test_a_retry_of_dramatiq(redis: Redis, pk: str) -> None:
    """It keeps its name while it waits, so a call returns its handle."""
    dramatiq = pytest.importorskip("dramatiq")
    from dramatiq.brokers.stub import StubBroker

    broker, begun = StubBroker(), threading.Event()

    def fails(pk: str) -> None:
        begun.set()
        raise ZeroDivisionError

    make = partial(dramatiq.actor, broker=broker, actor_name="fails", min_backoff=600_000)
    actor = unique("late:{pk}")(make(fails))
    worker = dramatiq.Worker(broker, worker_timeout=10)
    worker.start()
    try:
        first = actor.send(pk)
        assert begun.wait(PATIENCE)
        claim = f"redislock:{{task:late:{pk}}}:claim"
        assert eventually(lambda: redis.hget(claim, "id")) == first.message_id.encode()
        assert actor.send(pk).message_id == first.message_id
    finally:
        worker.stop()


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize("worker", [True, False], ids=["worker", "sync"])
def test_a_retry_of_rq(redis: Redis, pk: str, worker: bool, monkeypatch: Any) -> None:
    """It keeps its name while it waits. A queue without a worker tries nothing again."""
    rq = pytest.importorskip("rq")
    from rq.timeouts import TimerDeathPenalty

    from tests.tasks.on_rq import connection, late

    class Worker(rq.SimpleWorker):
        death_penalty_class = TimerDeathPenalty

        def _install_signal_handlers(self) -> None:
            pass

    claim = f"redislock:{{task:late:{pk}}}:claim"
    if not worker:
        decorator = inspect.getclosurevars(late.redislock_delay).nonlocals["self"]
        now = rq.Queue("late", connection=connection, is_async=False)
        monkeypatch.setattr(decorator, "queue", now)
        late.enqueue(pk)
        assert not redis.exists(claim)
        return
    first = late.enqueue(pk)
    Worker(["late"], connection=connection).work(burst=True)
    assert first.get_status() == "scheduled"
    assert redis.hget(claim, "id") == first.id.encode()
    assert late.enqueue(pk).id == first.id
