"""The examples of docs/tasks.md are tasks of Celery, and README.md has one."""

from __future__ import annotations

from collections.abc import Iterator

import celery
import pytest
from celery import shared_task
from redis import Redis

from django_redislock import redis_lock
from django_redislock.tasks import TaskConflict, unique
from tests.docs.world import examples


@pytest.fixture
def app() -> Iterator[celery.Celery]:
    """The app that tasks belong to, with a queue in memory and no worker."""
    before = celery.current_app._get_current_object()
    app = celery.Celery("shop", broker="memory://", backend="cache+memory://")
    app.set_default()
    app.set_current()
    yield app
    before.set_default()
    before.set_current()


def claimed(redis: Redis) -> set[str]:
    """The names that tasks have."""
    keys = redis.scan_iter("redislock:{task:*}:claim")
    return {key.decode().removeprefix("redislock:{").removesuffix("}:claim") for key in keys}


def run(number: int, page: str = "docs/tasks.md") -> dict[str, object]:
    world = {"__name__": f"shop_tasks_{number}", "shared_task": shared_task, "unique": unique}
    exec(examples(page)[number], world)
    return world


def test_the_first_example(app: celery.Celery, redis: Redis) -> None:
    world = run(0)
    reindex, report, digest = (world[name] for name in ("reindex", "report", "digest"))
    assert reindex.delay(7).id == reindex.delay(7).id  # type: ignore[attr-defined]
    report.delay(7)  # type: ignore[attr-defined]
    with pytest.raises(TaskConflict):
        report.delay(7)  # type: ignore[attr-defined]
    digest.delay(3, "acme")  # type: ignore[attr-defined]
    assert claimed(redis) == {"task:reindex:7", "task:report:7", "task:digest:3"}


def test_a_limit(app: celery.Celery, redis: Redis) -> None:
    run(1)["export"].delay("acme")  # type: ignore[attr-defined]
    assert claimed(redis) == set()


def test_a_note(app: celery.Celery) -> None:
    """The second run goes on where the first one has failed."""
    world, printed = run(2), []

    def fail_once(square: int) -> None:
        printed.append(square)
        if printed == [1, 4]:
            raise ZeroDivisionError

    world["print"] = fail_once
    for _ in range(2):
        world["squares"].apply(args=[3])  # type: ignore[attr-defined]
    assert printed == [1, 4, 4, 9]


def test_each_example_is_run_here() -> None:
    assert len(examples("docs/tasks.md")) == 3


def test_the_readme(app: celery.Celery, redis: Redis) -> None:
    number = next(n for n, text in enumerate(examples("README.md")) if "unique" in text)
    world = run(number, "README.md")
    assert world["reindex"].delay(7).id == world["reindex"].delay(7).id  # type: ignore[attr-defined]
    assert claimed(redis) == {"task:reindex:7"}


def test_the_order_of_decorators(app: celery.Celery) -> None:
    """Each wrong order names the right one."""

    def function(pk: int) -> None: ...

    with pytest.raises(TypeError, match="stands above the decorator that makes the task"):
        celery.shared_task(unique("x:{pk}")(function))
    with pytest.raises(TypeError, match="below the decorator that makes the task"):
        redis_lock("x:{pk}")(unique("x:{pk}")(celery.shared_task(function)))


def test_the_app_comes_first() -> None:
    """Without an app, the rule would hold for no task of the app that comes later."""
    with pytest.raises(TypeError, match=r"has no Celery app yet"):
        unique("x:{pk}")(_without_an_app())


def _without_an_app() -> object:
    app = celery.Celery("default", set_as_current=False)

    @app.task
    def orphan(pk: int) -> None: ...

    return orphan
