"""The ledger of all jobs: their state and their last runs. Jobs can be paused here.

Ledger().jobs()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from django.utils.translation import gettext_noop as _

from ..base.people import server_time
from ..primitives import ledger
from ..primitives.contract import run
from ..primitives.ledger import Entries, Pause, RunInfo, RunOutcome, RunRequest
from ..settings.validators import validate_operator, validate_using
from ..transport.ports import SyncPort
from ..transport.server import server_of
from .job import SECOND, Job, discover, jobs

OVERDUE_AFTER = 60.0
"""Seconds after which a tick that no scheduler claimed is overdue."""
SILENT_AFTER = 60.0
"""Seconds after its last sign of life for which a scheduler counts as running."""


class JobState(StrEnum):
    """The states, trouble first: lists of jobs have this order."""

    OVERDUE = _("overdue")
    """No scheduler runs the job: none has ever looked at it, or none has claimed a tick that has
    been due for more than a minute. A tick that waits for the job's last run is not overdue."""
    FAILING = _("failing")
    """The last run failed or was lost."""
    RUNNING = _("running")
    NEW = _("new")
    """It has not run yet."""
    OK = _("ok")
    PAUSED = _("paused")
    DISABLED = _("disabled")

    @property
    def place(self) -> int:
        """The place of the state in this order."""
        return list(JobState).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A job and its last runs, as read from Redis. Times are by the server's clock."""

    name: str
    using: str
    """The alias of CACHES on which the job's lock and ledger are."""
    where: str
    """Where the function is: path, line and name."""
    plan: str
    """The schedule and the options in English."""
    state: JobState
    next: datetime | None
    """The first tick that nobody has claimed. None if the job is paused or disabled, or if no
    scheduler knows it."""
    paused: Pause | None
    request: RunRequest | None
    """An operator's request for a run, which no scheduler has taken yet."""
    seen: datetime | None
    """When a scheduler last looked at the job, to a few seconds. None: none ever has, or
    `runperiodic --once` has since then, and nobody knows when that comes again."""
    done: datetime | None
    """When a run was last done."""
    runs: tuple[RunInfo, ...]
    """The last runs and skipped ticks, newest first."""
    read_at: datetime = field(repr=False)
    """When the ledger was read."""

    @property
    def last(self) -> RunInfo | None:
        """The last run, which may be running; skipped ticks do not count."""
        return next((run for run in self.runs if run.outcome != RunOutcome.SKIPPED), None)

    @property
    def error(self) -> str:
        """Why the job is failing; else ""."""
        return self.last.why if self.state == JobState.FAILING and self.last else ""


class Ledger:
    """The jobs of the project and their runs.

    With `using`, only the jobs whose locks are on that alias of CACHES. Methods raise
    `LockUnavailable`, and `ImproperlyConfigured` for settings that do not fit a job.
    """

    def __init__(self, using: str | None = None) -> None:
        self._using = None if using is None else validate_using(using, "using")
        discover()

    def jobs(self) -> list[JobInfo]:
        """Return all jobs, sorted by name."""
        found: dict[str, JobInfo] = {}
        wanted = self._wanted()
        for using in {job.policy.using for job in wanted}:
            its = [job for job in wanted if job.policy.using == using]
            found |= {info.name: info for info in self._read(using, its)}
        return [found[job.name] for job in wanted]

    def job(self, name: str) -> JobInfo | None:
        """Return a job, or None if there is no job of this name."""
        job = self._find(name)
        return None if job is None else next(self._read(job.policy.using, [job]))

    def runs(self, name: str) -> tuple[RunInfo, ...]:
        """Return the last runs of a job, newest first."""
        job = self.job(name)
        return () if job is None else job.runs

    def pause(self, name: str, *, by: str, reason: str) -> bool:
        """Skip the ticks of a job from now on. A run that has begun goes on to its end; a request
        that waits for a scheduler is dropped.

        Returns False if there is no job of this name.
        """
        by, reason = validate_operator(by, reason)
        job = self._find(name)
        if job is not None:
            run(ledger.pause(SyncPort(server_of(job.policy.using)), job.keys, by, reason))
        return job is not None

    def resume(self, name: str) -> bool:
        """Run the ticks of a paused job again.

        Returns False if it was not paused, or if there is no job of this name.
        """
        job = self._find(name)
        return job is not None and run(
            ledger.resume(SyncPort(server_of(job.policy.using)), job.keys)
        )

    def request_run(self, name: str, *, by: str) -> RunRequest | None:
        """Let a scheduler run a job once, soon, besides its ticks, even if it is paused. As long
        as the request waits for a scheduler, for up to an hour, further ones change nothing.

        Returns the request that waits, which may be an earlier one. Returns None if there is no
        job of this name, or if it is disabled: then no scheduler knows it.
        """
        by, _ = validate_operator(by, "")
        job = self._find(name)
        if job is None or not job.enabled:
            return None
        return run(ledger.request(SyncPort(server_of(job.policy.using)), job.keys, by))

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
                request=entries.request,
                seen=entries.seen,
                done=entries.done,
                runs=entries.runs,
                read_at=now,
            )


def silent_for(found: Iterable[JobInfo]) -> timedelta | None:
    """Return for how long no scheduler has looked at these jobs; None: one runs.

    Where cron starts `runperiodic --once`, nobody is missed as long as no tick is overdue. The
    time is `timedelta.max` there, and if none has ever looked.
    """
    its = [info for info in found if info.state != JobState.DISABLED]
    silences = [info.read_at - info.seen for info in its if info.seen is not None]
    if not silences and any(info.state == JobState.OVERDUE for info in its):
        return timedelta.max
    least = min(silences, default=timedelta())
    return least if least.total_seconds() > SILENT_AFTER else None


def _state(job: Job, entries: Entries, now: datetime) -> JobState:
    if not job.enabled:
        return JobState.DISABLED
    if entries.paused is not None:
        return JobState.PAUSED
    outcomes = [run.outcome for run in entries.runs if run.outcome != RunOutcome.SKIPPED]
    if RunOutcome.RUNNING in outcomes:
        return JobState.RUNNING
    if _overdue(job, entries.claimed, now):
        return JobState.OVERDUE
    if not outcomes:
        return JobState.NEW
    return JobState.OK if outcomes[0] == RunOutcome.DONE else JobState.FAILING


def _overdue(job: Job, claimed: int | None, now: datetime) -> bool:
    """Whether a tick has been due for so long that no scheduler can be running."""
    if claimed is None:
        return True
    if claimed / SECOND > now.timestamp() + OVERDUE_AFTER:
        return True  # the server's clock was ahead: no tick is run until that time
    tick = job.schedule.next(claimed)
    late = 0.0 if tick is None else now.timestamp() - job.ready(tick) / SECOND
    return late > OVERDUE_AFTER
