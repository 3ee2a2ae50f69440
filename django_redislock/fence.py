"""The rule of fencing: a row is shown a fencing token before it is read or written.

One rule for reading and writing. The rows are found, and *shown* the lease's fencing token, which
they keep. If one of them has seen a newer token, nothing is done and `StaleLease` is raised. Else
they are read or written. All but the finding is one transaction, and showing is an UPDATE, which
keeps the rows locked until its end.

A row has to see the token before it is read. If only writes were checked, the write of a former
holder could come between the reading and the writing of the next one, and be accepted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from django.db import models

from .base.exceptions import StaleLease, StaleRead
from .lease.lease import Lease

FIELD = "fencing_token"


@dataclass(frozen=True)
class Fence:
    """A fencing token to show, and whose it is, if that is known."""

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
        """Show the token to those rows that exist, and return how many do.

        To be called in a transaction, which has to end when this raises. With `read_at` they are
        the rows of instances that were read when they had that token, and must not have been
        written or deleted since.
        """
        owner, key = place(model)
        rows: models.QuerySet[Any] = models.QuerySet(owner, using=using)
        rows = rows.filter(**{f"{key}__in": keys})
        # Those that have it are written as well: nobody may show them a newer one before we have
        # done our work. The condition is on the column itself and not in a subquery, since that is
        # what PostgreSQL looks at again after it has waited for somebody else's transaction.
        ours = rows.filter(**{f"{FIELD}__lte": self.token})
        if read_at is not None:
            ours = ours.filter(**{FIELD: read_at})
        shown = ours.update(**{FIELD: self.token})
        if shown == len(keys):
            return shown
        seen = dict(rows.values_list(key, FIELD))
        label = model._meta.label
        if newer := [pk for pk, token in seen.items() if token > self.token]:
            error = StaleLease(self.name, label, newer, self.token, max(seen.values()))
            if self.lease is not None:
                self.lease.lose(error)  # somebody else has had the lock after us
            raise error
        if read_at is not None:
            pks = [pk for pk in keys if seen.get(pk) != self.token] or keys
            raise StaleRead(self.name, label, pks, "was written or deleted since it was read")
        return shown

    def show_to(
        self, instances: Sequence[models.Model], using: str, *, by_hand: bool = False
    ) -> int:
        """Show the token to the rows of instances, if they are as they were read.

        Those that were not read but made `by_hand` may replace what is there, or be new.
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
        """The token that the row had when it was read, or None for an instance made by hand."""
        if instance._state.adding or instance._state.db != using:
            return None
        if FIELD in instance.get_deferred_fields():
            label, why = instance._meta.label, f"was read without its {FIELD}"
            raise StaleRead(self.name, label, [instance.pk], why)
        token: int = getattr(instance, FIELD)
        return token


def place(model: type[models.Model]) -> tuple[type[models.Model], str]:
    """The model whose table has the token, perhaps a parent, and the name of its primary key."""
    owner: type[models.Model] = model._meta.get_field(FIELD).model
    return owner, owner._meta.pk.attname


def fill_in_keys(instance: models.Model) -> None:
    """Give an instance the keys of its parents from the links to them, as Django's save() does."""
    for parent, link in instance._meta.parents.items():  # the nearest comes first
        key = parent._meta.pk.attname
        if link is not None and getattr(instance, key) is None:
            setattr(instance, key, getattr(instance, link.attname))
