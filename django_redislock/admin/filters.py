"""What the list can be narrowed to. All is counted in the snapshot that the page shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import FREE, KINDS, STATES


class FieldFilter(admin.SimpleListFilter):
    """Rows with one value of the field `parameter_name`."""

    names: Sequence[tuple[str, Any]] = ()
    """The values that there are, and what they are called; by default those that are seen."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        if self.names:
            return self.names
        rows = model_admin.snapshot(request).rows
        # The chosen one, too: its locks may have gone meanwhile.
        seen = set(map(self._value_of, rows)) | {self.value() or ""}
        return [(value, value) for value in sorted(seen - {""})]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if value is None:
            return queryset
        try:
            return queryset.filter(**{str(self.parameter_name): value})
        except (ValueError, ValidationError) as error:
            raise IncorrectLookupParameters(error) from error

    def get_facet_queryset(self, changelist: ChangeList) -> dict[str, int]:
        others: Any = changelist.get_queryset(
            self.request, exclude_parameters=self.expected_parameters()
        )
        counts = Counter(map(self._value_of, others))
        return {f"{i}__c": counts[value] for i, (value, _) in enumerate(self.lookup_choices)}

    def _value_of(self, row: Any) -> str:
        return str(getattr(row, str(self.parameter_name)))


class StateFilter(FieldFilter):
    title = _("state")
    parameter_name = "state"
    names = [(value, name) for value, name in STATES if value != FREE]


class ContendedFilter(FieldFilter):
    title = _("contended")
    parameter_name = "contended"
    names = [("True", _("yes")), ("False", _("no"))]


class KindFilter(FieldFilter):
    title = _("kind")
    parameter_name = "kind"
    names = KINDS


class HostFilter(FieldFilter):
    title = _("host")
    parameter_name = "host"


class CacheFilter(FieldFilter):
    title = _("cache")
    parameter_name = "using"

    def has_output(self) -> bool:
        return len(self.lookup_choices) > 1


class ForeignFilter(admin.SimpleListFilter):
    """Whether to look for what others have written below our prefix. All keys have to be looked
    at for that, so it is done on request only."""

    title = _("values of others")
    parameter_name = "foreign"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("1", _("looked for"))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset  # the snapshot has them

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        for value, name in ((None, _("left out")), *self.lookup_choices):
            yield {
                "selected": self.value() == value,
                "query_string": changelist.get_query_string({self.parameter_name: value}),
                "display": name,
            }
