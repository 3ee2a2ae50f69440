"""What the pages have in common: those of a model whose rows are seen at Redis."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.text import capfirst
from django.utils.translation import gettext

from ..base.exceptions import LockError
from ..inspection.live import Snapshot
from ..inspection.words import clean

REFRESH = "X-Redislock-Refresh"
"""The header by which locks.js says that it asks, and nobody who opens the page."""


def or_away(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """When Redis can't be asked, a page that says so; for who may know, before it is asked."""

    @wraps(view)
    def page(self: LiveAdmin, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            return view(self, request, *args, **kwargs)
        except LockError as error:
            return self.away(request, error)

    return page


class LiveAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # django-stubs only
    """Its rows are a snapshot, one for each request; nobody adds, changes or deletes them."""

    list_per_page = 100
    list_max_show_all = 1000
    show_facets = admin.ShowFacets.ALWAYS

    class Media:
        css = {"all": ("django_redislock/locks.css",)}
        js = ("django_redislock/locks.js",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def snapshot(self, request: Any) -> Snapshot:
        """What one request sees: rows, counts and filters of one time."""
        found: Snapshot | None = getattr(request, "_redislock_snapshot", None)
        if found is None:
            found = request._redislock_snapshot = self.look(request)
        return found

    def look(self, request: HttpRequest) -> Snapshot:
        """A new snapshot."""
        model: Any = self.model
        snapshot: Snapshot = model.snapshot()
        return snapshot

    def get_queryset(self, request: HttpRequest) -> Any:
        model: Any = self.model
        return model.live.of(self.snapshot(request))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return flatten_fieldsets(self.get_fieldsets(request, obj))

    def summary(self, snapshot: Snapshot) -> dict[str, Any]:
        """What the line above the list says."""
        raise NotImplementedError

    @or_away
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # Before Django's own try: what fails here is Redis, and not the question.
        snapshot = self.snapshot(request)
        context = {
            "title": capfirst(self.opts.verbose_name_plural),
            "summary": self.summary(snapshot),
            **_unseen(request),
        }
        return super().changelist_view(request, context | (extra_context or {}))

    @or_away
    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        return super().change_view(request, object_id, form_url, extra_context)

    def delete_view(self, *_args: Any, **_kwargs: Any) -> HttpResponse:
        raise PermissionDenied

    def frame(self, request: Any, title: str) -> dict[str, Any]:
        """What a page needs that has the frame of a row's page."""
        request.current_app = self.admin_site.name
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "original": title,
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
        }

    def away(self, request: HttpRequest, error: LockError) -> HttpResponse:
        context = {
            **self.frame(request, gettext("Redis can’t be asked")),
            **_unseen(request),
            "error": clean(str(error)),
            "changes": request.method == "POST",
        }
        template = "admin/django_redislock/away.html"
        return TemplateResponse(request, template, context, status=503)


def _unseen(request: HttpRequest) -> dict[str, Any]:
    """What a refresh takes no notice of: to show messages would use them up."""
    return {"messages": ()} if REFRESH in request.headers else {}
