"""One claim: how it is acquired, and how an interrupted one is undone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from .. import signals
from ..base.clock import now
from ..base.exceptions import LockError, LockNotAcquired, LockUnavailable
from ..base.servers import Servers
from ..base.tokens import word
from ..primitives import mending, waiting
from ..primitives.contract import Claim, Grant, Port, Primitive, Sight, Terms
from ..primitives.keys import Keys, counter
from ..primitives.waiting import LEAST
from ..settings import kinds
from ..settings.policy import Policy
from ..signals import LockEvent
from ..transport.server import Server
from .sides import announce, to_its_end
from .watchdog import watchdog

T = TypeVar("T")

logger = logging.getLogger("django_redislock")

ON_ITS_WAY = 900.0
"""Seconds for which a network may keep a request that got no answer: TCP repeats it for about a
quarter of an hour, even after the connection was closed."""


async def acquire(
    port_type: Callable[..., Port],
    server: Server,
    claim: Claim,
    policy: Policy,
    wait: float | None,
    hold: Callable[[Grant], T],
) -> T | LockNotAcquired:
    """Acquire `claim`, and return what `hold` makes of the grant.

    If an exception ends it early, nothing is left half-acquired.
    """
    port = port_type(server, terms=policy.terms())
    began = port.now()
    until = waiting.end(began, wait)
    try:
        got = await claim.primitive.acquire(port, claim, wait)
        if isinstance(got, LockNotAcquired):
            if claim.doubtful:
                # A request that got no answer may still arrive, and would get the lock for
                # nobody.
                await settle(port_type, server, claim, until)
            waited, holder = got.waited, got.holder
            await report(port, "not acquired", claim, server, waited=waited, holder=holder)
            return got
        held = hold(got)
        if got.untold:  # counted in the background: the holder has waited for long enough
            key = counter(claim.keys.index, "untold")
            watchdog(server).release_later(claim.keys.name, partial(_count, key=key))
        if signals.wanted("acquired"):
            fence, waited = got.fencing_token, port.now() - began
            await report(
                port,
                "acquired",
                claim,
                server,
                fencing_token=fence,
                waited=waited,
                learned=port.learned,
            )
        return held
    except BaseException as error:
        await cut_short(error, port_type, server, claim, until)
        if claim.guarded and isinstance(error, LockUnavailable) and server.clustered:
            # That has turned out only now. From now on the claim is refused before it is sent.
            kinds.guarded(Policy(using=server.using, after_loss=policy.after_loss), lambda _: True)
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
        # If the server has just answered, the claim is taken back at once, even if the time is
        # over.
        silent = isinstance(error, LockUnavailable) and error.silent
        await settle(port_type, server, claim, now() if silent else max(until, now() + LEAST))


async def interrupted(error: BaseException, port: Port, server: Server, claim: Claim) -> None:
    """Take back `claim` after an exception from outside, in an acquire or a release.

    A cancelled task does this itself. An exception of a signal's handler goes through at once,
    even if the server hangs: then the watchdog does it.
    """
    if isinstance(error, asyncio.CancelledError):
        await take_back(port, server, claim)
    else:
        watchdog(server).release_later(claim.keys.name, Withdrawal(claim).release)


async def settle(
    port_type: Callable[..., Port], server: Server, claim: Claim, until: float
) -> None:
    """Take back what an acquire may have done: here until `until`, and later in the background."""
    left = until - now()
    if left > 0:
        within = None if left == float("inf") else left
        await take_back(port_type(server, terms=Terms(within)), server, claim)
    else:
        withdraw(server, claim)


async def take_back(port: Port, server: Server, claim: Claim) -> None:
    """Run `undo` to its end; if an event loop ends meanwhile, the watchdog does."""
    try:
        await to_its_end(port, undo(port, server, claim))
    except BaseException:
        watchdog(server).release_later(claim.keys.name, Withdrawal(claim).release)
        raise


async def undo(port: Port, server: Server, claim: Claim) -> None:
    """Take back what an interrupted acquire or release has done, or may still do."""
    try:
        await claim.primitive.release(port, claim)
    except LockUnavailable:
        withdraw(server, claim)
    except LockError:
        pass  # a key of a wrong type: nothing is locked, and the caller knows already


def withdraw(server: Server, claim: Claim) -> None:
    """Take back in the background what an acquire has done, or may still do.

    A server that stalled may carry it out later, and would keep the lock for nobody.
    """
    logger.warning("%r may stay locked for %.3g s", claim.keys.name, claim.ttl)
    watchdog(server).release_later(claim.keys.name, Withdrawal(claim).release)


class Withdrawal:
    """A claim that the watchdog takes back, for as long as its request may still arrive."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._until = now() + max(claim.ttl, ON_ITS_WAY)

    async def release(self, port: Port) -> None:
        if now() < self._until:
            await self._claim.primitive.release(port, self._claim)


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
    one = not isinstance(server.using, Servers)
    mended = one and await mending.mend(port, keys)
    done = await primitive.clear(port, keys, tokens, by, reason) if tokens else []
    cleared = [sight for sight, was in zip(seen, done, strict=True) if was]
    if one and (cleared or mended):
        await _count(port, counter(keys.index, "clearings"))
    for sight in cleared if signals.wanted("cleared") else ():
        event = LockEvent(
            outcome="cleared",
            name=keys.name,
            key=keys.lock,
            using=server.using,
            owner=sight.holder.owner,
            label=sight.holder.label,
            fencing_token=sight.holder.fencing_token,
            held=sight.holder.held,
            holder=sight.holder,
            by=by,
            why=reason,
        )
        await announce(port, event)
    return bool(cleared or mended)


async def _count(port: Port, key: str) -> None:
    with suppress(LockError):  # it is only a number for people
        await port.script("count", [key], [word(), 1])


async def report(
    port: Port,
    outcome: signals.EventKind,
    claim: Claim,
    server: Server,
    *,
    in_background: bool = False,
    **more: Any,
) -> None:
    """Report the outcome for a claim to the log and to the receivers of the signal."""
    if signals.wanted(outcome):
        await announce(port, event(outcome, claim, server, **more), in_background=in_background)


def event(outcome: signals.EventKind, claim: Claim, server: Server, **more: Any) -> LockEvent:
    """Return the event for the outcome of a claim."""
    return LockEvent(
        outcome=outcome,
        name=claim.keys.name,
        using=server.using,
        owner=claim.owner,
        label=claim.label,
        key=claim.keys.lock,
        **more,
    )
