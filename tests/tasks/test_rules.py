"""What `unique` and `limited` owe on any queue: the tests take messages from a queue by hand."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction
from redis import Redis

from django_redislock import LockUnavailable, current_lease, redis_lock
from django_redislock.primitives.work import Duplicate, Early, Parked, Replaced
from django_redislock.tasks import TaskConflict, limited, unique
from tests.tasks.by_hand import Backlog, Handle, Message, Task, task

CLAIM = "redislock:{task:reindex:7}:claim"


@pytest.fixture(params=[False, True], ids=["an id beforehand", "an id of the queue"])
def renames(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def done() -> list[Any]:
    return []


@pytest.fixture
def reindex(renames: bool, done: list[Any]) -> Task:
    return task(lambda pk, note="": done.append((pk, note)), renames=renames)


def test_calls_are_one_until_the_task_begins(reindex: Task, done: list[Any]) -> None:
    """Five calls are one task, and each caller gets its handle."""
    unique("reindex:{pk}")(reindex)
    handles = [reindex.enqueue(7) for _ in range(5)]
    assert handles == [Handle("m1" if not reindex.backlog.renames else "m1")] * 5
    assert len(reindex.backlog.messages) == 1
    reindex.backlog.work()
    assert done == [(7, "")]
    reindex.enqueue(7)
    assert len(reindex.backlog.messages) == 1


def test_another_name_is_another_task(reindex: Task) -> None:
    unique("reindex:{pk}")(reindex)
    reindex.enqueue(7)
    reindex.enqueue(8)
    assert len(reindex.backlog.messages) == 2


def test_one_more_may_wait_while_one_runs(reindex: Task, done: list[Any]) -> None:
    """A change that comes while the task runs is not missed, and the two never overlap."""
    unique("reindex:{pk}")(reindex)
    backlog = reindex.backlog
    depth = []

    def run(pk: int, note: str = "") -> None:
        done.append((pk, note))
        if not depth:
            depth.append(1)
            for _ in range(6):
                reindex.enqueue(pk, "again")
            assert len(backlog.messages) == 1
            other = _worker(backlog)
            assert other == [Parked()]  # it is given to another worker, and waits

    reindex.function = run
    reindex.enqueue(7)
    backlog.work()
    assert done == [(7, "")]
    backlog.work()
    assert done == [(7, ""), (7, "again")]
    assert backlog.messages == []


def _worker(backlog: Backlog) -> list[Any]:
    """Let another worker take the next message, in a context of its own."""
    from contextvars import Context

    Context().run(backlog.work)
    return backlog.starts
