"""Periodic jobs: each tick is run once in the whole fleet.

    @periodic("*/5 * * * *")        # in an app's periodic.py
    def report(): ...

Every host runs `manage.py runperiodic`. docs/periodic.md has the details.
"""

import sys
from types import ModuleType

from ..primitives.ledger import Pause, RunInfo, RunOutcome, RunRequest
from .execution import job_finished, job_started
from .job import periodic
from .report import JobInfo, JobState, Ledger

__all__ = [
    "JobInfo",
    "JobState",
    "Ledger",
    "Pause",
    "RunInfo",
    "RunOutcome",
    "RunRequest",
    "job_finished",
    "job_started",
    "periodic",
]


class _Module(ModuleType):
    def __call__(self, *_: object, **__: object) -> None:
        raise TypeError(
            f"{__name__} is a module with the decorator: write from {__name__} import periodic"
        )


sys.modules[__name__].__class__ = _Module
