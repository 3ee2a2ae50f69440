"""What periodic jobs have done, for people; and pausing them.

Ledger().jobs()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ..base.holder import server_time
from ..primitives import ledger
from ..primitives.ledger import Entries, Pause, RunInfo, RunOutcome
from ..settings.validators import validate_operator, validate_using
from ..transport.ports import SyncPort, run
from ..transport.server import server_of
from .job import Job
from .registry import discover, jobs
from .schedule import SECOND

OVERDUE_AFTER = 60.0
"""Seconds after which a tick that no scheduler has claimed is overdue."""


class JobState(StrEnum):
    OK = "ok"
    RUNNING = "running"
    FAILING = "failing"
    """Its last run has failed, or was lost."""
    OVERDUE = "overdue"
    """No scheduler runs it: none has ever looked at it, or a tick has been due for more than a
    minute, which none has claimed. One that waits for the job's last run is not overdue."""
    PAUSED = "paused"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A job, and what it has done, as it was seen. Times are by the server's clock."""

    name: str
    using: str
    """The alias of CACHES on which its lock and its ledger are."""
    where: str
    """Where in the code it is."""
    plan: str
    """When and how it runs, in words."""
    state: JobState
    next: datetime | None
    """The first tick that nobody has claimed; None: it is paused or disabled, or no scheduler
    knows it."""
    paused: Pause | None
    done: datetime | None
    """When it was last done."""
    runs: tuple[RunInfo, ...]
    """The last ones, skipped ticks among them, the newest first."""

    @property
    def last(self) -> RunInfo | None:
        """The last run that was not skipped; it may be running."""
        return next((run for run in self.runs if run.outcome != RunOutcome.SKIPPED), None)


class Ledger:
    """The jobs of the project, which have to be imported. Raises `LockUnavailable`, and
    `ImproperlyConfigured` for settings that don't go with a job.

    With `using`, only those whose locks are on that alias of CACHES.
    """

    def __init__(self, using: str | None = None) -> None:
        self._using = None if using is None else validate_using(using)
        discover()

    def jobs(self) -> list[JobInfo]:
        """All jobs, by their names."""
        found: dict[str, JobInfo] = {}
        wanted = self._wanted()
        for using in {job.policy.using for job in wanted}:
            its = [job for job in wanted if job.policy.using == using]
            found |= {info.name: info for info in self._read(using, its)}
        return [found[job.name] for job in wanted]

    def job(self, name: str) -> JobInfo | None:
        """One job; None: there is none of that name."""
        job = self._find(name)
        return None if job is None else next(self._read(job.policy.using, [job]))

    def runs(self, name: str) -> tuple[RunInfo, ...]:
        """The last runs of a job, the newest first."""
        job = self.job(name)
        return () if job is None else job.runs

    def pause(self, name: str, *, by: str, reason: str) -> bool:
        """Pass over the ticks of a job from now on; a run goes on to its end. False: there is no
        such job."""
        by, reason = validate_operator(by, reason)
        job = self._find(name)
        if job is not None:
            run(ledger.pause(SyncPort(server_of(job.policy.using)), job.keys, by, reason))
        return job is not None

    def resume(self, name: str) -> bool:
        """Claim its ticks again, from now on. False: it was not paused, or there is none."""
        job = self._find(name)
        return job is not None and run(
            ledger.resume(SyncPort(server_of(job.policy.using)), job.keys)
        )

    def _wanted(self) -> list[Job]:
        return [job for job in jobs() if self._using in (None, job.policy.using)]

    def _find(self, name: str) -> Job | None:
        return next((job for job in self._wanted() if job.name == name), None)

    def _read(self, using: str, its: Sequence[Job]) -> Iterator[JobInfo]:
        names, keys = [job.name for job in its], [job.keys for job in its]
        now, found = run(ledger.read(SyncPort(server_of(using)), names, keys))
        for job, entries in zip(its, found, strict=True):
            rests = entries.paused is not None or not job.enabled or entries.claimed is None
            tick = None if rests else job.schedule.next(entries.claimed or 0)
            yield JobInfo(
                name=job.name,
                using=using,
                where=job.where,
                plan=job.words(),
                state=_state(job, entries, now),
                next=None if tick is None else server_time(tick),
                paused=entries.paused,
                done=entries.done,
                runs=entries.runs,
            )


def _state(job: Job, entries: Entries, now: datetime) -> JobState:
    if not job.enabled:
        return JobState.DISABLED
    if entries.paused is not None:
        return JobState.PAUSED
    outcomes = [run.outcome for run in entries.runs if run.outcome != RunOutcome.SKIPPED]
    running = RunOutcome.RUNNING in outcomes
    if not running and _overdue(job, entries.claimed, now):
        return JobState.OVERDUE
    if running:
        return JobState.RUNNING
    return JobState.FAILING if outcomes and outcomes[0] != RunOutcome.DONE else JobState.OK


def _overdue(job: Job, claimed: int | None, now: datetime) -> bool:
    """Whether no scheduler has claimed a tick for so long that none can be there."""
    if claimed is None:
        return True
    if claimed / SECOND > now.timestamp() + OVERDUE_AFTER:
        return True  # the server's clock was wrong, and nothing is run until then
    tick = job.schedule.next(claimed)
    late = 0.0 if tick is None else now.timestamp() - job.ready(tick) / SECOND
    return late > OVERDUE_AFTER
