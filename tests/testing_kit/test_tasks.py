"""Tasks of `unique` and `limited` under the stand-ins of the test kit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from django_redislock import LockError
from django_redislock.tasks import TaskConflict, limited, unique
from django_redislock.testing import (
    assert_claimed,
    assert_parked,
    locks_always_busy,
    locks_always_free,
    locks_in_memory,
    redis_unavailable,
    tasks_coalesced,
)
from tests.tasks.by_hand import Task, task
from tests.tasks.test_operators import park


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
        assert (reindex.backlog.starts, done) == (["parked"], [(8,)])


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


@pytest.fixture(params=["real", "memory"])
def _world(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a real server, and in memory."""
    if request.param == "real":
        yield
        return
    with locks_in_memory():
        yield


@pytest.mark.usefixtures("_world")
class TestAssertions:
    @pytest.fixture(autouse=True)
    def _unique(self, reindex: Task) -> None:
        unique_task(reindex)

    @pytest.mark.parametrize("name", ["reindex:7", "task:reindex:7", "reindex:*", "*"])
    def test_coalesced(self, reindex: Task, name: str) -> None:
        """By name or by pattern, with the prefix or without; the events are returned."""
        with tasks_coalesced(name) as events:
            for _ in range(3):
                reindex.enqueue(7)
            if name == "*":
                reindex.enqueue(8)
        seen = [(event.what, event.name) for event in events]
        assert seen[:3] == [
            ("claimed", "task:reindex:7"),
            ("coalesced", "task:reindex:7"),
            ("coalesced", "task:reindex:7"),
        ]
        assert seen[3:] == [("claimed", "task:reindex:8")] * (name == "*")

    def test_not_coalesced(self, reindex: Task) -> None:
        """The error says which others were. It does not hide what went wrong in the block."""
        words = r"no call of 'reindex:8' was coalesced; coalesced: 'task:reindex:7'"
        with pytest.raises(AssertionError, match=words), tasks_coalesced("reindex:8"):
            for number in (7, 7, 8):
                reindex.enqueue(number)
        with pytest.raises(AssertionError, match="coalesced: nothing"):
            tasks_coalesced("reindex:9")(lambda: reindex.enqueue(9))()
        with pytest.raises(ZeroDivisionError), tasks_coalesced("reindex:7"):
            _ = 1 / 0

    def test_claimed(self, reindex: Task) -> None:
        reindex.enqueue(7)
        assert_claimed("reindex:7")
        reindex.enqueue(8)
        assert_claimed("reindex:*", 2)
        reindex.backlog.work()
        assert_claimed("reindex:7", 0)
        words = r"0 of 'reindex:7' have a claim, not 1; there are: nothing"
        with pytest.raises(AssertionError, match=words):
            assert_claimed("reindex:7")

    def test_parked(self) -> None:
        sync = limited("sync:{pk}", 2)(task(lambda pk: None))
        assert_parked("sync:7", 0)
        park(sync, 2)
        assert_parked("sync:7", 2)
        assert_parked("task:sync:*", 2)
        words = (
            r"2 of 'sync:\*' are parked, not 1; there are: "
            r"'task:sync:7 parked', 'task:sync:7 running'"
        )
        with pytest.raises(AssertionError, match=words):
            assert_parked("sync:*")


def test_nothing_is_known_of_free_locks(reindex: Task) -> None:
    """Where nothing is kept, nothing can be said of it."""
    unique_task(reindex)
    with locks_always_free():
        reindex.enqueue(7)
        with pytest.raises(LockError, match="locks_always_free"):
            assert_claimed("reindex:7")


class TestWrongArguments:
    """The error is raised where the arguments are written."""

    @pytest.mark.parametrize("assertion", [tasks_coalesced, assert_claimed, assert_parked])
    def test_a_name(self, assertion: Callable[[Any], Any], reindex: Task) -> None:
        with pytest.raises(TypeError, match="name must be a str, such as"):
            assertion(reindex)

    @pytest.mark.parametrize("assertion", [assert_claimed, assert_parked])
    @pytest.mark.parametrize(
        ("number", "error"),
        [("2", TypeError), (True, TypeError), (1.5, TypeError), (-1, ValueError)],
    )
    def test_a_number(
        self, assertion: Callable[..., Any], number: Any, error: type[Exception]
    ) -> None:
        with pytest.raises(error, match="number must be"):
            assertion("reindex:7", number)
