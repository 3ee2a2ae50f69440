"""Fixtures for the tests on real task queues, with worker processes that can be killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pytest
from django.apps import AppConfig, apps
from django.db import connections

from devtools.redis_server import NoRedisServer, RedisServer, find_server
from tests.faults.conftest import own_server
from tests.tasks.events import BROKER, Log
from tests.tasks.queues import QUEUES, Queue

__all__ = ["own_server"]

_numbers = count(1)


@pytest.fixture(scope="session")
def broker() -> Iterator[RedisServer]:
    """A Redis of its own for messages and events: never an external one, which is flushed."""
    wanted = os.environ.get("REDISLOCK_SERVER", "")
    try:
        found = find_server({**os.environ, "REDISLOCK_SERVER": "" if "://" in wanted else wanted})
    except NoRedisServer as error:
        pytest.skip(str(error))
    with RedisServer(found) as server:
        os.environ[BROKER] = server.url
        yield server


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Iterator[None]:
    """The default database is a file, which workers have, too. Transactions in it are real."""
    from tests.tasks import settings as project

    path = tmp_path_factory.mktemp("tasks") / "db.sqlite3"
    with pytest.MonkeyPatch.context() as patch, django_db_blocker.unblock():
        patch.setenv(project.DATABASE, str(path))
        ours = connections.configure_settings(
            {"default": {**project.DATABASES["default"], "NAME": str(path)}}
        )
        patch.setitem(connections.settings, "default", ours["default"])
        before = connections["default"]
        del connections["default"]
        try:
            with installed("django_tasks_db"):
                yield
        finally:
            connections["default"].close()
            connections["default"] = before


@contextmanager
def installed(name: str) -> Iterator[None]:
    """Let an app have tables, without all else that INSTALLED_APPS would do to other tests."""
    config = AppConfig.create(name)
    config.apps, config.models = apps, apps.all_models[config.label]
    apps.app_configs[config.label] = config
    try:
        config.import_models()
        config.ready()  # connects its signals
        with connections["default"].schema_editor() as editor:
            for model in config.get_models():
                editor.create_model(model)
        yield
    finally:
        del apps.app_configs[config.label]
        apps.clear_cache()


@pytest.fixture(scope="module")
def backends(database: None) -> Iterator[None]:
    """TASKS, as the workers have it."""
    from tests.tasks import settings as project
    from tests.tasks.on_django import task_backends

    def use(settings: dict[str, Any]) -> dict[str, Any]:
        before, task_backends.settings = task_backends.settings, settings
        for alias in {*before, *settings}:
            with suppress(AttributeError):  # no task has asked for it
                del task_backends[alias]
        return before

    before = use(task_backends.configure_settings(project.TASKS))
    yield
    use(before)


@pytest.fixture(
    scope="module",
    # One that has a broker and one that has none are enough for each change.
    params=[
        pytest.param(name, marks=() if name in ("celery", "django-tasks-db") else pytest.mark.slow)
        for name in QUEUES
    ],
)
def started(request: pytest.FixtureRequest, broker: RedisServer) -> Iterator[Queue]:
    """Each of the queues. Its worker is started by the first test that needs one."""
    queue: Queue = QUEUES[request.param]()
    if queue.module == "on_django":
        request.getfixturevalue("backends")
    else:
        request.getfixturevalue("database")
    queue.purge()  # of what another one with the same broker has left
    yield queue
    queue.stop()


@pytest.fixture
def queue(started: Queue) -> Iterator[Queue]:
    """Each of the queues, with one worker for four tasks at a time."""
    started.prepare()
    yield started
    show(started)


@pytest.fixture
def unattended(started: Queue) -> Iterator[Queue]:
    """Each of the queues, without a worker: the test starts it by `start()`."""
    started.prepare(workers=0)
    yield started
    show(started)


def show(queue: Queue) -> None:
    """What the workers have said, which pytest shows if the test has failed."""
    for worker in queue.workers:
        sys.stdout.write(f"--- worker {worker.number}:\n{worker.log()}")


@pytest.fixture
def log(broker: RedisServer) -> Log:
    """What tasks say from now on."""
    return Log()


@pytest.fixture
def pk() -> str:
    """The argument of a task that no other test has."""
    return f"{os.getpid()}-{next(_numbers)}"
