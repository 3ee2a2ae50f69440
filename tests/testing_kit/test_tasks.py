"""Tasks of `unique` and `limited` under the stand-ins of the test kit."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from django_redislock import LockError
from django_redislock.primitives.work import Parked
from django_redislock.tasks import TaskConflict, limited, unique
from django_redislock.testing import (
    locks_always_busy,
    locks_always_free,
    locks_in_memory,
    redis_unavailable,
)
from tests.tasks.by_hand import Task, task


@pytest.fixture
def done() -> list[Any]:
    return []


@pytest.fixture(params=[False, True], ids=["an id beforehand", "an id of the queue"])
def reindex(request: pytest.FixtureRequest, done: list[Any]) -> Task:
    return task(lambda pk: done.append((pk,)), renames=request.param)


def unique_task(made: Task, **options: Any) -> Task:
    found: Task = unique("reindex:{pk}", **options)(made)
    return found


class TestAlwaysFree:
    def test_each_call_is_queued_and_runs(self, reindex: Task, done: list[Any]) -> None:
        unique_task(reindex)
        limited("all", 1)(reindex)
        with locks_always_free():
            for _ in range(3):
                reindex.enqueue(7)
            assert len(reindex.backlog.messages) == 3
            for _ in range(3):
                reindex.backlog.work()
        assert done == [(7,), (7,), (7,)]
        assert reindex.backlog.starts == []


class TestAlwaysBusy:
    def test_a_call_is_a_conflict(self, reindex: Task) -> None:
        unique_task(reindex, on_conflict="raise")
        with locks_always_busy("task:reindex:7", holder="web-3:1:x"):
            with pytest.raises(TaskConflict, match="web-3:1:x"):
                reindex.enqueue(7)
            reindex.enqueue(8)
        assert [one.args for one in reindex.backlog.messages] == [(8,)]

    def test_a_call_that_does_not_raise(self, reindex: Task) -> None:
        """There is no handle of a task that no queue knows."""
        unique_task(reindex)
        with locks_always_busy():
            assert reindex.enqueue(7) is None

    def test_a_start_is_parked(self, reindex: Task, done: list[Any]) -> None:
        limited("api:{pk}", 1)(reindex)
        with locks_always_busy("task:api:7"):
            reindex.enqueue(7)
            reindex.enqueue(8)
            reindex.backlog.work()
            reindex.backlog.work()
        assert (reindex.backlog.starts, done) == ([Parked()], [(8,)])


class TestInMemory:
    def test_as_on_a_server(self, reindex: Task, done: list[Any]) -> None:
        """Calls are one, what is too much is parked, and goes on when a permit is free."""
        unique_task(reindex)
        with locks_in_memory():
            for _ in range(3):
                reindex.enqueue(7)
            assert len(reindex.backlog.messages) == 1
            reindex.backlog.work()
            reindex.enqueue(7)
            reindex.backlog.work()
        assert done == [(7,), (7,)]

    def test_after_a_kill(self, done: list[Any]) -> None:
        """The clock of the test moves the leases and the claims of tasks, too."""
        made = task(lambda pk: done.append((pk,)))
        unique_task(made, queued_for=60)
        with locks_in_memory() as memory:
            made.enqueue(7)
            made.backlog.messages.clear()
            made.enqueue(7)
            assert made.backlog.messages == []
            memory.advance(61)
            made.enqueue(7)
            assert len(made.backlog.messages) == 1

    def test_busy_inside(self, reindex: Task) -> None:
        unique_task(reindex)
        with ExitStack() as stack:
            stack.enter_context(locks_in_memory())
            stack.enter_context(locks_always_busy("task:reindex:7"))
            reindex.enqueue(7)
            reindex.enqueue(8)
            reindex.enqueue(8)
        assert [one.args for one in reindex.backlog.messages] == [(8,)]


def test_unavailable(reindex: Task) -> None:
    """A call raises, and nothing is queued."""
    unique_task(reindex)
    with redis_unavailable(), pytest.raises(LockError):
        reindex.enqueue(7)
    assert reindex.backlog.messages == []
