"""What the list and a lock's own page show of a lock."""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..inspection import SHARED, Kind, LockInfo
from ..inspection.sentences import translated
from ..inspection.words import duration
from ..models import KINDS, STATES, Lock
from . import cells

_KINDS = dict(KINDS)


@admin.display(description=_("name"), ordering="name")
def name(lock: Lock) -> str:
    return cells.broken(lock.name)


@admin.display(description=_("state"), ordering="state")
def state(lock: Lock) -> str:
    return cells.badge(lock.state, STATES, translated(lock.info.why) if lock.info else "")


@admin.display(description=_("state"))
def state_and_why(lock: Lock) -> str:
    return cells.state(lock.info) if lock.info else state(lock)


@admin.display(description=_("remaining"), ordering="remaining")
def remaining(lock: Lock) -> str:
    """What is left of the lease, as a bar and in words."""
    if lock.info is None:
        return cells.NOTHING
    if lock.remaining is None:
        return gettext("no TTL")
    left = duration(lock.remaining)
    if lock.ttl is None:
        return left
    # Renewal comes when a third of it has passed: with less than a third left, it did not come.
    return format_html(
        '<meter max="{}" low="{}" optimum="{}" value="{}" aria-label="{}">{}</meter> {}',
        f"{lock.ttl:.3f}",
        f"{lock.ttl / 3:.3f}",
        f"{lock.ttl:.3f}",
        f"{lock.remaining:.3f}",
        gettext("What remains of the lease"),
        left,
        left,
    )


@admin.display(description=_("holder"), ordering="owner")
def holder(lock: Lock) -> str:
    """Who holds it, in short."""
    if lock.info is None:
        return cells.NOTHING
    if not lock.owner:
        return str(_KINDS[lock.kind])
    if lock.info.kind not in SHARED:
        return cells.person(lock.owner, lock.label)
    return cells.with_quiet(_crowd(lock.info), cells.host_and_process(lock.owner))


@admin.display(description=_("held by"))
def crowd(lock: Lock) -> str:
    """How many hold one that several may hold."""
    return _crowd(lock.info) if lock.info else cells.NOTHING


def _crowd(info: LockInfo) -> str:
    if info.kind == Kind.SEMAPHORE:
        numbers = {"number": info.holding, "limit": info.limit}
        return gettext("%(number)s of %(limit)s") % numbers
    if info.kind == Kind.WRITE:
        return gettext("a writer")
    return ngettext("%(number)s reader", "%(number)s readers", info.holding) % {
        "number": info.holding
    }


@admin.display(description=_("holder"))
def owner(lock: Lock) -> str:
    return lock.owner or str(_KINDS[lock.kind])


@admin.display(description=_("label"))
def label(lock: Lock) -> str:
    return lock.label or cells.NOTHING


@admin.display(description=_("since"))
def since(lock: Lock) -> str:
    return cells.moment(lock.acquired_at)


@admin.display(description=_("held for"), ordering="held")
def held(lock: Lock) -> str:
    return cells.seconds(lock.held)


@admin.display(description=_("TTL"))
def ttl(lock: Lock) -> str:
    return cells.seconds(lock.ttl)


@admin.display(description=_("fencing token"), ordering="fencing_token")
def fencing_token(lock: Lock) -> str:
    return cells.number(lock.fencing_token)
