"""The page of one lock: what goes on, since when, and what clearing would do; then the facts."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..inspection import SHARED, State
from ..inspection.facts import groups
from ..inspection.story import consequences, free_story, safer, story
from ..models import STATES, LockStatus
from ..models.live import LockId
from . import cells, tables, texts
from .clear_pages import NOBODY, clearings
from .timeline import now_of, timeline

GROUPED = 1000
"""The most waiters that are read and grouped."""
CLEARINGS = 5
"""The most clearings on the page; the history has all."""


@admin.display(description=_("key"))
def key(lock: LockStatus) -> str:
    return cells.value(lock.info.keys.lock) if lock.info else cells.NOTHING


@admin.display(description=_("since"))
def since(lock: LockStatus) -> str:
    return texts.moment(lock.acquired_at) if lock.acquired_at else cells.NOTHING


def fieldsets(lock: LockStatus | None) -> Any:
    """The facts that are no table."""
    if lock is None or lock.info is None:  # the kind of a free lock is unknown
        return [(None, {"fields": [(cells.name, "using")]})]
    facts: list[Any] = [("kind", "using")]
    if lock.info.kind in SHARED:  # the page has a table of holders
        facts.append((cells.holding, key))
    elif not lock.owner:
        facts.append((cells.remaining, key))
    else:
        facts += [
            (cells.owner, cells.label),
            (since, cells.held),
            (cells.remaining, cells.ttl),
            (cells.fencing_token, key),
        ]
    return [(None, {"fields": facts})]


def context(lock: LockStatus) -> dict[str, Any]:
    """Read what is known about a lock. Raises `LockUnavailable`."""
    where = LockId.parse(lock.id)
    inspector, info = where.inspector(), lock.info
    seen = info or where.name
    waiters, past = inspector.waiters(seen, GROUPED), inspector.past(seen)
    number = max(lock.waiters, len(waiters))
    grouped = groups(waiters)
    below = [
        tables.waiters(waiters, grouped, number),
        tables.past(past),
        tables.history(gettext("Clearings"), clearings(lock.id)[:CLEARINGS], str(NOBODY)),
    ]
    if info is not None and info.kind in SHARED:
        below.insert(0, tables.holders(info))
    if not where.cache_locks:
        below.append(tables.settings(lock.name))
    said: dict[str, Any] = {"story": texts.paragraph(free_story(past))}
    if info is not None:
        said = {
            "story": texts.paragraph(story(info, waiters)),
            "if_cleared": texts.sentence(consequences(info, waiters)[0]),
            "safer": texts.sentence(safer(info)),
        }
    return {
        **said,
        "badge": "" if lock.state == State.HELD else cells.badge(lock.state, STATES),
        "timeline": timeline(info, past, grouped, number, now_of(info)),
        "tables": below,
    }
