"""One claim: how it is acquired, and how an interrupted one is undone.

It is the same for threads and tasks, but for the few functions at the top. A claim that fails
since a key has a wrong type is explained: by the kind of lock that the name is held as, and its
holder; or by the key that another program has overwritten.

Most locks are free when they are asked for, and nobody takes notice of their leases. So a
primitive says in `taking` and `dropping` by which short request that is done. The scripts of these
requests do nothing in any other case. Then the primitive goes its own way: it asks anew, with the
same token. If the short request has failed, that counts as its first answer (`Claim.failed`). So
waiting, doubt, and asking again are written once, in the primitives.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.conf import settings

from .. import signals
from ..base.clock import deadline, now
from ..base.exceptions import LockError, LockNotAcquired, LockUnavailable
from ..base.people import Holder
from ..base.tokens import word
from ..primitives import mutex, note, permits, queued, waiting
from ..primitives.contract import (
    NO_TERMS,
    Claim,
    Done,
    Grant,
    Port,
    Primitive,
    Refusal,
    Sight,
    Terms,
    run,
    too_late,
)
from ..primitives.keys import Keys, counter
from ..primitives.scripts import ask
from ..primitives.waiting import LEAST, NEVER
from ..settings import conf, kinds
from ..settings.policy import Policy
from ..signals import LockEvent
from ..transport.ports import AsyncPort, SyncPort, keep, straight
from ..transport.server import Server
from .transactions import open_transactions
from .watchdog import watchdog

T = TypeVar("T")


async def beside_orm(port: Port, call: Callable[[], T]) -> T:
    """Call it in the thread in which the caller's ORM works, since each thread has database
    connections of its own."""
    if isinstance(port, AsyncPort):
        return await sync_to_async(call, thread_sensitive=True)()
    return call()


async def _announce(
    port: Port | None,
    outcome: signals.EventKind,
    keys: Keys,
    server: Server,
    whose: Claim | Holder,
    **more: Any,
) -> None:
    """Log an event, and call the receivers of its signal. Without a port they are called in
    another thread: this one may be any, perhaps one with an event loop."""
    event = LockEvent(
        outcome=outcome,
        name=keys.name,
        key=keys.lock,
        using=server.using,
        owner=whose.owner,
        label=whose.label,
        **more,
    )
    signals.log(event)
    if isinstance(port, AsyncPort):
        await signals.asend(event)
    elif port is None or asyncio._get_running_loop() is not None:
        signals.send_later(event)
    else:
        signals.send(event)


async def _explained(port: Port, claim: Claim, using: str, error: LockError) -> LockError:
    """Return the error of an acquire, with the holder of another kind that it met, or with the
    broken key."""
    shared = claim.primitive.kind in ("semaphore", "read", "write", "task")
    for keys in claim.renewed_keys:
        for look in (permits.held_as, mutex.held_as) if shared else (permits.held_as,):
            with suppress(LockError):  # not of this kind, or Redis is away now
                found = await look(port, keys)
                if found is not None and found[0] != claim.primitive.kind:
                    kind, holder = found
                    said = f"{error} {keys.name!r} is held as {queued.NAMES[kind]}, by {holder}."
                    return LockError(said, keys.name)
        with suppress(LockError):
            for key in await _broken(port, keys, "ZCARD" if shared else "GET"):
                return _overwritten(keys, key, using)
    return error


async def _broken(port: Port, keys: Keys, reads: str = "") -> list[str]:
    """Return the keys that have another type than such a lock gives them, and let lists have the
    lock. Such a lock `reads` its key by that command; "": delete the keys that have another type
    than any lock gives them."""

    def read(answer: Any) -> list[str]:
        return [key.decode(errors="backslashreplace") for key in answer]

    its = [*keys.looked_at, keys.index]
    return await ask(port, read, "lock_mend", its, [word(), reads])


def _overwritten(keys: Keys, key: str, using: str) -> LockError:
    words = ["manage.py", "redislock", "clear"]
    if keys.named_by_others:
        words.append("--cache-locks")
    if using in settings.CACHES and conf.listed(keys.name).using != using:
        words.append(f"--using={using}")
    instead = "lock another name" if key == keys.name else "change REDISLOCK['PREFIX']"
    return LockError(
        f"The key {key!r} has a type that such a lock does not use, so {keys.name!r} can't be "
        f"locked: another program has written it. It was left alone. If that program needs it, "
        f"{instead}. To delete it: {shlex.join([*words, keys.name])}",
        keys.name,
    )


logger = logging.getLogger("django_redislock")

ON_ITS_WAY = 900.0
"""Seconds for which a network may keep a request that got no answer: TCP repeats it for about a
quarter of an hour, even after the connection was closed."""


def take(
    server: Server, terms: Terms, claim: Claim, wait: float | None, hold: Callable[[Grant], T]
) -> tuple[T, None] | tuple[None, SyncPort]:
    """Take a lock that is free, by one request of this thread, and return what `hold` makes of the
    grant. Otherwise return the port by which it is to be acquired in the usual way.

    If an exception ends it early, nothing is left half-acquired.
    """
    try:
        if claim.keys.lock in server.busy or signals.wanted("acquired"):
            return None, SyncPort(server, terms=terms)
        short = claim.primitive.taking(claim)
        if short is None:
            return None, SyncPort(server, terms=terms)
        claim.began = began = now()
        claim.sent = True
        until = NEVER if wait is None else began + max(wait, LEAST)
        fence = straight(server, terms, until, short)
        if isinstance(fence, SyncPort):
            return None, fence
        if now() < deadline(began, claim.ttl):
            return hold(_granted(claim, fence, began)), None
        port = SyncPort(server, terms=terms)
        port.begun = lambda: [1, fence]
        return None, port
    except BaseException as error:
        run(cut_short(error, SyncPort, server, claim))
        raise


def release_straight(server: Server, claim: Claim) -> SyncPort | None:
    """Release a lock of whose holder nobody has taken notice, by one request of this thread. Or
    return the port by which that is done in the usual way: if others wait, it has sent the request
    that was packed for that."""
    if claim.doubtful:
        return SyncPort(server)
    if claim.short and (request := claim.primitive.dropping(claim)):
        found = straight(server, NO_TERMS, NEVER, request)
    elif claim.packed_release is not None and not server.clustered:
        found = straight(server, NO_TERMS, NEVER, *claim.packed_release)
    else:
        return SyncPort(server)
    return found if isinstance(found, SyncPort) else None


async def release_young(port: Port, claim: Claim) -> bool:
    """Release the lock of a young lease. Return False if that is not done yet: what has come of
    the request counts as the answer to the first one of the usual way."""
    if claim.short:
        return await drop(port, claim)
    try:
        return await claim.primitive.release(port, claim) is None
    except LockUnavailable as error:
        claim.failed = error
    except LockError:  # the usual way comes to it again
        pass
    return False


def _granted(claim: Claim, fence: int, sent: float) -> Grant:
    """Return the grant of a short request. Its fencing token is the time of acquiring, too."""
    claim.short = True
    if not claim.keys.parts:
        return Grant(fence, fence, sent)
    claim.fencing_tokens = dict.fromkeys((its.name for its in claim.names), fence)
    return Grant(None, fence, sent)


async def obtain(port: Port, claim: Claim, wait: float | None) -> Grant | LockNotAcquired:
    """Hold `claim`, as `Primitive.acquire`: by the short request, if that may do."""
    plain = not claim.guarded and port.plain(claim.keys)
    short = claim.primitive.taking(claim) if plain else None
    if short is None:
        return await _wait_for(port, claim, wait)
    if claim.began is None:
        claim.began = port.now()
    sent, claim.sent = claim.began, True
    if wait is not None:
        port.limit(wait)
    try:
        answer = await port.script(*short)
        claim.heard = answer is not None
        taken = answer is not None and answer[0] == 1
        if taken and port.now() >= deadline(sent, claim.ttl):
            raise too_late(claim, doubtful=True)
    except LockUnavailable as error:
        claim.failed = error
    else:
        if taken:
            return _granted(claim, answer[1], sent)
        claim.sent = False
        if answer is not None:
            raise Done(answer[1])
        port.busy(claim.keys)
    claim.sent = False
    return await _wait_for(port, claim, wait)


async def _wait_for(port: Port, claim: Claim, wait: float | None) -> Grant | LockNotAcquired:
    """Acquire it in the usual way, and leave the inbox and the line at the end."""
    try:
        return await claim.primitive.acquire(port, claim, wait)
    finally:
        # Twice, since an exception from outside may come in the middle of the first call.
        try:
            port.unlisten()
        except BaseException:
            port.unlisten()
            raise


async def release(port: Port, claim: Claim) -> Refusal | None:
    """Release `claim`, as `Primitive.release`: by the short request, if that may do."""
    return None if await drop(port, claim) else await claim.primitive.release(port, claim)


async def drop(port: Port, claim: Claim) -> bool:
    """Release `claim` by the short request, once. Return False if that is not done yet."""
    short, claim.short = claim.short and not claim.doubtful and port.plain(claim.keys), False
    if short and (request := claim.primitive.dropping(claim)):
        try:
            if await port.script(*request) is not None:
                claim.released += (*request.keys,)
                return True
            # Others wait, most likely: the lock is theirs next.
            port.busy(claim.keys)
        except LockUnavailable as error:
            claim.failed = error
    return False


async def acquire(
    port: SyncPort | AsyncPort,
    server: Server,
    claim: Claim,
    wait: float | None,
    hold: Callable[[Grant], T],
    reason: str = "",
) -> T | LockNotAcquired:
    """Acquire `claim`, and return what `hold` makes of the grant. With a reason, steal it.

    If an exception ends it early, nothing is left half-acquired.
    """
    port_type = type(port)
    claim.began = began = claim.began or port.now()
    until = waiting.end(began, wait)
    try:
        if reason:
            robbed: list[Holder] = []
            got = await mutex.steal(port, claim, reason, robbed.append)
            await tell_cleared(port, claim.keys, server, robbed, claim.owner, reason)
        else:
            got = await obtain(port, claim, wait)
        if isinstance(got, LockNotAcquired):
            if claim.doubtful:
                # A request that got no answer may still arrive, and would get the lock for
                # nobody.
                await settle(port_type, server, claim, until)
            if wait != 0 and claim.primitive is mutex and len(claim.names) == 1:
                await note.tell(port_type(server, terms=Terms(LEAST)), claim.keys, got)
            waited, holder = got.waited, got.holder
            await report(port, "not acquired", claim, server, waited=waited, holder=holder)
            return got
        held = hold(got)
        if got.missed_wakeup:  # counted in the background: the holder has waited for long enough
            key = counter(claim.keys.index, "missed_wakeups")
            watchdog(server).release_later(claim.keys.name, partial(_count, key=key))
        waited = port.now() - began
        await report(port, "acquired", claim, server, waited=waited, wakeup=port.wakeup)
        return held
    except BaseException as error:
        await cut_short(error, port_type, server, claim, until)
        if claim.guarded and isinstance(error, LockUnavailable) and server.clustered:
            # That has turned out only now. From now on the claim is refused before it is sent.
            kinds.guarded(Policy(using=server.using, after_loss="wait"), lambda _: True)
        if type(error) is LockError and claim.primitive.kind != "redlock":
            raise await _explained(port_type(server), claim, server.using, error) from error
        raise


async def cut_short(
    error: BaseException,
    port_type: Callable[..., Port],
    server: Server,
    claim: Claim,
    until: float = float("inf"),
) -> None:
    """Leave nothing half-acquired after `error`: a cancellation, an exception from outside, or a
    Redis that did not answer.

    `until` is the end of the caller's time. What can't be done before is done in the background.
    """
    answered = isinstance(error, LockError) and not isinstance(error, LockUnavailable)
    claim.doubtful |= not answered
    watchdog(server).forget(claim)
    if claim.sent and not isinstance(error, LockError):
        await interrupted(error, port_type(server), server, claim)
    elif claim.sent:
        # If the server has just answered, the claim is undone at once, even if the time is over.
        silent = isinstance(error, LockUnavailable) and error.silent
        await settle(port_type, server, claim, now() if silent else max(until, now() + LEAST))


async def interrupted(error: BaseException, port: Port, server: Server, claim: Claim) -> None:
    """Undo `claim` after an exception from outside, in an acquire or a release.

    A cancelled task does this itself. An exception of a signal's handler goes through at once,
    even if the server hangs: then the watchdog does it.
    """
    if isinstance(error, asyncio.CancelledError):
        await undo(port, server, claim)
    else:
        _undo_later(server, claim)


async def settle(
    port_type: Callable[..., Port], server: Server, claim: Claim, until: float
) -> None:
    """Undo what an acquire may have done: here until `until`, and later in the background."""
    left = until - now()
    if left > 0:
        await undo(port_type(server, terms=Terms(left)), server, claim)
    else:
        withdraw(server, claim)


async def undo(port: Port, server: Server, claim: Claim) -> None:
    """Run `_undo_once` to its end, even if the caller is cancelled meanwhile; if an event loop
    ends meanwhile, the watchdog does."""
    try:
        if isinstance(port, AsyncPort):
            await asyncio.shield(keep(asyncio.ensure_future(_undo_once(port, server, claim))))
        else:
            await _undo_once(port, server, claim)
    except BaseException:
        _undo_later(server, claim)
        raise


async def _undo_once(port: Port, server: Server, claim: Claim) -> None:
    """Undo what an interrupted acquire or release has done, or may still do."""
    try:
        await claim.primitive.release(port, claim)
    except LockUnavailable:
        withdraw(server, claim)
    except LockError:
        pass  # a key of a wrong type: nothing is locked, and the caller knows already


def withdraw(server: Server, claim: Claim) -> None:
    """Undo in the background what an acquire has done, or may still do.

    A server that stalled may carry it out later, and would keep the lock for nobody.
    """
    logger.warning("%r may stay locked for %.3g s", claim.keys.name, claim.ttl)
    _undo_later(server, claim)


def _undo_later(server: Server, claim: Claim) -> None:
    """Let the watchdog undo a claim, for as long as its request may still arrive."""
    until = now() + max(claim.ttl, ON_ITS_WAY)

    async def release(port: Port) -> None:
        if now() < until:
            await claim.primitive.release(port, claim)

    watchdog(server).release_later(claim.keys.name, release)


def extend_later(server: Server, claim: Claim, ttl: float) -> None:
    """Let the watchdog extend a claim once, and note nothing of that."""

    async def extend(port: Port) -> None:
        await claim.primitive.extend(port, [claim], [ttl])

    watchdog(server).release_later(claim.keys.name, extend)


async def downgrade(port: Port, claim: Claim, blocks: int, *, commit: bool) -> Refusal | None:
    """Turn a write lock into a read lock. Return a refusal if its lease is lost. It may be
    repeated.

    Raises `TypeError` for other kinds, and `LockError` if one of its `blocks`, or an open
    transaction if it is kept until the `commit`, relies on exclusive access.
    """
    name, primitive = claim.keys.name, claim.primitive
    if primitive not in (permits.READ, permits.WRITE):
        raise TypeError(
            f"the lease on {name!r} is of the kind {primitive.kind!r}; only the lease of "
            f"ReadWriteLock(…).write() can be downgraded"
        )
    writes = primitive is permits.WRITE
    if writes and blocks > 1:
        raise LockError(
            f"The lease on {name!r} is held by {blocks} blocks, and the outer ones rely on "
            f"exclusive access. Call lease.downgrade() in the outermost block, after the inner "
            f"ones.",
            name,
        )
    pending = await beside_orm(port, open_transactions) if writes and commit else []
    if pending:
        raise LockError(
            f"The lease on {name!r} is kept until the database transaction is committed "
            f"(release='commit'): readers admitted now would read the old rows. Call "
            f"lease.downgrade() after the atomic block, or not at all.",
            name,
        )
    # From here on the lease is for reading only, even if the answer is lost.
    claim.primitive = permits.READ
    return await permits.READ.downgrade(port, claim)


async def clear(
    port: Port,
    primitive: Primitive,
    keys: Keys,
    server: Server,
    seen: Sequence[Sight],
    by: str,
    reason: str,
) -> bool:
    """Take a lock away from the holders that an operator saw, and delete its keys of a wrong type.
    Return False if it changed hands."""
    tokens = [sight.token for sight in seen]
    one = not server.each
    mended = one and await _broken(port, keys)
    done = await primitive.clear(port, keys, tokens, by, reason) if tokens else []
    cleared = [sight for sight, was in zip(seen, done, strict=True) if was]
    if one and (cleared or mended):
        await _count(port, counter(keys.index, "clearings"))
    await tell_cleared(port, keys, server, [sight.holder for sight in cleared], by, reason)
    return bool(cleared or mended)


async def tell_cleared(
    port: Port, keys: Keys, server: Server, holders: Sequence[Holder], by: str, reason: str
) -> None:
    """Tell the world whose holds an operator has ended."""
    for holder in holders if signals.wanted("cleared") else ():
        its = {"fencing_token": holder.fencing_token, "held": holder.held, "holder": holder}
        await _announce(port, "cleared", keys, server, holder, by=by, why=reason, **its)


async def _count(port: Port, key: str) -> None:
    with suppress(LockError):  # it is only a number for people
        await port.script("count", [key], [word(), 1])


async def report(
    port: Port | None, outcome: signals.EventKind, claim: Claim, server: Server, **more: Any
) -> None:
    """Report the outcome for a claim, with what the server has granted, as `_announce` does."""
    if not signals.wanted(outcome):
        return
    if claim.granted is not None:
        more["fencing_token"] = claim.granted.fencing_token
        if outcome != "acquired":
            more["held"] = now() - claim.granted.sent
    await _announce(port, outcome, claim.keys, server, claim, **more)
