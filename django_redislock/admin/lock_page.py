"""The page of one lock: what goes on, since when, and what clearing would do; then the facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..inspection import SHARED, UNREADABLE, LockInfo, Past, State, WaiterInfo
from ..inspection.facts import Group, groups
from ..inspection.sentences import translated
from ..inspection.sheet import FACTS, GROUPS, HOLDERS, LOCKS, PAST, SETTINGS, WAITERS, Column
from ..inspection.story import consequences, free_story, safer, story
from ..models import LockStatus
from ..models.live import LockId
from ..settings import conf
from ..settings.policy import DEFAULTS
from . import cells
from .clear_pages import NOBODY, clearings
from .timeline import now_of, timeline

GROUPED = 1000
"""The most waiters that are read and grouped."""
CLEARINGS = 5
"""The most clearings on the page; the history has all."""


def shown(column: Column[LockInfo], ordering: str | None = None) -> Callable[[LockStatus], str]:
    """Return a column of the list, or a fact of the page, for Django's admin."""

    def show(lock: LockStatus) -> str:
        return cells.html(column.value(lock.info)) if lock.info else cells.NOTHING

    show.__name__ = column.title.replace(" ", "_")
    return admin.display(description=_(column.title), ordering=ordering)(show)


@admin.display(description=_("name"), ordering="name")
def name(lock: LockStatus) -> str:
    return cells.value(lock.name)


@admin.display(description=_("state"), ordering="urgency")
def state(lock: LockStatus) -> str:
    """The state; the reason for it is a tooltip."""
    return cells.badge(lock.state, lock.info.why if lock.info else "")


ORDERINGS = {"holder": "owner", "waiters": "waiters", "held for": "held", "lease": "remaining"}
COLUMNS = [
    *(name, state),
    *(shown(one, ORDERINGS[one.title]) for one in LOCKS if one.title in ORDERINGS),
]
"""The columns of the list, besides the cache."""
_FACTS = [(column, shown(column)) for column in FACTS]


def fieldsets(lock: LockStatus | None) -> Any:
    """The facts that are no table, two on each line."""
    if lock is None or lock.info is None:  # the kind of a free lock is unknown
        return [(None, {"fields": [(name, "using")]})]
    facts: list[Any] = [fact for column, fact in _FACTS if column.value(lock.info)]
    pairs = (tuple(facts[at : at + 2]) for at in range(0, len(facts), 2))
    return [(None, {"fields": [("kind", "using"), *pairs]})]


def context(lock: LockStatus) -> dict[str, Any]:
    """Read what is known about a lock. Raises `LockUnavailable`."""
    where = LockId.parse(lock.id)
    inspector, info = where.inspector(), lock.info
    seen = info or where.name
    waiters, past = inspector.waiters(seen, GROUPED), inspector.past(seen)
    number = max(lock.waiters, len(waiters))
    grouped = groups(waiters)
    below = [
        _waiters(waiters, grouped, number),
        _past(past),
        cells.history(gettext("Clearings"), clearings(lock.id)[:CLEARINGS], str(NOBODY)),
    ]
    if info is not None and info.kind in SHARED:
        more = info.holding - cells.SHOWN
        below.insert(0, cells.table(gettext("Holders"), HOLDERS, info.holders, more=more))
    if not where.cache_locks:
        below.append(_settings(lock.name))
    said: dict[str, Any] = {"story": cells.paragraph(free_story(past))}
    if info is not None:
        said = {
            "story": cells.paragraph(story(info, waiters)),
            "if_cleared": cells.sentence(consequences(info, waiters)[0]),
            "safer": cells.sentence(safer(info)),
        }
    return {
        **said,
        "badge": "" if lock.state == State.HELD else cells.badge(lock.state),
        "timeline": timeline(info, past, grouped, number, now_of(info)),
        "tables": below,
    }


def _waiters(first: Sequence[WaiterInfo], grouped: Sequence[Group], of: int) -> cells.Table:
    """The waiters by host and place in the code, and one by one; the first ones, of so many."""
    title, more, empty = gettext("Waiters"), of - cells.SHOWN, gettext("Nobody waits.")
    if len(grouped) == len(first):
        return cells.table(title, WAITERS, first, more=more, empty=empty)
    note = ""
    if len(first) < of:
        note = gettext("The first %(number)s waiters, by host and place.") % {"number": len(first)}
    single = cells.table(gettext("One by one"), WAITERS, first, more=more)
    return cells.table(title, GROUPS, grouped, note=note, rest=single)


def _past(past: Past) -> cells.Table:
    unreadable = translated(UNREADABLE) if past.unreadable else ""
    unknown = gettext("None are known: they are kept for a minute, or for three times the TTL.")
    return cells.table(
        gettext("Last holders"), PAST, past.holders, empty=unreadable or unknown, note=unreadable
    )


def _settings(name: str) -> cells.Table:
    """The settings of a lock that are not defaults, and where each is written; then the others."""
    given: list[tuple[str, conf.Setting]] = []
    defaults: list[tuple[str, conf.Setting]] = []
    for term, setting in conf.origins(conf.written(name)).items():
        (defaults if setting.value == DEFAULTS[term] else given).append((term.upper(), setting))
    return cells.table(
        gettext("Settings"),
        SETTINGS,
        given,
        empty=gettext("All settings are defaults."),
        note=gettext("Arguments in the code override these settings."),
        rest=cells.table(gettext("Defaults"), SETTINGS, defaults),
    )
