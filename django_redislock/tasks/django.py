"""Tasks of `django.tasks`, and of its backport `django_tasks`, on any backend."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial, wraps
from typing import Any, cast

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.utils import timezone
from django.utils.module_loading import import_string

from .guarded import Delivery, Guarded, Queue

_SENT = ("priority", "queue_name", "backend")
"""What a message is sent again with."""
_OPTIONS = (*_SENT, "run_after")
"""What `Task.using` changes."""


class DjangoTasks(Queue):
    """Tasks of `@task`. The backend chooses the id of each, when it is sent again, too."""

    renamed = True

    def knows(self, task: object) -> bool:
        return any(
            one.__name__ == "Task" and one.__module__.startswith(("django.tasks", "django_tasks"))
            for one in type(task).__mro__
        )

    def function(self, task: Any) -> Callable[..., Any]:
        # A name knows nothing of the context, which only the worker has.
        return partial(task.func, None) if task.takes_context else task.func

    def guard(self, task: Any, gate: Guarded) -> Any:
        options, kind = {one: getattr(task, one) for one in _OPTIONS}, cast(Any, type(task))
        return _guarded_class(kind)(
            func=_guarded(task.func, gate, takes_context=task.takes_context),
            takes_context=True,
            **options,
        )

    def send_again(self, task: Any, message: Any, seconds: float = 0.0) -> str:
        options, args, kwargs = message
        later = timezone.now() + timedelta(seconds=seconds) if seconds else None
        again = task.using(**options, run_after=later)
        return str(again.get_backend().enqueue(again, args, kwargs).id)

    def handle(self, task: Any, id: str) -> Any:
        """The result, or None for a backend that keeps none."""
        backend = task.get_backend()
        return task.get_result(id) if backend.supports_get_result else None

    def dump(self, task: Any, value: Any) -> bytes:  # noqa: ARG002
        return json.dumps(value).encode()

    def load(self, task: Any, text: bytes) -> Any:  # noqa: ARG002
        return json.loads(text)


def _guarded(function: Callable[..., Any], gate: Guarded, *, takes_context: bool) -> Any:
    """Return a function that is given the context of the worker, for the id of the message."""
    body = async_to_sync(function) if iscoroutinefunction(function) else function

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not (args and hasattr(args[0], "task_result")):  # no worker calls, which gives that
            return function(*args, **kwargs)
        context, *rest = args
        result = context.task_result
        message = [{one: getattr(result.task, one) for one in _SENT}, rest, kwargs]
        delivery = Delivery(str(result.id), tuple(rest), kwargs, message)
        run = partial(body, context) if takes_context else body
        return gate.run(delivery, run, lambda _: None)

    # Backends want a function whose first parameter is the context.
    signature = inspect.signature(function)
    parameters = [*signature.parameters.values()]
    if not takes_context:
        first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY)
        parameters.insert(0, first)
    guarded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    guarded.redislock_gate = gate  # type: ignore[attr-defined]
    return guarded


@cache
def _guarded_class(base: Any) -> Any:
    """Return the class of guarded tasks of a backend."""

    class GuardedTask(base):  # type: ignore[misc]
        __slots__ = ()

        def enqueue(self, *args: Any, **kwargs: Any) -> Any:
            gate, backend = self.func.redislock_gate, self.get_backend()

            def send() -> tuple[Any, str]:
                if gate.unique and gate.unique.settle and not backend.supports_defer:
                    raise TypeError(
                        f"settle needs a backend that can run a task later (supports_defer), and "
                        f"{self.backend!r} can't: leave settle out, or use another backend"
                    )
                result = backend.enqueue(self, args, kwargs)
                return result, str(result.id)

            return gate.enqueue(args, kwargs, send)

        async def aenqueue(self, *args: Any, **kwargs: Any) -> Any:
            return await sync_to_async(self.enqueue, thread_sensitive=True)(*args, **kwargs)

        def __reduce__(self) -> tuple[Any, ...]:
            return _loaded, (self.module_path, {one: getattr(self, one) for one in _OPTIONS})

    return GuardedTask


def _loaded(path: str, options: dict[str, Any]) -> Any:
    return import_string(path).using(**options)


queue = DjangoTasks()
