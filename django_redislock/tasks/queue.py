"""What a task queue has to be able to do, so that its tasks can be unique and limited."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from ..primitives.work import Start

MOST = 64 * 1024
"""Bytes of a message, or of arguments, that are kept in Redis."""


class Delivery(NamedTuple):
    """A message that a worker was given."""

    id: str
    """Each attempt of a task has its own, and a repeated delivery has the same."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    message: Callable[[], bytes]
    """Returns all that is needed to send the message again."""


class Gate(Protocol):
    """Through which every enqueue and every run of a task goes: `guarded.Guarded`."""

    @property
    def settles(self) -> bool: ...

    def enqueue(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        send: Callable[[], tuple[Any, str]],
        *,
        id: str | None = None,
        again: bool = False,
    ) -> Any: ...

    def run(
        self, delivery: Delivery, function: Callable[..., Any], instead: Callable[[Start], Any]
    ) -> Any: ...

    def send_later(self, delivery: Delivery, send: Callable[[], str]) -> None: ...

    async def arun(
        self, delivery: Delivery, function: Callable[..., Any], instead: Callable[[Start], Any]
    ) -> Any: ...


class Queue(Protocol):
    """A task queue. `register` makes another one known."""

    renamed: bool
    """Whether a message gets a new id when it is sent again."""

    def knows(self, task: object) -> bool:
        """Return whether this is a task of this queue."""

    def function(self, task: Any) -> Callable[..., Any]:
        """Return the function that the task runs."""

    def guard(self, task: Any, gate: Gate) -> Any:
        """Let each enqueue of `task` go through `gate.enqueue`, and each run through
        `gate.run`. Returns what stands in the place of the task."""

    def send_again(self, task: Any, message: bytes) -> str:
        """Send a message that was parked. Returns its id."""

    def handle(self, task: Any, id: str) -> Any:
        """Return what a caller gets of the task with this id."""

    def dump(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the arguments of a call, by the serialiser of the queue."""

    def load(self, task: Any, text: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of `dump`."""


_KNOWN = {
    "celery": "celery",
    "dramatiq": "dramatiq",
    "django.tasks": "django",
    "django_tasks": "django",
    "rq": "rq",
}
"""The modules of this package, by the beginning of the module in which the class of a task is."""

_queues: list[Queue] = []


def register(queue: Queue) -> None:
    """Let `unique` and `limited` know the tasks of another queue."""
    if queue not in _queues:
        _queues.insert(0, queue)


def queue_of(task: object, decorator: str) -> Queue:
    """Return the queue of a task. Raises `TypeError` for what is no task."""
    for queue in _queues:
        if queue.knows(task):
            return queue
    classes = type(task).__mro__
    # RQ's @job returns the function itself, with a delay().
    places = [one.__module__ for one in classes]
    places += [getattr(getattr(task, "delay", None), "__globals__", {}).get("__name__", "")]
    for beginning, module in _KNOWN.items():
        if any(f"{place}.".startswith(f"{beginning}.") for place in places):
            register(import_module(f".{module}", __package__).queue)
            return queue_of(task, decorator)
    raise TypeError(
        f"@{decorator}(…) stands above the decorator that makes the task, such as @shared_task, "
        f"@task, @job or @dramatiq.actor; {task!r} is no task of a queue that is known. For a "
        f"function that no queue runs, write @redis_lock(…), or Semaphore."
    )
