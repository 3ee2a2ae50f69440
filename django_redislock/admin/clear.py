"""Clear locks from the admin: only what the operator has seen.

A page asks for confirmation, another one clears, and two show the clearings. The confirmation
carries a signed digest of each holder's token; the token itself stays on the server. When the
confirmation comes back, each lock is read again. If the digest differs, the lock has changed hands
and is left alone. Otherwise the lock is cleared by its token, so that it can't change hands in
between. Of several holders, only those that were seen lose the lock.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import PAGE_VAR
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.crypto import salted_hmac
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy, ngettext, ngettext_lazy
from django.utils.translation import gettext as _

from ..base import people
from ..inspection import HolderInfo, Inspector, LockInfo, State
from ..inspection.clearing import ClearOutcome, Target
from ..inspection.inspector import RedlockInspector
from ..inspection.sheet import LOCKS
from ..inspection.story import consequences, consequences_of_all, held_by, holder_name, safer
from ..inspection.words import clean, translated
from ..models import LockId, LockStatus
from . import cells
from .pages import UNWRITTEN, Deed, LiveAdmin, log_entries, or_away, write_down

logger = logging.getLogger("django_redislock")

NAMED = 3
"""Locks that a message names."""
SALT = "django_redislock.admin.confirmation"
GOOD_FOR = 3600
"""Seconds for which a confirmation is valid."""
WRITTEN_AT_ONCE = 500
"""Locks that are cleared between two writes to the history."""
AT_ONCE = 100
"""Clearings on one page."""
NOBODY = gettext_lazy("Nobody has cleared it here.")
CLEARED = [one for one in LOCKS if one.title in ("name", "state", "holder", "held for", "waiters")]
"""The columns of locks that are to be cleared."""


# What clearing would do, and what it has done.


def what_happens(infos: Sequence[LockInfo]) -> list[SafeString]:
    """Return the paragraphs of a confirmation: what clearing these locks would do."""
    if len(infos) == 1:
        waiters = LockId.of(infos[0]).inspector().waiters(infos[0])
        said = consequences(infos[0], waiters)
        return [cells.paragraph(said), cells.sentence(safer(infos[0]))]
    return [cells.paragraph(consequences_of_all(infos))]


def afterwards(cleared: Sequence[Target]) -> str:
    """Say who has the locks now that were cleared; nothing if that can't be read. It raises
    nothing, since they were cleared."""
    try:
        held = _held(cleared)
    except Exception:
        logger.warning("The locks that were cleared can't be read again", exc_info=True)
        return ""
    if not held:
        return ngettext("Nobody holds it now.", "Nobody holds them now.", len(cleared))
    if len(cleared) == 1:
        return _("Now it is held by %(who)s.") % {"who": _who(held[0])}
    named = [f"“{clean(lock.name)}” ({_who(lock)})" for lock in held[:NAMED]]
    text = _("Held again: %(names)s.") % {"names": ", ".join(named)}
    if more := len(held) - len(named):
        text += " " + ngettext("And %(number)s more.", "And %(number)s more.", more) % {
            "number": more
        }
    return text


def _who(lock: LockInfo) -> str:
    return translated(holder_name(lock.holders[0]))


def _held(targets: Sequence[Target]) -> list[LockInfo]:
    names: defaultdict[Inspector | RedlockInspector, list[str]] = defaultdict(list)
    for target in targets:
        names[target.inspector].append(target.name)
    return [lock for one, its in names.items() for lock in one.held(its)]


# The confirmation.


class ClearForm(forms.Form):
    """The reason, and what was seen."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=200,
        help_text=gettext_lazy("The holder sees the reason, and the history keeps it."),
        widget=forms.TextInput(attrs={"size": 60, "autofocus": True}),
    )
    stale_only = forms.BooleanField(
        label=gettext_lazy("Only the holders that are stale"),
        required=False,
        initial=True,
        label_suffix="",
    )
    seen = forms.CharField(widget=forms.HiddenInput)

    def clean_reason(self) -> str:
        return people.clean(str(self.cleaned_data["reason"]))

    def clean_seen(self) -> dict[str, list[str]]:
        try:
            seen: dict[str, list[str]] = signing.loads(
                self.cleaned_data["seen"], salt=SALT, max_age=GOOD_FOR
            )
            for id in seen:
                LockId.parse(id)  # the settings may have changed
        except (signing.BadSignature, ValueError):
            message = _("This form is not the one that was shown. Start again.")
            raise forms.ValidationError(message) from None
        return seen


def sealed(locks: Iterable[LockStatus]) -> str:
    """Sign what the operator is shown, for `ClearForm.seen`."""
    seen = {
        lock.id: [_digest(one) for one in lock.info.holders]
        for lock in locks
        if lock.info is not None
    }
    return signing.dumps(seen, salt=SALT, compress=True)


def shown(seen: dict[str, list[str]]) -> list[LockStatus]:
    """Return the locks that the operator was shown and that have not changed hands."""
    return [
        LockStatus.of(target.lock)
        for target in targets(seen)
        if target.lock is not None and target.outcome == ClearOutcome.NOT_ASKED
    ]


def targets(seen: dict[str, list[str]], *, stale_only: bool = False) -> Iterator[Target]:
    """Read the locks that were seen again. `stale_only`: leave out holders that are not stale.
    Raises `LockUnavailable`."""
    servers: dict[tuple[str, bool], dict[str, list[str]]] = defaultdict(dict)
    for id, its_digests in seen.items():
        using, cache_locks, name = LockId.parse(id)
        servers[using, cache_locks][name] = its_digests
    for (using, cache_locks), digests in servers.items():
        inspector = Inspector(using, cache_locks=cache_locks)
        found = {lock.name: lock for lock in inspector.held(list(digests))}
        for name, known in digests.items():
            target = Target(name, inspector, found.get(name))
            target.keep(partial(_was_seen, known, stale_only))
            yield target


def clear(user: Any, found: list[Target], reason: str) -> bool:
    """Clear locks, and write it into the history. Return whether that has all that was done."""
    asking, written = True, True
    for start in range(0, len(found), WRITTEN_AT_ONCE):
        batch = found[start : start + WRITTEN_AT_ONCE]
        try:
            for target in batch:
                if asking and target.outcome == ClearOutcome.NOT_ASKED:
                    asking = target.clear(str(user.get_username()), reason)
        finally:
            written &= _write_down(user, batch, reason)
    return written


def _write_down(user: Any, targets: list[Target], reason: str) -> bool:
    """Write what was cleared into the history. False: the database could not be written."""
    words = {
        ClearOutcome.CLEARED: _("Cleared: %(reason)s. %(held)s"),
        ClearOutcome.UNKNOWN: _("Perhaps cleared: %(reason)s. %(held)s"),
    }
    deeds = [
        Deed(
            str(LockId.of(target.lock)),
            target.name,
            words[target.outcome]
            % {"reason": reason.rstrip("."), "held": translated(held_by(target.lock))},
        )
        for target in targets
        if target.lock is not None and target.outcome in words
    ]
    return write_down(user, LockStatus, deeds)


def _was_seen(known: list[str], stale_only: bool, one: HolderInfo) -> bool:
    return _digest(one) in known and (one.state == State.STALE or not stale_only)


def _digest(one: HolderInfo) -> str:
    return salted_hmac(SALT, one.seen, algorithm="sha256").hexdigest()[:16]


# The pages that clear locks: one asks for confirmation, the other one does it.


class ClearPages(LiveAdmin):
    actions = ("clear_locks",)

    def get_urls(self) -> list[Any]:
        return [
            self.page("clear", "clear/", self.clear_view),
            self.page("ask", "<path:object_id>/clear/", self.ask_view),
            self.page("clearings", "clearings/", self.clearings_view),
            *super().get_urls(),
        ]

    @property
    def clearings_url(self) -> str:
        return self.url("clearings")

    @or_away
    def clearings_view(self, request: HttpRequest) -> HttpResponse:
        """Show the clearings of all locks."""
        empty = _("Nobody has cleared a lock here.")
        return self._clearings(request, _("Clearings"), clearings(), empty)

    @or_away
    def history_view(
        self, request: Any, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the clearings of a lock, whether or not it is held."""
        try:
            where = LockId.parse(unquote(object_id))
        except ValueError:
            return self._gone(request, object_id)
        lock = LockStatus.free(str(where))
        title = _("Clearings of “%(name)s”") % {"name": str(lock)}
        return self._clearings(request, title, clearings(lock.id), str(NOBODY), lock)

    def _clearings(
        self, request: HttpRequest, title: str, found: Any, empty: str, lock: Any = None
    ) -> HttpResponse:
        page = Paginator(found, AT_ONCE).get_page(request.GET.get(PAGE_VAR))
        link = None if lock else self._link
        context = {
            **self.frame(request, title),
            "table": cells.history("", page.object_list, empty, link),
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
        try:
            id = str(LockId.parse(entry.object_id or ""))
        except ValueError:
            return cells.value(entry.object_repr)
        return cells.link(self.url("change", id), entry.object_repr)

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

    def _gone(self, request: HttpRequest, object_id: str, *page: str) -> HttpResponse:
        id = unquote(object_id)
        try:
            name = LockId.parse(id).name
        except ValueError:
            name = id
        message = _("Nobody holds “%(name)s” now.") % {"name": clean(name)}
        return self._back(request, message, messages.INFO, *page)

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, _opts: Any, object_id: str
    ) -> HttpResponse:
        """Lead to the list, where Django leads to the start of the admin."""
        return self._gone(request, object_id)

    def has_clear_permission(self, request: Any) -> bool:
        return self.may(request, "clear_lock")

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
        if lock.info is None:
            return self._gone(request, object_id, "change", id)
        return self._ask(request, [lock], self.url("change", id))

    @or_away
    def clear_view(self, request: HttpRequest) -> HttpResponse:
        """Clear what the confirmation sends."""
        if not self.has_clear_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseRedirect(self.url("changelist"))
        form = ClearForm(request.POST)
        if not form.is_valid():
            if "seen" in form.errors:
                return self._back(request, str(form.errors["seen"][0]), messages.ERROR)
            locks = shown(form.cleaned_data["seen"])
            return self._ask(request, locks, self.url("changelist"), form)
        given = form.cleaned_data
        found = list(targets(given["seen"], stale_only=given["stale_only"]))
        written = clear(request.user, found, given["reason"])
        for outcome, sentence in _SENTENCES.items():
            if some := [target for target in found if target.outcome == outcome]:
                text = sentence % _words(some)
                if outcome == ClearOutcome.CLEARED:
                    text = f"{text} {afterwards(some)}"
                self.message_user(request, text, _LEVELS.get(outcome, messages.ERROR))
        if not written:
            self.message_user(request, UNWRITTEN, messages.ERROR)
        page = self.url("changelist")
        if len(found) == 1:
            page = self.url("change", next(iter(given["seen"])))
        return HttpResponseRedirect(self._with_filters(request, page))

    def _ask(
        self,
        request: HttpRequest,
        locks: list[LockStatus],
        back: str,
        form: ClearForm | None = None,
    ) -> HttpResponse:
        if form is None:
            seen = sealed(locks)
            most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
            if most is not None and len(seen) > 0.9 * most:
                message = gettext("These are too many locks for one form: clear fewer at a time.")
                return self._back(request, message, messages.ERROR)
            form = ClearForm(initial={"seen": seen})
        infos = [lock.info for lock in locks if lock.info is not None]
        states = {one.state for info in infos for one in info.holders}
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
            "what_happens": what_happens(infos),
            "some_are_stale": len(locks) == 1 and {State.STALE} < states,
            "clear_url": self._with_filters(request, self.url("clear")),
            "back_url": self._with_filters(request, back),
        }
        return TemplateResponse(request, "admin/django_redislock/clear.html", context)


def _words(targets: list[Target]) -> dict[str, Any]:
    """The values of a sentence about targets."""
    names = [f"“{clean(target.name)}”" for target in targets]
    if len(names) > 3:
        names = [names[0], f"{names[1]} … {names[-1]}"]
    return {"count": len(targets), "names": ", ".join(names), "error": targets[0].error}


_LEVELS = {
    ClearOutcome.CLEARED: messages.SUCCESS,
    ClearOutcome.CHANGED: messages.WARNING,
    ClearOutcome.FREE: messages.INFO,
}
"""How much it matters; an outcome that is not here is an error."""
_SENTENCES = {
    ClearOutcome.CLEARED: ngettext_lazy(
        "Cleared %(names)s.", "Cleared %(count)d locks: %(names)s.", "count"
    ),
    ClearOutcome.CHANGED: ngettext_lazy(
        "%(names)s has changed hands meanwhile, and was left alone.",
        "%(count)d locks have changed hands meanwhile, and were left alone: %(names)s.",
        "count",
    ),
    ClearOutcome.FREE: ngettext_lazy(
        "%(names)s was free already.", "%(count)d locks were free already: %(names)s.", "count"
    ),
    ClearOutcome.REFUSED: ngettext_lazy(
        "%(names)s can’t be cleared: %(error)s",
        "%(count)d locks can’t be cleared: %(names)s. %(error)s",
        "count",
    ),
    ClearOutcome.UNKNOWN: ngettext_lazy(
        "%(names)s may have been cleared, or not: %(error)s",
        "%(count)d locks may have been cleared, or not: %(names)s. %(error)s",
        "count",
    ),
    ClearOutcome.NOT_ASKED: ngettext_lazy(
        "%(names)s was left alone, since Redis did not answer any more.",
        "%(count)d locks were left alone, since Redis did not answer any more: %(names)s.",
        "count",
    ),
}


def clearings(id: str | None = None) -> Any:
    """Return the clearings of a lock, or of all locks, the newest first. They are in the admin's
    log, and need no Redis."""
    if id is not None:
        try:
            id = str(LockId.parse(id))  # printable, as a database wants it
        except ValueError:
            return LogEntry.objects.none()
    return log_entries(LockStatus, id)
