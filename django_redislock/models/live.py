"""Models without a table: their rows are read from Redis.

`LiveRows` has of a `QuerySet` what the admin's list and a short query need, over a plain list. The
list is a **snapshot**: all rows as they were at one time, so that the rows, counts and filters of
one page agree.
"""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote, unquote

from asgiref.sync import sync_to_async
from django.core.exceptions import FieldDoesNotExist, FieldError
from django.db import NotSupportedError, models
from django.db.models import F, Q
from django.db.models.constants import LOOKUP_SEP
from django.db.models.expressions import OrderBy

from ..base.exceptions import LockError
from ..settings.conf import aliases

if TYPE_CHECKING:
    from ..inspection import Inspector, LockInfo


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
        from ..inspection import Inspector

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
    """The rows of a model that match, in order. Raises `LockUnavailable` when they are read.

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
            rows.sort(key=lambda row: _place(getattr(row, name)), reverse=descending)
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


def _place(value: Any) -> tuple[bool, Any]:
    """None is last: a lease without an end is the longest."""
    return (value is None, 0 if value is None else value)


class LiveManager:
    """Gives the rows of the model that it is asked through: `Lock.live`."""

    def __get__(self, _instance: Any, model: Any) -> LiveRows:
        return LiveRows(model)


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
    live = LiveManager()

    class Meta:
        abstract = True
        managed = False
        base_manager_name = default_manager_name = "objects"
        default_permissions = ("view",)

    def __str__(self) -> str:
        from ..inspection.words import clean

        return clean(self.name)

    def values_of(self, field: str) -> Sequence[Any]:
        """The values of a field, of which a filter wants one to match."""
        return [getattr(self, field)]

    def _refuse(self, *_args: Any, **_options: Any) -> Any:
        raise NotSupportedError("Rows that are read from Redis can't be written")

    save = save_base = delete = _refuse
