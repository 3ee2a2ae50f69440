"""How the facts of a lock look on a page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..inspection import SHARED, Ending, HolderInfo, Kind, LockInfo, PastHolder, WaiterInfo
from ..management.formatting import clean, duration
from ..models import KINDS, STATES, Lock
from ..primitives.ledger import Outcome, RunInfo
from ..sentences import translated

NOTHING = "–"
_KINDS = dict(KINDS)
_OUTCOMES = [
    (Outcome.RUNNING.value, _("running")),
    (Outcome.DONE.value, _("done")),
    (Outcome.FAILED.value, _("failed")),
    (Outcome.LOST.value, _("lost")),
    (Outcome.SKIPPED.value, _("skipped")),
]
_ENDINGS = {
    Ending.RELEASED: _("released"),
    Ending.EXPIRED: _("expired"),
    Ending.CLEARED: _("cleared"),
}


def waiter_label(waiter: WaiterInfo) -> str:
    """Where it waits, and of a read-write lock what for."""
    wants = {Kind.READ: gettext("to read"), Kind.WRITE: gettext("to write")}.get(waiter.kind)
    return f"{wants}, {waiter.label}" if wants else waiter.label


def broken(text: str) -> str:
    """In lines that end where one would end them; others' names may hold anything."""
    parts = ((part,) for part in re.split("(?<=[-:/._])", clean(text)))
    return format_html_join(mark_safe("<wbr>"), "{}", parts)


def badge(value: str, names: Iterable[tuple[str, Any]], why: str = "") -> str:
    return format_html(
        '<span class="redislock-state redislock-{}" title="{}">{}</span>',
        value,
        clean(why),
        dict(names)[value],
    )


def name(lock: Lock) -> str:
    return broken(lock.name)


def state(lock: Lock) -> str:
    return badge(lock.state, STATES, why(lock.info))


def kind(lock: Lock) -> str:
    return str(_KINDS[lock.kind])


def holder(lock: Lock) -> str:
    if not lock.owner:
        return kind(lock) if lock.info else NOTHING
    if lock.info is None or lock.info.kind not in SHARED:
        return person(lock.owner, lock.label)
    return format_html("{}{}", crowd(lock), quiet(person_text(lock.owner)))


def crowd(lock: Lock) -> str:
    """How many hold one that several may hold."""
    info = lock.info
    assert info is not None
    if info.kind == Kind.SEMAPHORE:
        numbers = {"number": info.holding, "limit": info.limit}
        return gettext("%(number)s of %(limit)s") % numbers
    if info.kind == Kind.WRITE:
        return gettext("a writer")
    return ngettext("%(number)s reader", "%(number)s readers", info.holding) % {
        "number": info.holding
    }


def one_holder(info: HolderInfo) -> dict[str, str]:
    """One of several who hold a lock."""
    of = info.holder
    return {
        "holder": person(of.owner or "", of.label),
        "state": format_html("{}{}", badge(info.state, STATES, why(info)), quiet(why(info))),
        "since": moment(of.acquired_at),
        "held": NOTHING if of.held is None else duration(of.held),
        "remaining": NOTHING if of.remaining is None else duration(of.remaining),
        "fencing_token": number(of.fencing_token),
    }


def person(owner: str, label: str) -> str:
    """Host and process; below it, where in the code."""
    return with_quiet(person_text(owner), label)


def person_text(owner: str) -> str:
    return " · ".join(owner.split(":", 2)[:2])


def with_quiet(text: str, more: str) -> str:
    return format_html("{}{}", clean(text), quiet(more))


def quiet(text: str) -> str:
    return format_html('<div class="redislock-quiet">{}</div>', clean(text)) if text else ""


def remaining(lock: Lock) -> str:
    """What is left of the lease, as a bar and in words."""
    if lock.info is None:
        return NOTHING
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


def held(lock: Lock) -> str:
    return NOTHING if lock.held is None else duration(lock.held)


def fencing_token(lock: Lock) -> str:
    return number(lock.fencing_token)


def number(value: int | None) -> str:
    """As it is: separators of thousands would hinder whoever searches a log for it."""
    return NOTHING if value is None else str(value)


def owner(lock: Lock) -> str:
    return clean(lock.owner) or kind(lock)


def state_and_why(lock: Lock) -> str:
    return format_html("{}{}", state(lock), quiet(why(lock.info)))


def why(info: LockInfo | HolderInfo | None) -> str:
    """What its state is due to, if that is worth a word."""
    return translated(info.why) if info else ""


def moment(time: datetime | None) -> str:
    """In the zone of the page, and to be found in a log."""
    if time is None:
        return NOTHING
    there = localtime(time) if is_aware(time) else time
    return f"{there:%Y-%m-%d %H:%M:%S %Z}"


def past(holder: PastHolder) -> dict[str, str]:
    """One who held the lock before."""
    return {
        "holder": person(holder.owner, holder.label),
        "since": moment(holder.acquired_at),
        "held": NOTHING if holder.lasted is None else duration(holder.lasted),
        "ending": format_html("{}{}", _ENDINGS[holder.ending], quiet(holder.why)),
        "fencing_token": number(holder.fencing_token),
    }


def outcome(run: RunInfo) -> str:
    """What became of a run, and how long it took."""
    took = "" if run.duration is None else duration(run.duration)
    attempt = f" ({run.attempt})" if run.attempt > 1 else ""
    return format_html("{}{} {}", badge(run.outcome, _OUTCOMES), attempt, took)
