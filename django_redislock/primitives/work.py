"""Tasks of one name, above a task queue: one that waits in the queue, those that are parked, those
that run.

1.  The name has permits, and each running task holds one (or `weight` of them), with a lease of
    its own, as a holder of a semaphore does. So a killed worker frees its permit when its lease
    ends, whatever the queue believes.
2.  A message that finds no permit is parked: its text waits in Redis, and its worker goes on to
    other messages. The script that gives a permit back chooses the next one, in order of arrival,
    and keeps its permit for it (it is promoted). Whoever ended sends it to the queue again.
3.  A promoted message that its sender confirms keeps its permit for as long as the queue may take.
    One that nobody confirms within ten seconds is promoted again: its sender was killed.
4.  The claim belongs to the name, and is made before the message is sent, for a short time: a kill
    in between blocks the name only so long. It is confirmed, for long, with the id that the queue
    has given; only if it is still that claim, since a fast worker may have begun and even ended
    the task meanwhile. Until the queue has given an id, a ticket stands for it.
5.  The start of a task takes its permit and frees its claim in one step, so one more call may be
    queued from then on, and none is lost: what it wants done was written before the task began.
6.  A claim that settles has a time at which it is due, by the server's clock, and the arguments of
    the last call, with which its task begins.

Everything is healed by whoever begins or ends a task of that name, or by a sweep.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from ..base import tokens
from ..base.exceptions import LockNotAcquired
from ..base.holder import Holder, server_time
from ..base.label import read as readable
from . import queued
from .contract import (
    Claim,
    Grant,
    Port,
    Refusal,
    Scripts,
    Word,
    milliseconds,
    no_short_request,
    twice,
)
from .keys import Keys
from .permits import Permits
from .scripts import ask, flag, instant, maybe, text, whole

PREFIX = "task:"
"""The beginning of the names of tasks, so that they exclude no other locks."""
TICKET = "?"
"""Begins an id that stands for one that the queue has not given yet."""
SHORT = 30.0
"""Seconds that a claim lives until it is confirmed."""
LISTED = 100
"""Messages of one name that are looked at."""


class Promoted(NamedTuple):
    """A message that is to be sent to its queue again."""

    id: str
    message: bytes


class Started(NamedTuple):
    """The answer to a start that was granted."""

    grant: Grant
    latest: bytes | None
    """The arguments of the last call, if there were several."""


@dataclass(frozen=True)
class Parked:
    """No permit was free: the message is sent again when there is one."""


@dataclass(frozen=True)
class Duplicate:
    """Another delivery of the message runs."""


@dataclass(frozen=True)
class Replaced:
    """Another message has taken its place."""


class Early(NamedTuple):
    """The message is to be tried again after some seconds."""

    seconds: float


Start = Started | Parked | Duplicate | Replaced | Early


class Conflict(NamedTuple):
    """The task that has the name already."""

    id: str
    runs: bool
    owner: str
    label: str
    at: datetime | None
    """When it was queued, or began."""

    def error(self, name: str) -> LockNotAcquired:
        """Return the error that says whose it is."""
        held = Holder(self.owner, self.label, None, self.at, 0.0, 0.0)
        return TaskConflict(name, held, self.id, runs=self.runs)


class TaskConflict(LockNotAcquired):
    """A task of this name waits in the queue already, or runs."""

    def __init__(self, name: str, holder: Holder, id: str, *, runs: bool = False) -> None:
        super().__init__(name, holder, 0.0)
        since = "" if holder.acquired_at is None else f" since {holder.acquired_at:%H:%M:%S} UTC"
        what = "runs" if runs else "waits in the queue"
        its = "a task that is being queued" if id.startswith(TICKET) else f"the task {id} {what}"
        self.message: str = f"{name!r}: {its}{since}, by {holder.owner} ({holder.label})"
        self.id, self.runs = id, runs

    def __str__(self) -> str:
        return str(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        return _conflict, (self.name, self.holder._plain(), self.id, "runs" if self.runs else "")


def _conflict(name: str, holder: list[Any], id: str, what: str) -> TaskConflict:
    return TaskConflict(name, Holder._of_plain(holder), id, runs=what == "runs")


class Running(NamedTuple):
    """A task that runs."""

    id: str
    weight: int
    record: bytes
    left: float
    """Seconds until its lease ends, unless it is renewed."""


class Waiting(NamedTuple):
    """The task that has the claim."""

    id: str
    owner: str
    label: str
    since: datetime
    due: datetime | None
    """When it may begin, if it settles."""
    lives: float
    """Seconds until its claim ends."""
    kept: bool
    """Whether it is parked or promoted."""


class Tasks(NamedTuple):
    """The tasks of one name, as they were read."""

    name: str
    now_us: int
    waiting: Waiting | None
    parked: int
    """How many are parked."""
    first: dict[str, datetime | None]
    """The first of them, and since when; None: not known."""
    promoted: dict[str, tuple[datetime | None, datetime]]
    """Messages that were sent again: since when they were parked, and until when their permits
    wait for them."""
    running: list[Running]
    lapsed: int
    """Runs whose leases have ended, and promoted messages that nobody has sent in time: they wait
    for somebody to heal them."""
    again: int
    """How many of these are sent again then."""


def keys_of(keys: Keys, token: str) -> list[str]:
    """Return KEYS in the order of lua/work.lua."""
    beside = ("claim", "parked", "sent", "messages", "runs", "begun")
    more = [f"{keys.lock}:{what}" for what in beside]
    return [*keys.permits(token), *more, keys.tasks]


class Work:
    """The algorithm for the run of one message. Its lease is renewed and looked at as that of a
    semaphore is."""

    kind = "task"
    unfenced = ""
    taking = dropping = staticmethod(no_short_request)

    def __init__(self, id: str, limit: int, weight: int = 1) -> None:
        self.id, self.limit, self.weight = id, limit, weight
        permits = Permits(self.kind, limit)
        self.extend, self.write_down = permits.extend, permits.write_down
        self.holders, self.clear = permits.holders, permits.clear
        self.promoted: list[Promoted] = []
        """Messages that have to be sent, since this run has begun or ended."""
        self.healed = 0

    async def start(
        self, port: Port, claim: Claim, message: bytes, *, recover: bool, renamed: bool
    ) -> Start:
        """Begin the task, or park its message. Raises `LockUnavailable`; then the caller owes a
        `release`, as after any other exception."""
        its = claim.keys
        args: list[Word] = [
            *(claim.token, milliseconds(claim.ttl), claim.says, self.id, self.limit),
            *(self.weight, TICKET if renamed else "|", message, int(recover), its.name),
        ]
        keys = [*keys_of(its, claim.token), its.gone(self.id)]
        claim.sent = True

        def read(sent: float, answer: Any) -> Start:
            code, *rest, promoted, healed = answer
            if code == -2:
                raise queued.another_kind(its.name, claim, text(rest[0]).decode())
            found = _start(code, rest, sent)
            self._note(promoted, healed)
            return found

        return await twice(
            lambda: ask(port, partial(read, port.now()), "work_begin", keys, args), claim
        )

    async def claim(
        self,
        port: Scripts,
        keys: Keys,
        says: str,
        *,
        lives: float,
        alone: bool,
        settle: tuple[float, float | None] | None = None,
        message: bytes = b"",
        over: str = "",
    ) -> Conflict | None:
        """Claim the name for the message, for `lives` seconds. None: claimed.

        `alone`: a running task is a conflict, too. `settle`: it is due after so many seconds, and
        at most so many after the first call. `over` is the waiting message that is replaced. Asks
        twice when the connection is lost. Raises `LockUnavailable`.
        """
        due = ""
        if settle is not None:
            due = f"{milliseconds(settle[0])}|{milliseconds(settle[1] or 0)}"
        args: list[Word] = [
            *(tokens.word(), self.id, says, milliseconds(lives), int(alone), message, due, over),
            *(keys.name, self.limit),
        ]
        its = [*keys_of(keys, ""), keys.gone(over)]

        def read(answer: Any) -> Conflict | None:
            *rest, promoted, healed = answer
            found = _claimed(rest)
            self._note(promoted, healed)
            return found

        return await twice(lambda: ask(port, read, "work_claim", its, args))

    async def sweep(self, port: Scripts, keys: Keys) -> int:
        """Heal and promote. Returns how many are still parked. Raises `LockUnavailable`."""

        def read(answer: Any) -> int:
            _, left, promoted, healed = answer
            self._note(promoted, healed)
            return whole(left)

        args: list[Word] = [tokens.word(), "", self.limit, keys.name]
        return await twice(lambda: ask(port, read, "work_end", keys_of(keys, ""), args))

    async def acquire(
        self, port: Port, claim: Claim, wait: float | None
    ) -> Grant | LockNotAcquired:
        raise NotImplementedError  # a task is begun by `start`

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        """Give back the permit. None: released, now or before."""
        return await queued.release(port, claim, self._give_back)

    async def adopt(self, port: Port, token: str, claim: Claim) -> Grant | Refusal:
        raise NotImplementedError  # the lease of a task is not exported

    async def _give_back(self, port: Port, claim: Claim) -> Refusal | None:
        keys = keys_of(claim.keys, claim.token)
        args: list[Word] = [claim.token, self.id, self.limit, claim.keys.name]

        def read(answer: Any) -> Refusal | None:
            held, _, promoted, healed = answer
            found = None if flag(held) else Refusal(None, None)
            self._note(promoted, healed)
            return found

        return await ask(port, read, "work_end", keys, args)

    def _note(self, promoted: Any, healed: Any) -> None:
        its = [Promoted(text(id).decode(), text(message)) for id, message in promoted]
        self.healed += whole(healed)
        self.promoted += its


def _claimed(answer: Any) -> Conflict | None:
    match answer:
        case [1]:
            return None
        case [0, id, says, at]:
            owner, _, label = readable(text(says)).partition("|")
            return Conflict(text(id).decode(), False, owner, label, server_time(instant(at)))
        case [2, id, record, now_us]:
            its = Holder.parse(maybe(record) or b"", -1, instant(now_us))
            return Conflict(text(id).decode(), True, its.owner or "", its.label, its.acquired_at)
    raise ValueError(answer)


def _start(code: int, rest: list[Any], sent: float) -> Start:
    match code, rest:
        case 1, [acquired_us, fence, latest]:
            return Started(Grant(whole(fence), instant(acquired_us), sent), maybe(latest))
        case 2, []:
            return Parked()
        case 3, []:
            return Duplicate()
        case 4, []:
            return Replaced()
        case 5, [wait]:
            return Early(whole(wait) / 1000)
    raise ValueError(code)


async def confirm(port: Scripts, keys: Keys, id: str, new_id: str, lives: float) -> bool:
    """Let the claim of a message live for `lives` seconds, under the id that the queue has given;
    with the id "", undo it. False: there is no such claim any more. Raises `LockUnavailable`."""
    its = [keys.lock, f"{keys.lock}:claim", keys.tasks]
    args: list[Word] = [tokens.word(), id, new_id, milliseconds(lives), keys.name]
    return await twice(lambda: ask(port, flag, "work_confirm", its, args))


async def sent(port: Scripts, keys: Keys, id: str, new_id: str, lives: float) -> bool:
    """Let the permit of a promoted message, which was sent, wait for `lives` seconds. Raises
    `LockUnavailable`."""
    its = [f"{keys.lock}:{what}" for what in ("claim", "sent", "messages", "begun")]
    args: list[Word] = [tokens.word(), id, new_id, milliseconds(lives)]
    return await twice(lambda: ask(port, flag, "work_sent", its, args))


async def names(port: Scripts, prefix: str, skip: int, limit: int) -> tuple[int, list[Tasks]]:
    """Look at the tasks of names of which something is noted, of each up to 100 that run and the
    first that is parked. Return how many names there were, and what could be read. Raises
    `LockUnavailable`."""

    def read(answer: Any) -> tuple[int, list[Tasks]]:
        now_us, number, *each = answer
        return whole(number), [_tasks(now_us, one) for one in each]

    args: list[Word] = [tokens.word(), skip, limit, LISTED]
    return await ask(port, read, "work_names", keys_of(Keys.of(prefix, "-"), ""), args)


async def look(port: Scripts, keys: Keys) -> Tasks:
    """Look at the tasks of a name. Raises `LockUnavailable`, `LockError`."""
    args: list[Word] = [tokens.word(), LISTED, keys.name]
    return await ask(port, lambda answer: _tasks(*answer), "work_look", keys_of(keys, ""), args)


def _tasks(now_us: Any, answer: Any) -> Tasks:
    name, waits, parked, first, promoted, runs, lapsed, again = answer
    waiting = None
    if waits is not None:
        id, says, at, due, pttl, kept = waits
        owner, _, label = readable(text(says)).partition("|")
        until = None if due is None else server_time(instant(due))
        since = server_time(instant(at))
        lives = whole(pttl) / 1000
        waiting = Waiting(text(id).decode(), owner, label, since, until, lives, flag(kept))
    return Tasks(
        text(name).decode(errors="replace"),
        instant(now_us),
        waiting,
        whole(parked),
        {text(id).decode(): _since(at) for id, at in first},
        {
            text(id).decode(): (_since(at), server_time(instant(until)))
            for id, at, until in promoted
        },
        [
            Running(text(id).decode(), whole(w), maybe(record) or b"", whole(left) / 1000)
            for id, w, record, left in runs
        ],
        whole(lapsed),
        whole(again),
    )


def _since(at: Any) -> datetime | None:
    return server_time(instant(at)) if text(at) else None
