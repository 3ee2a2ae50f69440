"""Models without a table, whose rows are seen at Redis: a `QuerySet` that asks there.

Django builds the query and tells what is wrong with it; only its execution is ours. It happens on
a **snapshot**, all of them as they were seen at one time, so that what one page shows (rows,
counts, filters) fits together.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from django.db import NotSupportedError, models
from django.db.models import F
from django.db.models.expressions import Col, OrderBy
from django.db.models.lookups import Lookup
from django.db.models.query import BaseIterable
from django.db.models.sql.where import AND, OR, NothingNode, WhereNode

from ..base.exceptions import LockError
from .words import clean

Row = dict[str, Any]
"""The values of a row's fields, by their names; and `info`, what was seen."""


class Snapshot(NamedTuple):
    """All rows, as they were seen at one time."""

    rows: list[Row]
    away: Mapping[str, LockError] = {}
    """The aliases whose servers can't be asked while others can, and why."""


class LiveIterable(BaseIterable):  # type: ignore[type-arg]  # django-stubs only
    """How a `QuerySet` comes to its rows, also when it is asked asynchronously: in a thread."""

    queryset: Any

    def __iter__(self) -> Iterator[Any]:
        yield from self.queryset.found()


class LiveQuerySet(models.QuerySet[Any]):
    """What is seen at Redis, as rows. What is not a question for such rows is refused:
    `NotSupportedError`. Raises `LockUnavailable`."""

    snapshot: Snapshot | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._iterable_class = LiveIterable

    def of(self, snapshot: Snapshot) -> Self:
        """The same question, asked of a snapshot that was made before."""
        clone = self.all()
        clone.snapshot = snapshot
        return clone

    def rows(self) -> list[Row]:
        """Those that match, whatever their order and number: dicts, which are cheaper."""
        if self.query.is_empty():
            return []
        # One that was not given is not kept: who asks again wants to know what is then.
        snapshot = self.snapshot or self.model.snapshot()
        return [row for row in snapshot.rows if matches(self.query.where, row)]

    # What Django calls to carry out a query.

    def count(self) -> int:
        if self._result_cache is not None:
            return len(self._result_cache)
        return len(range(*self._window().indices(len(self.rows()))))

    def exists(self) -> bool:
        return bool(self.count())

    def _clone(self) -> Self:
        clone: Self = super()._clone()  # type: ignore[misc]
        clone.snapshot = self.snapshot
        return clone

    def _refuse(self, *_args: Any, **_options: Any) -> Any:
        raise NotSupportedError("Such rows are read, filtered, ordered and counted, no more")

    aggregate = annotate = alias = values = values_list = dates = datetimes = _refuse
    create = bulk_create = bulk_update = get_or_create = update_or_create = _refuse
    update = _update = delete = _raw_delete = _insert = select_for_update = _refuse
    union = intersection = difference = extra = raw = explain = _refuse

    # How it is done.

    def found(self) -> list[Any]:
        """Instances of those that match, in order, and no more than were asked for."""
        rows = self.rows()
        for name, descending in reversed(self._order()):
            rows.sort(key=lambda row: _place(row[name]), reverse=descending)
        return [self.model.from_row(row, self.db) for row in rows[self._window()]]

    def _window(self) -> slice:
        return slice(self.query.low_mark, self.query.high_mark)

    def _order(self) -> list[tuple[str, bool]]:
        """The fields by which rows are ordered, and whether each is from the end."""
        opts = self.model._meta
        order = self.query.order_by or (self.query.default_ordering and opts.ordering) or ()
        found = []
        for term in order:
            name, descending = _term(term)
            field = opts.pk if name == "pk" else opts.get_field(name)
            found.append((field.name, descending == self.query.standard_ordering))
        return found


def _term(term: Any) -> tuple[str, bool]:
    if isinstance(term, OrderBy) and isinstance(term.expression, F):
        return str(term.expression.name), term.descending  # type: ignore[attr-defined]
    if isinstance(term, str) and term != "?":
        return term.removeprefix("-"), term.startswith("-")
    raise NotSupportedError(f"Such rows can be ordered by their fields, not by {term!r}")


def _place(value: Any) -> tuple[bool, Any]:
    """None comes last: a lease without an end is the longest."""
    return (value is None, 0 if value is None else value)


_LOOKUPS: dict[str, Callable[[Any, Any], bool]] = {
    "exact": operator.eq,
    "in": lambda value, wanted: value in wanted,
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
_OF_TEXT: dict[str, Callable[[Any, Any], bool]] = {
    "iexact": lambda value, wanted: value.casefold() == wanted.casefold(),
    "contains": lambda value, wanted: wanted in value,
    "icontains": lambda value, wanted: wanted.casefold() in value.casefold(),
    "startswith": lambda value, wanted: value.startswith(wanted),
    "istartswith": lambda value, wanted: value.casefold().startswith(wanted.casefold()),
    "endswith": lambda value, wanted: value.endswith(wanted),
    "iendswith": lambda value, wanted: value.casefold().endswith(wanted.casefold()),
}


def matches(condition: Any, row: Row) -> bool:
    """Whether a row is one of those that a WHERE clause asks for."""
    if isinstance(condition, WhereNode):
        answers = (matches(child, row) for child in condition.children)
        if condition.connector == AND:
            answer = all(answers)
        elif condition.connector == OR:
            answer = any(answers)
        else:
            answer = sum(answers) % 2 == 1
        return answer != condition.negated
    if isinstance(condition, NothingNode):
        return False
    if not isinstance(condition, Lookup) or not isinstance(condition.lhs, Col):
        raise NotSupportedError(f"Such rows can't be filtered by {condition!r}")
    field, name, wanted = condition.lhs.target, condition.lookup_name or "", condition.rhs
    value = row[field.name]
    if name == "isnull":
        return (value is None) is wanted
    lookup = _LOOKUPS.get(name)
    if lookup is None and isinstance(field, models.CharField):
        lookup = _OF_TEXT.get(name)
    if lookup is None or hasattr(wanted, "resolve_expression"):
        raise NotSupportedError(f"Such rows can't be filtered by {condition!r}")
    # As in SQL, nothing is known of what is not there.
    return value is not None and lookup(value, wanted)


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
