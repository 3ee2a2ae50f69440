"""RQ's queue, and its jobs."""

from __future__ import annotations

from redis import Redis
from rq import Queue, Retry, get_current_job
from rq.decorators import job

from django_redislock.tasks import unique
from tests.tasks.defining import define
from tests.tasks.events import Flaky, broker_url

connection = Redis.from_url(broker_url(3))
queue = Queue("default", connection=connection)


def current_id() -> str:
    running = get_current_job()
    assert running is not None
    return str(running.id)


def _fails(pk: str) -> None:
    raise Flaky


_fails.__name__ = _fails.__qualname__ = "late"
late = unique("late:{pk}")(
    job("late", connection=connection, retry=Retry(max=1, interval=600))(_fails)
)
"""A task that fails, and is tried again after ten minutes."""

globals().update(
    define(
        __name__,
        job("default", connection=connection),
        job("default", connection=connection, retry=Retry(max=2)),
        current_id,
    )
)
