"""The locks' pages: the list, a lock, its history, and clearing.

They are the admin's own pages of a model. Its rows are a snapshot of Redis, one for each request.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from .. import conf
from ..clearing import Outcome, Target
from ..inspection import SHARED, State
from ..keys import validate_name
from ..live import Snapshot, servers
from ..management.formatting import clean, duration, place_text, value_text
from ..models import STATES, Lock, place
from ..sentences import translated
from . import cells, clearing
from .filters import (
    CacheFilter,
    ContendedFilter,
    ForeignFilter,
    HostFilter,
    KindFilter,
    StateFilter,
)
from .health import health
from .pages import LiveAdmin, or_away

SHOWN = 100
"""Locks that a confirmation lists, and waiters that a lock's page does."""


class LockAdmin(LiveAdmin):
    actions = ("clear_locks",)
    list_filter = (
        StateFilter,
        ContendedFilter,
        KindFilter,
        HostFilter,
        CacheFilter,
        ForeignFilter,
    )
    search_fields = ("name", "owner", "label")
    # Who may do what.

    def has_clear_permission(self, request: Any) -> bool:
        may: bool = request.user.has_perm(f"{self.opts.app_label}.clear_lock")
        return may and self.has_view_permission(request)

    # The rows.

    def look(self, request: HttpRequest) -> Snapshot:
        return Lock.snapshot(foreign="foreign" in request.GET)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Lock | None:
        """A lock that is held; or one that was, and of which something is known still."""
        try:
            where = place(object_id)
        except ValueError:
            return None
        if getattr(request, "_redislock_history", False):
            return Lock.free(object_id)  # what the database knows needs no Redis
        lock = Lock.at(object_id)
        if lock is None and (where.cache_locks or _is_name(where.name)):
            past = where.inspector().past(where.name).fencing_token
            if past is not None or _history(object_id).exists():
                lock = Lock.free(object_id)
        return lock

    # The list.

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        columns = ["its_name", "its_state", "its_remaining", "its_holder", "its_held"]
        columns += ["waiters", "its_fencing_token"]
        if len(servers()) > 1:
            columns.insert(1, "using")
        return columns

    @admin.display(description=_("name"), ordering="name")
    def its_name(self, lock: Lock) -> str:
        return cells.name(lock)

    @admin.display(description=_("state"), ordering="state")
    def its_state(self, lock: Lock) -> str:
        return cells.state(lock)

    @admin.display(description=_("remaining"), ordering="remaining")
    def its_remaining(self, lock: Lock) -> str:
        return cells.remaining(lock)

    @admin.display(description=_("holder"), ordering="owner")
    def its_holder(self, lock: Lock) -> str:
        return cells.holder(lock)

    @admin.display(description=_("held for"), ordering="held")
    def its_held(self, lock: Lock) -> str:
        return cells.held(lock)

    @admin.display(description=_("fencing token"), ordering="fencing_token")
    def its_fencing_token(self, lock: Lock) -> str:
        return cells.fencing_token(lock)

    def summary(self, request: HttpRequest, rows: list[dict[str, Any]]) -> dict[str, Any]:
        states = Counter(row["state"] for row in rows)
        away = self.snapshot(request).away
        return {
            "states": [
                (value, name, states[value])
                for value, name in STATES
                if states[value] or value == State.HELD
            ],
            "contended": sum(row["contended"] for row in rows),
            "servers": [
                {"alias": alias, "away": str(away.get(alias, "")), "health": health(alias)}
                for alias in servers()
            ],
        }

    # One lock.

    def get_fieldsets(self, request: HttpRequest, obj: Lock | None = None) -> Any:
        about = [("its_name", "its_state_and_why"), ("kind", "using")]
        if obj is None or obj.info is None:
            return [(None, {"fields": about})]
        if obj.info.kind in SHARED:
            about.append(("its_crowd", "waiters"))
            return [(None, {"fields": about})]  # its page has a table of them
        holder = [("its_owner", "its_label"), ("its_since", "its_held")]
        lease = [("its_remaining", "its_ttl"), ("its_fencing_token", "waiters")]
        return [
            (None, {"fields": about}),
            (_("Holder"), {"fields": holder}),
            (_("Lease"), {"fields": lease}),
        ]

    @admin.display(description=_("state"))
    def its_state_and_why(self, lock: Lock) -> str:
        return cells.state_and_why(lock)

    @admin.display(description=_("holder"))
    def its_owner(self, lock: Lock) -> str:
        return cells.owner(lock)

    @admin.display(description=_("held by"))
    def its_crowd(self, lock: Lock) -> str:
        return cells.crowd(lock)

    @admin.display(description=_("label"))
    def its_label(self, lock: Lock) -> str:
        return clean(lock.label) or cells.NOTHING

    @admin.display(description=_("since"))
    def its_since(self, lock: Lock) -> str:
        return cells.moment(lock.acquired_at)

    @admin.display(description=_("TTL"))
    def its_ttl(self, lock: Lock) -> str:
        return cells.NOTHING if lock.ttl is None else duration(lock.ttl)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        lock = kwargs["obj"]
        where = place(lock.id)
        inspector = where.inspector()
        seen = lock.info or where.name
        waiters, past = inspector.waiters(seen, SHOWN), inspector.past(seen)
        shared = lock.info is not None and lock.info.kind in SHARED
        holders = lock.info.holders if lock.info is not None and shared else ()
        context |= {
            "holders": [cells.one_holder(one) for one in holders[:SHOWN]],
            "more_holders": lock.info.holding - SHOWN if lock.info is not None and shared else 0,
            "waiters": [
                {
                    "holder": cells.person(waiter.owner, cells.waiter_label(waiter)),
                    "waited": duration(waiter.waited),
                }
                for waiter in waiters
            ],
            "more_waiters": max(0, lock.waiters - len(waiters)),
            "past": [cells.past(holder) for holder in past.holders],
            "lock_settings": [] if where.cache_locks else _settings(lock.name),
            "history": _history(lock.id)[:10],
            "clear_url": self._clear_url(request, lock),
        }
        return super().render_change_form(request, context, *args, **kwargs)

    @or_away
    def history_view(
        self,
        request: Any,
        object_id: str,
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        # The lock may have gone, and Redis be away.
        request._redislock_history = _history(unquote(object_id)).exists()
        return super().history_view(request, object_id, extra_context)

    # Clearing.

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        return [
            path("clear/", view(self.clear_view), name="django_redislock_lock_clear"),
            path(
                "<path:object_id>/clear/",
                view(self.ask_view),
                name="django_redislock_lock_ask",
            ),
            *super().get_urls(),
        ]

    def _url(self, page: str, *args: str) -> str:
        name = f"{self.admin_site.name}:django_redislock_lock_{page}"
        return reverse(name, args=args)

    def _clear_url(self, request: HttpRequest, lock: Lock) -> str:
        if lock.info is None or not self.has_clear_permission(request):
            return ""
        return self._url("ask", quote(lock.id))

    @admin.action(description=_("Clear selected locks"), permissions=["clear"])
    def clear_locks(self, request: HttpRequest, queryset: Any) -> HttpResponse:
        return self._ask(request, list(queryset))

    @or_away
    def ask_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The confirmation for one lock."""
        if not self.has_clear_permission(request):
            raise PermissionDenied
        id = unquote(object_id)
        lock = self.get_object(request, id)
        if lock is None:
            message = _("Nothing is known of a lock “%(id)s”.") % {"id": clean(id)}
            self.message_user(request, message, messages.WARNING)
            return HttpResponseRedirect(self._url("changelist"))
        if lock.info is None:
            message = _("Nobody holds “%(name)s” any more.") % {"name": str(lock)}
            self.message_user(request, message, messages.WARNING)
            return HttpResponseRedirect(self._url("change", quote(id)))
        return self._ask(request, [lock])

    @or_away
    def clear_view(self, request: HttpRequest) -> HttpResponse:
        """What the confirmation sends."""
        if not self.has_clear_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseRedirect(self._url("changelist"))
        form = clearing.ClearForm(request.POST)
        if not form.is_valid():
            if "seen" in form.errors:
                self.message_user(request, str(form.errors["seen"][0]), messages.ERROR)
                return HttpResponseRedirect(self._url("changelist"))
            return self._ask(request, clearing.shown(form.cleaned_data["seen"]), form)
        done = clearing.clear(request.user, form.cleaned_data["seen"], form.cleaned_data["reason"])
        for outcome, level, sentence in _SENTENCES:
            found = [target for target in done if target.outcome == outcome]
            if found:
                self.message_user(request, sentence % _words(found), level)
        return HttpResponseRedirect(self._url("changelist"))

    def _ask(
        self, request: HttpRequest, locks: list[Lock], form: clearing.ClearForm | None = None
    ) -> HttpResponse:
        if form is None:
            seen = clearing.sealed(locks)
            most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
            if most is not None and len(seen) > 0.9 * most:
                message = gettext("These are too many locks for one form: clear fewer at a time.")
                self.message_user(request, message, messages.ERROR)
                return HttpResponseRedirect(self._url("changelist"))
            form = clearing.ClearForm(initial={"seen": seen})
        title = ngettext("Clear a lock", "Clear %(count)d locks", len(locks))
        context = {
            **self.frame(request, title % {"count": len(locks)}),
            "form": form,
            "locks": [
                {
                    "name": cells.name(lock),
                    "state": cells.state_and_why(lock),
                    "holder": cells.holder(lock),
                    "held": cells.held(lock),
                    "waiters": lock.waiters,
                }
                for lock in locks[:SHOWN]
            ],
            "more": max(0, len(locks) - SHOWN),
            "total": len(locks),
            "waiters": sum(lock.waiters for lock in locks),
            "alive": sum(
                one.state == State.HELD
                for lock in locks
                if lock.info is not None
                for one in lock.info.holders
            ),
            "clear_url": self._url("clear"),
            "back_url": self._url("changelist"),
        }
        return TemplateResponse(request, "admin/django_redislock/lock/clear.html", context)


def _is_name(name: str) -> bool:
    """Or it is a stranger's, of which nothing but the value was ever there."""
    try:
        validate_name(name)
    except ValueError:
        return False
    return True


def _history(id: str) -> Any:
    """What was done to a lock, the newest first."""
    entries = LogEntry.objects.filter(object_id=id, content_type=get_content_type_for_model(Lock))
    return entries.select_related("user").order_by("-action_time")


def _settings(name: str) -> list[tuple[str, str, str]]:
    """Each setting of a lock, and where it comes from."""
    return [
        (term.upper(), value_text(setting.value), translated(place_text(term.upper(), setting)))
        for term, setting in conf.origins(name).items()
    ]


def _words(targets: list[Target]) -> dict[str, Any]:
    """What a sentence tells of them."""
    names = ", ".join(f"“{clean(target.name)}”" for target in targets[:3])
    return {
        "count": len(targets),
        "names": names if len(targets) <= 3 else f"{names}, …",
        "error": targets[0].error,
    }


_SENTENCES = [
    (
        Outcome.CLEARED,
        messages.SUCCESS,
        ngettext_lazy("Cleared %(names)s.", "Cleared %(count)d locks: %(names)s.", "count"),
    ),
    (
        Outcome.CHANGED,
        messages.WARNING,
        ngettext_lazy(
            "%(names)s has changed hands meanwhile, and was left alone.",
            "%(count)d locks have changed hands meanwhile, and were left alone: %(names)s.",
            "count",
        ),
    ),
    (
        Outcome.FREE,
        messages.INFO,
        ngettext_lazy(
            "%(names)s was free already.", "%(count)d locks were free already: %(names)s.", "count"
        ),
    ),
    (
        Outcome.REFUSED,
        messages.ERROR,
        ngettext_lazy(
            "%(names)s can’t be cleared: %(error)s",
            "%(count)d locks can’t be cleared: %(names)s. %(error)s",
            "count",
        ),
    ),
    (
        Outcome.UNKNOWN,
        messages.ERROR,
        ngettext_lazy(
            "%(names)s may have been cleared, or not: %(error)s",
            "%(count)d locks may have been cleared, or not: %(names)s. %(error)s",
            "count",
        ),
    ),
    (
        Outcome.NOT_ASKED,
        messages.ERROR,
        ngettext_lazy(
            "%(names)s was left alone, since Redis did not answer any more.",
            "%(count)d locks were left alone, since Redis did not answer any more: %(names)s.",
            "count",
        ),
    ),
]
