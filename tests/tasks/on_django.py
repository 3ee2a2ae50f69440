"""Django's own tasks. Before Django 6.0 they are in the backport django-tasks."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

try:
    from django.tasks import task, task_backends
    from django.tasks.signals import task_started
except ImportError:
    from django_tasks import task, task_backends
    from django_tasks.signals import task_started

from django_redislock import current_lease
from django_redislock.tasks import unique
from tests.tasks.defining import define

__all__ = ["task_backends"]

_id: ContextVar[str] = ContextVar("id", default="")


def started(task_result: Any, **_: Any) -> None:
    _id.set(task_result.id)


task_started.connect(started)

leases: list[str] = []
"""The names of those under which coroutines have run."""


async def coroutine(pk: str) -> None:
    await asyncio.sleep(0)
    lease = current_lease()
    assert lease is not None
    leases.append(f"{lease.name} {lease.state}")


coroutine = unique("coroutine:{pk}")(task(coroutine))

globals().update(define(__name__, task, task, _id.get))
