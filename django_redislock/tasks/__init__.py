"""Tasks that are unique, or limited, above the task queue that a team has.

from django_redislock.tasks import limited, unique

@unique("reindex:{pk}")
@shared_task
def reindex(pk): ...
"""

from ..primitives.work import NotBegun, TaskConflict
from .decorators import limited, register, unique
from .guarded import Delivery, Guarded, Queue
from .rules import TaskEvent, task_event

__all__ = [
    "Delivery",
    "Guarded",
    "NotBegun",
    "Queue",
    "TaskConflict",
    "TaskEvent",
    "limited",
    "register",
    "task_event",
    "unique",
]
