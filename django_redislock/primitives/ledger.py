"""The ledger of a periodic job: each planned tick is claimed once, and what came of it is kept.

1.  A *tick* is a time at which the job is planned, in microseconds since the epoch. All
    schedulers work it out alike, and ask for it when it is due.
2.  *Claim* is one script. It refuses a tick that is not later than the last one, and one that is
    not due by the server's clock: so it does not matter how many ask, how late, or what their
    own clocks say. In the same step it takes the job's lock, as acquiring does, and opens a run;
    there is no moment at which a tick has been claimed and its run has no lease.
3.  It is idempotent per id of the run, so a claim whose answer was lost is sent again.
4.  A run whose lease has gone and that has not ended is an *orphan*: its process died. It is
    written down as lost by whoever claims next; or the same tick is claimed once more, as another
    attempt, so many times.
5.  What can't be run is passed over, which is entered, too: the job is paused, it is too late, or
    the lock is held and the job does not wait for it.
6.  The end of a run is entered before its lease is released: who finds the lease gone finds the
    end.

Source: claiming the tick, in place of locking for at least so long as clocks differ, is an
optimistic "compare and set" of the last tick.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..base import label
from ..base.holder import Holder, server_time
from .asking import batches, milliseconds
from .contract import Claim, Grant

if TYPE_CHECKING:
    from .contract import Port
    from .keys import Keys

JOBS_PER_REQUEST = 100
"""Jobs in one request."""

Overlap = Literal["skip", "wait"]


class RunOutcome(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """It raised."""
    LOST = "lost"
    """Its lease ended before it did: its process died, or something else took its lock away."""
    SKIPPED = "skipped"
    """The tick was passed over."""
    UNREADABLE = "unreadable"
    """Others have written what stands there, or it is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What is written of one run of a job, or of one tick that was passed over.

    All times are by the server's clock, as aware datetimes in UTC.
    """

    job: str
    id: str
    outcome: RunOutcome
    planned: datetime | None
    """The tick; None: somebody wanted it at that moment."""
    started: datetime | None
    """None: it was skipped."""
    ended: datetime | None
    attempt: int
    """1, or more when runs before it have lost their leases; 0: it was skipped."""
    fencing_token: int | None
    owner: str
    """Whose process ran it, or passed it over: host, process, and thread or task."""
    why: str
    """Why it was skipped or lost; or the exception, its type first."""

    @property
    def duration(self) -> float | None:
        """Seconds; None: it has not ended, or not begun."""
        if self.started is None or self.ended is None:
            return None
        return max(0.0, (self.ended - self.started).total_seconds())

    @property
    def delay(self) -> float | None:
        """Seconds between the time for which it was planned and its start."""
        if self.started is None or self.planned is None:
            return None
        return (self.started - self.planned).total_seconds()


class Pause(NamedTuple):
    """Who paused a job, when, and why."""

    at: datetime | None
    """None: it can't be read."""
    by: str
    why: str


class Entries(NamedTuple):
    """All that is written of one job."""

    claimed: int | None
    """The last tick that was claimed or passed over, µs; None: no scheduler knows the job, or it
    can't be read."""
    paused: Pause | None
    done: datetime | None
    """When a run was last done."""
    runs: tuple[RunInfo, ...]
    """The last ones, the newest first."""


class JobSight(NamedTuple):
    """What a scheduler has to know of a job."""

    claimed: int | None
    """None: it can't be known, since something else is at the ledger's key, or in its place."""
    open_tick: int | None
    """That of the run that has not ended."""
    left: float | None
    """Seconds that the lease of that run still lives; None: it has gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A tick that somebody wants to claim, in microseconds since the epoch."""

    tick: int | None
    """None: no tick, but a run now."""
    ready: int = 0
    """Not before."""
    deadline: int | None = None
    """Not after."""
    overlap: Overlap = "wait"
    """What if the lock is held: pass it over, or leave it for later."""
    attempts: int = 1
    """So many, when runs lose their leases."""


class Answer(NamedTuple):
    """What came of a claim."""

    what: Literal["run", "skipped", "early", "taken", "paused", "busy"]
    now: int
    """The server's clock, µs."""
    run: RunInfo | None
    """The run that is ours, or what was written of a tick that was passed over."""
    grant: Grant | None
    """The lock, with the run."""
    closed: RunInfo | None
    """An earlier run that turned out to be lost."""
    early: float
    """Seconds until it is ready."""
    claimed: int
    """The last tick that was claimed, when this one was not."""
    holder: Holder | None
    """Who holds the lock."""


_RUN = re.compile(
    rb"(\d{0,17})\|(\d{0,17})\|(\d{0,17})\|(running|done|failed|lost|skipped)\|(\d{1,9})\|(\d{0,19})"
    rb"\|([^|]*)\|(.*)",
    re.DOTALL,
)
"""As lua/ledger.lua describes it."""


def _instant(text: bytes) -> datetime | None:
    microseconds = label.number(text)
    return None if microseconds is None else server_time(microseconds)


def _run(job: str, run_id: bytes, text: bytes, fence: bytes | None = None) -> RunInfo | None:
    """Read what is written of a run; None: nothing is.

    With `fence`, that of the lock: then a run that has lost its lease is known by it.
    """
    if not text:
        return None
    written = _RUN.fullmatch(text)
    if written is None:
        return RunInfo(
            job=job,
            id=label.read(run_id),
            outcome=RunOutcome.UNREADABLE,
            planned=None,
            started=None,
            ended=None,
            attempt=0,
            fencing_token=None,
            owner="",
            why="",
        )
    planned, started, ended, outcome, attempt, its_fence, owner, why = written.groups()
    if fence is not None and outcome == b"running" and its_fence != fence:
        outcome, why = b"lost", b"its lease ended before it did"
    return RunInfo(
        job=job,
        id=label.read(run_id),
        outcome=RunOutcome(outcome.decode()),
        planned=_instant(planned),
        started=_instant(started),
        ended=_instant(ended),
        attempt=int(attempt),
        fencing_token=int(its_fence) if its_fence else None,
        owner=label.read(owner),
        why=label.read(why),
    )


async def claim(port: Port, lock: Claim, job: str, run_id: str, wanted: Wanted) -> Answer:
    """Claim a tick, and with it the lock. Raises `LockUnavailable`: then send it again, with the
    same `lock` and `run_id`, or release `lock`."""
    keys = lock.keys
    args: list[str | int] = [
        lock.token,
        keys.name,
        milliseconds(lock.ttl),
        lock.owner,
        lock.label,
        run_id,
        "" if wanted.tick is None else wanted.tick,
        wanted.ready,
        "" if wanted.deadline is None else wanted.deadline,
        wanted.overlap,
        wanted.attempts,
    ]
    what: Any = b"again"
    while what == b"again":
        sent, lock.sent = port.now(), True
        _, what, now, text, a, b, *closed = await port.script(
            "ledger_claim", [*keys.mutex(lock.token), keys.ledger], args
        )
    what = what.decode()
    return Answer(
        what=what,
        now=int(now),
        run=_run(job, run_id.encode(), text),
        grant=Grant(int(a), int(b), sent) if what == "run" else None,
        closed=_run(job, *closed),
        early=int(a) / 1e6 if what == "early" else 0.0,
        claimed=int(a) if what == "taken" else 0,
        holder=Holder.parse(a, int(b), int(now)) if what == "busy" and a else None,
    )


async def finish(
    port: Port, keys: Keys, run: RunInfo, outcome: RunOutcome, why: str
) -> RunInfo | None:
    """Write down how a run has ended. Repeated, it does no harm. None: it is forgotten already, or
    can't be read any more.

    Raises `LockUnavailable`.
    """
    text = await port.script("ledger_finish", [keys.ledger], [run.id, outcome, why])
    known = _run(run.job, run.id.encode(), text or b"")
    return None if known is None or known.outcome == RunOutcome.UNREADABLE else known


async def known(port: Port, keys: Sequence[Keys]) -> tuple[int, list[JobSight]]:
    """The server's clock in microseconds, and what is known of these jobs. One that was not
    known begins now. Raises `LockUnavailable`."""
    now, replies = await _ask(port, "ledger_known", keys)
    return now, [
        JobSight(
            claimed=label.number(claimed),
            open_tick=label.number(tick),
            left=left / 1000 if left >= 0 else None,
        )
        for claimed, tick, left in replies
    ]


async def read(
    port: Port, jobs: Sequence[str], keys: Sequence[Keys]
) -> tuple[datetime, list[Entries]]:
    """The server's clock, and all that is written of these jobs. Raises `LockUnavailable`."""
    now, replies = await _ask(port, "ledger_read", keys)
    return server_time(now), list(map(_entries, jobs, replies))


async def _ask(port: Port, script: str, keys: Sequence[Keys]) -> tuple[int, list[Any]]:
    """The server's clock, and what a script says of each job, in their order."""
    now = b"0"
    said: dict[int, Any] = {}
    for batch in batches(port, [its.lock for its in keys], JOBS_PER_REQUEST):
        both = [key for i in batch for key in (keys[i].lock, keys[i].ledger)]
        now, *replies = await port.script(script, both, [])
        said.update(zip(batch, replies, strict=True))
    return int(now), [said[i] for i in range(len(keys))]


def _entries(job: str, reply: Sequence[bytes]) -> Entries:
    claimed, paused, done, fence, *rest = reply
    runs = zip(rest[::2], rest[1::2], strict=True)
    return Entries(
        claimed=label.number(claimed),
        paused=_pause(paused),
        done=_instant(done),
        runs=tuple(run for run_id, text in runs if (run := _run(job, run_id, text, fence))),
    )


def _pause(text: bytes) -> Pause | None:
    if not text:
        return None
    at, by, why = [*text.split(b"|", 2), b"", b""][:3]
    return Pause(_instant(at), label.read(by), label.read(why))


async def pause(port: Port, keys: Keys, by: str, why: str) -> None:
    """Pass over the ticks from now on. Raises `LockUnavailable`."""
    await port.script("ledger_pause", [keys.ledger], [by, why])


async def resume(port: Port, keys: Keys) -> bool:
    """Claim ticks again, from now on. False: it was not paused. Raises `LockUnavailable`."""
    return bool(await port.script("ledger_resume", [keys.ledger], []))
