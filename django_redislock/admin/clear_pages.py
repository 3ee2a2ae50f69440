"""The pages that clear locks: one asks for confirmation, the other one does it."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin, messages
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
from django.utils.translation import gettext, gettext_lazy, ngettext_lazy
from django.utils.translation import gettext as _

from ..inspection.clearing import ClearOutcome, Target
from ..inspection.sheet import LOCKS
from ..inspection.words import clean
from ..models import LockStatus
from ..models.live import LockId
from . import cells, confirmation
from .confirmation import afterwards, some_are_stale, what_happens
from .pages import UNWRITTEN, LiveAdmin, log_entries, or_away


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
        table = cells.history("", page.object_list, empty, self._link)
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
        table = cells.history("", page.object_list, str(NOBODY))
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
        table: cells.Table,
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


CLEARED = [one for one in LOCKS if one.title in ("name", "state", "holder", "held for", "waiters")]


class ClearPages(ClearingsPages):
    actions = ("clear_locks",)

    def has_clear_permission(self, request: Any) -> bool:
        return self.may(request, "clear_lock")

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        return [
            path("clear/", view(self.clear_view), name="django_redislock_lockstatus_clear"),
            path(
                "<path:object_id>/clear/",
                view(self.ask_view),
                name="django_redislock_lockstatus_ask",
            ),
            *super().get_urls(),
        ]

    def clear_url(self, request: HttpRequest, lock: LockStatus) -> str:
        if lock.info is None or not self.has_clear_permission(request):
            return ""
        return self._with_filters(request, self.url("ask", lock.id))

    @admin.action(description=gettext_lazy("Clear selected locks"), permissions=["clear"])
    def clear_locks(self, request: HttpRequest, queryset: Any) -> HttpResponse:
        return self._ask(request, list(queryset), self.url("changelist"))

    @or_away
    def ask_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for confirmation to clear one lock."""
        if not self.has_clear_permission(request):
            raise PermissionDenied
        id = unquote(object_id)
        lock = self.get_object(request, id)
        if lock is None:
            return self._gone(request, object_id)
        page = self.url("change", id)
        if lock.info is None:
            message = _("Nobody holds “%(name)s” now.") % {"name": str(lock)}
            return self._back(request, message, messages.INFO, "change", id)
        return self._ask(request, [lock], page)

    @or_away
    def clear_view(self, request: HttpRequest) -> HttpResponse:
        """Clear what the confirmation sends."""
        if not self.has_clear_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseRedirect(self.url("changelist"))
        form = confirmation.ClearForm(request.POST)
        if not form.is_valid():
            if "seen" in form.errors:
                return self._back(request, str(form.errors["seen"][0]), messages.ERROR)
            locks = confirmation.shown(form.cleaned_data["seen"])
            return self._ask(request, locks, self.url("changelist"), form)
        given = form.cleaned_data
        done = confirmation.clear(
            request.user, given["seen"], given["reason"], stale_only=given["stale_only"]
        )
        for outcome, level, sentence in _SENTENCES:
            found = [target for target in done.targets if target.outcome == outcome]
            if found:
                text = sentence % _words(found)
                if outcome == ClearOutcome.CLEARED:
                    text = f"{text} {afterwards(found)}"
                self.message_user(request, text, level)
        if not done.written:
            self.message_user(request, UNWRITTEN, messages.ERROR)
        page = self.url("changelist")
        if len(done.targets) == 1:
            page = self.url("change", next(iter(given["seen"])))
        return HttpResponseRedirect(self._with_filters(request, page))

    def _ask(
        self,
        request: HttpRequest,
        locks: list[LockStatus],
        back: str,
        form: confirmation.ClearForm | None = None,
    ) -> HttpResponse:
        if form is None:
            seen = confirmation.sealed(locks)
            most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
            if most is not None and len(seen) > 0.9 * most:
                message = gettext("These are too many locks for one form: clear fewer at a time.")
                return self._back(request, message, messages.ERROR)
            form = confirmation.ClearForm(initial={"seen": seen})
        infos = filter(None, (lock.info for lock in locks))
        title = gettext("Clear %(count)d locks")
        if len(locks) == 1:
            title = gettext("Clear “%(name)s”")
        context = {
            **self.frame(
                request, title % {"count": len(locks), "name": locks[0] if locks else ""}
            ),
            "form": form,
            "table": cells.table("", CLEARED, infos, more=len(locks) - cells.SHOWN),
            "total": len(locks),
            "what_happens": what_happens(locks),
            "some_are_stale": len(locks) == 1 and some_are_stale(locks[0]),
            "clear_url": self._with_filters(request, self.url("clear")),
            "back_url": self._with_filters(request, back),
        }
        return TemplateResponse(request, "admin/django_redislock/clear.html", context)


def _words(targets: list[Target]) -> dict[str, Any]:
    """The values of a sentence about targets."""
    names = [f"“{clean(target.name)}”" for target in targets]
    if len(names) > 3:
        names = [names[0], f"{names[1]} … {names[-1]}"]
    return {
        "count": len(targets),
        "names": ", ".join(names),
        "error": targets[0].error,
    }


_SENTENCES = [
    (
        ClearOutcome.CLEARED,
        messages.SUCCESS,
        ngettext_lazy("Cleared %(names)s.", "Cleared %(count)d locks: %(names)s.", "count"),
    ),
    (
        ClearOutcome.CHANGED,
        messages.WARNING,
        ngettext_lazy(
            "%(names)s has changed hands meanwhile, and was left alone.",
            "%(count)d locks have changed hands meanwhile, and were left alone: %(names)s.",
            "count",
        ),
    ),
    (
        ClearOutcome.FREE,
        messages.INFO,
        ngettext_lazy(
            "%(names)s was free already.", "%(count)d locks were free already: %(names)s.", "count"
        ),
    ),
    (
        ClearOutcome.REFUSED,
        messages.ERROR,
        ngettext_lazy(
            "%(names)s can’t be cleared: %(error)s",
            "%(count)d locks can’t be cleared: %(names)s. %(error)s",
            "count",
        ),
    ),
    (
        ClearOutcome.UNKNOWN,
        messages.ERROR,
        ngettext_lazy(
            "%(names)s may have been cleared, or not: %(error)s",
            "%(count)d locks may have been cleared, or not: %(names)s. %(error)s",
            "count",
        ),
    ),
    (
        ClearOutcome.NOT_ASKED,
        messages.ERROR,
        ngettext_lazy(
            "%(names)s was left alone, since Redis did not answer any more.",
            "%(count)d locks were left alone, since Redis did not answer any more: %(names)s.",
            "count",
        ),
    ),
]


# The pages of clearings: of one lock, and of all. They are the admin's log, so they need no
# Redis.


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
    return log_entries(LockStatus, id)
