"""Tasks of RQ."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from math import ceil
from typing import Any
from uuid import uuid4

from rq import Retry, get_current_job
from rq.exceptions import NoSuchJobError
from rq.job import Job

from ..base.people import dotted_path
from ..primitives.work import NotBegun
from .guarded import Delivery, Guarded, Queue

_AGAIN = re.compile(r"-again\d+$")
"""The end of the id of a job that was parked: RQ keeps a result under the id of the first."""


class RQ(Queue):
    """Tasks of `@job`, whose `delay` enqueues them."""

    def knows(self, task: object) -> bool:
        delay = getattr(task, "delay", None)
        return inspect.isfunction(task) and getattr(delay, "__wrapped__", None) is task

    def function(self, task: Any) -> Callable[..., Any]:
        return task  # type: ignore[no-any-return]

    def guard(self, task: Any, gate: Guarded) -> Any:
        delay, path = task.delay, dotted_path(task)

        def claimed(*args: Any, **kwargs: Any) -> Any:
            id = kwargs.pop("job_id", None) or str(uuid4())
            passed = {one: kwargs[one] for one in kwargs if one not in ("depends_on", "at_front")}

            def send() -> tuple[Any, str]:
                return delay(*args, job_id=id, **kwargs), id

            return gate.enqueue(args, passed, send, id=id)

        @wraps(task)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            job = get_current_job()
            if job is None or job.func_name != path:
                return task(*args, **kwargs)

            def instead(start: NotBegun) -> Any:
                times = (job.number_of_retries or 0) + 1
                return Retry(max=times, interval=ceil(start.seconds)) if start.seconds else None

            id = _AGAIN.sub("", job.id)
            try:
                return gate.run(Delivery(id, args, kwargs, (job.id, args, kwargs)), task, instead)
            except Exception:
                if job.retries_left and job.worker_name != "sync":
                    gate.enqueue(args, kwargs, lambda: (job, id), id=id, again=True)
                raise

        guarded.delay = guarded.enqueue = claimed  # type: ignore[attr-defined]
        guarded.redislock_delay = delay  # type: ignore[attr-defined]
        return guarded

    def send_again(self, task: Any, message: Any, seconds: float = 0.0) -> str:
        id, args, kwargs = message
        first = _AGAIN.sub("", id)
        if not seconds:  # else its worker is given a `Retry`
            times = int(id[len(first) :].removeprefix("-again") or 0) + 1
            task.redislock_delay(*args, job_id=f"{first}-again{times}", **kwargs)
        return first

    def handle(self, task: Any, id: str) -> Any:
        """The job, or None: what `@job` knows of its queue can't be seen."""
        decorator = inspect.getclosurevars(task.redislock_delay).nonlocals.get("self")
        queue = getattr(decorator, "queue", None)
        connection = getattr(queue, "connection", None) or getattr(decorator, "connection", None)
        if connection is None:
            return None
        with suppress(NoSuchJobError):  # it is queued when a transaction commits
            return Job.fetch(id, connection=connection)
        return None

    def dump(self, task: Any, value: Any) -> bytes:  # noqa: ARG002
        return pickle.dumps(value)

    def load(self, task: Any, text: bytes) -> Any:  # noqa: ARG002
        return pickle.loads(text)


queue = RQ()
