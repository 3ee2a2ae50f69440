"""The examples of docs/task-queues.md run on the real queues."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from redis import Redis

from django_redislock import LeaseLost, current_lease, redis_lock
from tests.docs.world import examples
from tests.test_decorators import held_elsewhere
from tests.waiting import PATIENCE, eventually

CELERY, RQ, RQ_ENQUEUE, DRAMATIQ, DJANGO, EXPORT = range(6)


@pytest.fixture
def ran() -> list[str]:
    """The names of the locks that the tasks held."""
    return []


@pytest.fixture
def example(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Run an example as the module `shop_tasks`, and return it."""

    def run(number: int, old: str = "", new: str = "") -> ModuleType:
        module = ModuleType("shop_tasks")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        module.__dict__["work"] = lambda: ran.append(current_lease().name)
        module.__dict__["write_report"] = lambda pk, fencing_token: module.__dict__["work"]()
        text = examples("docs/task-queues.md")[number].replace("    ...", "    work()")
        assert old in text
        exec(compile(text.replace(old, new), "task-queues.md", "exec"), module.__dict__)
        return module

    return run


def test_each_example_is_run_here() -> None:
    """Whoever adds an example adds a test."""
    assert len(examples("docs/task-queues.md")) == EXPORT + 1


def work() -> None: ...


def in_the_wrong_order(make_task: Callable[[Any], Any]) -> None:
    """A task that was made first is refused."""
    with pytest.raises(TypeError, match="below the decorator that makes the task"):
        redis_lock("job")(make_task(work))


class TestCelery:
    @pytest.fixture
    def working(
        self, django_db_setup: None, django_db_blocker: Any
    ) -> Iterator[Callable[[], Any]]:
        """A worker in a thread, with a broker in memory. It knows the tasks that are there when
        it starts. Celery checks the models, and so asks the database from Django 6.1 on."""
        celery = pytest.importorskip("celery")
        from celery.contrib.testing.worker import start_worker

        app = celery.Celery("shop", broker="memory://", backend="cache+memory://")
        app.conf.worker_hijack_root_logger = False
        app.set_default()
        level = logging.getLogger().level
        with django_db_blocker.unblock():
            yield partial(
                start_worker, app, pool="solo", perform_ping_check=False, loglevel="critical"
            )
        logging.getLogger().setLevel(level)  # the worker has set it for all tests

    @pytest.mark.slow  # the worker takes seconds to end
    def test_it_is_tried_again(self, working: Any, example: Any, ran: list[str]) -> None:
        """A task whose lock is held runs when the lock is free."""
        task = example(CELERY, "retry_backoff=True", "default_retry_delay=0.05").import_shop
        with working():
            with held_elsewhere("import:7"):
                result = task.delay(7)
                eventually(lambda: result.state == "RETRY")
                assert ran == []
            result.get(timeout=PATIENCE)
        assert ran == ["import:7"]

    @pytest.mark.slow  # the worker takes seconds to end
    def test_an_exported_lease(self, working: Any, example: Any, ran: list[str]) -> None:
        """The second request enqueues nothing. The task releases the lock, and can't run twice."""
        module = example(EXPORT)
        sent: list[Any] = []
        delay, module.make_report.delay = module.make_report.delay, lambda *args: sent.append(args)
        with working():
            assert "soon" in module.request_report(7)
            assert "already" in module.request_report(7)
            [args] = sent
            delay(*args).get(timeout=PATIENCE)
            assert ran == ["report:7"]
            assert redis_lock("report:7").holder() is None
            with pytest.raises(LeaseLost):
                delay(*args).get(timeout=PATIENCE)

    def test_the_wrong_order(self) -> None:
        in_the_wrong_order(pytest.importorskip("celery").shared_task)


class TestRQ:
    def test_it_is_tried_again(self, example: Any, ran: list[str], redis: Redis) -> None:
        """A job whose lock is held is kept for later, and runs when the lock is free."""
        rq = pytest.importorskip("rq")
        queue = rq.Queue("redislock-test", connection=redis)
        names = {"queue": queue, "import_shop": example(RQ).import_shop}
        worker = rq.SimpleWorker([queue], connection=redis)
        worker._install_signal_handlers = lambda: None  # they would stay for all tests
        try:
            with held_elsewhere("import:7"):
                exec(examples("docs/task-queues.md")[RQ_ENQUEUE], names)
                worker.work(burst=True, logging_level="CRITICAL")
                assert ran == []
            [kept] = queue.scheduled_job_registry.get_job_ids()
            queue.enqueue_job(queue.fetch_job(kept))
            worker.work(burst=True, logging_level="CRITICAL")
        finally:
            redis.delete(*redis.scan_iter("rq:*"))
        assert ran == ["import:7"]

    def test_the_wrong_order(self, redis: Redis) -> None:
        job = pytest.importorskip("rq.decorators").job
        in_the_wrong_order(job("default", connection=redis))


class TestDramatiq:
    @pytest.fixture
    def broker(self) -> Iterator[Any]:
        """A worker in threads, with a broker in memory."""
        dramatiq = pytest.importorskip("dramatiq")
        from dramatiq.brokers.stub import StubBroker

        broker = StubBroker()
        broker.emit_after("process_boot")
        dramatiq.set_broker(broker)
        worker = dramatiq.Worker(broker, worker_timeout=100)
        worker.start()
        yield broker
        worker.stop()

    def test_it_is_tried_again(self, broker: Any, example: Any, ran: list[str]) -> None:
        """An actor whose lock is held is sent again, and runs when the lock is free."""
        actor = example(DRAMATIQ, "10_000", "100").import_shop
        with held_elsewhere("import:7"):
            actor.send(7)
            eventually(lambda: broker.delay_queues and broker.queues["default.DQ"].qsize())
            assert ran == []
        eventually(lambda: ran)
        assert ran == ["import:7"]

    def test_the_wrong_order(self, broker: Any) -> None:
        in_the_wrong_order(pytest.importorskip("dramatiq").actor)


class TestDjangoTasks:
    def test_it_is_enqueued_again(self, example: Any, ran: list[str], settings: Any) -> None:
        """A task whose lock is held is enqueued for later."""
        pytest.importorskip("django.tasks", reason="Django has tasks from 6.0 on")
        from django.tasks import task_backends

        settings.TASKS = {"default": {"BACKEND": "tests.docs.test_task_queues.Deferring"}}
        backend: Any = task_backends["default"]
        task = example(DJANGO).import_shop
        with held_elsewhere("import:7"):
            task.func(7)
        [deferred] = backend.results
        assert (deferred.args, ran) == ([7], [])
        assert deferred.task.run_after is not None
        task.func(*deferred.args)
        assert ran == ["import:7"]

    def test_the_wrong_order(self) -> None:
        in_the_wrong_order(pytest.importorskip("django.tasks").task)


def __getattr__(name: str) -> Any:
    """`Deferring`, for the settings: a backend that keeps tasks for later."""
    if name != "Deferring":
        raise AttributeError(name)
    from django.tasks.backends.dummy import DummyBackend

    return type(name, (DummyBackend,), {"supports_defer": True})
