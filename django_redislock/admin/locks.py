"""The locks' pages: the list, a lock, and its history.

They are the admin's own pages of a model. Its rows are a snapshot of Redis, one for each request.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from ..inspection import SHARED, State
from ..inspection.live import Snapshot
from ..inspection.lock_id import LockId
from ..models import STATES, Lock, servers
from ..primitives.keys import validate_name
from . import columns, tables
from . import confirmation as clearing
from .clear_pages import ClearPages
from .filters import (
    CacheFilter,
    ContendedFilter,
    ForeignFilter,
    HostFilter,
    KindFilter,
    StateFilter,
)
from .health import health
from .pages import or_away


class LockAdmin(ClearPages):
    list_filter = (
        StateFilter,
        ContendedFilter,
        KindFilter,
        HostFilter,
        CacheFilter,
        ForeignFilter,
    )
    search_fields = ("name", "owner", "label")

    # The rows.

    def look(self, request: HttpRequest) -> Snapshot:
        return Lock.snapshot(foreign="foreign" in request.GET)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Lock | None:
        """A lock that is held; or one that was, and of which something is known still."""
        try:
            where = LockId.parse(object_id)
        except ValueError:
            return None
        if getattr(request, "_redislock_history", False):
            return Lock.free(object_id)  # what the database knows needs no Redis
        lock = Lock.at(object_id)
        if lock is None and (where.cache_locks or _is_name(where.name)):
            past = where.inspector().past(where.name).fencing_token
            if past is not None or clearing.history(object_id).exists():
                lock = Lock.free(object_id)
        return lock

    # The list.

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        using = ["using"] if len(servers()) > 1 else []
        return [
            columns.name,
            *using,
            columns.state,
            columns.remaining,
            columns.holder,
            columns.held,
            "waiters",
            columns.fencing_token,
        ]

    def summary(self, snapshot: Snapshot) -> dict[str, Any]:
        states = Counter(row.state for row in snapshot.rows)
        counts = [
            (name, states[value]) for value, name in STATES if states[value] or value == State.HELD
        ]
        counts.append((_("contended"), sum(row.contended for row in snapshot.rows)))
        seen = [
            {"alias": alias, "away": str(snapshot.away.get(alias, "")), "health": health(alias)}
            for alias in servers()
        ]
        return {"counts": counts, "servers": seen}

    # One lock.

    def get_fieldsets(self, request: HttpRequest, obj: Lock | None = None) -> Any:
        if obj is None or obj.info is None:  # of which kind it was, nobody knows
            return [(None, {"fields": [(columns.name, columns.state_and_why, "using")]})]
        about: list[Any] = [(columns.name, columns.state_and_why), ("kind", "using")]
        if obj.info.kind in SHARED:  # its page has a table of its holders
            return [(None, {"fields": [*about, (columns.crowd, "waiters")]})]
        holder = [(columns.owner, columns.label), (columns.since, columns.held)]
        lease = [(columns.remaining, columns.ttl), (columns.fencing_token, "waiters")]
        return [
            (None, {"fields": about}),
            (_("Holder"), {"fields": holder}),
            (_("Lease"), {"fields": lease}),
        ]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        lock = kwargs["obj"]
        where = LockId.parse(lock.id)
        inspector = where.inspector()
        seen = lock.info or where.name
        below = [
            tables.waiters(inspector.waiters(seen, tables.SHOWN), lock.waiters),
            tables.past(inspector.past(seen)),
            tables.history(clearing.history(lock.id)[:10]),
        ]
        if lock.info is not None and lock.info.kind in SHARED:
            below.insert(0, tables.holders(lock.info))
        if not where.cache_locks:
            below.append(tables.settings(lock.name))
        context |= {"tables": below, "clear_url": self.clear_url(request, lock)}
        return super().render_change_form(request, context, *args, **kwargs)

    @or_away
    def history_view(
        self,
        request: Any,
        object_id: str,
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        # The lock may have gone, and Redis be away.
        request._redislock_history = clearing.history(unquote(object_id)).exists()
        return super().history_view(request, object_id, extra_context)


def _is_name(name: str) -> bool:
    """Or it is a stranger's, of which nothing but the value was ever there."""
    try:
        validate_name(name)
    except ValueError:
        return False
    return True
