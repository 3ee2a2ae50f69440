"""A lock in sentences: what goes on, and what clearing it would do.

The command and the admin say the same. Of a lock with several holders, the sentences name the
first one: the one in the worst state, and of these the one that has held it longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from django.utils.translation import gettext_noop as _

from .facts import SHARED, Ending, HolderInfo, Kind, LockInfo, Past, State, WaiterInfo
from .words import NOTHING, Sentence, clean, duration, process_name

_ENDINGS = {
    Ending.RELEASED: _("Last held by %(who)s for %(time)s, from %(instant)s; released."),
    Ending.EXPIRED: _("Last held by %(who)s for %(time)s, from %(instant)s; expired."),
    Ending.CLEARED: _("Last held by %(who)s for %(time)s, from %(instant)s; cleared."),
}


_OTHERS = {Kind.FOREIGN: "another program", Kind.TIMESTAMP: "a SETNX program"}
"""Shown instead of the holder of a value that we did not write."""

_KINDS = {
    Kind.READ: "read lock",
    Kind.WRITE: "write lock",
    Kind.FOREIGN: "other key",
    Kind.TIMESTAMP: "timestamp",
}


def kind(lock: LockInfo) -> str:
    """The kind of a lock, in a word or two."""
    if lock.cache_lock and lock.kind == Kind.MUTEX:
        return "cache.lock"
    return _KINDS.get(lock.kind, lock.kind.value)


def holder(lock: LockInfo) -> str:
    """The holder in short; of several, their number and the first one."""
    owner = process_name(lock.holder.owner or "") or _OTHERS.get(lock.kind, NOTHING)
    owner = owner if lock.holding else NOTHING
    return f"{holding(lock)}: {owner}" if lock.kind in SHARED else owner


def holding(lock: LockInfo) -> str:
    """The number of holders of a lock that several may hold."""
    if lock.limit is not None:
        return Sentence(_("%(number)s of %(limit)s"), number=lock.holding, limit=lock.limit)
    if lock.kind == Kind.WRITE:
        return Sentence(_("writer"))
    return Sentence(
        _("1 reader") if lock.holding == 1 else _("%(number)s readers"), number=lock.holding
    )


def story(lock: LockInfo, waiters: Sequence[WaiterInfo]) -> list[Sentence]:
    """Say who holds a lock, whether the holder lives, when it frees itself, and who is next."""
    one = lock.holders[0]
    return [held_by(lock), _alive(one), _frees_itself(one), next_one(lock, waiters)]


def free_story(past: Past) -> list[Sentence]:
    """Say that nobody holds a lock, and who was the last one."""
    nobody = Sentence(_("Nobody holds it now."))
    if not past.holders:
        return [nobody]
    one = past.holders[0]
    template = _ENDINGS[one.ending]
    if one.lasted is None:
        template = _("Last held by %(who)s, from %(instant)s until its lease expired.")
    elif one.ending == Ending.CLEARED and one.why:
        template = _("Last held by %(who)s for %(time)s, from %(instant)s; cleared %(why)s.")
    last = Sentence(
        template,
        who=_name(one.owner, one.label),
        instant=one.acquired_at,
        time=duration(one.lasted),
        why=clean(one.why),
    )
    return [nobody, last]


def consequences(lock: LockInfo, waiters: Sequence[WaiterInfo]) -> list[Sentence]:
    """Say what happens if a lock is cleared."""
    one = lock.holders[0]
    said = []
    if not lock.holding:
        said.append(Sentence(_("The key that is broken is deleted, and the lock can be taken.")))
    elif not (alive := lock.alive):
        said.append(
            Sentence(_("%(who)s can’t come back, and loses nothing."), who=holder_name(one))
        )
    else:
        within = duration(max(map(overlap, alive)))
        first = one if one.state != State.STALE else alive[0]
        template = _("%(who)s is alive; two may work at once for up to %(time)s.")
        if lock.limit is not None:
            template = _(
                "%(who)s is alive; more than %(limit)s may work at once for up to %(time)s."
            )
        if first.state in (State.BROKEN, State.UNKNOWN):
            template = _("%(who)s may be alive; then two may work at once for up to %(time)s.")
        elif first.holder.owner is None:
            template = _("%(who)s is not told; two may work at once until it ends.")
        said.append(Sentence(template, who=holder_name(first), time=within, limit=lock.limit))
    return [*said, next_one(lock, waiters)]


def consequences_of_all(locks: Sequence[LockInfo]) -> list[Sentence]:
    """Say what happens if all of these locks are cleared."""
    alive = [one for lock in locks for one in lock.alive]
    number, waiting = sum(len(lock.holders) for lock in locks), sum(it.waiters for it in locks)
    template = _("None of the holders can come back; nobody loses work.")
    if alive:
        template = _(
            "%(alive)s of %(number)s holders may be alive; then two may work at once for up to "
            "%(time)s."
        )
    within = duration(max(map(overlap, alive), default=None))
    said = Sentence(template, alive=len(alive), number=number, time=within)
    if not waiting:
        return [said, Sentence(_("Nobody waits."))]
    if waiting == 1:
        return [said, Sentence(_("1 waits; it gets the lock at once."))]
    first = _("%(number)s wait; the first one of each lock gets it at once.")
    return [said, Sentence(first, number=waiting)]


def safer(lock: LockInfo) -> Sentence:
    """Say what is safer than clearing."""
    one = lock.holders[0]
    host, _sep, process = (one.holder.owner or "").partition(":")
    ttl = one.ttl or one.holder.remaining
    alive = lock.alive
    if not alive:
        return Sentence(_("Clearing is safe: nobody works under this lock."))
    if one.state == State.STALE:
        template = _("It is safer to clear only those that are stale: %(number)s of %(all)s.")
        return Sentence(template, number=len(lock.holders) - len(alive), all=lock.holding)
    if not process or ttl is None:
        return Sentence(_("It is safer to end the program that holds it."))
    template = _(
        "It is safer to end process %(process)s on %(host)s: the lock is free within %(time)s."
    )
    if len(lock.holders) > 1:
        template = _(
            "It is safer to end the processes that hold it: their places are free within %(time)s."
        )
    return Sentence(
        template, process=process.partition(":")[0], host=clean(host), time=duration(ttl)
    )


def overlap(one: HolderInfo) -> float:
    """Return for how many seconds a holder that is cleared may go on without knowing: until its
    next renewal, which is due when a third of the TTL has passed; or, since it is not renewed, as
    long as its lease would have lived."""
    left = one.holder.remaining or 0.0
    if one.ttl is None or left < one.ttl / 2:
        return left
    return one.ttl / 3


def held_by(lock: LockInfo) -> Sentence:
    """Say who holds a lock, and for how long."""
    one = lock.holders[0]
    if not lock.holding:
        template = _("Nobody holds it now.")
    elif len(lock.holders) == 1:
        template = _("Held by %(who)s for %(time)s.")
        if one.holder.held is None:
            template = _("Held by %(who)s.")
    else:
        template = _("Held by %(number)s; longest by %(who)s, for %(time)s.")
        if one.holder.held is None:
            template = _("Held by %(number)s; look first at %(who)s.")
        elif one.state != State.HELD:
            template = _(
                "Held by %(number)s; look first at %(who)s, which has held it for %(time)s."
            )
    return Sentence(
        template, who=holder_name(one), number=holding(lock), time=duration(one.holder.held)
    )


_TROUBLE = {
    State.BROKEN: _("It is broken: %(why)s."),
    State.STALE: _("It is stale: %(why)s."),
    State.UNKNOWN: _("Whether it lives is unknown: %(why)s."),
}


def _alive(one: HolderInfo) -> Sentence:
    if one.state in _TROUBLE:
        return Sentence(_TROUBLE[one.state], why=one.why)
    foreign = one.holder.owner is None
    return Sentence(_("Whether it lives is not known.") if foreign else _("Its process is alive."))


def _frees_itself(one: HolderInfo) -> Sentence:
    left = one.holder.remaining
    if left is None:
        return Sentence(_("It has no TTL: it stays until somebody clears it."))
    if one.state == State.HELD and one.ttl is not None and left >= one.ttl / 2:
        return Sentence(
            _("Its lease is renewed; without renewal it ends in %(time)s."), time=duration(left)
        )
    now = one.holder.seen_at or datetime.now(UTC)
    return Sentence(
        _("It frees itself in %(time)s, at %(instant)s."),
        time=duration(left),
        instant=now + timedelta(seconds=left),
    )


def next_one(lock: LockInfo, waiters: Sequence[WaiterInfo]) -> Sentence:
    """Say who gets the lock next."""
    if lock.kind == Kind.TASK:
        return Sentence(_("Parked tasks go on when one of its name begins or ends."))
    if not lock.waiters or not waiters:
        return Sentence(_("Nobody waits."))
    first = next((one for one in waiters if one.alive), None)
    if first is None:
        template = _("%(number)s wait, and show no sign of life.")
        if len(waiters) == 1:
            template = _("%(who)s waits, and shows no sign of life.")
        return Sentence(template, who=process_name(waiters[0].owner), number=len(waiters))
    who, waited = process_name(first.owner), duration(first.waited)
    if lock.waiters == 1:
        return Sentence(_("Next: %(who)s, waiting for %(time)s."), who=who, time=waited)
    return Sentence(
        _("Next: %(who)s, waiting for %(time)s, and %(number)s more."),
        who=who,
        time=waited,
        number=lock.waiters - 1,
    )


def silent(waiter: WaiterInfo) -> str:
    """Say that a waiter shows no sign of life; "": it does."""
    if waiter.alive:
        return ""
    return Sentence(_("no sign of life for %(time)s"), time=duration(waiter.silent))


def holder_name(one: HolderInfo) -> str:
    """Return the process, and where in the code it took the lock."""
    if one.holder.owner is None and one.state == State.BROKEN:
        return Sentence(_("an unknown holder"))
    if one.holder.owner is None:
        return Sentence(_("another program"))
    return _name(one.holder.owner, one.holder.label)


def _name(owner: str, label: str) -> str:
    return f"{process_name(owner)} ({clean(label)})" if label else process_name(owner)
