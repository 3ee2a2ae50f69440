"""The ledger of a periodic job: each planned tick is claimed once, and its outcome is kept.

1.  A *tick* is a time at which the job is planned, in microseconds since the epoch. All
    schedulers compute the same ticks, and claim each when it is due.
2.  *Claim* is one script. It refuses a tick that is not later than the last one, and a tick that
    is not due by the server's clock. So it does not matter how many schedulers ask, how late, or
    what their own clocks say. In the same step it takes the job's lock, as acquiring does, and
    opens a run; there is no moment at which a tick has been claimed and its run has no lease.
3.  A claim is idempotent per id of the run, so a claim whose answer was lost is sent again.
4.  A run without a lease that has not ended is an *orphan*: its process died. The next claim
    writes it down as lost, or claims the same tick once more as another attempt, up to a number of
    attempts.
5.  A tick that can't be run is passed over, and that is entered, too: the job is paused, it is too
    late, or the lock is held and the job does not wait for it.
6.  An operator's *request* is a run besides the ticks. It waits in the ledger until the claim of a
    scheduler takes it, in the same step as the lock. As long as it waits, another request is the
    same one.
7.  The end of a run is entered before its lease is released: if the lease is gone, the end is
    there.

Source: to claim the tick is an optimistic "compare and set" of the last tick. The alternative is
to lock for at least as long as clocks differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from ..base import people, tokens
from ..base.people import Holder, server_time
from . import mutex
from .contract import Claim, Grant, Port, Sight, in_batches, milliseconds
from .keys import Keys
from .scripts import ask, flag, instant, maybe, sight, text, whole

T = TypeVar("T")

JOBS_PER_REQUEST = 100
"""Jobs in one request."""

REQUEST_GOOD_FOR = 3600.0
"""Seconds for which a request waits for a scheduler. Later nobody expects its run any more."""
SIGN_EVERY = 8.0
"""Seconds between two signs of life in the ledger of a job, however many schedulers look."""

Overlap = Literal["skip", "wait", "replace"]


class RunOutcome(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """The job raised an exception."""
    LOST = "lost"
    """The lease ended before the run did: the process died, or something else took the lock
    away."""
    SKIPPED = "skipped"
    """The tick was passed over."""
    UNREADABLE = "unreadable"
    """The entry is damaged, or something else has written it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """One run of a job, or one tick that was passed over.

    All times are by the server's clock, as aware datetimes in UTC.
    """

    job: str
    id: str
    outcome: RunOutcome
    planned: datetime | None = None
    """The tick; None: somebody wanted a run at that moment."""
    started: datetime | None = None
    """None: it was skipped."""
    ended: datetime | None = None
    attempt: int = 0
    """1, or more if runs before it have lost their leases; 0: it was skipped."""
    fencing_token: int | None = None
    owner: str = ""
    """The process that ran it, or passed it over: host, process, and thread or task."""
    why: str = ""
    """Why it was skipped or lost; or the exception, its type first."""

    @property
    def duration(self) -> float | None:
        """Seconds from start to end; None: it has not ended, or not begun."""
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
    """The operator who paused a job, the time, and the reason."""

    at: datetime | None
    """None: it can't be read."""
    by: str
    why: str


class RunRequest(NamedTuple):
    """An operator's request for a run, which no scheduler has taken yet."""

    at: datetime
    by: str
    id: str


class Entries(NamedTuple):
    """Everything that the ledger has of one job."""

    claimed: int | None
    """The last tick that was claimed or passed over, µs; None: no scheduler knows the job, or the
    tick can't be read."""
    paused: Pause | None
    done: datetime | None
    """When a run was last done."""
    seen: datetime | None
    """When a scheduler that stays last looked at the job. None: none ever has, or
    `runperiodic --once` has since then."""
    request: RunRequest | None
    """The request that waits for a scheduler."""
    runs: tuple[RunInfo, ...]
    """The last runs, the newest first."""


class JobSight(NamedTuple):
    """The state of a job, for a scheduler."""

    claimed: int | None
    """The last tick that was claimed or passed over, µs. None: something else is at the ledger's
    key, or in its field."""
    open_tick: int | None
    """The tick of the run that has not ended."""
    left: float | None
    """Seconds that the lease of this run still lives; None: there is no lease."""
    request: RunRequest | None
    """The request that waits for a scheduler, however long ago it was made."""
    paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A tick that somebody wants to claim, in microseconds since the epoch."""

    tick: int | None
    """None: no tick, a run is wanted now."""
    ready: int = 0
    """Not before this time."""
    deadline: int | None = None
    """Not after this time."""
    overlap: Overlap = "wait"
    """If the lock is held: skip the tick, leave it for later, or take the lock from the run."""
    attempts: int = 1
    """The most runs of this tick, if runs lose their leases. With a request: those of the tick
    whose run was lost, which are done first."""
    request: str = ""
    """The id of the request that the run answers."""


What = Literal["run", "skipped", "early", "taken", "paused", "busy"]


class Answer(NamedTuple):
    """The answer to a claim."""

    what: What
    now: int
    """The server's clock, µs."""
    run: RunInfo | None
    """Our run, or the entry of a tick that was passed over."""
    grant: Grant | None
    """The lease of our run."""
    closed: RunInfo | None
    """An earlier run that turned out to be lost."""
    early: float
    """Seconds until the tick is ready."""
    claimed: int
    """The last tick that was claimed, if this one was taken."""
    holder: Holder | None
    """The holder of the lock."""
    note: bytes | None
    """What our run takes over, as in lua/note.lua."""


_RUN = re.compile(
    rb"(\d{0,17})\|(\d{0,17})\|(\d{0,17})\|(running|done|failed|lost|skipped)\|(\d{1,9})\|(\d{0,19})"
    rb"\|([^|]*)\|(.*)",
    re.DOTALL,
)
"""An entry of a run, as in lua/ledger.lua."""


def _instant(text: bytes) -> datetime | None:
    microseconds = people.number(text)
    return None if microseconds is None else server_time(microseconds)


def _run(job: str, run_id: bytes, text: bytes, fence: bytes | None = None) -> RunInfo | None:
    """Read the entry of a run; None: there is none.

    `fence` is the fencing token of the lock: by that, a run that has lost its lease is known.
    """
    if not text:
        return None
    written = _RUN.fullmatch(text)
    if written is None:
        return RunInfo(job=job, id=people.read(run_id), outcome=RunOutcome.UNREADABLE)
    planned, started, ended, outcome, attempt, its_fence, owner, why = written.groups()
    if fence is not None and outcome == b"running" and its_fence != fence:
        outcome, why = b"lost", b"its lease ended before it did"
    return RunInfo(
        job=job,
        id=people.read(run_id),
        outcome=RunOutcome(outcome.decode()),
        planned=_instant(planned),
        started=_instant(started),
        ended=_instant(ended),
        attempt=int(attempt),
        fencing_token=int(its_fence) if its_fence else None,
        owner=people.read(owner),
        why=people.read(why),
    )


async def claim(port: Port, lock: Claim, job: str, run_id: str, wanted: Wanted) -> Answer:
    """Claim a tick, and with it the lock. After a `LockUnavailable`, claim again with the same
    `lock` and `run_id`, or release `lock`."""
    keys, stolen = lock.keys, False
    args: list[str | int] = [
        lock.token,
        milliseconds(lock.ttl),
        lock.says,
        run_id,
        "" if wanted.tick is None else wanted.tick,
        wanted.ready,
        "" if wanted.deadline is None else wanted.deadline,
        wanted.overlap,
        wanted.attempts,
        wanted.request,
    ]
    its_keys = [*keys.mutex(lock.token), keys.ledger]
    while True:
        sent, lock.sent = port.now(), True
        read = partial(_answer, job, run_id.encode(), sent)
        answer = await ask(port, read, "ledger_claim", its_keys, args)
        if isinstance(answer, Sight):
            stolen = True
            await ask(port, flag, *mutex.stealing(lock, answer, REPLACED))
        elif answer is not None:
            if stolen and answer.what != "run":  # somebody else was faster
                await mutex.release(port, lock)
            return answer


REPLACED = "its next tick is due, and overlap is 'replace'"
"""What a run is told whose lock is stolen by the next one."""


def _answer(job: str, run_id: bytes, sent: float, answer: Any) -> Answer | Sight | None:
    """Read the answer to a claim. None: ask again. A `Sight`: first take the lock from that
    run."""
    _, word, now_us, run, a, b, closed_id, closed_run, *note = answer
    what, now = word.decode(), instant(now_us)
    if what == "again":
        return None
    if what == "running":
        return sight(a, b, now)
    if what not in get_args(What):
        raise ValueError(what)
    return Answer(
        what=what,
        now=now,
        run=_run(job, run_id, run),
        grant=Grant(whole(a), instant(b), sent) if what == "run" else None,
        closed=_run(job, closed_id, closed_run),
        early=whole(a) / 1e6 if what == "early" else 0.0,
        claimed=whole(a) if what == "taken" else 0,
        holder=sight(a, b, now).holder if what == "busy" and a else None,
        note=text(*note) if note else None,
    )


async def finish(
    port: Port, keys: Keys, run: RunInfo, outcome: RunOutcome, why: str
) -> RunInfo | None:
    """Enter the end of a run, and return it. It may be repeated. None: the run is forgotten, or
    can't be read.

    Raises `LockUnavailable`.
    """

    def read(answer: Any) -> RunInfo | None:
        return _run(run.job, run.id.encode(), maybe(answer) or b"")

    args = [tokens.word(), run.id, outcome, why]
    known = await ask(port, read, "ledger_finish", [keys.ledger], args)
    return None if known is None or known.outcome == RunOutcome.UNREADABLE else known


async def known(
    port: Port, keys: Sequence[Keys], *, stays: bool = False
) -> tuple[int, list[JobSight]]:
    """Return the server's clock in microseconds, and the state of these jobs. A job that was not
    known begins now.

    `stays` says that this scheduler looks again and again, and leaves a sign of life. Raises
    `LockUnavailable`.
    """
    every = round(SIGN_EVERY * 1e6) if stays else ""
    return await _ask(port, lambda _, reply, __: _sight(*reply), "ledger_known", keys, every)


def _sight(claimed: Any, tick: Any, left: Any, request: Any, paused: Any) -> JobSight:
    return JobSight(
        claimed=people.number(claimed),
        open_tick=people.number(tick),
        left=left / 1000 if whole(left) >= 0 else None,
        request=_request(request),
        paused=flag(paused),
    )


async def read(
    port: Port, jobs: Sequence[str], keys: Sequence[Keys]
) -> tuple[datetime, list[Entries]]:
    """Return the server's clock, and the entries of these jobs. Raises `LockUnavailable`."""
    now, entries = await _ask(
        port, lambda i, reply, now: _entries(jobs[i], reply, now), "ledger_read", keys
    )
    return server_time(now), entries


async def _ask(
    port: Port,
    read: Callable[[int, Any, int], T],
    script: str,
    keys: Sequence[Keys],
    *args: str | int,
) -> tuple[int, list[T]]:
    """Return the server's clock, and what `read` makes of the answer of a script for each job: it
    gets the job's number, that answer and the clock."""
    now = 0
    said: dict[int, T] = {}

    async def ask_some(batch: list[int]) -> None:
        def read_all(answer: Any) -> None:
            nonlocal now
            time, *replies = answer
            now = instant(time)
            said.update((i, read(i, reply, now)) for i, reply in zip(batch, replies, strict=True))

        both = [key for i in batch for key in (keys[i].lock, keys[i].ledger)]
        await ask(port, read_all, script, both, [tokens.word(), *args])

    await in_batches(port, [its.lock for its in keys], JOBS_PER_REQUEST, ask_some)
    return now, [said[i] for i in range(len(keys))]


def _entries(job: str, reply: Sequence[bytes], now_us: int) -> Entries:
    claimed, paused, done, fence, seen, request, *rest = reply
    now = server_time(now_us)
    wanted = _request(request)
    if wanted is not None and (now - wanted.at).total_seconds() > REQUEST_GOOD_FOR:
        wanted = None
    runs = zip(rest[::2], rest[1::2], strict=True)
    return Entries(
        claimed=people.number(claimed),
        paused=_pause(paused),
        done=_instant(done),
        seen=_instant(seen),
        request=wanted,
        runs=tuple(run for run_id, text in runs if (run := _run(job, run_id, text, fence))),
    )


def _pause(text: bytes) -> Pause | None:
    if not text:
        return None
    at, by, why = [*text.split(b"|", 2), b"", b""][:3]
    return Pause(_instant(at), people.read(by), people.read(why))


def _request(text: bytes) -> RunRequest | None:
    """Read a request; None: none is pending, or it can't be read."""
    at, its_id, by = [*text.split(b"|", 2), b"", b""][:3]
    instant = _instant(at) if its_id else None
    return None if instant is None else RunRequest(instant, people.read(by), people.read(its_id))


async def request(port: Port, keys: Keys, by: str) -> RunRequest | None:
    """Request a run of a job. Returns the request that is pending, which may be an earlier one;
    None: it has been taken already. Raises `LockUnavailable`."""
    args: list[str | int] = [tokens.word(), tokens.new()[-16:], by, round(REQUEST_GOOD_FOR * 1e6)]
    return await ask(port, _request, "ledger_request", [keys.ledger], args)


async def pause(port: Port, keys: Keys, by: str, why: str) -> None:
    """Pass over the ticks of a job from now on, and drop a request that is pending. Raises
    `LockUnavailable`."""
    await port.script("ledger_pause", [keys.ledger], [tokens.word(), by, why])


async def resume(port: Port, keys: Keys) -> bool:
    """End a pause: ticks are claimed again. False: it was not paused. Raises `LockUnavailable`."""
    return await ask(port, flag, "ledger_resume", [keys.ledger], [tokens.word()])
