"""Tasks without a lock run on each of the queues: else the other tests here would mean little."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tasks.events import TRIES, Log
from tests.tasks.queues import Queue

only_celery = pytest.mark.parametrize("started", ["celery"], indirect=True)


def test_tasks_run(queue: Queue, log: Log, pk: str) -> None:
    """Four tasks at a time run in a worker, and know their ids."""
    handles = [queue.call(queue.tasks.plain, pk, item, gate=True) for item in range(4)]
    begun = log.wait("begin", pk, count=4)
    assert {event.id for event in begun} == {queue.id_of(handle) for handle in handles}
    for _ in handles:
        log.open(pk)
    log.wait("end", pk, count=4)
    assert log.most(pk) == 4
    queue.settle()


def test_a_task_that_fails_is_tried_again(queue: Queue, log: Log, pk: str) -> None:
    """Each queue that can retry does so as often as the tests of retries need."""
    if not queue.retries:
        pytest.skip("it has no retries")
    queue.call(queue.tasks.flaky_plain, pk)
    [event] = log.wait("end", pk)
    assert len(log.of("begin", pk)) == TRIES
    assert {begin.id for begin in log.of("begin", pk)} == {event.id}


@pytest.mark.slow
def test_a_killed_worker(queue: Queue, log: Log, pk: str) -> None:
    """Whatever runs in a worker ends with it. A second one goes on."""
    queue.call(queue.tasks.plain, pk, gate=True)
    [first] = log.wait("begin", pk)
    queue.kill()
    queue.start()
    queue.call(queue.tasks.plain, pk, 1)
    [second] = log.wait("end", pk)
    assert second.item == 1
    assert second.worker != first.worker


@only_celery
def test_a_chord(queue: Any, log: Log, pk: str) -> None:
    from celery import chord

    tasks = queue.tasks
    members = chord([tasks.plain.s(pk), tasks.plain.s(pk)])
    assert members(tasks.total.s()).get(timeout=30) == 2


def test_the_immediate_backend(backends: None, broker: Any, log: Log, pk: str) -> None:
    """Django's immediate backend runs a task before `enqueue` returns."""
    from tests.tasks import on_django

    task = on_django.plain.using(backend="immediate")  # type: ignore[attr-defined]
    result = task.enqueue(pk)
    assert result.status == "SUCCESSFUL"
    log.read()
    assert [event.id for event in log.of("end", pk)] == [result.id]
