"""What happened to periodic jobs: a signal and a log line for each.

    @receiver(job_finished)
    def alert(event: RunInfo, **kwargs): ...

A receiver can never break a job: it is called in a thread of its own, and what it raises is
logged by Django.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from functools import partial

from django.dispatch import Signal

from .. import signals
from ..base import background
from ..primitives.ledger import RunInfo, RunOutcome

logger = logging.getLogger("django_redislock")

job_started = Signal()
"""A run begins; `event` is its `RunInfo`."""
job_finished = Signal()
"""`event.outcome` says how: done, failed, lost or skipped."""

_LEVELS = {
    RunOutcome.RUNNING: (logging.DEBUG, "The job %(job)r starts: planned for %(planned)s."),
    RunOutcome.DONE: (logging.INFO, "The job %(job)r is done, after %(duration).3f s."),
    RunOutcome.FAILED: (logging.ERROR, "The job %(job)r has failed: %(why)s"),
    RunOutcome.LOST: (logging.WARNING, "A run of the job %(job)r is lost: %(why)s."),
    RunOutcome.SKIPPED: (logging.INFO, "%(planned)s of the job %(job)r is skipped: %(why)s."),
}


def tell(event: RunInfo, error: BaseException | None = None) -> None:
    """To the log, with the error that it raised, and to whoever listens."""
    level, message = _LEVELS[event.outcome]
    if logger.isEnabledFor(level):
        fields = asdict(event) | {"duration": event.duration}
        extra = {f"job_{field}": value for field, value in fields.items()}
        arguments = fields | {"duration": event.duration or 0.0}
        logger.log(level, message, arguments, extra=extra, exc_info=error)
    signal = job_started if event.outcome == RunOutcome.RUNNING else job_finished
    if signal.receivers:
        background.later(partial(signals.deliver, signal, event, event.job))
