"""The list of the records, to look at. It does not show what they keep, such as responses."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from .models import Record


@admin.register(Record)
class RecordAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    fields = list_display = ("name", "label", "done", "at")
    list_filter = ("done", "at")
    search_fields = ("name", "label")
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("value", "steps")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    has_change_permission = has_delete_permission = has_add_permission
