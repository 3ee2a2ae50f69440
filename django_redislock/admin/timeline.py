"""A lock's past holders, holders and waiters on one line of time, for `timeline.html`.

The picture fits any width: places and lengths are percentages, and texts keep their size. Time
runs from left to right in every language. Each look has a pattern of its own, so that the picture
can be read without colours; the tables of the page have the same facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.utils.translation import gettext as _

from ..inspection import Ending, HolderInfo, LockInfo, Past
from ..inspection.facts import Group
from ..inspection.words import clean, duration, process_name
from . import cells

MOST = 5
"""Bars of one sort: past holders, holders, and groups of waiters."""
FUTURE = 0.25
"""The largest part of the picture that shows the rests of leases."""
ROW = 34
TOP = 20


class Bar(NamedTuple):
    """A stretch of time, and the text above it. Lengths are ready for the picture."""

    text: str
    look: str
    """The state of a holder, `past` or `waiting`."""
    y: int
    x: str
    width: str
    lease: str = ""
    """The length of the rest of the lease, which may end beyond the picture."""


class Timeline(NamedTuple):
    bars: list[Bar]
    height: int
    now: str
    begins: str
    more: int
    """The number of holders and waiters without a bar."""


class _Stretch(NamedTuple):
    text: str
    look: str
    begins: datetime
    ends: datetime | None = None
    """None: now."""
    left: float = 0.0


def timeline(
    lock: LockInfo | None, past: Past, groups: Sequence[Group], waiters: int, now: datetime
) -> Timeline | None:
    """Return the picture of a lock; None: there is nothing to show."""
    holders = list(lock.holders) if lock is not None else []
    known = [one for one in holders if one.holder.acquired_at is not None]
    shown = [
        *_before(past, known, now),
        *(_present(one) for one in known[:MOST]),
        *(_waiting(group, now) for group in groups[:MOST]),
    ]
    if not shown:
        return None
    begins = min(one.begins for one in shown)
    before = max((now - begins).total_seconds(), 1.0)
    left = max(one.left for one in shown)
    after = min(left, before * FUTURE / (1 - FUTURE))
    whole = before + after

    def percent(seconds: float) -> str:
        return f"{max(0.0, seconds) / whole * 100:.2f}%"

    bars = []
    for number, one in enumerate(shown):
        start = (one.begins - begins).total_seconds()
        lasts = ((one.ends or now) - one.begins).total_seconds()
        bars.append(
            Bar(
                one.text,
                one.look,
                TOP + number * ROW,
                percent(start),
                percent(lasts),
                percent(one.left) if one.left else "",
            )
        )
    held = lock.holding if lock is not None else 0
    drawn = sum(group.number for group in groups[:MOST])
    more = max(0, held - min(len(known), MOST)) + max(0, waiters - drawn)
    height = TOP + len(bars) * ROW
    return Timeline(bars, height, percent(before), cells.moment(begins), more)


def _before(past: Past, known: Sequence[HolderInfo], now: datetime) -> list[_Stretch]:
    """The past holders, the oldest first. Nobody saw when a lease ended that expired: its bar goes
    on until the next holder came."""
    found = []
    following = min(
        (one.holder.acquired_at for one in known if one.holder.acquired_at), default=now
    )
    for one in past.holders:
        ends = following
        if one.lasted is not None:
            ends = one.acquired_at + timedelta(seconds=one.lasted)
        look = "past" if one.ending == Ending.RELEASED else "ended"
        text = _text(str(cells.NAMES[one.ending]), one.lasted, process_name(one.owner))
        found.append(_Stretch(text, look, one.acquired_at, max(ends, one.acquired_at)))
        following = one.acquired_at
    return found[::-1]


def _present(one: HolderInfo) -> _Stretch:
    of = one.holder
    assert of.acquired_at is not None
    who = process_name(of.owner) if of.owner else _("another program")
    text = _text(str(cells.NAMES[one.state]), of.held, who)
    return _Stretch(text, one.state, of.acquired_at, left=of.remaining or 0.0)


def _waiting(group: Group, now: datetime) -> _Stretch:
    who = f"{group.number} × {clean(group.host)}"
    if group.number == 1:
        who = process_name(group.waiters[0].owner)
    begins = now - timedelta(seconds=group.oldest)
    return _Stretch(_text(_("waiting"), group.oldest, who), "waiting", begins)


def _text(what: str, seconds: float | None, who: str) -> str:
    time = "" if seconds is None else f", {duration(seconds)}"
    return f"{what}{time} – {who}"


def now_of(lock: LockInfo | None) -> datetime:
    """Return the time at which a lock was read, by the server's clock if a holder tells it."""
    seen = (one.holder.seen_at for one in (lock.holders if lock is not None else ()))
    return next(filter(None, seen), None) or datetime.now(UTC)
