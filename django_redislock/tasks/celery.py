"""Tasks of Celery."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import wraps
from typing import Any
from uuid import uuid4

from celery.canvas import Signature
from celery.exceptions import Ignore
from kombu.serialization import dumps, loads, prepare_accept_content

from ..base.exceptions import LockUnavailable
from ..primitives.work import NotBegun
from .guarded import Delivery, Guarded, Queue

_COUNTED_ON = ("group_id", "chord", "chain")
"""Options of a message that others count on: a chord whose member is dropped never ends."""


class Celery(Queue):
    """Tasks of `@shared_task` and `@app.task`."""

    def knows(self, task: object) -> bool:
        return hasattr(task, "apply_async") and hasattr(task, "signature_from_request")

    def function(self, task: Any) -> Callable[..., Any]:
        return _registered(task).run  # type: ignore[no-any-return]

    def guard(self, task: Any, gate: Guarded) -> Any:
        its = _registered(task)
        apply_async, run = its.apply_async, its.run

        @wraps(apply_async)
        def claimed(
            args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any
        ) -> Any:
            task_id = task_id or str(uuid4())

            def send() -> tuple[Any, str]:
                return apply_async(args, kwargs, task_id=task_id, **options), task_id

            retries = options.get("retries")
            member = any(options.get(one) is not None for one in _COUNTED_ON)
            return gate.enqueue(
                tuple(args or ()),
                dict(kwargs or {}),
                send,
                id=None if member else _attempt(task_id, retries),
                again=member or retries is not None,
            )

        @wraps(run)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            request = its.request
            if request.called_directly or request.id is None:
                return run(*args, **kwargs)
            again = its.signature_from_request(request, args, kwargs, retries=request.retries)

            def instead(start: NotBegun) -> Any:
                raise Ignore from start

            begun = False

            def body(*args: Any, **kwargs: Any) -> Any:
                nonlocal begun
                begun = True
                return run(*args, **kwargs)

            id = _attempt(request.id, request.retries)
            try:
                return gate.run(Delivery(id, args, kwargs, again), body, instead)
            except LockUnavailable as error:
                if begun:
                    raise
                raise its.retry(exc=error) from error

        its.apply_async, its.run = claimed, guarded
        return task

    def send_again(self, task: Any, message: Any, seconds: float = 0.0) -> str:
        its = _registered(task)
        again = Signature.from_dict(message, app=its.app)
        options = {**again.options, "countdown": seconds or None}
        sent = type(its).apply_async(its, again.args, again.kwargs, **options)
        return _attempt(sent.id, options.get("retries"))

    def handle(self, task: Any, id: str) -> Any:
        return _registered(task).AsyncResult(id.partition(":")[0])

    def dump(self, task: Any, value: Any) -> bytes:
        kind, encoding, body = dumps(value, serializer=_registered(task).serializer)
        raw = body.encode() if isinstance(body, str) else body
        return json.dumps([kind, encoding, b64encode(raw).decode()]).encode()

    def load(self, task: Any, text: bytes) -> Any:
        kind, encoding, body = json.loads(text)
        accept = prepare_accept_content(_registered(task).app.conf.accept_content)
        return loads(b64decode(body), kind, encoding, accept=accept)


def _registered(task: Any) -> Any:
    """Return the task itself: `@shared_task` returns a proxy of it. Raises `TypeError` if there is
    no app that could have it."""
    app = task.app
    if app.main == "default" and not app.set_as_current:
        raise TypeError(
            f"{task.name} has no Celery app yet, and its tasks would run without the rule: import "
            f"the app in the __init__.py of the project, as Celery's page on Django says"
        )
    return app.tasks[task.name]


def _attempt(id: str, retries: int | None) -> str:
    """Return the id of one attempt: a retry may begin before the attempt before it has ended."""
    return f"{id}:{retries}" if retries else id


queue = Celery()
