"""Locks and periodic jobs as models, for the admin: without a table, without migrations, and
without rows for those who go through all models, such as `dumpdata`."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple, Self
from urllib.parse import quote, unquote

from django.conf import settings
from django.db import NotSupportedError, models
from django.utils.timezone import make_naive
from django.utils.translation import gettext_lazy as _

from .exceptions import LockError
from .inspection import Inspector, Kind, LockInfo, State
from .live import LiveQuerySet, LockSnapshot, Row
from .management.formatting import clean
from .periodic.ledger import JobInfo, JobState, Ledger

FREE = "free"

STATES = [
    (State.HELD.value, _("held")),
    (State.UNKNOWN.value, _("unknown")),
    (State.STALE.value, _("stale")),
    (FREE, _("free")),
]
KINDS = [
    (Kind.MUTEX.value, _("mutex")),
    (Kind.SEMAPHORE.value, _("semaphore")),
    (Kind.READ.value, _("read-write lock, read")),
    (Kind.WRITE.value, _("read-write lock, written")),
    (Kind.FOREIGN.value, _("value of others")),
    (Kind.TIMESTAMP.value, _("time of an old lock")),
]


JOB_STATES = [
    (JobState.OK.value, _("ok")),
    (JobState.RUNNING.value, _("running")),
    (JobState.FAILING.value, _("failing")),
    (JobState.OVERDUE.value, _("overdue")),
    (JobState.PAUSED.value, _("paused")),
    (JobState.DISABLED.value, _("disabled")),
]


class NoRows(models.Manager[Any]):
    """For everybody who asks no question that is ours."""

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().none()


class Live(models.Model):
    """Something that is seen at Redis: `objects` is empty, `live` asks."""

    name: Any
    info: Any
    """What was seen."""

    objects = NoRows()
    live = models.Manager.from_queryset(LiveQuerySet)()

    class Meta:
        abstract = True
        managed = False
        base_manager_name = default_manager_name = "objects"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return clean(self.name)

    def _refuse(self, *_args: Any, **_options: Any) -> Any:
        raise NotSupportedError("What is seen at Redis is no row that could be written")

    save = save_base = delete = _refuse

    @classmethod
    def from_row(cls, row: Row, db: str | None) -> Self:
        seen = cls(**{name: value for name, value in row.items() if name != "info"})
        seen.info = row["info"]
        seen._state.adding, seen._state.db = False, db
        return seen


class Lock(Live):
    """A lock, as it is seen at Redis: `Lock.live.filter(state="stale")`. Times are seconds."""

    id = models.CharField(primary_key=True, max_length=600, editable=False)
    name = models.CharField(_("name"), max_length=512)
    using = models.CharField(_("cache"), max_length=100)
    kind = models.CharField(_("kind"), max_length=20, choices=KINDS)
    state = models.CharField(_("state"), max_length=20, choices=STATES)
    host = models.CharField(_("host"), max_length=255)
    owner = models.CharField(_("holder"), max_length=255)
    label = models.CharField(_("label"), max_length=255)
    acquired_at = models.DateTimeField(_("acquired at"), null=True)
    held = models.FloatField(_("held for"), null=True)
    remaining = models.FloatField(_("remaining"), null=True)
    ttl = models.FloatField(_("TTL"), null=True)
    waiters = models.PositiveIntegerField(_("waiters"), default=0)
    contended = models.BooleanField(_("contended"), default=False)
    fencing_token = models.BigIntegerField(_("fencing token"), null=True)

    info: LockInfo | None = None
    """What was seen of its holder; None: it is free."""

    class Meta(Live.Meta):
        ordering = ("remaining", "id")
        permissions = (("clear_lock", "Can clear lock"),)
        verbose_name = _("lock")
        verbose_name_plural = _("locks")

    @classmethod
    def snapshot(cls, *, foreign: bool = False) -> LockSnapshot:
        """All locks, as they are seen when it is first asked for rows."""
        return LockSnapshot(row_of, foreign=foreign)

    @classmethod
    def at(cls, id: str) -> Self | None:
        """The lock of that id, if it is held. Raises `LockUnavailable`, and as `place`."""
        where = place(id)
        found = where.inspector().those([where.name])
        return next((cls.from_row(row_of(info), None) for info in found), None)

    @classmethod
    def free(cls, id: str) -> Self:
        """A lock that nobody holds. Raises as `place`."""
        where = place(id)
        kind = Kind.MUTEX.value
        return cls(id=id, name=where.name, using=where.using, kind=kind, state=FREE)


class Place(NamedTuple):
    """Where a lock is."""

    using: str
    cache_locks: bool
    name: str

    def inspector(self) -> Inspector:
        return Inspector(self.using, cache_locks=self.cache_locks)


def place(id: str) -> Place:
    """Where the lock of an id is. Raises `ValueError` if there can be none.

    An id is `alias:name`, or `{alias}:key` for a lock of the drop-in for `cache.lock()`.
    """
    for using in sorted(settings.CACHES, key=len, reverse=True):  # of two, the longer one is meant
        for cache_locks, begins in ((False, f"{using}:"), (True, f"{{{using}}}:")):
            if id.startswith(begins):
                return Place(using, cache_locks, unquote(id.removeprefix(begins)))
    raise ValueError(f"the id of a lock begins with an alias of CACHES and a colon, not {id!r}")


def id_of(info: LockInfo) -> str:
    """Where the lock is, as `place` reads it: printable, so that it comes back from a form, and
    can be kept in any database."""
    using = f"{{{info.using}}}" if info.cache_lock else info.using
    name = "".join(c if c.isprintable() and c != "%" else quote(c) for c in info.name)
    return f"{using}:{name}"


def row_of(info: LockInfo) -> Row:
    """The values of the fields."""
    holder = info.holder
    owner = holder.owner or ""
    return {
        "id": id_of(info),
        "name": info.name,
        "using": info.using,
        "kind": info.kind.value,
        "state": info.state.value,
        "host": owner.partition(":")[0],
        "owner": owner,
        "label": holder.label,
        "acquired_at": _stored(holder.acquired_at),
        "held": holder.held,
        "remaining": holder.remaining,
        "ttl": info.ttl,
        "waiters": info.waiters,
        "contended": info.waiters > 0,
        "fencing_token": holder.fencing_token,
        "info": info,
    }


class PeriodicJob(Live):
    """A periodic job, and what it has done last. Times are seconds."""

    name = models.CharField(_("name"), primary_key=True, max_length=512)
    using = models.CharField(_("cache"), max_length=100)
    where = models.CharField(_("where"), max_length=255)
    plan = models.CharField(_("when"), max_length=255)
    state = models.CharField(_("state"), max_length=20, choices=JOB_STATES)
    started = models.DateTimeField(_("last run"), null=True)
    took = models.FloatField(_("took"), null=True)
    next = models.DateTimeField(_("next"), null=True)

    info: JobInfo

    class Meta(Live.Meta):
        ordering = ("name",)
        verbose_name = _("periodic job")
        verbose_name_plural = _("periodic jobs")

    @classmethod
    def snapshot(cls) -> JobSnapshot:
        """All jobs, as they are when it is first asked for rows."""
        return JobSnapshot()


class JobSnapshot:
    """All jobs of the project."""

    away: dict[str, LockError] = {}
    """None: what can't be asked is an error."""

    @cached_property
    def rows(self) -> list[Row]:
        return [
            {
                "name": info.name,
                "using": info.using,
                "where": info.where,
                "plan": info.plan,
                "state": info.state.value,
                "started": _stored(info.last.started if info.last else None),
                "took": info.last.duration if info.last else None,
                "next": _stored(info.next),
                "info": info,
            }
            for info in Ledger().jobs()
        ]


def _stored(time: datetime | None) -> datetime | None:
    """As Django would read it from a database."""
    return time if time is None or settings.USE_TZ else make_naive(time)
