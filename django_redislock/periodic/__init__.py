"""Periodic jobs: each tick is run once in the whole fleet.

    @periodic("*/5 * * * *")        # in an app's periodic.py
    def report(): ...

Every host runs `manage.py runperiodic`. docs/periodic.md has the details.
"""

from ..primitives.ledger import Pause, RunInfo, RunOutcome, RunRequest
from .events import job_finished, job_started
from .registry import periodic
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
