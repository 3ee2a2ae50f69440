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

from ..base.label import dotted_path
from ..primitives.work import Early, Start
from .queue import Delivery, Gate

_AGAIN = re.compile(r"-again\d+$")
"""The end of the id of a job that was parked: RQ keeps a result under the id of the first."""


class RQ:
    """Tasks of `@job`, whose `delay` enqueues them."""

    renamed = False

    def knows(self, task: object) -> bool:
        delay = getattr(task, "delay", None)
        return inspect.isfunction(task) and getattr(delay, "__wrapped__", None) is task

    def function(self, task: Any) -> Callable[..., Any]:
        function: Callable[..., Any] = task
        return function

    def guard(self, task: Any, gate: Gate) -> Any:
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

            def instead(start: Start) -> Any:
                if isinstance(start, Early):
                    times = (job.number_of_retries or 0) + 1
                    return Retry(max=times, interval=ceil(start.seconds))
                return None

            def message() -> bytes:
                return pickle.dumps((job.id, args, kwargs))

            return gate.run(Delivery(_AGAIN.sub("", job.id), args, kwargs, message), task, instead)

        guarded.delay = guarded.enqueue = claimed  # type: ignore[attr-defined]
        guarded.redislock_delay = delay  # type: ignore[attr-defined]
        return guarded

    def send_again(self, task: Any, message: bytes) -> str:
        id, args, kwargs = pickle.loads(message)
        first = _AGAIN.sub("", id)
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

    def dump(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:  # noqa: ARG002
        return pickle.dumps((args, kwargs))

    def load(self, task: Any, text: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:  # noqa: ARG002
        args, kwargs = pickle.loads(text)
        return args, kwargs


queue = RQ()
