"""Events of tasks: a signal, and a line in the log.

@receiver(task_event) def count(event: TaskEvent, **kwargs): ...
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Literal

from django.dispatch import Signal

from .. import signals
from ..base.people import log_extra

logger = logging.getLogger("django_redislock")

What = Literal["claimed", "coalesced", "replaced", "parked", "promoted", "healed"]

task_event = Signal()
"""Sent, in a thread of its own, when a task is claimed, coalesced with another call, replaced,
parked, promoted or healed; `event` is a `TaskEvent`."""

_MESSAGES: dict[What, str] = {
    "claimed": "The task %(id)s has claimed %(name)r.",
    "coalesced": "A call for %(name)r is one with the task %(id)s.",
    "replaced": "The task %(id)s that waited for %(name)r was replaced.",
    "parked": "The task %(id)s is parked: %(name)r has no permit.",
    "promoted": "The task %(id)s, parked for %(name)r, is sent again.",
    "healed": "Tasks of %(name)r that a killed process has left go on.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvent:
    """An event of the tasks of one name."""

    what: What
    name: str
    using: str
    id: str
    """The id of the task at its queue; "" if several are meant."""


def tell(what: What, name: str, using: str, id: str = "") -> None:
    """Log an event, and send its signal."""
    event = TaskEvent(what=what, name=name, using=using, id=id)
    level = logging.INFO if what in ("healed", "replaced") else logging.DEBUG
    if logger.isEnabledFor(level):
        logger.log(level, _MESSAGES[what], asdict(event), extra=log_extra("task", asdict(event)))
    signals.deliver_later(task_event, event, what, name)
