"""How facts look on a page: single values first, then the columns of a lock."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..inspection import SHARED, HolderInfo, Kind, LockInfo, State
from ..inspection.sentences import local, translated
from ..inspection.words import clean, duration
from ..models import KINDS, STATES, LockStatus

NOTHING = "–"
LTR = '<bdi dir="ltr">{}</bdi>'
"""What reads from left to right in every language."""
HOSTS = 3
"""The most hosts of one lock that its row names."""


def broken(text: str) -> str:
    """Allow line breaks after punctuation, and make foreign names safe to show."""
    parts = ((part,) for part in re.split("(?<=[-:/._])", clean(text)))
    return format_html_join(mark_safe("<wbr>"), "{}", parts)


def value(text: str) -> str:
    """A name, a host or a place in the code."""
    return format_html(LTR, broken(text))


def badge(value: str, names: Iterable[tuple[str, Any]], why: str = "") -> str:
    return format_html(
        '<span class="redislock-state redislock-{}" title="{}">{}</span>',
        value,
        why,
        dict(names)[value],
    )


def state_of(of: HolderInfo | LockInfo) -> str:
    """A state, and the reason for it if there is one."""
    why = translated(of.why)
    return format_html("{}{}", badge(of.state, STATES, why), quiet(why))


def person(owner: str, label: str) -> str:
    """Host and process; below them, the place in the code."""
    return with_quiet(value(host_and_process(owner)), value(label) if label else "")


def host_and_process(owner: str) -> str:
    return " · ".join(owner.split(":", 2)[:2])


def with_quiet(text: str, more: str) -> str:
    return format_html("{}{}", text, quiet(more))


def quiet(text: str) -> str:
    """A text, or HTML, in small letters on its own line."""
    shown = text if isinstance(text, SafeString) else broken(text)
    return format_html('<div class="redislock-quiet">{}</div>', shown) if text else ""


def number(value: int | None) -> str:
    """A number without separators of thousands, so that it can be searched for in a log."""
    return NOTHING if value is None else str(value)


def seconds(value: float | None) -> str:
    return NOTHING if value is None else format_html(LTR, duration(value))


def moment(time: datetime | None) -> str:
    """A time in the time zone of the page, in the format of logs."""
    return NOTHING if time is None else local(time)


def time_of(at: datetime, text: str) -> str:
    """A text about a time; as a tooltip, the time."""
    return format_html(
        '<time dir="ltr" datetime="{}" title="{}">{}</time>',
        at.isoformat(timespec="seconds"),
        moment(at),
        text,
    )


def lasted(value: float | None, at: datetime | None) -> str:
    """A time in seconds; as a tooltip, when it began."""
    return seconds(value) if value is None or at is None else time_of(at, duration(value))


# Columns of a lock.

_KINDS = dict(KINDS)


@admin.display(description=_("name"), ordering="name")
def name(lock: LockStatus) -> str:
    return value(lock.name)


@admin.display(description=_("state"), ordering="urgency")
def state(lock: LockStatus) -> str:
    return badge(lock.state, STATES, translated(lock.info.why) if lock.info else "")


@admin.display(description=_("state"))
def state_and_why(lock: LockStatus) -> str:
    return state_of(lock.info) if lock.info else state(lock)


@admin.display(description=_("remaining"), ordering="remaining")
def remaining(lock: LockStatus) -> str:
    """The rest of the lease in words; also as a bar if its holder lives."""
    if lock.info is None:
        return NOTHING
    if lock.remaining is None:
        return gettext("no TTL")
    left = seconds(lock.remaining)
    if lock.ttl is None or lock.state != State.HELD:
        return left
    # A renewal is due when a third of the TTL has passed: with less than a third left, it failed.
    return format_html(
        '<meter max="{}" low="{}" optimum="{}" value="{}" aria-label="{}"></meter>{}',
        f"{lock.ttl:.3f}",
        f"{lock.ttl / 3:.3f}",
        f"{lock.ttl:.3f}",
        f"{lock.remaining:.3f}",
        gettext("What remains of the lease"),
        left,
    )


@admin.display(description=_("holder"), ordering="owner")
def holder(lock: LockStatus) -> str:
    """The holder in short, and where in the code; of several, their number and their hosts."""
    if lock.info is None:
        return NOTHING
    if lock.info.kind in SHARED:
        labels = {one.holder.label for one in lock.info.holders}
        where = quiet(value(lock.label)) if labels == {lock.label} and lock.label else ""
        return format_html(
            "<bdi>{}</bdi>{}{}", _holding(lock.info), quiet(_hosts(lock.info)), where
        )
    return person(lock.owner, lock.label) if lock.owner else str(_KINDS[lock.kind])


def _hosts(info: LockInfo) -> str:
    """The first hosts; of a single holder, also its process."""
    if len(info.holders) == 1:
        return value(host_and_process(info.holder.owner or ""))
    more = len(info.hosts) - HOSTS
    text = ", ".join(info.hosts[:HOSTS])
    return format_html(LTR, clean(f"{text} + {more}" if more > 0 else text))


@admin.display(description=_("held by"))
def holding(lock: LockStatus) -> str:
    """The number of holders of a lock that several may hold."""
    return _holding(lock.info) if lock.info else NOTHING


def _holding(info: LockInfo) -> str:
    if info.kind == Kind.SEMAPHORE:
        numbers = {"number": info.holding, "limit": info.limit}
        return gettext("%(number)s of %(limit)s") % numbers
    if info.kind == Kind.WRITE:
        return gettext("a writer")
    return ngettext("%(number)s reader", "%(number)s readers", info.holding) % {
        "number": info.holding
    }


@admin.display(description=_("holder"))
def owner(lock: LockStatus) -> str:
    return format_html(LTR, clean(lock.owner)) if lock.owner else str(_KINDS[lock.kind])


@admin.display(description=_("label"))
def label(lock: LockStatus) -> str:
    return value(lock.label) if lock.label else NOTHING


@admin.display(description=_("held for"), ordering="held")
def held(lock: LockStatus) -> str:
    """How long it has been held; since when, as a tooltip."""
    return lasted(lock.held, lock.acquired_at)


@admin.display(description=_("TTL"))
def ttl(lock: LockStatus) -> str:
    return seconds(lock.ttl)


@admin.display(description=_("fencing token"), ordering="fencing_token")
def fencing_token(lock: LockStatus) -> str:
    return number(lock.fencing_token)
