"""What happened to locks, told to whoever wants to know: a signal and a log line for each.

    @receiver(lock_lost)
    def alert(event: LockEvent, **kwargs): ...

A receiver can never break a lock: what it raises is logged by Django, as an error in
`django.dispatch`. It is called in the thread or task that acquired or released; what comes to
light in the background (a lost lease, a release that had to wait) in a thread of its own, so that
a slow receiver can't keep a lease from being renewed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from django.dispatch import Signal

from .base import messenger
from .base.exceptions import Holder, LockUnavailable

logger = logging.getLogger("django_redislock")

Outcome = Literal["acquired", "not acquired", "released", "lost", "cleared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockEvent:
    """What happened to one lock. Times are seconds."""

    outcome: Outcome
    name: str
    using: str
    owner: str | None
    """Who holds or held it, or did not get it. None: a value that this package did not write."""
    label: str
    """Where that one took it, or tried to."""
    fencing_token: int | None = None
    waited: float | None = None
    """How long the lock was waited for, when it was acquired or not."""
    held: float | None = None
    """How long it was held, when it is so no more."""
    holder: Holder | None = None
    """Who held it, when it was not acquired, or cleared."""
    by: str = ""
    """Who cleared it."""
    why: str = ""
    """Why it was cleared or lost."""
    key: str = ""
    """The key of the lock in Redis."""


observers: tuple[Callable[[LockEvent], None], ...] = ()
"""Called before any receiver, at the very place where it happens, in an event loop, too, where
Django calls receivers in a thread. So they wait for nobody and send nothing: for what counts."""

lock_acquired = Signal()
"""Sent before the block runs."""
lock_not_acquired = Signal()
"""Somebody else held it for as long as was waited."""
lock_released = Signal()
"""Sent after the release."""
lock_lost = Signal()
"""A lease expired, was taken or cleared; sent as soon as its process knows."""
lock_cleared = Signal()
"""An operator cleared it; sent in the operator's process."""

# The line for the log says the rest of what its level is for.
_EVENTS: dict[Outcome, tuple[Signal, int, str]] = {
    "acquired": (lock_acquired, logging.DEBUG, "%(name)r acquired, after %(waited).3f s"),
    "not acquired": (
        lock_not_acquired,
        logging.INFO,
        "%(name)r not acquired: it is held by %(holder)s. Waited %(waited).1f s.",
    ),
    "released": (lock_released, logging.DEBUG, "%(name)r released, after %(held).3f s"),
    "lost": (
        lock_lost,
        logging.WARNING,
        "The lease on %(name)r is lost: %(why)s. It was taken at %(label)s.",
    ),
    "cleared": (
        lock_cleared,
        logging.INFO,  # who lost it is told as a warning, in the process of the holder
        "%(name)r was cleared by %(by)s: %(why)s. It was held by %(holder)s.",
    ),
}


def observe(observer: Callable[[LockEvent], None]) -> None:
    """Call it with each event from now on; once, however often this is asked for."""
    global observers
    if observer not in observers:
        observers = (*observers, observer)


def unobserve(observer: Callable[[LockEvent], None]) -> None:
    """Call it no more."""
    global observers
    observers = tuple(one for one in observers if one != observer)


def wanted(outcome: Outcome) -> bool:
    """Whether anybody would hear of it. Asked first, since most of the time nobody does."""
    signal, level, _ = _EVENTS[outcome]
    return bool(signal.receivers or observers) or logger.isEnabledFor(level)


def log(event: LockEvent) -> None:
    """Count it and log it; `extra` has each field of the event, as `lock_name` and so on."""
    for observer in observers:
        try:
            observer(event)
        except Exception:
            logger.exception("%r of %r could not be counted", event.outcome, event.name)
    _, level, message = _EVENTS[event.outcome]
    if logger.isEnabledFor(level):
        fields = asdict(event) | {"holder": event.holder}
        # Named, since a log record has a `name` of its own.
        extra = {f"lock_{field}": value for field, value in fields.items()}
        logger.log(level, message, fields, extra=extra)


class WaitLog:
    """Log lines of one wait: nobody waits for long in silence."""

    EVERY = 5.0
    """Seconds from line to line while Redis can't be asked, and until the first one about a lock
    that is busy. Those come ever more rarely: a wait may be one of hours, and of hundreds."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._unavailable_at = 0.0
        self._busy_at = self.EVERY

    def unavailable(self, error: LockUnavailable, waited: float) -> None:
        """Redis could not be asked, and will be asked again."""
        if waited >= self._unavailable_at:
            self._unavailable_at = waited + self.EVERY
            extra = {"lock_name": self._name, "lock_waited": waited}
            logger.warning("Waiting for %r: %s", self._name, error, extra=extra)

    def busy(self, name: str, holder: Holder, waited: float, position: int = 0) -> None:
        """Somebody holds the lock; of several names, the one that is waited for."""
        if waited >= self._busy_at:
            self._busy_at = 2 * waited
            before = f" Before us {position} wait." if position else ""
            extra = {"lock_name": name, "lock_waited": waited, "lock_holder": holder}
            text = "Waiting for %r for %.1f s: it is held by %s.%s"
            logger.info(text, name, waited, holder, before, extra=extra)


def send(event: LockEvent) -> None:
    """Call the receivers, here and now."""
    deliver(_EVENTS[event.outcome][0], event, event.name)


def deliver(signal: Signal, event: Any, name: str) -> None:
    """Call the receivers of a signal for what happened to something of that name."""
    try:
        signal.send_robust(sender=type(event), event=event)
    except (Exception, asyncio.CancelledError) as error:
        _failed(event, name, error)  # what Django's robust sending lets through


async def asend(event: LockEvent) -> None:
    """`send` for coroutines; receivers that are none are called in a thread."""
    task = asyncio.current_task()
    cancelled = task.cancelling() if task else 0
    try:
        await _EVENTS[event.outcome][0].asend_robust(sender=LockEvent, event=event)
    except Exception as error:
        _failed(event, event.name, error)
    except asyncio.CancelledError as error:
        if task and task.cancelling() > cancelled:
            raise
        _failed(event, event.name, error)  # a receiver has cancelled itself


def _failed(event: Any, name: str, error: BaseException) -> None:
    logger.error("%r of %r could not be told", event.outcome, name, exc_info=error)


def send_later(event: LockEvent) -> None:
    """Call the receivers in a thread that nobody waits for."""
    if _EVENTS[event.outcome][0].receivers:
        messenger.later(partial(send, event))
