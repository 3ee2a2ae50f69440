"""Locks and periodic jobs as models, to look at in the admin: without tables and migrations, and
without rows for code that goes through all models, such as `dumpdata`.

What reads the locks and the jobs is imported when somebody asks. Each process of a project imports
this module, and most of them never ask.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote, unquote

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import FieldDoesNotExist, FieldError
from django.db import NotSupportedError, models
from django.db.models import F, Q
from django.db.models.constants import LOOKUP_SEP
from django.db.models.expressions import OrderBy
from django.utils.functional import classproperty
from django.utils.timezone import make_naive
from django.utils.translation import gettext_lazy as _

from .base.exceptions import LockError
from .settings.conf import aliases

if TYPE_CHECKING:
    from .base.people import Holder
    from .inspection import Inspector, Listing, LockInfo, Page
    from .inspection.listing import Part
    from .periodic import JobInfo


# The primary key of `Lock`: the server and the name of a lock as one text.


class LockId(NamedTuple):
    """`alias:name`, or `{alias}:key` for a lock of the drop-in for `cache.lock()`.

    The text is printable, so that it survives forms and fits into any database.
    """

    using: str
    cache_locks: bool
    name: str

    @classmethod
    def of(cls, info: LockInfo) -> Self:
        return cls(info.using, info.cache_lock, info.name)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an id. Raises `ValueError` if no lock can have it."""
        # If one alias begins with another one, the longer one is meant.
        for using in sorted(aliases(), key=len, reverse=True):
            for cache_locks, begins in ((False, f"{using}:"), (True, f"{{{using}}}:")):
                if text.startswith(begins):
                    return cls(using, cache_locks, unquote(text.removeprefix(begins)))
        raise ValueError(
            f"the id of a lock begins with an alias of CACHES that locks use and a colon, not "
            f"{text!r}"
        )

    def __str__(self) -> str:
        using = f"{{{self.using}}}" if self.cache_locks else self.using
        name = "".join(c if c.isprintable() and c != "%" else quote(c) for c in self.name)
        return f"{using}:{name}"

    def inspector(self) -> Inspector:
        from .inspection import Inspector

        return Inspector(self.using, cache_locks=self.cache_locks)


_LOOKUPS: dict[str, Callable[[Any, Any], bool]] = {
    "exact": operator.eq,
    "in": lambda value, wanted: value in wanted,
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
_TEXT_LOOKUPS: dict[str, Callable[[str, str], bool]] = {
    "iexact": lambda value, wanted: value.casefold() == wanted.casefold(),
    "contains": lambda value, wanted: wanted in value,
    "icontains": lambda value, wanted: wanted.casefold() in value.casefold(),
    "startswith": lambda value, wanted: value.startswith(wanted),
    "istartswith": lambda value, wanted: value.casefold().startswith(wanted.casefold()),
    "endswith": lambda value, wanted: value.endswith(wanted),
    "iendswith": lambda value, wanted: value.casefold().endswith(wanted.casefold()),
}

Test = Callable[[Any], bool]
"""Says whether a row matches."""


class Snapshot(NamedTuple):
    """All rows, as they were at one time; or, with `total`, some of them."""

    rows: Sequence[Any]
    away: Mapping[str, LockError] = {}
    """The aliases whose servers can't be reached while others can, with the reason."""
    total: int | None = None
    """The number of all rows, if these are not all."""
    offset: int | None = None
    """The position of the first of these rows among all, if they are a page. None: they are the
    first ones, and all questions are about them."""
    counts: Any = None
    """Numbers of all rows, as the model counts them."""


class LiveRows:
    """The rows of a model that match, in order: what the admin's list and a short query need of a
    `QuerySet`, over a **snapshot**: all rows as they were at one time, so that the rows, counts
    and filters of one page agree. Raises `LockUnavailable` when they are read.

    A question about unknown fields raises `FieldError`, any other one that can't be answered here
    `NotSupportedError`, at once.
    """

    ordered = True
    # Django's ChangeList also reads these.
    totally_ordered = False
    query = SimpleNamespace(order_by=(), select_related=True)

    def __init__(self, model: Any) -> None:
        self.model = model
        self._snapshot: Snapshot | None = None
        self._tests: tuple[Test, ...] = ()
        self._order = self._terms(model._meta.ordering)

    def of(self, snapshot: Snapshot) -> Self:
        """Return the same question about a snapshot that was made before."""
        return self._with(_snapshot=snapshot)

    def all(self) -> Self:
        return self._with()

    _clone = all

    def filter(self, *conditions: Q, **lookups: Any) -> Self:
        condition = Q(*filter(None, conditions), **lookups)
        if not condition:
            return self.all()
        return self._with(_tests=(*self._tests, self._test(condition)))

    def exclude(self, *conditions: Q, **lookups: Any) -> Self:
        return self.filter(~Q(*conditions, **lookups))

    def order_by(self, *terms: Any) -> Self:
        return self._with(_order=self._terms(terms))

    def reverse(self) -> Self:
        return self._with(_order=[(name, not descending) for name, descending in self._order])

    def count(self) -> int:
        if (page := self._page) is not None and page.total is not None:
            return page.total
        return len(self._found if "_found" in self.__dict__ else self._matching())

    def exists(self) -> bool:
        return bool(self.count())

    def get(self, *conditions: Q, **lookups: Any) -> Any:
        found = self.filter(*conditions, **lookups)._found
        if not found:
            raise self.model.DoesNotExist
        if len(found) > 1:
            raise self.model.MultipleObjectsReturned
        return found[0]

    def first(self) -> Any:
        return next(iter(self), None)

    def last(self) -> Any:
        return self.reverse().first()

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._found)

    def __getitem__(self, key: int | slice) -> Any:
        if (page := self._page) is not None and page.offset and isinstance(key, slice):
            stop = None if key.stop is None else key.stop - page.offset
            key = slice((key.start or 0) - page.offset, stop)
        found = self._found[key]
        if not isinstance(key, slice):
            return found
        return self._with(_snapshot=Snapshot(found), _tests=(), _order=[])

    async def acount(self) -> int:
        return await sync_to_async(self.count)()

    async def aiterator(self) -> AsyncIterator[Any]:
        for row in await sync_to_async(lambda: self._found)():
            yield row

    __aiter__ = aiterator

    def _refuse(self, *_args: Any, **_options: Any) -> Any:
        raise NotSupportedError("These rows can be read, filtered, ordered and counted, no more")

    aggregate = annotate = values = values_list = create = update = delete = _refuse

    def _with(self, **changes: Any) -> Self:
        clone = type(self)(self.model)
        given = {name: value for name, value in self.__dict__.items() if name != "_found"}
        clone.__dict__.update(given, **changes)
        return clone

    @property
    def _page(self) -> Snapshot | None:
        """The snapshot, if it is a page of all rows."""
        snapshot = self._snapshot
        paged = snapshot is not None and snapshot.offset is not None and not self._tests
        return snapshot if paged else None

    def _matching(self) -> list[Any]:
        # A snapshot made here is not kept: the next question is about the locks at that time.
        snapshot = self._snapshot or self.model.snapshot()
        rows = list(snapshot.rows)
        for test in self._tests:
            rows = list(filter(test, rows))
        return rows

    @cached_property
    def _found(self) -> list[Any]:
        rows = self._matching()
        for name, descending in reversed(self._order):
            value = operator.attrgetter(name)
            # None is last: a lease without an end is the longest.
            rows.sort(key=lambda row: ((its := value(row)) is None, its), reverse=descending)
        return rows

    def _field(self, name: str) -> Any:
        opts = self.model._meta
        try:
            return opts.pk if name == "pk" else opts.get_field(name)
        except FieldDoesNotExist as error:
            raise FieldError(str(error)) from None

    def _terms(self, terms: Iterable[Any]) -> list[tuple[str, bool]]:
        """The fields to order by, and whether each is descending."""
        return [(self._field(name).name, descending) for name, descending in map(_term, terms)]

    def _test(self, condition: Any) -> Test:
        if isinstance(condition, Q):
            tests = [self._test(child) for child in condition.children]
            combine = _CONNECTORS[condition.connector]
            return lambda row: combine([test(row) for test in tests]) != condition.negated
        if not isinstance(condition, tuple):
            raise NotSupportedError(f"These rows can't be filtered by {condition!r}")
        path, wanted = condition
        name, _, lookup = path.partition(LOOKUP_SEP)
        field = self._field(name)
        if lookup == "isnull" or (wanted is None and not lookup):
            empty = wanted is None or bool(wanted)
            return lambda row: any((its is None) is empty for its in row.values_of(field.name))
        compare = _LOOKUPS.get(lookup or "exact")
        if compare is None and isinstance(field, models.CharField):
            compare = _TEXT_LOOKUPS.get(lookup)
        if compare is None or hasattr(wanted, "resolve_expression"):
            raise NotSupportedError(f"These rows can't be filtered by {path}={wanted!r}")
        prepare = field.get_prep_value
        value = [prepare(one) for one in wanted] if lookup == "in" else prepare(wanted)
        return lambda row: any(
            its is not None and compare(its, value) for its in row.values_of(field.name)
        )


_CONNECTORS: dict[str, Callable[[list[bool]], bool]] = {
    Q.AND: all,
    Q.OR: any,
    Q.XOR: lambda answers: sum(answers) % 2 == 1,
}


def _term(term: Any) -> tuple[str, bool]:
    if isinstance(term, OrderBy) and isinstance(term.expression, F):
        return str(term.expression.name), term.descending  # type: ignore[attr-defined]
    if isinstance(term, str) and term != "?":
        return term.removeprefix("-"), term.startswith("-")
    raise NotSupportedError(f"These rows can be ordered by their fields, not by {term!r}")


class NoRows(models.Manager[Any]):
    """For code that goes through all models, such as `dumpdata`."""

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().none()


class Live(models.Model):
    """Something that is read from Redis: `objects` is empty, `live` asks."""

    name: Any
    info: Any
    """The object from which the row was made."""

    objects = NoRows()
    live = classproperty(LiveRows)

    class Meta:
        abstract = True
        managed = False
        base_manager_name = default_manager_name = "objects"
        default_permissions = ("view",)

    def __str__(self) -> str:
        from .inspection.words import clean

        return clean(self.name)

    def values_of(self, field: str) -> Sequence[Any]:
        """The values of a field, of which a filter wants one to match."""
        return [getattr(self, field)]

    def _refuse(self, *_args: Any, **_options: Any) -> Any:
        raise NotSupportedError("Rows that are read from Redis can't be written")

    save = save_base = delete = _refuse


FREE = "free"

STATES = [*((one, _(one)) for one in ("held", "unknown", "stale", "broken")), (FREE, _("free"))]
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
    (one, _(one)) for one in ("overdue", "failing", "running", "new", "ok", "paused", "disabled")
]


_OF_HOLDER: dict[str, Callable[[Holder], str]] = {
    "host": lambda holder: (holder.owner or "").partition(":")[0],
    "owner": lambda holder: holder.owner or "",
    "label": lambda holder: holder.label,
}
"""The fields of a lock that each of its holders has."""


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
        if len(holders) < 2 or field not in _OF_HOLDER:
            return super().values_of(field)
        return [_OF_HOLDER[field](one.holder) for one in holders]

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
        return [cls.of(info, place) for place, info in enumerate(page.items, offset + 1)]

    @classmethod
    def chosen(cls, ids: Iterable[str]) -> Snapshot:
        """Read the locks of these ids that are held. Raises as `snapshot`."""
        from .inspection import Listing

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
    def of(cls, info: LockInfo, urgency: int = 0) -> Self:
        """A lock that is held."""
        holder = info.holder
        lock = cls(
            id=str(LockId.of(info)),
            name=info.name,
            using=info.using,
            kind=info.kind.value,
            state=info.state.value,
            **{field: value(holder) for field, value in _OF_HOLDER.items()},
            acquired_at=_stored(holder.acquired_at),
            held=holder.held,
            remaining=holder.remaining,
            ttl=info.ttl,
            waiters=info.waiters,
            contended=info.waiters > 0,
            fencing_token=holder.fencing_token,
            urgency=urgency,
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


def _listing() -> Listing:
    from .inspection import Listing, inspectors
    from .inspection.inspector import servers

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
        from .periodic import Ledger

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
