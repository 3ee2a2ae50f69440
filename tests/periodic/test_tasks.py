"""Django's tasks: a scheduler enqueues one once per tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command

from django_redislock.periodic import Ledger, periodic
from django_redislock.periodic.job import Job, jobs
from tests.periodic.conftest import outcomes

pytest.importorskip("django.tasks", reason="Django has tasks from 6.0 on")

from django.tasks import task
from django.tasks.backends.dummy import DummyBackend
from django.tasks.signals import task_enqueued

ran: list[str] = []


class Away(DummyBackend):
    """Nothing can be enqueued."""

    def enqueue(self, *args: Any, **kwargs: Any) -> Any:
        raise OSError("the queue is away")


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def backend(settings: Any, path: str) -> None:
    settings.TASKS = {"default": {"BACKEND": path}}


@task()
def report(shop: str = "all") -> None:
    ran.append(shop)


@task()
async def areport() -> None:
    ran.append("async")


@task(takes_context=True)
def in_context(context: Any, shop: str = "all") -> None:
    ran.append(f"{context.attempt} {shop}")


@task()
def needs(shop: str) -> None: ...


@pytest.fixture
def run(missed: Any) -> Callable[[Job], list[str]]:
    """Let its tick be run by two schedulers, one after the other."""

    def run(job: Job) -> list[str]:
        missed(job.name)
        for _ in range(2):
            call_command("runperiodic", "--once")
        return outcomes(job.name)

    return run


@pytest.mark.parametrize(
    ("decorated", "expected"), [(report, "all"), (areport, "async"), (in_context, "1 all")]
)
def test_it_is_run_once(decorated: Any, expected: str, run: Any, settings: Any) -> None:
    """By a backend that does so at once; the decorated task is still a task."""
    backend(settings, "django.tasks.backends.immediate.ImmediateBackend")
    assert periodic(every=3600)(decorated) is decorated
    [job] = jobs()
    assert job.name == decorated.module_path
    assert job.where.endswith(f"in {decorated.name}")
    assert run(job) == ["done"]
    assert ran == [expected]


def test_it_is_enqueued(run: Any, settings: Any) -> None:
    """That is all that the job does."""
    backend(settings, "django.tasks.backends.dummy.DummyBackend")
    periodic(every=3600)(report)
    enqueued = []

    def hear(task_result: Any, **_: Any) -> None:
        enqueued.append(task_result.task)

    task_enqueued.connect(hear)
    try:
        assert run(jobs()[0]) == ["done"]
    finally:
        task_enqueued.disconnect(hear)
    assert (enqueued, ran) == ([report], [])


def test_it_cannot_be_enqueued(run: Any, settings: Any) -> None:
    """The run has failed."""
    backend(settings, "tests.periodic.test_tasks.Away")
    periodic(every=3600)(report)
    [job] = jobs()
    with pytest.raises(SystemExit, match="1"):
        run(job)
    [entry] = Ledger().runs(job.name)
    assert (entry.outcome, entry.why) == ("failed", "OSError: the queue is away")


def test_one_that_needs_arguments() -> None:
    """Nobody could give it any."""
    with pytest.raises(TypeError, match="needs shop"):
        periodic(every=3600)(needs)
