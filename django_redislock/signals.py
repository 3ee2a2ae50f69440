"""Events of locks: a signal and a log line for each.

    @receiver(lock_lost)
    def alert(event: LockEvent, **kwargs): ...

A receiver can't break a lock: Django logs what it raises, as an error in `django.dispatch`.
Receivers are called in the thread or task that acquired or released. Events of the background (a
lost lease, a release that was delayed) are sent in a thread of their own, so that a slow receiver
can't delay a renewal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

from django.dispatch import Signal

from .base import background
from .base.exceptions import cleared
from .base.people import Holder, log_extra

logger = logging.getLogger("django_redislock")

EventKind = Literal[
    "acquired", "not acquired", "unlocked", "released", "unknown", "lost", "cleared"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockEvent:
    """An event of one lock. Times are seconds."""

    outcome: EventKind
    name: str
    using: str
    owner: str | None
    """The holder, the former holder, or who did not get the lock. None: another program wrote the
    value at the key."""
    label: str
    """Where the owner took the lock, or tried to."""
    fencing_token: int | None = None
    waited: float | None = None
    """How long the acquire waited, if the lock was acquired, not acquired or unlocked."""
    held: float | None = None
    """How long the lock was held, if that has ended."""
    holder: Holder | None = None
    """The holder, if the lock was not acquired, or cleared."""
    by: str = ""
    """The operator who cleared the lock."""
    why: str = ""
    """Why the lock was cleared, lost or unlocked."""
    key: str = ""
    """The key of the lock in Redis."""
    wakeup: str = ""
    """How a waiter learned that it has the lock: `"process"`, from another thread or task of its
    process; `"message"`; or `"poll"`, since it asked by itself. `""`: it did not wait."""


observers: tuple[Callable[[LockEvent], None], ...] = ()
"""Functions that are called with each event, before any receiver and without a thread between, in
event loops as well. So they must not wait or send anything: they are for counting."""

lock_acquired = Signal()
"""Sent before the block runs."""
lock_not_acquired = Signal()
"""Sent when the wait is over and somebody else still holds the lock."""
lock_unlocked = Signal()
"""Sent before a block runs without its lock: Redis could not be reached, and `unavailable` is
`"run"`."""
lock_released = Signal()
"""Sent after the release."""
lock_unknown = Signal()
"""Sent when a renewal got no answer: the lease is not lost yet. Once until a renewal succeeds."""
lock_lost = Signal()
"""Sent as soon as a process knows that its lease expired, was overwritten or cleared."""
lock_cleared = Signal()
"""Sent in the process of the operator who cleared the lock."""

_EVENTS: dict[EventKind, tuple[Signal, int, str]] = {
    "acquired": (lock_acquired, logging.DEBUG, "%(name)r acquired, after %(waited).3f s"),
    "not acquired": (
        lock_not_acquired,
        logging.INFO,
        "%(name)r not acquired: it is held by %(holder)s. Waited %(waited).1f s.",
    ),
    "unlocked": (lock_unlocked, logging.WARNING, "%(name)r runs without its lock: %(why)s"),
    "released": (lock_released, logging.DEBUG, "%(name)r released, after %(held).3f s"),
    "unknown": (
        lock_unknown,
        logging.DEBUG,  # the watchdog warns once about all leases of a request
        "%(name)r got no answer to a renewal, after %(held).3f s",
    ),
    "lost": (
        lock_lost,
        logging.WARNING,
        "The lease on %(name)r is lost: %(why)s. It was taken at %(label)s.",
    ),
    "cleared": (
        lock_cleared,
        logging.INFO,  # the warning is logged in the process of the holder
        "%(name)r was cleared %(cleared)s. It was held by %(holder)s.",
    ),
}


def observe(observer: Callable[[LockEvent], None]) -> None:
    """Call `observer` with each event from now on. Adding it twice has no further effect."""
    global observers
    if observer not in observers:
        observers = (*observers, observer)


def unobserve(observer: Callable[[LockEvent], None]) -> None:
    """Stop calling `observer`."""
    global observers
    observers = tuple(one for one in observers if one != observer)


def wanted(outcome: EventKind) -> bool:
    """Return whether anybody listens to these events. Most of the time nobody does, so no event
    needs to be made."""
    signal, level, _ = _EVENTS[outcome]
    return bool(signal.receivers or observers) or logger.isEnabledFor(level)


def log(event: LockEvent) -> None:
    """Call the observers and write the log line. `extra` has each field of the event, as
    `lock_name` and so on."""
    for observer in observers:
        try:
            observer(event)
        except Exception:
            logger.exception("An observer of %r failed for %r", event.outcome, event.name)
    _, level, message = _EVENTS[event.outcome]
    if logger.isEnabledFor(level):
        fields = asdict(event)
        words = fields | {"holder": str(event.holder), "cleared": cleared(event.by, event.why)}
        logger.log(level, message, words, extra=log_extra("lock", fields))


def send(event: LockEvent) -> None:
    """Call the receivers in this thread."""
    _deliver(_EVENTS[event.outcome][0], event, event.outcome, event.name)


def send_later(event: LockEvent) -> None:
    """Call the receivers in the background."""
    deliver_later(_EVENTS[event.outcome][0], event, event.outcome, event.name)


def deliver_later(signal: Signal, event: object, what: str, name: str) -> None:
    """Call the receivers of a signal in the background, without waiting for them. `what` and
    `name` are for the log, if that fails."""
    if signal.receivers:
        background.later(partial(_deliver, signal, event, what, name))


def _deliver(signal: Signal, event: object, what: str, name: str) -> None:
    try:
        signal.send_robust(sender=type(event), event=event)
    except (Exception, asyncio.CancelledError) as error:
        _failed(what, name, error)  # Django's robust sending does not catch it


async def asend(event: LockEvent) -> None:
    """As `send`, in a coroutine. Django calls receivers that are no coroutines in a thread."""
    task = asyncio.current_task()
    cancelled = task.cancelling() if task else 0
    try:
        await _EVENTS[event.outcome][0].asend_robust(sender=LockEvent, event=event)
    except Exception as error:
        _failed(event.outcome, event.name, error)
    except asyncio.CancelledError as error:
        if task and task.cancelling() > cancelled:
            raise
        _failed(event.outcome, event.name, error)  # a receiver cancelled itself


def _failed(what: str, name: str, error: BaseException) -> None:
    logger.error("The receivers of %r could not be called for %r", what, name, exc_info=error)
