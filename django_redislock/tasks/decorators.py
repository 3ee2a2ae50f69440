"""`unique` and `limited`: they stand above the decorator that makes a task."""

from __future__ import annotations

from importlib import import_module
from typing import TypeVar

from .guarded import Guarded, Queue, known
from .rules import Limit, Rule, Uniqueness

T = TypeVar("T")

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


def _queue_of(task: object, decorator: str) -> Queue:
    """Return the queue of a task. Raises `TypeError` for what is no task."""
    # RQ's @job returns the function itself, with a delay().
    delay = getattr(getattr(task, "delay", None), "__globals__", {}).get("__name__", "")
    places = [f"{place}." for place in (*(one.__module__ for one in type(task).__mro__), delay)]
    own = [
        import_module(f".{module}", __package__).queue
        for beginning, module in _KNOWN.items()
        if any(place.startswith(f"{beginning}.") for place in places)
    ]
    for queue in (*_queues, *own):
        if queue.knows(task):
            return queue  # type: ignore[no-any-return]
    raise TypeError(
        f"@{decorator}(…) stands above the decorator that makes the task, such as @shared_task, "
        f"@task, @job or @dramatiq.actor; {task!r} is no task of a queue that is known. For a "
        f"function that no queue runs, write @redis_lock(…), or Semaphore."
    )


class Decorator(Rule):
    """Lets a rule hold for a task."""

    def __call__(self, task: T) -> T:
        guarded = next((one for one in known.values() if one.task is task), None)
        if guarded is None:
            queue = _queue_of(task, type(self).__name__)
            guarded = Guarded(queue, queue.function(task))
        self.bind(guarded.function)
        guarded.add(self)
        guarded.task = guarded.task or guarded.queue.guard(task, guarded)
        return guarded.task  # type: ignore[no-any-return]


class unique(Uniqueness, Decorator):
    """At most one task of a name waits in its queue, and one runs.

    It stands above the decorator that makes the task: `@shared_task` or `@app.task` of Celery,
    `@job` of RQ, `@dramatiq.actor`, `@task` of Django. The name is a template over the arguments,
    or a function of them. Times are seconds.

    * `until`: `"start"`, the default: when the task begins, one more call may be queued, so that
      no change is missed. `"end"`: no other call is queued until it has ended.
    * `on_conflict`: what a call does while another one has the name. `"existing"`, the default: it
      returns the handle of that one. `"skip"`: it returns None. `"raise"`: it raises
      `TaskConflict`. `"replace"`: it takes the place of the one that waits.
    * `queued_for`: how long a task keeps its name while it waits; by default 3600.
    * `settle`: the task begins when there was no call for so long, with the arguments of the last
      call; after `at_most` in any case.
    * `ttl`, `using`: as in `redis_lock`; the ttl is that of the task while it runs.
    * `transaction`: an alias of DATABASES, by default "default". A call inside a transaction there
      claims the name and queues its task when that commits.

    The lock of the running task is the semaphore `task:<name>`, with one permit. A second task
    that a worker is given meanwhile is parked.

    A call raises `LockUnavailable` if Redis can't be reached, and then nothing was queued.
    """


class limited(Limit, Decorator):
    """At most `limit` tasks of a name run at a time; no worker waits for the others.

    It stands above the decorator that makes the task, and may stand above or below `unique`. A
    task that a worker is given while no permit is free is parked: its message waits in Redis, and
    is sent to the queue again, in order of arrival, when another one ends.

    * `limit`: may change at any time. Without it, `LIMIT` in the settings of `task:<name>`.
    * `weight`: how many permits a task takes; by default 1.
    * `recover`: by default False. True: a task whose worker was killed is sent again, even if the
      queue believes that it was done. Its function must bear to be run twice.
    * `ttl`, `using`: as in `redis_lock`. After a kill the permit is free when its ttl is over.
    """
