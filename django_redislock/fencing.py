"""Fencing in the database: rows refuse a former holder once a later holder has used them.

    with redis_lock(f"product:{pk}") as lease:
        product = Product.objects.fenced(lease).get(pk=pk)
        product.stock -= 1
        product.save(lease=lease)

One rule holds for reading and writing:

1.  The rows are found.
2.  They are *shown* the lease's fencing token, and keep it. If a row has seen a newer token,
    nothing is done and `StaleLease` is raised.
3.  They are read or written.

Steps 2 and 3 are one transaction. Showing is an UPDATE, so the rows stay locked until its end.

A row has to see the token before it is read. If only writes were checked, a former holder's write
could come between the next holder's read and write, and be accepted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from asgiref.sync import sync_to_async
from django.db import DatabaseError, NotSupportedError, models, router, transaction
from django.utils.translation import gettext_lazy as _

from .base.exceptions import StaleLease, StaleRead
from .lease.lease import Lease

__all__ = [
    "FencedManager",
    "FencedModel",
    "FencedQuerySet",
    "FencingTokenField",
    "StaleLease",
    "StaleRead",
]

M = TypeVar("M", bound=models.Model)
Method = TypeVar("Method", bound=Callable[..., Any])

if TYPE_CHECKING:
    BigIntegerField = models.BigIntegerField[int, int]
else:
    BigIntegerField = models.BigIntegerField

FIELD = "fencing_token"


@dataclass(frozen=True)
class Fence:
    """A fencing token to show, and its lease and name if they are known."""

    token: int
    lease: Lease | None
    name: str | None

    @classmethod
    def of(cls, lease: Lease | int) -> Self:
        if isinstance(lease, Lease):
            lease.check()
            return cls(lease.fencing_token, lease, lease.name)
        if not isinstance(lease, int) or isinstance(lease, bool):
            raise TypeError(
                "lease must be the lease of a `with redis_lock(…) as lease:` block, or a fencing "
                f"token as an int, not {type(lease).__name__}"
            )
        if lease < 1:
            raise ValueError(f"a fencing token is at least 1, not {lease}")
        return cls(lease, None, None)

    def show(
        self, model: type[models.Model], keys: list[Any], using: str, read_at: int | None = None
    ) -> int:
        """Show the token to the rows with these keys, and return how many of them exist.

        Call it in a transaction that is rolled back if this raises. `read_at` is the token that
        the rows had when they were read: they must not have been written or deleted since.
        """
        owner, key = place(model)
        rows: models.QuerySet[Any] = models.QuerySet(owner, using=using)
        rows = rows.filter(**{f"{key}__in": keys})
        # Rows that have this token are written as well, which locks them: nobody may show them a
        # newer one before our work is done. The condition is on the column itself and not in a
        # subquery: PostgreSQL checks it again after it has waited for another transaction.
        willing = rows.filter(**{f"{FIELD}__lte": self.token})
        if read_at is not None:
            willing = willing.filter(**{FIELD: read_at})
        shown = willing.update(**{FIELD: self.token})
        if shown == len(keys):
            return shown
        seen = dict(rows.values_list(key, FIELD))
        label = model._meta.label
        if newer := [pk for pk, token in seen.items() if token > self.token]:
            error = StaleLease(self.name, label, newer, self.token, max(seen.values()))
            if self.lease is not None:
                self.lease._lifetime.lose(error)  # a later holder has had the lock
            raise error
        if read_at is not None:
            pks = [pk for pk in keys if seen.get(pk) != self.token] or keys
            raise StaleRead(self.name, label, pks, "was written or deleted since it was read")
        return shown

    def show_to(
        self, instances: Sequence[models.Model], using: str, *, by_hand: bool = False
    ) -> int:
        """Show the token to the rows of instances, if the rows are as they were read.

        With `by_hand` the instances were made and not read: their rows may be replaced, or be new.
        """
        keys_by_token: dict[int | None, set[Any]] = defaultdict(set)
        for instance in instances:
            fill_in_keys(instance)
            key = getattr(instance, place(type(instance))[1])
            if key is not None:
                read_at = None if by_hand else self._read_at(instance, using)
                keys_by_token[read_at].add(key)
        return sum(
            self.show(type(instances[0]), list(keys), using, token)
            for token, keys in keys_by_token.items()
        )

    def _read_at(self, instance: models.Model, using: str) -> int | None:
        """Return the token that the row had when it was read; None if it was made by hand."""
        if instance._state.adding or instance._state.db != using:
            return None
        if FIELD in instance.get_deferred_fields():
            label, why = instance._meta.label, f"was read without its {FIELD}"
            raise StaleRead(self.name, label, [instance.pk], why)
        token: int = getattr(instance, FIELD)
        return token


def place(model: type[models.Model]) -> tuple[type[models.Model], str]:
    """Return the model whose table has the token, perhaps a parent, and its primary key's name."""
    owner: type[models.Model] = model._meta.get_field(FIELD).model
    return owner, owner._meta.pk.attname


def fill_in_keys(instance: models.Model) -> None:
    """Set the keys of an instance's parents from the links to them, as Django's save() does."""
    for parent, link in instance._meta.parents.items():  # the nearest parent comes first
        key = parent._meta.pk.attname
        if link is not None and getattr(instance, key) is None:
            setattr(instance, key, getattr(instance, link.attname))


class FencingTokenField(BigIntegerField):
    """The newest fencing token that the row was shown. Name the field `fencing_token`.

    `save()` never writes it to a row that exists. That would put back the token that the instance
    was loaded with, and let older holders in again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # The database has the default, too, for processes that don't know the column yet.
        defaults = {"default": 0, "db_default": 0, "editable": False}
        super().__init__(*args, **{**defaults, **kwargs})

    def set_attributes_from_name(self, name: str) -> None:
        # Not in the constructor: migrations would contain it.
        if self.verbose_name is None:
            self.verbose_name = _("fencing token")
        super().set_attributes_from_name(name)

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        return super().pre_save(model_instance, add) if add else models.F(self.attname)


def refuse_token(fields: Collection[str]) -> None:
    if FIELD in fields:
        raise ValueError(f"{FIELD} must never decrease: only fenced(lease) and lease= write it")


def on_shown_rows(method: Method) -> Method:
    """Make a method of QuerySet work on rows that have seen the token."""

    @wraps(method)
    def wrapper(self: FencedQuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        if self._lease is None:
            return method(self, *args, **kwargs)
        with self._shown() as rows:
            answer = method(rows, *args, **kwargs)
        if getattr(method, "alters_data", False):
            self._result_cache = None
        return answer

    return cast(Method, wrapper)


def unless_fenced(method: Method) -> Method:
    """Make a method of QuerySet refuse a fenced queryset, since it would get past the fence."""

    @wraps(method)
    def wrapper(self: FencedQuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        if any(getattr(each, "_lease", None) is not None for each in (self, *args)):
            raise NotSupportedError(
                f"fenced(lease) can't be combined with {method.__name__}: combine querysets "
                "before fenced(lease), and use its rows elsewhere as list(…)"
            )
        return method(self, *args, **kwargs)

    return cast(Method, wrapper)


class FencedQuerySet(models.QuerySet[M]):
    """A queryset with `fenced(lease)`. Until that is called it is Django's."""

    _lease: Lease | int | None = None

    def fenced(self, lease: Lease | int) -> Self:
        """Return the same rows. Each is shown the lease's fencing token before it is used.

        Raises `LeaseLost`. If one of the rows has seen a newer token, using the queryset raises
        `StaleLease` and does nothing.
        """
        Fence.of(lease)
        queryset = self._with(lease)
        queryset._for_write = True  # type: ignore[attr-defined]  # choose a database for writing: showing writes
        return queryset

    def _with(self, lease: Lease | int | None) -> Self:
        clone = self._clone()
        clone._lease = lease
        return clone

    def _clone(self) -> Self:
        clone: Self = super()._clone()  # type: ignore[misc]
        clone._lease = self._lease
        return clone

    @contextmanager
    def _shown(self) -> Iterator[Self]:
        """Open the transaction that shows the token, and yield the rows without a fence."""
        assert self._lease is not None
        fence = Fence.of(self._lease)
        self._require_rows()
        rows = self._with(None)
        key = place(self.model)[1]
        # The keys are found before the transaction: in SQLite it should begin with a write.
        found = list(rows.values_list(key, flat=True))
        keys, sliced = list(set(found)), rows.query.is_sliced
        rows.query.clear_limits()
        with transaction.atomic(using=self.db):
            fence.show(self.model, keys, self.db)
            rows = rows.filter(**{f"{key}__in": keys, FIELD: fence.token})
            yield rows[: len(found)] if sliced else rows

    def _require_rows(self) -> None:
        """Refuse results that are made from several rows, since fencing may exclude rows."""
        query = self.query
        if (
            query.combinator
            or isinstance(query.group_by, tuple)
            or (query.is_sliced and query.distinct and self._fields is not None)  # type: ignore[attr-defined]
            or any(getattr(a, "contains_over_clause", False) for a in query.annotations.values())
        ):
            raise NotSupportedError(
                "fenced(lease) is for rows, not for unions, groups of values(), window functions "
                "and slices of distinct values()"
            )

    def _fetch_all(self) -> None:
        if self._lease is None:
            super()._fetch_all()
        elif self._result_cache is None:
            with self._shown() as rows:
                self._result_cache = list(rows)

    def __repr__(self) -> str:
        # A fenced queryset does not show its rows: a debugger must not write.
        return super().__repr__() if self._lease is None else object.__repr__(self)

    def iterator(self, chunk_size: int | None = None) -> Iterator[Any]:
        """As in Django; but fenced rows are read at once, in one transaction."""
        return super().iterator(chunk_size) if self._lease is None else iter(self._clone())

    async def aiterator(self, chunk_size: int = 2000) -> AsyncIterator[Any]:
        """`iterator` for coroutines."""
        rows = super().aiterator(chunk_size) if self._lease is None else self._clone()
        async for row in rows:
            yield row

    count = on_shown_rows(models.QuerySet.count)
    exists = on_shown_rows(models.QuerySet.exists)
    aggregate = on_shown_rows(models.QuerySet.aggregate)
    delete = on_shown_rows(models.QuerySet.delete)

    raw = unless_fenced(models.QuerySet.raw)
    union = unless_fenced(models.QuerySet.union)
    intersection = unless_fenced(models.QuerySet.intersection)
    difference = unless_fenced(models.QuerySet.difference)
    __and__ = unless_fenced(models.QuerySet.__and__)
    __or__ = unless_fenced(models.QuerySet.__or__)
    __xor__ = unless_fenced(models.QuerySet.__xor__)
    resolve_expression = unless_fenced(models.QuerySet.resolve_expression)

    def update(self, **kwargs: Any) -> int:
        """As in Django. Return how many rows were written."""
        refuse_token(kwargs)
        return on_shown_rows(models.QuerySet.update)(self, **kwargs)

    def bulk_update(
        self, objs: Iterable[M], fields: Iterable[str], batch_size: int | None = None
    ) -> int:
        """As in Django. If it is fenced, the rows must be as the instances were read."""
        fields, objs = list(fields), list(objs)
        refuse_token(fields)
        if self._lease is None:
            return super().bulk_update(objs, fields, batch_size)
        fence = Fence.of(self._lease)
        with transaction.atomic(using=self.db):
            fence.show_to(objs, self.db)
            rows = self._with(None).filter(**{FIELD: fence.token})
            updated = models.QuerySet.bulk_update(rows, objs, fields, batch_size)
        for instance in objs:
            setattr(instance, FIELD, fence.token)
        return updated

    def create(self, **kwargs: Any) -> M:
        """As in Django. If it is fenced, the new row has seen the token."""
        if self._lease is None:
            return super().create(**kwargs)
        fence = Fence.of(self._lease)
        kwargs[FIELD] = fence.token
        with transaction.atomic(using=self.db):
            if self.model._meta.parents:  # a parent may have a row already
                fence.show_to([self.model(**kwargs)], self.db)
            return super().create(**kwargs)

    def bulk_create(
        self,
        objs: Iterable[M],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[M]:
        """As in Django. If it is fenced, the new rows have seen the token."""
        refuse_token(update_fields or ())
        objs = list(objs)
        if self._lease is not None:
            if update_conflicts:
                raise NotSupportedError("fenced(lease) can't be combined with update_conflicts")
            token = Fence.of(self._lease).token
            for instance in objs:
                setattr(instance, FIELD, token)
        return super().bulk_create(
            objs, batch_size, ignore_conflicts, update_conflicts, update_fields, unique_fields
        )


class FencedManager(models.Manager.from_queryset(FencedQuerySet)):  # type: ignore[misc]
    """A manager with `fenced(lease)`."""


class FencedModel(models.Model):
    """A model whose rows refuse holders with an old fencing token.

    With `lease=`, `save` and `delete` require that the row is as it was read.
    """

    fencing_token = FencingTokenField()

    objects = FencedManager()

    class Meta:
        abstract = True

    def save(self, *args: Any, lease: Lease | int | None = None, **kwargs: Any) -> None:
        with self._fenced(lease, kwargs) as exists:
            if not exists and (kwargs.get("force_update") or kwargs.get("update_fields")):
                if self.pk is not None:  # else Django says so
                    error = getattr(self, "NotUpdated", DatabaseError)  # Django has it from 6.0 on
                    raise error(f"{self._meta.label} {self.pk!r} has no row to update.")
            elif not exists:
                # Django would try an UPDATE first, and could hit a row that was made meanwhile.
                kwargs["force_insert"] = (place(type(self))[0],)
            super().save(*args, **kwargs)

    def delete(
        self, *args: Any, lease: Lease | int | None = None, **kwargs: Any
    ) -> tuple[int, dict[str, int]]:
        kwargs.update(zip(("using", "keep_parents"), args, strict=False))
        with self._fenced(lease, kwargs) as exists:
            if not exists and self.pk is not None:
                return 0, {}
            return super().delete(**kwargs)

    async def asave(self, *args: Any, **kwargs: Any) -> None:
        await sync_to_async(self.save)(*args, **kwargs)

    async def adelete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        return await sync_to_async(self.delete)(*args, **kwargs)

    @contextmanager
    def _fenced(self, lease: Lease | int | None, kwargs: dict[str, Any]) -> Iterator[bool]:
        """Open the transaction that shows the token. Yield whether the row exists."""
        if lease is None:
            yield True
            return
        fence = Fence.of(lease)
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        kwargs["using"] = using
        before = self.__dict__.get(FIELD)
        try:
            with transaction.atomic(using=using):
                by_hand = bool(kwargs.get("force_insert"))
                exists = bool(fence.show_to([self], using, by_hand=by_hand))
                self.fencing_token = fence.token
                yield exists
        except BaseException:
            if before is not None:
                self.fencing_token = before
            raise
