"""Tasks that are unique, or limited, above the task queue that a team has.

from django_redislock.tasks import limited, unique

@unique("reindex:{pk}")
@shared_task
def reindex(pk): ...
"""

from ..primitives.work import TaskConflict
from .decorators import limited, unique
from .events import TaskEvent, task_event
from .queue import Delivery, Gate, Queue, register

__all__ = [
    "Delivery",
    "Gate",
    "Queue",
    "TaskConflict",
    "TaskEvent",
    "limited",
    "register",
    "task_event",
    "unique",
]
