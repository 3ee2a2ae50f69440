"""RQ's queue, and its jobs."""

from __future__ import annotations

from redis import Redis
from rq import Queue, Retry, get_current_job
from rq.decorators import job

from tests.tasks.defining import define
from tests.tasks.events import broker_url

connection = Redis.from_url(broker_url(3))
queue = Queue("default", connection=connection)


def current_id() -> str:
    running = get_current_job()
    assert running is not None
    return str(running.id)


globals().update(
    define(
        __name__,
        job("default", connection=connection),
        job("default", connection=connection, retry=Retry(max=2)),
        current_id,
    )
)
