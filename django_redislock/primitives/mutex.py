"""The mutex: one lease per name, first come, first served; on one name, or on several in one step.

1.  *Acquire* of a free lock is one short script. If the lock is not free, nothing was done, and
    the scripts of the other steps are asked.
2.  There, if the key is free, it gets a value with our token and a TTL. If the token at the key is
    ours already, because an earlier send did arrive although we never saw its answer, only the TTL
    is set anew. So we may always ask again.
3.  A claim that can't have the lock and may wait is put into the queue by that same script.
4.  *Release* compares the token, deletes the key and, in the same step, hands the lock to the
    first waiter whose process can be reached. Nobody can get in between. If that process was seen
    just now, it has the lock for a few seconds, and a message says so (queued.py, `Anchor`). Else
    it has the lock for a short claim window: it is woken and calls acquire again, which finds that
    it has the lock. If it does not come, that time passes, and the next waiter's slice finds the
    lock free. A waiter of the process that releases is named by the answer, and its lease began
    when the release was sent. A lock for which nobody waits is released by one short script, as it
    was taken.
5.  Giving up is an acquire without an inbox: if the lock was handed to us at that very moment we
    have it after all; otherwise our place in the queue is gone when the answer comes.
6.  If an answer was lost, the last request is a release that leaves a tombstone: an acquire of
    that token that arrives late is refused, and can't become a lock that nobody holds.
7.  The holder's own deadline counts from the time at which it *sent* the request, less a
    margin for clock drift. Counting from the answer would let it believe in its lease for
    as long as the answer travelled after the lease had begun.
8.  Redis serves nobody else while a script runs, so a script passes over a thousand killed waiters
    at most. If it finds none that lives, the lock stays free, and whoever asks next goes on:
    acquire answers that it is to be asked again at once, until the first waiter that lives has
    the lock.

Several names, as people expect of `MSETNX`:

9.  Each name is held as the mutex of that name alone, all with one token. So a lock on one of the
    names and a lock on several exclude each other, and are inspected, cleared and extended alike.
10. *Acquire* takes all names or none. It looks at all of them first; a free name for which others
    wait belongs to the first of these waiters.
11. A waiter holds nothing, and stands in the queue of one name at a time: the first name that
    somebody else holds. When its turn comes, that name is handed to it, as to every waiter. In
    the same round trip it takes the other names too. If one of them is held, it passes the name on
    to the next waiter and goes to the queue of the held name, where its time of arrival still
    counts. The same script does this for the waiters behind it that need a name which it has seen
    held, without waking them: otherwise each of many waiters would ask once for each one that is
    served. A waiter that only learnt of its turn would come too late for every name for which
    others always wait.
12. So nobody waits while holding: no order of names, and no two of these locks, can block each
    other without end. The price is that luck decides if several names are never free at the same
    moment.
13. *Release* is one script. If one name was lost before, the others are released all the same.
14. Names in different slots of a cluster can't be in one script. They are taken slot by slot in
    the order of the names, and released if a later one is held. Tokens are idempotent, so
    asking again is safe at each point. That a server has slots may turn out only when it refuses
    the first request: then nothing was carried out, and it is asked by slot.

After lost data, with `AFTER_LOSS` = "wait":

15. The key `redislock:guard` has the time since which the server has forgotten nothing. It is
    there as long as the data are. So whoever misses it knows that they were lost, or that the
    server is new, and writes it anew.
16. *Acquire* of a guarded claim gets no free lock until its own ttl has passed since that time. By
    then every forgotten lease has ended whose ttl was not longer.
17. A *renewal* that finds nothing reinstates its lease, with its own token and fencing token, as
    long as that time is not over. So its holder keeps the lock, and whoever asks sees who it is.
18. A lease that was reinstated may be released and handed on at once: at most one lease on the
    name was forgotten, and this is it. (A semaphore has several, so it can't be guarded.)
19. That would not be so if the holder was stopped, or its request was late, until others had held
    the lock, and *their* lease was forgotten. So the server is asked for its time first, and the
    request says when the lease ends by that time. After that, nothing is reinstated.
20. A request to reinstate a lease that arrives after its release would lock the name for nobody.
    So the claim is doubtful from then on, and its release leaves a tombstone.

A lock that is not guarded never reads the guard, and pays nothing for it.

Sources: the compare-and-delete release is the one of the Redis documentation of SET; the
fencing token is Martin Kleppmann's ("How to do distributed locking", 2016), taken from the
server's clock; the margin is Redlock's drift. `MSETNX` itself sets all keys or none, but has no
TTL, no token that says who owns a key, and no queue.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from ..base import tokens
from ..base.exceptions import LockUnavailable
from ..base.people import Holder
from . import queued
from .contract import (
    MOST_AT_ONCE,
    Claim,
    Grant,
    Outcome,
    Port,
    Refusal,
    Refusals,
    Request,
    Sight,
    batches,
    milliseconds,
    of_all_names,
)
from .keys import Keys, Word
from .scripts import ask, flag, instant, nth, sight, text, verdicts, whole
from .waiting import DEAF

kind = "mutex"
unfenced = (
    "A lease on several names has a fencing token for each: write "
    "lease.fencing_tokens['account:1'], or queryset.fenced(lease.fencing_tokens['account:1'])."
)


def taking(claim: Claim) -> Request:
    """Return the request that takes free locks."""
    first, token = claim.names[0], claim.token
    keys = first.at_once(token)
    if first is not claim.keys and len(claim.names) > 1:
        for its in claim.names[1:]:
            keys += its.at_once(token)
        keys.append(first.index.clock)
    else:
        # Who inherits a note has to ask for it. (A property takes longer.)
        keys += f"{first.beside or first.lock}:note", first.index.clock
    return Request("mutex_take", keys, [token, str(milliseconds(claim.ttl)), claim.says])


def dropping(claim: Claim) -> Request:
    """Return the request that releases locks of which nobody has taken notice."""
    return Request("mutex_drop", [its.lock for its in claim.names], [claim.token])


def asking(
    claim: Claim,
    group: Sequence[Keys],
    inbox: str = "",
    ticket: str = "",
    *,
    inherits: bool = False,
) -> Request:
    """Return the request that acquires names that may be in one script, or waits for them. If it
    `inherits`, the holder takes over a note."""
    script, keys = guarded(claim, "mutex_acquire", _keys(group, claim.token))
    args: list[Word] = [claim.token, milliseconds(claim.ttl), claim.says, inbox, ticket]
    return Request(script, keys, [*args, int(inherits)])


def releasing(claim: Claim, group: Sequence[Keys], *, withdraw: bool, inbox: str = "") -> Request:
    """Return the request that releases such names, and hands them to the next waiters."""
    args: list[Word] = [claim.token, int(withdraw), inbox, int(claim.forgets)]
    return Request("mutex_release", _keys(group, claim.token), args)


def acquire(port: Port, claim: Claim, wait: float | None) -> Coroutine[Any, Any, Outcome]:
    return queued.acquire(port, claim, wait, Asking().acquire)


def release(port: Port, claim: Claim) -> Coroutine[Any, Any, Refusal | None]:
    return queued.release(port, claim, Asking().release)


class Asking:
    """Requests for all names, group by group; a group is the names that one script may touch."""

    def __init__(self) -> None:
        self._asked: dict[str, None] = {}
        """The groups in which we may hold or wait; the group to be left first comes first."""
        self._away: str | None = None
        """The group that could not be reached the last time. It is asked first, so that the others
        are not taken in vain."""

    async def acquire(self, port: Port, claim: Claim, inbox: str, ticket: str) -> queued.Asked:
        acquired: queued.Acquired = ()
        groups = _groups(port, claim.names)
        for first in sorted(groups, key=lambda first: first != self._away):
            group = groups[first]
            self._asked[first] = None
            request = asking(claim, group, inbox, ticket, inherits=len(claim.names) == 1)
            try:
                (code, *rest), name = await ask(port, partial(_acquired, claim, group), *request)
            except LockUnavailable:
                if _groups(port, claim.names) != groups:
                    # It was refused, and so it is known by now that the server has slots.
                    self._asked.clear()
                    return await self.acquire(port, claim, inbox, ticket)
                self._away = first
                await self._leave(port, claim, besides=first, as_far_as_possible=True)
                raise
            self._away = None
            if code == 1:
                acquired_us, *fences = rest
                acquired = acquired or (1, acquired_us)
                each = zip((its.name for its in group), fences, strict=True)
                claim.fencing_tokens = {**claim.fencing_tokens, **dict(each)}
                continue
            if code == 0:
                # While we wait here, hold nothing and wait nowhere else.
                await self._leave(port, claim, besides=first)
                listens = inbox not in ("", DEAF)
                if listens and len(claim.names) == 1 and claim.packed_release is None:
                    later = releasing(claim, group, withdraw=False, inbox=inbox)
                    claim.packed_release = port.packed(later)
            return (code, *rest), name
        tokens_ = claim.fencing_tokens.values()
        return (*acquired, *(tokens_ if len(tokens_) == 1 else [None])), claim.keys.name

    async def _leave(
        self, port: Port, claim: Claim, *, besides: str, as_far_as_possible: bool = False
    ) -> None:
        """Release what we hold in the other groups, and leave their queues."""
        groups = _groups(port, claim.names)
        for first in [first for first in self._asked if first != besides]:
            try:
                await _release_group(port, claim, groups[first], withdraw=False)
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
        groups = _groups(port, claim.names)
        for group in groups.values():
            try:
                refusal = await _release_group(port, claim, group, withdraw=claim.doubtful)
            except LockUnavailable as error:
                if _groups(port, claim.names) != groups:  # as in `acquire`
                    return await self.release(port, claim)
                unavailable = unavailable or error
                continue
            if refusal is not None:
                refusals.append(refusal)
        if unavailable is not None:
            raise unavailable
        return refusals[0] if refusals else None


def _acquired(claim: Claim, group: Sequence[Keys], answer: Any) -> queued.Asked:
    """Read an answer, and the name to which it applies."""
    match answer:
        case [1, acquired_us, fence, note]:
            if len(group) == 1:
                claim.found, answer = text(note), [1, acquired_us, fence]
    code, *rest = queued.acquired(answer, len(group))
    name = nth(group, rest.pop()).name if code in (0, -1) else claim.keys.name
    return (code, *rest), name


async def _release_group(
    port: Port, claim: Claim, group: Sequence[Keys], *, withdraw: bool
) -> Refusal | None:
    inbox = port.own_inbox(group[0]) if len(claim.names) == 1 else ""
    its = claim.packed_release
    if its is None or withdraw or claim.forgets:
        request = releasing(claim, group, withdraw=withdraw, inbox=inbox)
    else:
        request, port.ready = its
    return await queued.release_once(port, claim, group, request)


async def extend(
    port: Port, claims: Sequence[Claim], ttls: Sequence[float], *, permits: bool = False
) -> Refusals:
    """Let leases live for these times from now, with all their names. None: extended. Of those
    that are not held, it is asked in a second request why.

    Raises `LockUnavailable`: nothing is known of any of them.
    """
    store = another_ttl(claims, ttls)

    async def extend_each(held: Sequence[Held], *, why: bool = False) -> Refusals:
        request = extension(held, store=store, permits=permits, why=why)
        return await ask(port, verdicts(len(held)), *request)

    async def some(batch: list[tuple[int, Keys]]) -> Refusals:
        held = [(its, claims[number].token, ttls[number]) for number, its in batch]
        found = await extend_each(held)
        refused = [number for number, refusal in enumerate(found) if refusal is not None]
        if refused:
            answer = await extend_each([held[number] for number in refused], why=True)
            for number, refusal in zip(refused, answer, strict=True):
                found[number] = refusal
        return found

    return await of_all_names(port, claims, some)


Held = tuple[Keys, str, float]
"""The keys of a lock, the token that holds it, and a ttl in seconds."""


def another_ttl(claims: Sequence[Claim], ttls: Sequence[float]) -> bool:
    """Return whether a lease gets another ttl than it had, which is then written at its lock."""
    return [claim.ttl for claim in claims] != [*ttls]


def extension(
    held: Sequence[Held], *, store: bool, permits: bool = False, why: bool = False
) -> Request:
    """Return the request that lets each token hold its keys for so many seconds from now. With
    `why`, the answer says why a token does not hold them."""
    first = held[0][0]
    if permits:
        keys = [key for its, _, _ in held for key in (its.lock, its.holders)]
    else:
        keys = [its.lock for its, _, _ in held]
    keys += first.index, first.clock
    if why:
        keys += [its.gone(token) for its, token, _ in held]
    args: list[Word] = [tokens.word(), str(int(store))]
    lives = {ttl: str(milliseconds(ttl)) for ttl in {ttl for *_, ttl in held}}
    for _, token, ttl in held:
        args += token, lives[ttl]
    return Request("permits_extend" if permits else "mutex_extend", keys, args)


A_MOMENT = 1.0
"""Seconds for which a lease is reinstated that is released next. A request that arrives late locks
the name for no longer."""


def guarded(claim: Claim, script: str, keys: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the script that acquires this claim, and its KEYS. The guard comes last."""
    return (f"{script}_guarded", [*keys, claim.keys.guard]) if claim.guarded else (script, keys)


async def reinstate(
    port: Port,
    claims: Sequence[Claim],
    ttls: Sequence[float],
    deadlines: Sequence[float],
    *,
    withdrawn: bool = False,
) -> Refusals:
    """Let forgotten leases live for these times from now, unless their holders' deadlines have
    passed; with `withdrawn`, even if they were withdrawn. None: reinstated.

    Raises `LockUnavailable`: nothing is known of any of them.
    """
    there = claims[0].names[0]
    now_us = await ask(port, instant, "server_time", [there.guard], [tokens.word()])
    heard = port.now()
    # Too early, if anything, by the time that the answer was on its way.
    ends = [now_us + round(1e6 * (deadline - heard)) for deadline in deadlines]

    async def some(batch: list[tuple[int, Keys]]) -> Refusals:
        keys: list[str] = []
        args: list[str | int] = [tokens.word(), int(withdrawn)]
        for number, its in batch:
            claim = claims[number]
            keys += its.lock, its.gone(claim.token)
            args += _value(claim, its), milliseconds(ttls[number]), ends[number]
        first = batch[0][1]
        keys += first.guard, first.index, first.clock
        return await ask(port, verdicts(len(batch)), "mutex_reinstate", keys, args)

    return await of_all_names(port, claims, some)


async def release_forgotten(port: Port, claim: Claim, deadline: float) -> Refusal | None:
    """Release a lease that its release has not found, and whose deadline has not passed. It is
    reinstated for a moment, which shows that nobody else has held the lock. None: released."""
    [refusal] = await reinstate(port, [claim], [A_MOMENT], [deadline], withdrawn=True)
    if refusal is None:
        refusal = await claim.primitive.release(port, claim)
        if refusal is not None and not refusal.revoked:
            return None  # that moment was over, or the lease was forgotten once more
    return refusal


def _value(claim: Claim, keys: Keys) -> str:
    """Return the value of a lease at its lock, as in lua/value.lua."""
    assert claim.granted is not None
    fence = claim.fencing_tokens.get(keys.name, claim.granted.fencing_token)
    acquired_us = claim.granted.acquired_us
    acquired = "" if acquired_us == fence else acquired_us
    return f"{claim.token}+{fence}|{acquired}|{milliseconds(claim.ttl)}|{claim.says}"


async def write_down(port: Port, claims: Sequence[Claim], *, permits: bool = False) -> None:
    """Write down leases that have been held for a while, in the index and in the history."""
    held = [(its, claim.token) for claim in claims for its in claim.names]
    for positions in batches(port, [its.lock for its, _ in held], MOST_AT_ONCE):
        some = record_of([held[each] for each in positions], permits=permits)
        await ask(port, whole, *some)


def record_of(held: Sequence[tuple[Keys, str]], *, permits: bool = False) -> Request:
    """Return the request that writes down that each token holds its keys."""
    script = "permits_write_down" if permits else "mutex_write_down"
    keys = [key for its, _ in held for key in (its.lock, its.holders if permits else its.history)]
    args = [tokens.word(), *(token for _, token in held)]
    return Request(script, [*keys, held[0][0].index], args)


async def adopt(port: Port, token: str, claim: Claim) -> Grant | Refusal:
    script = queued.Script("mutex_adopt", claim.keys.mutex(token))
    return await queued.adopt(port, token, claim, script)


async def holders(port: Port, keys: Keys) -> list[Sight]:
    return await ask(port, sights, "mutex_holder", [keys.lock], [tokens.word()])


def sights(answer: Any) -> list[Sight]:
    """Read the answer of lua/mutex_holder.lua."""
    return [] if answer is None else [sight(*answer)]


async def held_as(port: Port, keys: Keys) -> tuple[str, Holder] | None:
    """As `permits.held_as`. A value of another program is no mutex."""
    sights = await holders(port, keys)
    return (kind, sights[0].holder) if sights and sights[0].holder.owner else None


async def clear(port: Port, keys: Keys, seen: Sequence[bytes], by: str, reason: str) -> list[bool]:
    return [await ask(port, flag, *clearing(keys, seen, by, reason))]


def clearing(
    keys: Keys, seen: Sequence[bytes], by: str, reason: str, thief: Sequence[Word] = ()
) -> Request:
    """Return the request that takes the lock away. The writer of a foreign value is told
    nothing."""
    its = keys.mutex(seen[0][:32].decode(errors="replace"))
    return Request("mutex_clear", its, [tokens.word(), by, reason, seen[0], *thief])


def stealing(claim: Claim, seen: Sight, reason: str) -> Request:
    """Return the request that takes the lock away from its holder, and gives it to `claim`."""
    thief: list[Word] = [claim.token, milliseconds(claim.ttl), claim.says]
    return clearing(claim.keys, [seen.token], claim.owner, reason, thief)


STEALS = 10
"""How often a thief tries, if others take the lock between its look and its request."""


async def steal(
    port: Port, claim: Claim, reason: str, stolen: Callable[[Holder], None]
) -> Outcome:
    """Hold `claim`, and take the lock away from whoever holds it. Tells `stolen` who that was.

    The lock changes hands in one step, so nobody gets in between; the waiters keep their order.
    It is acquired as ever, before, since it may be free, and after, since an answer may be lost.
    """
    for _ in range(STEALS):
        got = await claim.primitive.acquire(port, claim, 0)
        if isinstance(got, Grant):
            break
        seen = await claim.primitive.holders(port, claim.keys)
        claim.sent = claim.doubtful = True
        for its in seen:
            if await ask(port, flag, *stealing(claim, its, reason)):
                stolen(its.holder)
    return got


def _groups(port: Port, names: Sequence[Keys]) -> dict[str, Sequence[Keys]]:
    """Group the keys that may be in one script, in the order of the names. A group is known by its
    first key, which it keeps if it turns out that the server has slots. On one primary there is
    one group."""
    if len(names) == 1:
        return {names[0].lock: names}
    found = batches(port, [its.lock for its in names], len(names))
    return {names[group[0]].lock: [names[number] for number in group] for group in found}


def _keys(group: Sequence[Keys], token: str) -> list[str]:
    """Return KEYS in the order of lua/locks.lua."""
    keys = [key for its in group for key in its.of_token(token)]
    return [*keys, group[0].index, group[0].clock]
