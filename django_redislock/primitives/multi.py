"""Several mutexes in one step: all or none. It does what people expect of `MSETNX`.

1.  Each name is held as the ordinary mutex of that name, all with one token. So a lock on one of
    the names and a lock on several exclude each other, and mutexes are inspected, cleared and
    extended in the same way here.
2.  *Acquire* is one script, which takes all names or none. It looks at all of them first; a free
    name for which others wait belongs to the first of these waiters.
3.  A waiter holds nothing, and stands in the queue of one name at a time: the first name that
    somebody else holds. When its turn comes, that name is handed to it, as to every waiter. In
    the same round trip it takes the other names too. If one of them is held, it passes the name on
    to the next waiter and goes to the queue of the held name, where its time of arrival still
    counts. The same script does this for the waiters behind it that need a name which it has seen
    held, without waking them: otherwise each of many waiters would ask once for each one that is
    served. A waiter that only learnt of its turn would come too late for every name for which
    others always wait.
4.  So nobody waits while holding: no order of names, and no two of these locks, can block each
    other without end. The price is that luck decides if several names are never free at the same
    moment.
5.  *Release* is one script. If one name was lost before, the others are released all the same.
6.  Names in different slots of a cluster can't be in one script. They are taken slot by slot in
    the order of the names, and given back if a later one is held. Tokens are idempotent, so
    asking again is safe at each point. That a server has slots may turn out only when it refuses
    the first request: then nothing was carried out, and it is asked by slot.

`MSETNX` itself sets all keys or none, but has no TTL, no token that says who owns a key, and no
queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..base.exceptions import LockError, LockNotAcquired, LockUnavailable
from . import guard, mutex, queued
from .asking import batches, milliseconds
from .contract import Claim, Grant, Refusal

if TYPE_CHECKING:
    from .contract import Port
    from .keys import Keys

kind = "multi"
unfenced = (
    "A lease on several names has a fencing token for each: write "
    "lease.fencing_tokens['account:1'], or queryset.fenced(lease.fencing_tokens['account:1'])."
)


async def acquire(port: Port, claim: Claim, wait: float | None) -> Grant | LockNotAcquired:
    """Hold all names of `claim`, waiting for up to `wait` seconds (0: try once, None: without
    end).

    Raises `LockUnavailable` if Redis can't be asked for as long; the caller then owes a
    `release`, as after any other exception.
    """
    return await queued.acquire(port, claim, wait, _Asking())


class _Asking:
    """Requests for all names, group by group; a group is the names that one script may touch."""

    def __init__(self) -> None:
        self._asked: dict[str, None] = {}
        """The groups in which we may hold or wait; the group to be left first comes first."""
        self._away: str | None = None
        """The group that could not be asked the last time. It is asked first, so that the others
        are not taken in vain."""

    async def acquire(
        self, port: Port, claim: Claim, inbox: str, ticket: str
    ) -> tuple[list[Any], str]:
        acquired = None
        ttl = milliseconds(claim.ttl)
        groups = _groups(port, claim.parts)
        for first in sorted(groups, key=lambda first: first != self._away):
            group = groups[first]
            self._asked[first] = None
            script, keys = guard.guarded(claim, "multi_acquire", _keys(group, claim), before=2)
            try:
                code, *rest = await port.script(
                    script, keys, [claim.token, ttl, claim.says, inbox, ticket]
                )
            except LockUnavailable:
                if _groups(port, claim.parts) != groups:
                    # It was refused, and so it is known by now that the server has slots.
                    self._asked.clear()
                    return await self.acquire(port, claim, inbox, ticket)
                self._away = first
                await self._leave(port, claim, besides=first, as_far_as_possible=True)
                raise
            self._away = None
            if code == 1:
                acquired = acquired or rest[0]
                # An answer of one number is that of locks that were free, as in queued.py.
                fences = [int(fence) for fence in rest[1:] or rest * len(group)]
                names = (its.name for its in group)
                claim.fencing_tokens.update(zip(names, fences, strict=True))
                continue
            if code in (2, 4):
                return [code, *rest], group[0].name if code == 2 else claim.keys.name
            *rest, number = rest
            if code == 0:
                # While we wait here, hold nothing and wait nowhere else.
                await self._leave(port, claim, besides=first)
            return [code, *rest], group[number - 1].name
        return [1, None, acquired], claim.keys.name

    async def _leave(
        self, port: Port, claim: Claim, *, besides: str, as_far_as_possible: bool = False
    ) -> None:
        """Release what we hold in the other groups, and leave their queues."""
        groups = _groups(port, claim.parts)
        for first in [first for first in self._asked if first != besides]:
            try:
                await _give_back(port, claim, groups[first], withdraw=False)
            except LockUnavailable as error:
                if not as_far_as_possible:
                    raise
                self._asked[first] = self._asked.pop(first)  # the last one next time
                if error.silent:
                    return  # otherwise a waiter would wait for a time-out in each group
            else:
                del self._asked[first]

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        refusals: list[Refusal] = []
        unavailable = None
        groups = _groups(port, claim.parts)
        for first, group in groups.items():
            try:
                refusal = await _give_back(port, claim, group, withdraw=claim.doubtful)
            except LockUnavailable as error:
                if _groups(port, claim.parts) != groups:  # as in `acquire`
                    return await self.release(port, claim)
                unavailable = unavailable or error
                continue
            if refusal is None:
                claim.released += (first,)
            elif first not in claim.released:
                refusals.append(refusal)
        if unavailable is not None:
            raise unavailable
        return refusals[0] if refusals else None


async def release(port: Port, claim: Claim) -> Refusal | None:
    """Release all names, or leave the queue. None: released, now or before.

    Asks twice when the connection is lost. Raises `LockUnavailable`; it may be repeated.
    """
    return await queued.release(port, claim, _Asking())


async def _give_back(
    port: Port, claim: Claim, group: Sequence[Keys], *, withdraw: bool
) -> Refusal | None:
    released, *rest = await port.script(
        "multi_release", _keys(group, claim), [claim.token, int(withdraw)]
    )
    if released:
        return None
    value, gone, number = rest
    return Refusal(value, gone, group[number - 1].name)


async def extend(
    port: Port, claims: Sequence[Claim], ttls: Sequence[float]
) -> list[Refusal | None]:
    """Let leases live for these times from now, with all their names. None: extended.

    Raises `LockUnavailable`: nothing is known of any of them.
    """
    found: list[Refusal | None] = [None] * len(claims)
    store = mutex.another_ttl(claims, ttls)
    held = [
        (number, its, claim.token, ttl)
        for number, (claim, ttl) in enumerate(zip(claims, ttls, strict=True))
        for its in claim.parts
    ]
    for positions in batches(port, [its.lock for _, its, *_ in held], mutex.MOST_AT_ONCE):
        batch = [held[position] for position in positions]
        said = await mutex.extend_all(port, [one[1:] for one in batch], store=store)
        for (number, its, *_), refusal in zip(batch, said, strict=True):
            if refusal is not None:
                found[number] = found[number] or refusal._replace(name=its.name)
    return found


async def adopt(port: Port, token: str, claim: Claim) -> Grant | Refusal:  # noqa: ARG001
    """Raise `LockError`: such a lease stays in its process."""
    raise LockError(f"A lease of the kind {kind!r} can't be restored.", claim.keys.name)


holders, clear, write_down = mutex.holders, mutex.clear, mutex.write_down


def _groups(port: Port, parts: Iterable[Keys]) -> dict[str, list[Keys]]:
    """Group the keys that may be in one script, in the order of the names. A group is known by its
    first key, which it keeps if it turns out that the server has slots. On one primary there is
    one group."""
    groups: dict[int, list[Keys]] = {}
    for its in parts:
        groups.setdefault(port.slot(its.lock), []).append(its)
    return {group[0].lock: group for group in groups.values()}


def _keys(group: Sequence[Keys], claim: Claim) -> list[str]:
    """Return KEYS in the order of lua/multi.lua."""
    keys = [
        key
        for its in group
        for key in (its.lock, its.queue, its.waiters, its.history, its.gone(claim.token))
    ]
    return [*keys, group[0].index, group[0].clock]
