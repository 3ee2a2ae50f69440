"""The parts that the pages of locks and of jobs share: their rows are read from Redis."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, Self

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import IncorrectLookupParameters, get_content_type_for_model
from django.contrib.admin.utils import flatten_fieldsets, quote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connections, router, transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..base.clock import now
from ..base.exceptions import LockError, LockUnavailable
from ..doctor import rules, vendors
from ..doctor.caches import advice
from ..doctor.finding import Finding, Level
from ..doctor.server import Unreachable, ask
from ..inspection.words import clean
from ..models import Snapshot

# What operators did to locks and jobs, as entries of the admin's history.
#
# An entry is written after the deed, which nobody can take back. So an entry that can't be
# written, for whatever reason, is logged and shown, and fails no request.


logger = logging.getLogger("django_redislock")

UNWRITTEN = _("This is missing from the history, which could not be written. See the log.")


class Deed(NamedTuple):
    """What was done to one lock or job."""

    id: str
    name: str
    message: str


def log_entries(model: Any, id: str | None = None) -> Any:
    """Return the entries of a row, or of all rows, the newest first."""
    entries = LogEntry.objects.filter(content_type_id=get_content_type_for_model(model).pk)
    if id is not None:
        entries = entries.filter(object_id=id)
    return entries.select_related("user").order_by("-action_time", "-pk")


def write_down(user: Any, model: Any, deeds: Sequence[Deed]) -> bool:
    """Write an entry for each deed. If that fails, log them and return False."""
    try:
        using = router.db_for_write(LogEntry)
        # Numbers, since routers may refuse a relation to a row that was read from a replica.
        content_type_id = get_content_type_for_model(model).pk
        # A savepoint: a failure here must not break the transaction of the request.
        with transaction.atomic(using=using):
            LogEntry.objects.db_manager(using).bulk_create(
                LogEntry(
                    user_id=user.pk,
                    content_type_id=content_type_id,
                    object_id=deed.id,
                    object_repr=clean(deed.name)[:200],
                    action_flag=CHANGE,
                    change_message=deed.message,
                )
                for deed in deeds
            )
    except Exception as error:  # of the database, a router, or a receiver of a signal
        who = clean(str(user.get_username()))
        for deed in deeds:
            text = "The history lacks what %s did to %r: %s (%s)"
            logger.exception(text, who, deed.id, clean(deed.message), error)
        return False
    return True


REFRESH = "X-Redislock-Refresh"
"""The header that locks.js sends with its own requests."""


def or_away(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Answer with a page that says so if Redis can't be reached. Permissions are checked first."""

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
    """An admin whose rows are a snapshot, one for each request. They are read only."""

    model: Any
    list_per_page = 100
    list_max_show_all = 1000
    show_facets = admin.ShowFacets.ALWAYS

    class Media:
        css = {"all": ("django_redislock/locks.css",)}
        js = ("django_redislock/locks.js",)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission

    def may(self, request: Any, permission: str) -> bool:
        """Whether somebody has this permission of the model, and may see it at all."""
        has = request.user.has_perm(f"{self.opts.app_label}.{permission}")
        return bool(has and self.has_view_permission(request))

    @property
    def urls(self) -> list[Any]:
        """The pages, without ATOMIC_REQUESTS: an error after a deed must not take its entry in the
        history back."""
        urls = self.get_urls()
        for url in urls:
            for alias in connections:
                transaction.non_atomic_requests(using=alias)(url.callback)
        return urls

    def page(self, name: str, route: str, view: Callable[..., Any], **given: Any) -> Any:
        """Return a page of its own, for `get_urls`."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
        return path(route, self.admin_site.admin_view(view), given, name=name)

    def url(self, page: str, *ids: str) -> str:
        """Return the address of a page of this site."""
        name = f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, args=[quote(id) for id in ids])

    def snapshot(self, request: Any) -> Snapshot:
        """Return the snapshot of a request, so that its rows, counts and filters agree."""
        if not hasattr(request, "_redislock_snapshot"):
            request._redislock_snapshot = self.take_snapshot(request)
        return request._redislock_snapshot  # type: ignore[no-any-return]

    def take_snapshot(self, request: HttpRequest) -> Snapshot:
        """Read Redis."""
        return self.model.snapshot()  # type: ignore[no-any-return]

    def get_queryset(self, request: HttpRequest) -> Any:
        return self.model.live.of(self.snapshot(request))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return flatten_fieldsets(self.get_fieldsets(request, obj))

    def summary(self, snapshot: Snapshot) -> dict[str, Any]:
        """Return what the line above the list shows: `counts`, and as `empty`, the template for a
        list without rows."""
        raise NotImplementedError

    @or_away
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # Read first: inside Django's own `try`, a failure of Redis would look like a wrong filter.
        summary = self.summary(self.snapshot(request))
        title = capfirst(self.opts.verbose_name_plural)
        context = {"title": title, "summary": summary, **_messages_kept(request)}
        page = super().changelist_view(request, context | (extra_context or {}))
        changelist = (getattr(page, "context_data", None) or {}).get("cl")
        if changelist is not None and "total" in summary:
            # The snapshot may have fewer rows than there are.
            changelist.full_result_count = summary["total"]
        return page

    change_view = or_away(admin.ModelAdmin.change_view)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        context |= _messages_kept(request)
        return super().render_change_form(request, context, *args, **kwargs)

    def delete_view(self, *_args: Any, **_kwargs: Any) -> HttpResponse:
        raise PermissionDenied

    def frame(self, request: Any, title: str) -> dict[str, Any]:
        """Return the context of a page that looks like the page of a row."""
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
        said = unanswered(error)
        context = {
            **self.frame(request, said["text"]),
            **_messages_kept(request),
            "why": said["why"],
            "changes": request.method == "POST",
        }
        template = "admin/django_redislock/away.html"
        return TemplateResponse(request, template, context, status=503)


class Count(NamedTuple):
    """A number in the line above a list."""

    number: int
    name: Any
    link: str
    """The list that has them: a query."""
    state: str = ""


def unanswered(error: LockError) -> dict[str, str]:
    """Say which server does not answer, and why."""
    text = gettext("Redis can’t be reached")
    if isinstance(error, LockUnavailable) and error.using:
        names = {"alias": error.using, "where": error.where}
        text = gettext("Redis “%(alias)s” (%(where)s) does not answer") % names
    return {"text": clean(text), "why": clean(str(error))}


def _messages_kept(request: HttpRequest) -> dict[str, Any]:
    """Return the context that keeps messages: a refresh would use them up, unseen."""
    return {"messages": ()} if REFRESH in request.headers else {}


class FieldFilter(admin.SimpleListFilter):
    """A filter for rows with one value of the field `parameter_name`, counted in the snapshot."""

    names: Sequence[tuple[str, Any]] = ()
    """The possible values and their names; by default the values of the rows."""

    @classmethod
    def of(cls, title: Any, parameter: str, names: Sequence[tuple[str, Any]] = ()) -> type[Self]:
        given = {"title": title, "parameter_name": parameter, "names": names}
        return type(f"{parameter}_filter", (cls,), given)

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        if self.names:
            return self.names
        rows = model_admin.snapshot(request).rows
        # The chosen value is offered, too, even if its locks have gone meanwhile.
        seen = {value for row in rows for value in self._values_of(row)} | {self.value() or ""}
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
        counts = Counter(value for row in others for value in self._values_of(row))
        return {f"{i}__c": counts[value] for i, (value, _) in enumerate(self.lookup_choices)}

    def _values_of(self, row: Any) -> set[str]:
        return set(map(str, row.values_of(str(self.parameter_name))))


# The quick part of the doctor's findings about a server, kept for a minute, for the list.


GOOD_FOR = 60.0
"""Seconds."""


class Health(NamedTuple):
    server: str
    """The server's vendor, name and version; "": it was not reached."""
    primary: bool
    findings: list[Finding]
    """The warnings and errors."""


_known: dict[str, tuple[float, Health]] = {}


def health(alias: str) -> Health:
    """Return the health of an alias's server, at most a minute old."""
    if alias not in _known or now() - _known[alias][0] > GOOD_FOR:
        _known[alias] = now(), _ask(alias)
    return _known[alias][1]


def _ask(alias: str) -> Health:
    try:
        servers = ask(alias, thorough=False)
    except Unreachable:
        return Health("", False, [])  # the list reports it
    server = servers[0]  # the nodes of a cluster are of one version
    found = [*advice(alias), *(one for its in servers for one in rules.judge(its))]
    bad = [one for one in found if one.level != Level.INFO]
    name = vendors.described(server.vendor, server.info)
    return Health(name, server.info.get("role") == "master", bad)
