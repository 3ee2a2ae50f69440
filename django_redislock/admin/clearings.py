"""The pages of clearings: of one lock, and of all. They are the admin's log, so they need no
Redis."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin.models import LogEntry
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import PAGE_VAR
from django.core.exceptions import PermissionDenied
from django.core.paginator import Page, Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..inspection.lock_id import LockId
from ..inspection.words import clean
from ..models import LockStatus
from . import audit, cells, tables
from .pages import LiveAdmin

AT_ONCE = 100
"""Clearings on one page."""
NOBODY = gettext_lazy("Nobody has cleared it here.")


def clearings(id: str | None = None) -> Any:
    """Return the clearings of a lock, or of all locks, the newest first."""
    if id is not None:
        try:
            id = str(LockId.parse(id))  # printable, as a database wants it
        except ValueError:
            return LogEntry.objects.none()
    return audit.history(LockStatus, id)


class ClearingsPages(LiveAdmin):
    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.clearings_view)
        name = "django_redislock_lockstatus_clearings"
        return [path("clearings/", view, name=name), *super().get_urls()]

    @property
    def clearings_url(self) -> str:
        return self.url("clearings")

    def clearings_view(self, request: HttpRequest) -> HttpResponse:
        """Show the clearings of all locks."""
        self._require_view(request)
        page = self._page(request, clearings())
        empty = _("Nobody has cleared a lock here.")
        table = tables.history("", page.object_list, empty, self._link)
        return self._clearings(request, _("Clearings"), page, table)

    def history_view(
        self, request: Any, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the clearings of a lock, whether or not it is held."""
        self._require_view(request)
        try:
            where = LockId.parse(unquote(object_id))
        except ValueError:
            return self._gone(request, object_id)
        lock = LockStatus.free(str(where))
        title = _("Clearings of “%(name)s”") % {"name": str(lock)}
        page = self._page(request, clearings(lock.id))
        table = tables.history("", page.object_list, str(NOBODY))
        return self._clearings(request, title, page, table, lock)

    def _require_view(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _page(self, request: HttpRequest, entries: Any) -> Page[LogEntry]:
        return Paginator(entries, AT_ONCE).get_page(request.GET.get(PAGE_VAR))

    def _clearings(
        self,
        request: HttpRequest,
        title: str,
        page: Page[LogEntry],
        table: tables.Table,
        lock: LockStatus | None = None,
    ) -> HttpResponse:
        context = {
            **self.frame(request, title),
            "table": table,
            "page": page,
            "pages": page.paginator.get_elided_page_range(page.number),
            "page_var": PAGE_VAR,
            "preserved_filters": self.get_preserved_filters(request),
            "lock_url": lock and self.url("change", lock.pk),
            "clearings_url": self.clearings_url,
            "list_url": self._with_filters(request, self.url("changelist")),
        }
        return TemplateResponse(request, "admin/django_redislock/clearings.html", context)

    def _link(self, entry: LogEntry) -> str:
        """A lock that was cleared; a link to it if it can exist with these settings."""
        name = cells.value(entry.object_repr)
        try:
            id = str(LockId.parse(entry.object_id or ""))
        except ValueError:
            return name
        return format_html('<a href="{}">{}</a>', self.url("change", id), name)

    def _with_filters(self, request: HttpRequest, url: str) -> str:
        """Add the filters of the list from which somebody came."""
        filters: Any = {
            "preserved_filters": self.get_preserved_filters(request),
            "opts": self.opts,
        }
        return add_preserved_filters(filters, url)

    def _back(
        self, request: HttpRequest, message: Any, level: int, page: str = "changelist", *ids: str
    ) -> HttpResponse:
        self.message_user(request, message, level)
        return HttpResponseRedirect(self._with_filters(request, self.url(page, *ids)))

    def _gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        id = unquote(object_id)
        try:
            name = LockId.parse(id).name
        except ValueError:
            name = id
        message = _("Nobody holds “%(name)s” now.") % {"name": clean(name)}
        return self._back(request, message, messages.INFO)

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, _opts: Any, object_id: str
    ) -> HttpResponse:
        """Lead to the list, where Django leads to the start of the admin."""
        return self._gone(request, object_id)
