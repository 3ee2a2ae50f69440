"""The pages of locks: the list; and a lock, with what goes on and what clearing would do.

These are the admin's own pages of a model, whose rows are a snapshot of Redis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IS_FACETS_VAR
from django.contrib.admin.views.main import ERROR_FLAG, ORDER_VAR, PAGE_VAR, ChangeList
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from ..base.exceptions import LockError
from ..inspection import Counts, Ending, HolderInfo, LockInfo, Past, State, WaiterInfo, sheet
from ..inspection.facts import SHARED, UNREADABLE, WORST_FIRST, Group, groups
from ..inspection.inspector import servers
from ..inspection.story import consequences, free_story, safer, story
from ..inspection.tasks import NAMES, TASKS, TasksInfo, names, tasks_of, urgency
from ..inspection.words import clean, duration, process_name, translated
from ..models import KINDS, STATES, LockId, LockStatus, PeriodicJob, Snapshot
from ..periodic.job import job_of_lock
from ..settings.conf import Setting
from ..settings.policy import DEFAULTS
from . import cells
from .clear import NOBODY, ClearPages, clearings
from .pages import Count, FieldFilter, health, unanswered

# The columns of the list, and the facts and tables of one lock.


GROUPED = 1000
"""The most waiters that are read and grouped."""
CLEARINGS = 5
"""The most clearings on the page; the history has all."""


@admin.display(description=_("name"), ordering="name")
def name(lock: LockStatus) -> str:
    return cells.value(lock.name)


@admin.display(description=_("state"), ordering="urgency")
def state(lock: LockStatus) -> str:
    """The state; the reason for it is a tooltip."""
    return cells.badge(lock.state, lock.info.why if lock.info else "")


ORDERINGS = {"holder": "owner", "waiters": "waiters", "held for": "held", "remaining": "remaining"}
COLUMNS = [
    *(name, state),
    *(cells.shown(one, ORDERINGS[one.title]) for one in sheet.LOCKS if one.title in ORDERINGS),
]
"""The columns of the list, besides the cache."""
_FACTS = {one: cells.shown(one) for one in (*sheet.FACTS, *sheet.FACTS_OF_SHARED)}


def known(lock: LockStatus, *, noted: bool) -> dict[str, Any]:
    """Read what is known about a lock, and with `noted` its note. Raises `LockUnavailable`."""
    where = LockId.parse(lock.id)
    inspector, info = where.inspector(), lock.info
    seen = info or where.name
    waiters, past = inspector.waiters(seen, GROUPED), inspector.past(seen)
    number = max(lock.waiters, len(waiters))
    grouped = groups(waiters)
    unreadable = translated(UNREADABLE) if past.unreadable else ""
    none = gettext("None are known: they are kept for a minute, or for three times the TTL.")
    notes = {"empty": unreadable or none, "note": unreadable}
    below = [
        _waiters(waiters, grouped, number),
        cells.table(gettext("Last holders"), sheet.PAST, past.holders, **notes),
        cells.history(gettext("Clearings"), clearings(lock.id)[:CLEARINGS], str(NOBODY)),
    ]
    tasks = None if where.cache_locks else tasks_of(where.name, where.using)
    if tasks is not None and tasks.items:
        more = sum(tasks.counts.values()) - cells.SHOWN
        below.insert(0, cells.table(gettext("Tasks"), TASKS, tasks.items, more=more))
    if info is not None and info.kind in SHARED:
        more = info.holding - cells.SHOWN
        below.insert(0, cells.table(gettext("Holders"), sheet.HOLDERS, info.holders, more=more))
    if noted and (note := inspector.note(seen)) is not None:
        below.insert(0, cells.table(gettext("Note"), sheet.NOTE, note.content.items()))
    if not where.cache_locks:
        below.append(_settings(lock.name))
    its = [] if tasks is None else tasks.story
    said: dict[str, Any] = {"story": cells.paragraph([*free_story(past), *its])}
    if info is not None:
        said = {
            "story": cells.paragraph([*story(info, waiters), *its]),
            "if_cleared": cells.sentence(consequences(info, waiters)[0]),
            "safer": cells.sentence(safer(info)),
        }
    return {
        **said,
        "badge": "" if lock.state == State.HELD else cells.badge(lock.state),
        "timeline": timeline(info, past, grouped, number),
        "tables": below,
    }


def _waiters(first: Sequence[WaiterInfo], grouped: Sequence[Group], of: int) -> cells.Table:
    """The waiters by host and place in the code, and one by one; the first ones, of so many."""
    title, more, empty = gettext("Waiters"), of - cells.SHOWN, gettext("Nobody waits.")
    if len(grouped) == len(first):
        return cells.table(title, sheet.WAITERS, first, more=more, empty=empty)
    note = ""
    if len(first) < of:
        note = gettext("The first %(number)s waiters, by host and place.") % {"number": len(first)}
    single = cells.table(gettext("One by one"), sheet.WAITERS, first, more=more)
    return cells.table(title, sheet.GROUPS, grouped, note=note, rest=single)


def _settings(name: str) -> cells.Table:
    """The settings of a lock that are not defaults, and where each is written; then the others."""
    given: list[tuple[str, Setting]] = []
    defaults: list[tuple[str, Setting]] = []
    for term, setting in sheet.settings_of(name).items():
        (defaults if setting.value == DEFAULTS[term.lower()] else given).append((term, setting))
    return cells.table(
        gettext("Settings"),
        sheet.SETTINGS,
        given,
        empty=gettext("All settings are defaults."),
        note=gettext("Arguments in the code override these settings."),
        rest=cells.table(gettext("Defaults"), sheet.SETTINGS, defaults),
    )


MOST_LOCKS = 10_000
"""The locks that the list looks at for a filter, a search, another order or counts: the most
urgent ones."""


class CacheFilter(FieldFilter):
    title = _("cache")
    parameter_name = "using"

    def has_output(self) -> bool:
        return len(self.lookup_choices) > 1


class ForeignFilter(admin.SimpleListFilter):
    """Adds foreign values below our prefix. That looks at all keys, so it is done on request."""

    title = _("other keys below our prefix")
    parameter_name = "foreign"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("1", _("shown"))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset  # the snapshot has these values already

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        for value, name in ((None, _("not shown")), *self.lookup_choices):
            yield {
                "selected": self.value() == value,
                "query_string": changelist.get_query_string({self.parameter_name: value}),
                "display": name,
            }


class LockAdmin(ClearPages):
    list_filter = (
        FieldFilter.of(_("state"), "state", [(its, dict(STATES)[its]) for its in WORST_FIRST]),
        FieldFilter.of(_("waiters"), "contended", [("True", _("some")), ("False", _("none"))]),
        FieldFilter.of(_("kind"), "kind", KINDS),
        FieldFilter.of(_("host"), "host"),
        CacheFilter,
        ForeignFilter,
    )
    search_fields = ("name", "owner", "label")
    show_facets = admin.ShowFacets.ALLOW  # to count, all locks have to be read

    # The rows.

    def take_snapshot(self, request: HttpRequest) -> Snapshot:
        """Read a page; for an action, the locks that were ticked, or all of them; if the question
        is about more than a page, all that can match, or up to `MOST_LOCKS`."""
        if request.method == "POST":
            if request.POST.get("select_across") != "1":
                return LockStatus.chosen(request.POST.getlist(ACTION_CHECKBOX_NAME))
            return LockStatus.snapshot(foreign="foreign" in request.GET)
        if self._asks_for_urgent_ones(request):
            return LockStatus.urgent()
        if set(request.GET) - {PAGE_VAR, ERROR_FLAG}:
            return LockStatus.snapshot(foreign="foreign" in request.GET, most=MOST_LOCKS)
        number = request.GET.get(PAGE_VAR, "1")
        before = max(1, int(number)) - 1 if number.isdecimal() else 0
        return LockStatus.page(before * self.list_per_page, self.list_per_page)

    def _asks_for_urgent_ones(self, request: HttpRequest) -> bool:
        """Whether no other lock can match: then all that can are read, however many there are."""
        wide = {IS_FACETS_VAR, ForeignFilter.parameter_name} & set(request.GET)
        state, contended = (request.GET.get(name) for name in ("state", "contended"))
        trouble = state != State.HELD and state in set(State)
        return not wide and (trouble or contended == "True")

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> LockStatus | None:
        """Return a held lock, or a free one about which something is still known."""
        try:
            where = LockId.parse(object_id)
        except ValueError:
            return None
        lock = LockStatus.at(object_id)
        if lock is not None:
            return lock
        try:
            past = where.inspector().past(where.name)
        except ValueError:  # only a foreign value can have that name, and it leaves no past
            return None
        tasks = None if where.cache_locks else tasks_of(where.name, where.using)
        known = past.holders or past.unreadable or (tasks and tasks.items)
        return LockStatus.free(object_id) if known or clearings(object_id).exists() else None

    # The list.

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        using = ["using"] if len(servers()) > 1 else []
        return [*COLUMNS[:1], *using, *COLUMNS[1:]]

    def summary(self, snapshot: Snapshot) -> dict[str, Any]:
        counts: Counts | None = snapshot.counts
        if counts is None:  # the answer to an action
            return {}
        note: Any = ""
        if snapshot.total is not None and snapshot.offset is None:
            note = _("Only the %(most)s most urgent locks were looked at.")
            note = note % {"most": len(snapshot.rows)}
        column = [column.__name__ for column in COLUMNS].index("waiters") + 1
        waited_for = "?contended=True"
        total = ngettext_lazy("lock", "locks", counts.total)
        names = dict(STATES)
        shown = [
            *(Count(counts.states[it], names[it], f"?state={it}", it) for it in WORST_FIRST),
            Count(counts.contended, _("waited for"), waited_for),
            Count(counts.waiters, _("waiting"), f"{waited_for}&{ORDER_VAR}=-{column}"),
            Count(counts.total, total, "?"),
        ]
        seen = [
            {
                "alias": alias,
                "away": unanswered(snapshot.away[alias]) if alias in snapshot.away else None,
                "health": health(alias),
            }
            for alias in servers()
        ]
        return {
            "counts": [one for one in shown if one.number],
            "total": counts.total,
            "servers": seen,
            "note": note,
            "tasks": self._tasks(snapshot),
            "empty": "admin/django_redislock/no_locks.html",
        }

    def _tasks(self, snapshot: Snapshot) -> cells.Table | None:
        """The tasks of `unique` and `limited`, by name: those that run are locks, too."""
        found: list[TasksInfo] = []
        for alias in servers():
            with suppress(LockError):  # the server is away, and the page says so
                if alias not in snapshot.away:
                    found += names(alias, cells.SHOWN)

        def name(one: TasksInfo) -> Any:
            return cells.link(
                self.url("change", str(LockId(one.using, False, one.name))), one.name
            )

        columns = (replace(NAMES[0], value=name), *NAMES[1:])
        # No server is asked for more names than that.
        more = "+" if len(found) >= cells.SHOWN else ""
        title = f"{gettext('Tasks')} ({min(len(found), cells.SHOWN)}{more})"
        return cells.table(title, columns, sorted(found, key=urgency)) if found else None

    # One lock.

    def get_fieldsets(self, request: HttpRequest, obj: LockStatus | None = None) -> Any:
        """The facts that are no table, two on each line."""
        if obj is None or obj.info is None:  # the kind of a free lock is unknown
            return [(None, {"fields": [(name, "using")]})]
        facts = [_FACTS[column] for column in sheet.facts(obj.info)]
        pairs = (tuple(facts[at : at + 2]) for at in range(0, len(facts), 2))
        return [(None, {"fields": [("kind", "using"), *pairs]})]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        lock = kwargs["obj"]
        context |= {
            **known(lock, noted=self.may(request, "view_note")),
            "title": _("Lock"),
            "clear_url": self.clear_url(request, lock),
            "list_url": self._with_filters(request, self.url("changelist")),
            "job": self._job(request, lock),
        }
        return super().render_change_form(request, context, *args, **kwargs)

    def _job(self, request: Any, lock: LockStatus) -> str:
        """Return a link to the periodic job whose lock this is."""
        try:
            job = None if LockId.parse(lock.id).cache_locks else job_of_lock(lock.name)
        except ImproperlyConfigured:  # the system checks say so
            return ""
        if job is None or not self.admin_site.is_registered(PeriodicJob):
            return ""
        pages: Any = self.admin_site.get_model_admin(PeriodicJob)
        if not pages.has_view_permission(request):
            return ""
        return cells.link(pages.url("change", job.name), job.name)


# A lock's past holders, holders and waiters on one line of time, for `timeline.html`.
#
# The picture fits any width: places and lengths are percentages, and texts keep their size. Time
# runs from left to right in every language. Each look has a pattern of its own, so that the
# picture can be read without colours; the tables of the page have the same facts.


MOST = 5
"""Bars of one sort: past holders, holders, and groups of waiters."""
FUTURE = 0.25
"""The largest part of the picture that shows the rests of leases."""
ROW = 34
TOP = 20


class _Stretch(NamedTuple):
    """A stretch of time, and the text above it."""

    text: str
    look: str
    """The state of a holder, `past`, `ended` or `waiting`."""
    begins: datetime
    ends: datetime
    left: float = 0.0
    """Seconds until the lease ends, which may be beyond the picture."""


def timeline(
    lock: LockInfo | None, past: Past, groups: Sequence[Group], waiters: int
) -> dict[str, Any] | None:
    """Return the picture of a lock; None: there is nothing to show."""
    holders = lock.holders if lock is not None else ()
    # By the server's clock if a holder tells it.
    seen = (one.holder.seen_at for one in holders)
    now = next(filter(None, seen), None) or datetime.now(UTC)
    known = [one for one in holders if one.holder.acquired_at is not None]
    shown = [
        *_before(past, known, now),
        *(_present(one, now) for one in known[:MOST]),
        *(_waiting(group, now) for group in groups[:MOST]),
    ]
    if not shown:
        return None
    begins = min(one.begins for one in shown)
    before = max((now - begins).total_seconds(), 1.0)
    after = min(max(one.left for one in shown), before * FUTURE / (1 - FUTURE))

    def percent(seconds: float) -> str:
        return f"{max(0.0, seconds) / (before + after) * 100:.2f}%"

    held = lock.holding if lock is not None else 0
    drawn = sum(group.number for group in groups[:MOST])
    return {
        "begins": cells.moment(begins),
        "now": percent(before),
        "height": TOP + len(shown) * ROW,
        "bars": [
            {
                "text": one.text,
                "look": one.look,
                "y": TOP + number * ROW,
                "x": percent((one.begins - begins).total_seconds()),
                "width": percent((one.ends - one.begins).total_seconds()),
                "lease": percent(one.left) if one.left else "",
            }
            for number, one in enumerate(shown)
        ],
        "more": max(0, held - min(len(known), MOST)) + max(0, waiters - drawn),
    }


def _before(past: Past, known: Sequence[HolderInfo], now: datetime) -> list[_Stretch]:
    """The past holders, the oldest first. Nobody saw when a lease ended that expired: its bar goes
    on until the next holder came."""
    found = []
    following = min(filter(None, (one.holder.acquired_at for one in known)), default=now)
    for one in past.holders:
        ends = following
        if one.lasted is not None:
            ends = one.acquired_at + timedelta(seconds=one.lasted)
        look = "past" if one.ending == Ending.RELEASED else "ended"
        text = _text(str(cells.NAMES[one.ending]), one.lasted, process_name(one.owner))
        found.append(_Stretch(text, look, one.acquired_at, max(ends, one.acquired_at)))
        following = one.acquired_at
    return found[::-1]


def _present(one: HolderInfo, now: datetime) -> _Stretch:
    of = one.holder
    assert of.acquired_at is not None
    who = process_name(of.owner) if of.owner else gettext("another program")
    text = _text(str(cells.NAMES[one.state]), of.held, who)
    return _Stretch(text, one.state, of.acquired_at, now, of.remaining or 0.0)


def _waiting(group: Group, now: datetime) -> _Stretch:
    who = f"{group.number} × {clean(group.host)}"
    if group.number == 1:
        who = process_name(group.waiters[0].owner)
    begins = now - timedelta(seconds=group.oldest)
    return _Stretch(_text(gettext("waiting"), group.oldest, who), "waiting", begins, now)


def _text(what: str, seconds: float | None, who: str) -> str:
    time = "" if seconds is None else f", {duration(seconds)}"
    return f"{what}{time} – {who}"
