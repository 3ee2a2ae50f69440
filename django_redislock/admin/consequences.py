"""What clearing would do, and what it has done, in words for the pages."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..inspection import Inspector, LockInfo, RedlockInspector, State
from ..inspection.clearing import Target
from ..inspection.lock_id import LockId
from ..inspection.sentences import translated
from ..inspection.story import consequences, holder_name, overlap, safer
from ..inspection.words import clean, duration
from ..models import LockStatus
from . import texts

logger = logging.getLogger("django_redislock")

NAMED = 3
"""Locks that a message names."""


def some_are_stale(lock: LockStatus) -> bool:
    """Whether a lock has holders that are stale, and others."""
    states = {one.state for one in lock.info.holders} if lock.info else set()
    return State.STALE in states and len(states) > 1


def what_happens(locks: Sequence[LockStatus]) -> list[SafeString]:
    """Return the paragraphs of a confirmation."""
    if len(locks) == 1 and (info := locks[0].info) is not None:
        waiters = LockId.of(info).inspector().waiters(info)
        return [texts.paragraph(consequences(info, waiters)), texts.sentence(safer(info))]
    alive = [one for lock in locks if lock.info for one in lock.info.alive]
    waiting = sum(lock.waiters for lock in locks)
    dead = sum(len(lock.info.holders) for lock in locks if lock.info) - len(alive)
    found = []
    if alive:
        text = ngettext(
            "%(number)s holder is alive, or may be: it does not know at once, and two may work "
            "under one lock for up to %(time)s.",
            "%(number)s holders are alive, or may be: they do not know at once, and two may work "
            "under one lock for up to %(time)s.",
            len(alive),
        )
        values = {"number": len(alive), "time": duration(max(map(overlap, alive)))}
        found.append(format_html("<strong>{}</strong>", text % values))
    if dead:
        text = ngettext(
            "%(number)s holder can’t come back, and loses nothing.",
            "%(number)s holders can’t come back, and lose nothing.",
            dead,
        )
        found.append(format_html("{}", text % {"number": dead}))
    text = _("Nobody waits.")
    if waiting:
        text = ngettext(
            "%(number)s waits; the first one of each lock gets it at once.",
            "%(number)s wait; the first one of each lock gets it at once.",
            waiting,
        )
    found.append(format_html("{}", text % {"number": waiting}))
    return found


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
