"""`unique` and `limited`: they stand above the decorator that makes a task."""

from __future__ import annotations

from typing import TypeVar

from .guarded import Guarded, guarded_by
from .queue import queue_of
from .rules import Limit, Rule, Uniqueness

T = TypeVar("T")


class Decorator(Rule):
    """Lets a rule hold for a task."""

    def __call__(self, task: T) -> T:
        known = guarded_by(task)
        queue = known.queue if known else queue_of(task, type(self).__name__)
        guarded = known or Guarded(queue, queue.function(task))
        self.bind(guarded.function)
        guarded.add(self)
        if known is None:
            guarded.task = queue.guard(task, guarded)
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
      queues its task when that commits, and claims the name at once.

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
