"""Tasks of `unique` and `limited`: what waits in a queue, what is parked, and what runs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

from django.utils.translation import gettext_noop as _

from ..base.people import Holder, server_time
from ..base.people import read as readable
from ..base.tokens import word
from ..lease import claims
from ..primitives import work
from ..primitives.contract import run
from ..primitives.keys import Keys
from ..primitives.scripts import ask, instant, text, whole
from ..settings import conf
from ..settings.validators import validate_operator
from ..transport.ports import SyncPort, find_out_slots
from ..transport.server import server_of
from .inspector import MOST_KEYS, Inspector
from .reading import shared
from .sheet import Column, Owner, Seconds
from .words import Sentence, duration

MOST = 10_000
"""Names that are listed."""
AT_ONCE = 100
"""Names in one request."""
LISTED = 100
"""Tasks of each stage that are looked at; in a list of names, of the parked ones the first."""


class Stage(StrEnum):
    RUNNING = "running"
    PROMOTED = "promoted"
    """It was parked, and was sent to its queue again. Its permit waits for it."""
    PARKED = "parked"
    """A worker was given it while no permit was free. It goes on when there is one."""
    QUEUED = "queued"
    """It has the name, and waits in its queue."""


class TaskInfo(NamedTuple):
    """A task of a name. Times are seconds."""

    stage: Stage
    id: str
    """The id of its message. Until the queue has given one, it begins with a question mark."""
    remaining: float | None = None
    """Until its claim, its permit or its lease ends, unless it is renewed."""
    owner: str = ""
    """The process that queued it, or runs it; "": not known."""
    label: str = ""
    since: datetime | None = None
    """When it was queued, was parked for the first time, or began."""
    age: float | None = None
    due: datetime | None = None
    """When it may begin, if it settles."""
    weight: int = 1
    """The permits that it takes, if it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksInfo:
    """The tasks of one name, as they were read."""

    name: str
    using: str
    counts: Counter[Stage]
    limit: int | None
    """How many may run at a time, as those that run have said; if they differ, the least."""
    oldest: float | None
    """Seconds since the first of those whose age is known was queued, parked, or began."""
    items: list[TaskInfo]
    """In the order in which they go on, up to 100 of each stage; in a list of names, only the
    first of those that are parked, and the one with the claim."""
    claim: str | None
    """The id of the task that has the name: it is queued, promoted or parked."""
    lapsed: int = field(repr=False)
    """How many have to be healed."""
    waits: int = field(repr=False)
    """How many are parked, or are sent again when they are healed."""

    @property
    def stuck(self) -> bool:
        """Whether some have to wait for a call or a sweep: none runs that would let them go on."""
        return bool(self.waits) and not self.counts[Stage.RUNNING] + self.counts[Stage.PROMOTED]

    @property
    def first(self) -> TaskInfo | None:
        """The first one that is parked."""
        return next((one for one in self.items if one.stage == Stage.PARKED), None)

    @property
    def story(self) -> list[Sentence]:
        """Say which of the parked ones goes on next; and if none runs that would let it, what
        does."""
        said, first, more = [], self.first, self.counts[Stage.PARKED] - 1
        if first is not None:
            template = _("Next: the task %(id)s, parked for %(time)s.")
            if more:
                template = _("Next: the task %(id)s, parked for %(time)s, and %(number)s more.")
            said.append(Sentence(template, id=first.id, time=duration(first.age), number=more))
        if self.stuck:
            words = ["manage.py", "redislock", "sweep", f"--using={self.using}", self.name]
            template = _("Nothing runs that would let the others go on. Write: %(command)s")
            said.append(Sentence(template, command=shlex.join(words)))
        return said


def tasks(name: str, using: str) -> TasksInfo:
    """Return what there is of a name. Raises `LockUnavailable`, `LockError`."""

    def read(answer: Any) -> TasksInfo:
        now_us, found = answer
        return _info(using, instant(now_us), found)

    port, keys = SyncPort(server_of(using)), work.keys_of(Keys.of(conf.prefix(), name), "")
    return run(ask(port, read, "work_look", keys, [word(), LISTED, name]))


def tasks_of(name: str, using: str) -> TasksInfo | None:
    """Return the tasks of a lock; None: its name is that of no task. Raises `LockUnavailable`,
    `LockError`."""
    return tasks(name, using) if conf.written(name).startswith(work.PREFIX) else None


def _info(using: str, now_us: int, answer: Any) -> TasksInfo:
    name, claim, parked, lapsed, again, seen = answer
    items = [_task(now_us, *one) for one in seen]
    counts = Counter({Stage.PARKED: whole(parked)})
    counts.update(one.stage for one in items if one.stage != Stage.PARKED)
    limits = [shared(by)[1] or 1 for stage, *_, by, _weight, _due in seen if stage == b"running"]
    return TasksInfo(
        name=text(name).decode(errors="replace"),
        using=using,
        counts=counts,
        limit=min(limits, default=None),
        oldest=max((one.age for one in items if one.age is not None), default=None),
        items=items,
        claim=None if claim is None else text(claim).decode(),
        lapsed=whole(lapsed),
        waits=whole(parked) + whole(again),
    )


def _task(
    now_us: int, stage: Any, id: Any, since: Any, left: Any, by: Any, weight: Any, due: Any
) -> TaskInfo:
    its, at = Stage(text(stage).decode()), None
    if its == Stage.RUNNING:
        holder = Holder.parse(text(by), -1, now_us)
        owner, label, at = holder.owner or "", holder.label, holder.acquired_at
    else:
        owner, _, label = readable(text(by)).partition("|")
        at = _time(since)
    return TaskInfo(
        stage=its,
        id=text(id).decode(),
        remaining=None if left == b"" else whole(left) / 1000,
        owner=owner,
        label=label,
        since=at,
        age=None if at is None else (server_time(now_us) - at).total_seconds(),
        due=_time(due),
        weight=whole(weight),
    )


def _time(value: Any) -> datetime | None:
    return server_time(instant(value)) if text(value) else None


def names(using: str, most: int = MOST) -> list[TasksInfo]:
    """Return what there is of the names of which something waits, is parked or runs; of more than
    `most`, of those that are noted for longest. A cluster has no list of them: its keys are
    scanned. The most urgent come first. Raises `LockUnavailable`."""
    server, prefix = server_of(using), conf.prefix()
    port, keys = SyncPort(server), work.keys_of(Keys.of(prefix, "-"), "")
    found: dict[str, TasksInfo] = {}
    if find_out_slots(server, prefix):
        for name in Inspector(using)._scan(MOST_KEYS, ":[cmpr]*[^k]")[:most]:  # no clock
            if (its := tasks_of(name, using)) and (its.items or its.lapsed):
                found[name] = its
        return sorted(found.values(), key=urgency)

    def read(answer: Any) -> int:
        now_us, number, *each = answer
        its = [_info(using, instant(now_us), one) for one in each]
        found.update((one.name, one) for one in its)
        return whole(number)

    for skip in range(0, most, AT_ONCE):
        if run(ask(port, read, "work_names", keys, [word(), skip, AT_ONCE, LISTED])) < AT_ONCE:
            break
    return sorted(found.values(), key=urgency)


def urgency(its: TasksInfo) -> tuple[int, str]:
    """The key to order names by: those with parked tasks come first."""
    return -its.counts[Stage.PARKED], its.name


def drop_claim(found: TasksInfo, *, by: str, reason: str) -> bool:
    """Let the next call be queued again. Returns False if another task has the claim now; nothing
    was done then. Raises `LockUnavailable`."""
    by, reason = validate_operator(by, reason)
    server, keys = server_of(found.using), Keys.of(conf.prefix(), found.name)
    port, claim = SyncPort(server), found.claim
    if claim is None or not run(work.confirm(port, keys, claim, "", work.SHORT)):
        return False
    its = next(one for one in found.items if one.id == claim)
    holder = Holder(its.owner, f"queued task {claim}", None, its.since, its.age, its.remaining)
    run(claims.tell_cleared(port, keys, server, [holder], by, reason))
    return True


NAMES: Sequence[Column[TasksInfo]] = (
    Column(_("name"), attrgetter("name"), shrinks=True),
    Column(_("running"), lambda one: one.counts[Stage.RUNNING], right=True),
    Column(_("promoted"), lambda one: one.counts[Stage.PROMOTED], right=True),
    Column(_("parked"), lambda one: one.counts[Stage.PARKED], right=True),
    Column(_("queued"), lambda one: one.counts[Stage.QUEUED], right=True),
    Column(_("oldest"), lambda one: Seconds(one.oldest), right=True),
)
TASKS: Sequence[Column[TaskInfo]] = (
    Column(_("stage"), attrgetter("stage")),
    Column(_("id"), lambda one: "" if one.id.startswith(work.TICKET) else one.id),
    Column(_("by"), lambda one: Owner(one.owner), shrinks=True),
    Column(_("for"), lambda one: Seconds(one.age, one.since), right=True),
    Column(_("remaining"), lambda one: Seconds(one.remaining), right=True),
    Column(_("due"), attrgetter("due"), drops=1),
    Column(_("weight"), attrgetter("weight"), right=True, drops=2),
    Column(_("label"), attrgetter("label"), below="id", shrinks=True, drops=3),
)
