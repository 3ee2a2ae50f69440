"""Tasks of `unique` and `limited`: what waits in a queue, what is parked, and what runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from ..base.holder import Holder, server_time
from ..lease import claims
from ..primitives import work
from ..primitives.contract import run
from ..primitives.keys import Keys
from ..settings import conf
from ..settings.validators import validate_operator
from ..transport.ports import SyncPort
from ..transport.server import server_of
from .reading import shared
from .sheet import Column, Owner, Seconds

MOST = 10_000
"""Names that are listed."""


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
    """The id of its message."""
    remaining: float | None = None
    """Until its claim, its permit or its lease ends, unless it is renewed."""
    owner: str = ""
    """The process that queued it, or runs it; "": not known."""
    label: str = ""
    since: datetime | None = None
    """When it was queued, or began."""
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
    """Seconds since the first of those whose age is known was queued, or began."""
    items: list[TaskInfo]
    """In the order in which they go on, up to 100 of each stage."""
    claim: str | None
    """The id of the task that has the name: it is queued, promoted or parked."""
    lapsed: int = field(repr=False)
    """How many have to be healed."""

    @property
    def stuck(self) -> bool:
        """Whether some are parked, and none runs that would let them go on."""
        return self.items[:1] != [] and self.items[0].stage == Stage.PARKED


def tasks(name: str, using: str) -> TasksInfo:
    """Return what there is of a name. Raises `LockUnavailable`."""
    found = run(work.look(SyncPort(server_of(using)), Keys.of(conf.prefix(), name)))
    now, claim = server_time(found.now_us), found.waiting

    def waits(stage: Stage, id: str, remaining: float | None = None) -> TaskInfo:
        if claim is None or claim.id != id:
            return TaskInfo(stage, id, remaining)
        age = (now - claim.since).total_seconds()
        its = claim.owner, claim.label, claim.since, age, claim.due
        return TaskInfo(stage, id, remaining, *its)

    items = []
    for its in found.running:
        by = Holder.parse(its.record, -1, found.now_us)
        says = by.owner or "", by.label, by.acquired_at, by.held, None, its.weight
        items.append(TaskInfo(Stage.RUNNING, its.id, its.left, *says))
    left = {id: (until - now).total_seconds() for id, until in found.promoted.items()}
    items += [waits(Stage.PROMOTED, id, its) for id, its in left.items() if its > 0]
    items += [waits(Stage.PARKED, id) for id in found.parked_ids]
    if claim is not None and all(one.id != claim.id for one in items):
        items.append(waits(Stage.QUEUED, claim.id, claim.lives))
    counts = Counter({Stage.PARKED: found.parked})
    counts.update(one.stage for one in items if one.stage != Stage.PARKED)
    return TasksInfo(
        name=name,
        using=using,
        counts=counts,
        limit=min((shared(its.record)[1] or 1 for its in found.running), default=None),
        oldest=max((one.age for one in items if one.age is not None), default=None),
        items=items,
        claim=claim and claim.id,
        lapsed=found.lapsed,
    )


def names(using: str) -> list[str]:
    """Return the names of which something waits, is parked or runs. A cluster has no list of them.
    Raises `LockUnavailable`."""
    keys = Keys.of(conf.prefix(), "-")
    return sorted(run(work.names(SyncPort(server_of(using)), keys, 0, MOST)))


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
    Column("name", attrgetter("name"), shrinks=True),
    Column("running", lambda one: one.counts[Stage.RUNNING], right=True),
    Column("promoted", lambda one: one.counts[Stage.PROMOTED], right=True),
    Column("parked", lambda one: one.counts[Stage.PARKED], right=True),
    Column("queued", lambda one: one.counts[Stage.QUEUED], right=True),
    Column("oldest", lambda one: Seconds(one.oldest), right=True),
)
TASKS: Sequence[Column[TaskInfo]] = (
    Column("stage", attrgetter("stage")),
    Column("id", attrgetter("id")),
    Column("by", lambda one: Owner(one.owner), shrinks=True),
    Column("for", lambda one: Seconds(one.age), right=True),
    Column("remaining", lambda one: Seconds(one.remaining), right=True),
    Column("due", attrgetter("due"), drops=1),
    Column("weight", attrgetter("weight"), right=True, drops=2),
    Column("label", attrgetter("label"), shrinks=True, drops=3),
)
