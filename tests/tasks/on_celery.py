"""Celery's app, and its tasks."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from celery import Celery, current_task, shared_task

from django_redislock.tasks import unique
from tests.tasks.defining import define
from tests.tasks.events import Flaky, broker_url, work

SOCKET = urlsplit(broker_url()).path
app = Celery(
    "tests",
    broker=f"redis+socket://{SOCKET}?virtual_host=1",
    backend=f"redis+socket://{SOCKET}?virtual_host=2",
)
app.conf.update(
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    # What a killed worker had fetched and not begun is delivered again after that.
    broker_transport_options={"visibility_timeout": 5},
)
app.set_default()


def flaky(function: Any) -> Any:
    """Two retries are all that it has."""
    return shared_task(autoretry_for=(Flaky,), max_retries=2, default_retry_delay=0.05)(function)


def current_id() -> str:
    return str(current_task.request.id)


globals().update(define(__name__, shared_task, flaky, current_id))


@unique("late:{pk}", ttl=3)
@shared_task(acks_late=True, reject_on_worker_lost=True)
def late(pk: str) -> None:
    """One that Celery delivers again as soon as its process has been killed."""
    work("late", pk, 0, True, 0.0, current_id())


@shared_task
def total(results: list[Any]) -> int:
    """The end of a chord."""
    return len(results)
