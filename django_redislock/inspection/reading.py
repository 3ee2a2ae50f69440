"""Read the values that the server has for locks, and judge the state of each lock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.utils.translation import gettext_noop as _

from ..base.exceptions import cleared
from ..base.people import Holder, number, read, server_time
from ..base.tokens import process_of
from ..lease.register import PRESENCE, PRESENCE_EVERY
from ..primitives import timestamp
from ..primitives.contract import Sight
from ..primitives.keys import Keys
from ..primitives.note import Note
from ..primitives.scripts import instant, maybe, text, whole
from .facts import (
    SHARED,
    UNREADABLE,
    Ending,
    HolderInfo,
    Kind,
    LockInfo,
    PastHolder,
    Progress,
    State,
    WaiterInfo,
)
from .words import Sentence


class Raw(NamedTuple):
    """A held lock as the server has it, not read yet."""

    keys: Keys
    waiters: int
    holding: int
    values: list[tuple[bytes, int, bytes | None]]
    """For each holder: its value, its TTL in ms, and its token if several may hold the lock."""
    now_us: int
    broken: str = ""
    """A key of a type that no lock gives it."""
    note: Note | None = None
    """The beginning of the note of a mutex."""
    written: bytes | None = None
    """The value that a holder of this package wrote beside the key of a timestamp lock."""

    @property
    def is_timestamp(self) -> bool:
        value, _ttl, token = self.values[0]
        if token is not None or not self.keys.named_by_others:
            return False
        return foreign(value, None, self.now_us / 1e6)[0] == Kind.TIMESTAMP

    @property
    def processes(self) -> set[str]:
        """The processes of its holders, as far as they are known."""
        values = [value for value, _ttl, _token in self.values] + [self.written or b""]
        return {value[:8].decode(errors="replace") for value in values}


def raw(keys: Keys, answer: list[Any], now_us: int) -> Raw | None:
    """Read what lua/inspection.lua returns for a lock. None: nobody holds it."""
    value, pttl, *more = answer
    if not more:
        return (
            None if value is None else Raw(keys, 0, 1, [(text(value), whole(pttl), None)], now_us)
        )
    waiters, holding, key, its_note, *shared = more
    broken = key.decode(errors="backslashreplace")
    if not whole(holding) and not broken:
        return None
    each = shared or [(value or b"", pttl, None)]
    values = [(text(value), whole(pttl), maybe(token)) for value, pttl, token in each]
    note = Note.read(text(its_note), whole=False)
    return Raw(keys, whole(waiters), holding, values, now_us, broken, note)


def raws(locks: Sequence[Keys], answer: Any) -> list[Raw | None]:
    """Read the answer of lua/inspection_locks.lua, which may not have all of these locks."""
    now_us, first, *others = answer
    now = instant(now_us)
    return [raw(its, one, now) for its, one in zip(locks, (first, *others), strict=False)]


def waiters(answer: Any) -> tuple[int, list[tuple[bytes, bytes, bytes | None]]]:
    """Read the server's clock, and the token, time of arrival and entry of some waiters."""
    now_us, *some = answer
    return instant(now_us), [(text(token), text(at), maybe(says)) for token, at, says in some]


def ranks(answer: Any) -> tuple[int, list[tuple[int, bytes]]]:
    """Read the number of entries of an index, and the ranks and keys of some."""
    listed, *some = answer
    each = zip(some[::2], some[1::2], strict=True)
    return whole(listed), [(whole(rank), text(key)) for rank, key in each]


def part(answer: Any) -> tuple[bytes, list[bytes]]:
    """Read when the lease of the next lock ends, "" for the last part; and keys of locks."""
    following, *some = answer
    return text(following), [text(key) for key in some]


def some_of(answer: Any) -> tuple[int, list[bytes]]:
    """Read the number of entries of an index, and some of them."""
    listed, *some = answer
    return whole(listed), [text(key) for key in some]


def scanned(answer: Any) -> tuple[bytes, list[bytes]]:
    """Read the next cursor, and some keys."""
    cursor, found = answer
    return b"%d" % int(cursor), [text(key) for key in found]


def written(keys: Sequence[str], answer: Any) -> list[tuple[bytes | None, bytes | None]]:
    each = zip(keys, answer, strict=True)
    return [(maybe(holder), maybe(until)) for _, (holder, until) in each]


def history(answer: Any) -> tuple[int | None, list[PastHolder | None]]:
    """Read the fencing token of the present holder, and the past holders."""
    value, *known = answer
    present = Holder.parse(maybe(value) or b"", -1, 0).fencing_token
    return present, [past_holder(one) for one in known]


def lock(raw: Raw, using: str, left: dict[str, float | None]) -> LockInfo:
    """Read a lock. `left`: for how many seconds each process is sure to live; None: not at all."""
    kind, limit, newest = Kind.FOREIGN, None, 0
    holders = []
    for value, pttl, token in raw.values:
        its_kind, one = _holder(raw, value, pttl, token, left)
        if token is None:
            kind = its_kind
        elif (one.holder.fencing_token or 0) > newest:
            newest = one.holder.fencing_token or 0
            kind, limit = shared(value)
        holders.append(one)
    holders.sort(key=lambda one: one.urgency)
    worst = holders[0]
    why = worst.why
    if why and raw.holding > 1:
        alike = sum(one.state == worst.state for one in holders)
        why = Sentence(
            _("%(number)s of %(holding)s holders: %(why)s"),
            number=alike,
            holding=raw.holding,
            why=why,
        )
    return LockInfo(
        name=raw.keys.name,
        using=using,
        kind=kind,
        state=worst.state,
        why=why,
        holders=tuple(holders),
        holding=raw.holding,
        limit=limit,
        waiters=raw.waiters,
        keys=raw.keys,
        has_permits=raw.values[0][2] is not None,
        progress=raw.note and progress(raw.note, holders[0].holder.acquired_at, raw.now_us),
    )


def progress(note: Note, began: datetime | None, now_us: int) -> Progress | None:
    """Return how far the work is that its holder began then; None: the note does not say it."""
    if note.done is None:
        return None
    return Progress(note.done, note.total, note.left(began, now_us))


def _holder(
    raw: Raw, value: bytes, pttl: int, token: bytes | None, left: dict[str, float | None]
) -> tuple[Kind, HolderInfo]:
    """Read one holder's value; and the kind of the lock, unless that is `SHARED`."""
    holder = Holder.parse(value, pttl, raw.now_us)
    kind, state, why, ttl = Kind.MUTEX, State.HELD, "", None
    sight = Sight.of(value, holder)
    if holder.owner is None:
        kind, state, why = foreign(value, holder.remaining, raw.now_us / 1e6)
        if token:
            state, why = State.BROKEN, Sentence(_("what its holder said of itself is lost"))
        elif raw.is_timestamp:
            remains_ms = max(0, round(float(value) * 1000 - raw.now_us / 1000))
            value = raw.written or value
            holder = timestamp.sight_of(value, remains_ms, raw.now_us).holder
    if holder.owner is not None and state == State.HELD:
        ttl = int(value[33:].split(b"|", 3)[2]) / 1000
        process = process_of(value[:8].decode())
        state, why = decide(holder, ttl, process is None, left.get(process or ""))
        sight = Sight.of(value, holder)
    if raw.broken:
        state = State.BROKEN
        why = Sentence(
            _("the key %(key)s has a type that such a lock does not use"), key=raw.broken
        )
    return kind, HolderInfo(
        holder=holder, state=state, why=why, ttl=ttl, seen=token or sight.token
    )


def shared(value: bytes) -> tuple[Kind, int | None]:
    """Read the kind and limit, which lua/permits.lua writes behind a tab."""
    kind, *limits = value.partition(b"\t")[2].split(b"|")
    limit = number(limits[0]) if limits else None
    if kind in (b"semaphore", b"task") and limit is not None:
        return Kind(kind.decode()), limit
    return {b"read": Kind.READ, b"write": Kind.WRITE}.get(kind, Kind.FOREIGN), None


def decide(holder: Holder, ttl: float, independent: bool, left: float | None) -> tuple[State, str]:
    """Judge the state of one of our locks, and say why.

    `independent`: it needs no living process. `left`: for how many seconds its process is sure to
    live; None: not at all.
    """
    if left is not None and left > PRESENCE - 2 * PRESENCE_EVERY:
        return State.HELD, ""
    if holder.remaining is None:
        return State.STALE, Sentence(_("it has no TTL, and its process shows no sign of life"))
    if independent:
        return State.HELD, ""
    # An acquire or a renewal is a sign of life, too.
    assert holder.held is not None
    silent = min(holder.held, max(0.0, ttl - holder.remaining))
    if left is not None:
        silent = min(silent, PRESENCE - left)
    if silent <= 2 * PRESENCE_EVERY:
        return State.HELD, ""
    why = Sentence(
        _("its process has shown no sign of life for %(seconds)s s"), seconds=f"{silent:.0f}"
    )
    return (State.UNKNOWN if silent <= PRESENCE else State.STALE), why


# Seconds since the epoch in this century, perhaps with a fraction.
_FIRST_TIME, _LAST_TIME = 946_684_800.0, 4_102_444_800.0


def foreign(value: bytes, remaining: float | None, time: float) -> tuple[Kind, State, str]:
    """Judge a foreign value: its kind and state, and why."""
    try:
        ends = float(value)
    except ValueError:
        ends = 0.0
    if _FIRST_TIME < ends < _LAST_TIME:
        if ends <= time:
            over = server_time(int(ends * 1e6))
            why = Sentence(_("its time was over at %(time)s"), time=over)
            return Kind.TIMESTAMP, State.STALE, why
        return Kind.TIMESTAMP, State.HELD, ""
    if remaining is None:
        why = Sentence(_("it has no TTL, and nobody is known to end it"))
        return Kind.FOREIGN, State.STALE, why
    return Kind.FOREIGN, State.HELD, ""


_WAITER = re.compile(rb"(\d{1,17})\|\d{1,15}\|[^|]*\|([^|]*)\|([^\t]*)(?:\t(\w*)[^\t]*)?")
_WANTED = {b"": Kind.MUTEX, **{kind.value.encode(): kind for kind in SHARED}}


def same_time(value: bytes, until: bytes) -> bool:
    """Say whether the time at the key of a timestamp lock is the one that our holder wrote."""
    try:
        return abs(float(value) - float(until)) <= timestamp.A_LITTLE
    except ValueError:
        return False


def waiter(position: int, arrived_us: bytes, says: bytes | None, now_us: int) -> WaiterInfo:
    """Read a waiter's entry, as lua/queue.lua describes it."""
    kind, owner, seen_us = Kind.FOREIGN, "", arrived_us
    label: str = UNREADABLE
    written = _WAITER.fullmatch(says or b"")
    if written is not None and (written[4] or b"") in _WANTED:
        seen_us, kind = written[1], _WANTED[written[4] or b""]
        owner, label = read(written[2]), read(written[3])
    return WaiterInfo(
        position=position,
        kind=kind,
        owner=owner,
        label=label,
        waited=_since(arrived_us, now_us),
        silent=_since(seen_us, now_us),
    )


def _since(then_us: bytes, now_us: int) -> float:
    """Seconds since a time, which may be the score of any member of a sorted set."""
    then = number(then_us.partition(b".")[0])
    return 0.0 if then is None else max(0.0, (now_us - then) / 1e6)


_ENDINGS = {b"": Ending.EXPIRED, **{ending.value.encode(): ending for ending in Ending}}


def past_holder(entry: bytes) -> PastHolder | None:
    """Read a past holder, as lua/history.lua writes it. `None`: it can't be read."""
    value, _, end = entry.partition(b"\t")
    holder = Holder.parse(value, -1, 0)
    if holder.owner is None or holder.fencing_token is None or holder.acquired_at is None:
        return None
    ending, lasted, *words = (end.split(b"|", 3) + [b""] * 3)[:4]
    # The time is negative if the clock was set back meanwhile.
    how, took = _ENDINGS.get(ending), number(lasted.removeprefix(b"-"))
    if how is None or (lasted and took is None):
        return None
    return PastHolder(
        owner=holder.owner,
        label=holder.label,
        fencing_token=holder.fencing_token,
        acquired_at=holder.acquired_at,
        lasted=None if took is None else (0.0 if lasted.startswith(b"-") else took / 1e6),
        ending=how,
        why=cleared(*map(read, words)) if how == Ending.CLEARED else "",
    )
