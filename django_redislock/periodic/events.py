"""Events of periodic jobs: each is a signal and a line in the log.

    @receiver(job_finished)
    def alert(event: RunInfo, **kwargs): ...

A receiver can never break a job: receivers are called in another thread, and Django logs what
they raise.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from functools import partial

from django.dispatch import Signal

from .. import signals
from ..base import background
from ..base.holder import log_extra
from ..primitives.ledger import RunInfo, RunOutcome

logger = logging.getLogger("django_redislock")

job_started = Signal()
"""Sent when a run begins; `event` is its `RunInfo`."""
job_finished = Signal()
"""Sent when a run has ended; `event.outcome` is done, failed, lost or skipped."""

_LEVELS = {
    RunOutcome.RUNNING: (logging.DEBUG, "The job %(job)r starts; it was planned for %(planned)s."),
    RunOutcome.DONE: (logging.INFO, "The job %(job)r is done after %(duration).3f s."),
    RunOutcome.FAILED: (logging.ERROR, "The job %(job)r failed: %(why)s"),
    RunOutcome.LOST: (logging.WARNING, "A run of the job %(job)r was lost: %(why)s."),
    RunOutcome.SKIPPED: (logging.INFO, "The job %(job)r skipped its tick %(planned)s: %(why)s."),
}


def send(event: RunInfo, error: BaseException | None = None) -> None:
    """Log an event, with the error that the job raised, and send its signal."""
    level, message = _LEVELS[event.outcome]
    if logger.isEnabledFor(level):
        fields = asdict(event) | {"duration": event.duration}
        words = fields | {"duration": event.duration or 0.0}
        logger.log(level, message, words, extra=log_extra("job", fields), exc_info=error)
    signal = job_started if event.outcome == RunOutcome.RUNNING else job_finished
    if signal.receivers:
        background.later(partial(signals.deliver, signal, event, event.job))
