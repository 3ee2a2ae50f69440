"""Locks and periodic jobs as models, to look at in the admin: without tables and migrations, and
without rows for code that goes through all models, such as `dumpdata`.

What reads the locks and the jobs is imported when somebody asks. Each process of a project imports
this module, and most of them never ask.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from django.conf import settings
from django.db import models
from django.utils.timezone import make_naive
from django.utils.translation import gettext_lazy as _

from .live import Live, LockId, Snapshot

if TYPE_CHECKING:
    from ..inspection import Listing, LockInfo, Page
    from ..inspection.listing import Part
    from ..periodic import JobInfo

FREE = "free"

STATES = [
    ("held", _("held")),
    ("unknown", _("unknown")),
    ("stale", _("stale")),
    ("broken", _("broken")),
    (FREE, _("free")),
]
KINDS = [
    ("mutex", _("mutex")),
    ("semaphore", _("semaphore")),
    ("task", _("task")),
    ("read", _("read lock")),
    ("write", _("write lock")),
    ("foreign", _("other key")),
    ("timestamp", _("SETNX timestamp lock")),
]
JOB_STATES = [
    ("overdue", _("overdue")),
    ("failing", _("failing")),
    ("running", _("running")),
    ("new", _("new")),
    ("ok", _("ok")),
    ("paused", _("paused")),
    ("disabled", _("disabled")),
]


class LockStatus(Live):
    """What Redis knows of a lock, to look at: `LockStatus.live.filter(state="stale")`. Times are
    seconds."""

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
    urgency = models.PositiveIntegerField(_("urgency"), default=0)
    """Its place in the list, by `inspection.listing`."""

    info: LockInfo | None = None
    """The lock as it was read; None: it is free."""

    class Meta(Live.Meta):
        ordering = ("urgency", "id")
        permissions = (
            ("clear_lock", "Can clear lock"),
            ("view_note", "Can view the notes of locks"),
        )
        verbose_name = _("lock")
        verbose_name_plural = _("locks")

    def values_of(self, field: str) -> Sequence[Any]:
        """The values of a field; of several holders, the host, owner or label of each."""
        holders = self.info.holders if self.info else ()
        if len(holders) < 2 or field not in ("host", "owner", "label"):
            return super().values_of(field)
        if field == "label":
            return [one.holder.label for one in holders]
        owners = [one.holder.owner or "" for one in holders]
        return owners if field == "owner" else [_host(owner) for owner in owners]

    @classmethod
    def snapshot(cls, *, foreign: bool = False, most: int | None = None) -> Snapshot:
        """Read all held locks; with `most`, up to so many, the most urgent ones.

        `foreign` adds foreign values below our prefix; for that, all keys of the database are
        looked at. Raises `LockError`, usually `LockUnavailable`, if none of the servers can be
        asked. If only some can't, `away` has their errors.
        """
        return cls.page(0, most, foreign=foreign)._replace(offset=None)

    @classmethod
    def page(cls, offset: int, limit: int | None, *, foreign: bool = False) -> Snapshot:
        """Read one page of the held locks, and count the others. Raises as `snapshot`.

        If the page has all locks, it is the same as a snapshot.
        """
        listing = _listing()
        page = listing.page(foreign=foreign, offset=offset, limit=limit)
        rows = cls._rows(page, offset)
        if offset == 0 and page.total <= len(rows):
            return Snapshot(rows, listing.away, counts=page.counts)
        return Snapshot(rows, listing.away, page.total, offset, page.counts)

    @classmethod
    def urgent(cls) -> Snapshot:
        """Read all locks that are stale or unknown, or that somebody waits for, and count the
        others. Raises as `snapshot`."""
        listing = _listing()
        page = listing.urgent()
        return Snapshot(cls._rows(page), listing.away, counts=page.counts)

    @classmethod
    def _rows(cls, page: Page, offset: int = 0) -> list[Self]:
        rows = [cls.of(info) for info in page.items]
        for place, row in enumerate(rows, offset + 1):
            row.urgency = place
        return rows

    @classmethod
    def chosen(cls, ids: Iterable[str]) -> Snapshot:
        """Read the locks of these ids that are held. Raises as `snapshot`."""
        from ..inspection import Listing

        wanted: defaultdict[LockId, list[str]] = defaultdict(list)
        for id in ids:
            with suppress(ValueError):  # no lock has that id
                where = LockId.parse(id)
                wanted[where._replace(name="")].append(where.name)
        names: dict[Part, list[str]] = {one.inspector(): its for one, its in wanted.items()}
        listing = Listing([*names])
        found = listing.ask(lambda one: [*map(cls.of, one.held(names[one]))])
        return Snapshot([row for _, rows in found for row in rows], listing.away)

    @classmethod
    def of(cls, info: LockInfo) -> Self:
        """A lock that is held."""
        holder = info.holder
        owner = holder.owner or ""
        lock = cls(
            id=str(LockId.of(info)),
            name=info.name,
            using=info.using,
            kind=info.kind.value,
            state=info.state.value,
            host=_host(owner),
            owner=owner,
            label=holder.label,
            acquired_at=_stored(holder.acquired_at),
            held=holder.held,
            remaining=holder.remaining,
            ttl=info.ttl,
            waiters=info.waiters,
            contended=info.waiters > 0,
            fencing_token=holder.fencing_token,
        )
        lock.info = info
        return lock

    @classmethod
    def at(cls, id: str) -> Self | None:
        """Return the lock of that id if it is held. Raises `LockUnavailable`, and as
        `LockId.parse`."""
        where = LockId.parse(id)
        return next(map(cls.of, where.inspector().held([where.name])), None)

    @classmethod
    def free(cls, id: str) -> Self:
        """A lock that nobody holds. Raises as `LockId.parse`."""
        where = LockId.parse(id)
        return cls(id=id, name=where.name, using=where.using, state=FREE)


def _host(owner: str) -> str:
    return owner.partition(":")[0]


def _listing() -> Listing:
    from ..inspection import Listing, inspectors, servers

    return Listing([one for alias in servers() for one in inspectors(alias)])


class PeriodicJob(Live):
    """A periodic job and its last run. Times are seconds."""

    name = models.CharField(_("name"), primary_key=True, max_length=512)
    using = models.CharField(_("cache"), max_length=100)
    where = models.CharField(_("where"), max_length=255)
    plan = models.CharField(_("when"), max_length=255)
    state = models.CharField(_("state"), max_length=20, choices=JOB_STATES)
    trouble = models.PositiveSmallIntegerField(_("trouble"))
    error = models.CharField(_("error"), max_length=512)
    started = models.DateTimeField(_("last run"), null=True)
    took = models.FloatField(_("took"), null=True)
    next = models.DateTimeField(_("next"), null=True)

    info: JobInfo

    class Meta(Live.Meta):
        ordering = ("trouble", "name")
        permissions = (
            ("pause_periodicjob", "Can pause and resume periodic job"),
            ("run_periodicjob", "Can run periodic job"),
        )
        verbose_name = _("periodic job")
        verbose_name_plural = _("periodic jobs")

    @classmethod
    def snapshot(cls) -> Snapshot:
        """Read all jobs of the project. Raises `LockError`."""
        from ..periodic import Ledger

        return Snapshot([cls.of(info) for info in Ledger().jobs()])

    @classmethod
    def of(cls, info: JobInfo) -> Self:
        job = cls(
            name=info.name,
            using=info.using,
            where=info.where,
            plan=info.plan,
            state=info.state.value,
            trouble=info.state.place,
            error=info.error,
            started=_stored(info.last.started if info.last else None),
            took=info.last.duration if info.last else None,
            next=_stored(info.next),
        )
        job.info = info
        return job


def _stored(time: datetime | None) -> datetime | None:
    """Make a time as Django would read it from a database."""
    return time if time is None or settings.USE_TZ else make_naive(time)
