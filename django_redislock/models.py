"""Locks and periodic jobs as models, for the admin: without tables and migrations, and without
rows for code that goes through all models, such as `dumpdata`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import datetime
from typing import Self

from django.conf import settings
from django.db import models
from django.utils.timezone import make_naive
from django.utils.translation import gettext_lazy as _

from .base.exceptions import LockError
from .inspection import Inspector, Kind, LockInfo, State
from .inspection.live import Live, Snapshot
from .inspection.lock_id import LockId
from .periodic.report import JobInfo, JobState, Ledger
from .settings.configured import aliases
from .transport.server import server_of

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


class Lock(Live):
    """A lock, as it is in Redis: `Lock.live.filter(state="stale")`. Times are seconds."""

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
    """The lock as it was read; None: it is free."""

    class Meta(Live.Meta):
        ordering = ("remaining", "id")
        permissions = (("clear_lock", "Can clear lock"),)
        verbose_name = _("lock")
        verbose_name_plural = _("locks")

    @classmethod
    def snapshot(cls, *, foreign: bool = False, most: int | None = None) -> Snapshot:
        """Read all held locks; with `most`, up to so many of each server, those whose leases end
        first.

        `foreign` adds foreign values below our prefix; for that, all keys of the database are
        looked at. Raises `LockError`, usually `LockUnavailable`, if none of the servers can be
        asked. If only some can't, `away` has their errors.
        """
        found: list[LockInfo] = []
        left_out = 0

        def read(alias: str) -> None:
            nonlocal left_out
            for inspector in _inspectors(alias):
                some = [*inspector.all(most=most)]
                found.extend(some)
                if most is not None and len(some) >= most:
                    left_out += max(0, inspector.page(limit=0).total - len(some))
                if foreign:
                    found.extend(inspector.discover())

        away = _ask_all(read, servers())
        total = len(found) + left_out if left_out else None
        return Snapshot([cls.of(info) for info in found], away, total)

    @classmethod
    def page(cls, offset: int, limit: int) -> Snapshot:
        """Read one page of the held locks, and count the others: those of one server after those
        of another one, and of each in the order in which their leases end. Raises as `snapshot`.

        If the page has all locks, it is the same as a snapshot.
        """
        found: list[LockInfo] = []
        total = 0

        def read(alias: str) -> None:
            nonlocal total
            for inspector in _inspectors(alias):
                first, number = max(0, offset - total), limit - len(found)
                some = inspector.page(offset=first, limit=number)
                found.extend(some.items)
                total += some.total

        away = _ask_all(read, servers())
        rows = [cls.of(info) for info in found]
        whole = offset == 0 and total <= len(rows)
        return Snapshot(rows, away) if whole else Snapshot(rows, away, total, offset)

    @classmethod
    def chosen(cls, ids: Iterable[str]) -> Snapshot:
        """Read the locks of these ids that are held. Raises as `snapshot`."""
        wanted: defaultdict[LockId, list[str]] = defaultdict(list)
        for id in ids:
            with suppress(ValueError):  # no lock has that id
                where = LockId.parse(id)
                wanted[where._replace(name="")].append(where.name)
        found: list[LockInfo] = []

        def read(alias: str) -> None:
            for where, names in wanted.items():
                if where.using == alias:
                    found.extend(where.inspector().held(names))

        away = _ask_all(read, {where.using for where in wanted})
        return Snapshot([cls.of(info) for info in found], away)

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
            host=owner.partition(":")[0],
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


def _inspectors(alias: str) -> list[Inspector]:
    return [Inspector(alias), Inspector(alias, cache_locks=True)]


def _ask_all(read: Callable[[str], None], using: Collection[str]) -> dict[str, LockError]:
    """Read the server of each alias. Return the errors of those that can't be asked; raise the
    first one if that is true of all."""
    away: dict[str, LockError] = {}
    for alias in using:
        try:
            read(alias)
        except LockError as error:
            away[alias] = error
    if away and len(away) == len(using):
        raise next(iter(away.values()))
    return away


def servers() -> list[str]:
    """Return the aliases of CACHES that locks use, one for each server: through two aliases, the
    same locks would be listed twice."""
    found: dict[str, str] = {}
    for alias in aliases():
        found.setdefault(server_of(alias).address, alias)
    return list(found.values())


class PeriodicJob(Live):
    """A periodic job and its last run. Times are seconds."""

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
    def snapshot(cls) -> Snapshot:
        """Read all jobs of the project. Raises `LockError`."""
        return Snapshot([cls.of(info) for info in Ledger().jobs()])

    @classmethod
    def of(cls, info: JobInfo) -> Self:
        job = cls(
            name=info.name,
            using=info.using,
            where=info.where,
            plan=info.plan,
            state=info.state.value,
            started=_stored(info.last.started if info.last else None),
            took=info.last.duration if info.last else None,
            next=_stored(info.next),
        )
        job.info = info
        return job


def _stored(time: datetime | None) -> datetime | None:
    """Make a time as Django would read it from a database."""
    return time if time is None or settings.USE_TZ else make_naive(time)
