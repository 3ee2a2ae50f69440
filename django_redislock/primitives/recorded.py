"""A mutex with a record beside it: the result of the work that the lock protects.

1.  *Acquire* looks at the record in the same step. A record that answers the caller makes the lock
    needless: it is not taken, and what was handed to the caller goes to the next waiter.
2.  *Release* writes the record in the same step, before the lock is handed on. So the next holder
    finds the record whenever the work was done.

record.py says what a record is, and who may write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.exceptions import LockError, LockNotAcquired
from . import guard, mutex, mutex_and_timestamp, queued, record
from .contract import Claim, Grant, Refusal

if TYPE_CHECKING:
    from .contract import Port, Primitive


class Answered(LockError):
    """A record answers the caller. Nothing is held."""

    def __init__(self, name: str, value: bytes) -> None:
        super().__init__("", name)
        self.value = value


class Result(NamedTuple):
    """A record that is to be written."""

    value: bytes
    ttl: float | None
    """Seconds for which it is kept; None: for good."""
    held: bool
    """Whether it is written only while the lease is held. Else also if the lease has ended and
    nobody else has taken the lock."""


class Recorded:
    """The algorithm for one claim. Everything else is that of the mutex; with `old_clients`, that
    of a mutex and a timestamp lock."""

    def __init__(self, answers: str, *, old_clients: bool) -> None:
        self._first = _RecordedMutex(self, answers)
        self._both = old_clients
        base: Primitive = mutex_and_timestamp if old_clients else mutex
        self.kind, self.unfenced, self.extend = base.kind, base.unfenced, base.extend
        self.write_down, self.adopt = base.write_down, base.adopt
        self.holders, self.clear = base.holders, base.clear
        self.first: bytes | None = None
        """The record when the lock was first asked for."""
        self.found: bytes | None = None
        """The record when the lock was taken."""
        self.result: Result | None = None
        """What the release writes."""
        self.tried = False
        """Whether a release was tried. The lease may end before it is repeated."""

    async def acquire(
        self, port: Port, claim: Claim, wait: float | None
    ) -> Grant | LockNotAcquired:
        """As `mutex.acquire`. Raises `Answered`."""
        if self._both:
            return await mutex_and_timestamp.acquire(port, claim, wait, self._first)
        return await self._first.acquire(port, claim, wait)

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        """As `mutex.release`."""
        if self._both:
            return await mutex_and_timestamp.release(port, claim, self._first)
        return await self._first.release(port, claim)


class _RecordedMutex:
    """The mutex that has the record."""

    def __init__(self, recorded: Recorded, answers: str) -> None:
        self._recorded = recorded
        self._answers = answers
        """A Lua pattern of the records that answer the caller; "": none does."""

    async def acquire(
        self, port: Port, claim: Claim, wait: float | None
    ) -> Grant | LockNotAcquired:
        asking = _Asking(self._recorded, claim, self._answers)
        got = await queued.acquire(port, claim, wait, asking)
        if isinstance(got, Grant) and not asking.granted:
            # Another claim of this process has handed it over.
            self._recorded.found = await record.read(port, claim.keys)
        return got

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        result = self._recorded.result
        if result is None:
            return await mutex.release(port, claim)
        return await queued.release(port, claim, _Releasing(self._recorded, result))


class _Releasing:
    """Requests that write the record and give back the lock."""

    def __init__(self, recorded: Recorded, result: Result) -> None:
        self._recorded, self._result = recorded, result

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        value, ttl, held = self._result
        if self._recorded.tried:
            # The first request had a lease. But a result that may change must not overwrite what
            # was written since that request, if it was carried out.
            held = not claim.owed
        self._recorded.tried = True
        keys = [*claim.keys.mutex(claim.token), claim.keys.record]
        more = (value, record.milliseconds_of(ttl), int(held))
        return await queued.Script("record_release", keys, more).release(port, claim)


class _Asking:
    """Requests for the lock and for the record."""

    def __init__(self, recorded: Recorded, claim: Claim, answers: str) -> None:
        self._recorded = recorded
        self._first = True
        self.granted = False
        keys: Sequence[str] = [*claim.keys.mutex(claim.token), claim.keys.record]
        script, keys = guard.guarded(claim, "record_acquire", keys)
        self._script = queued.Script(script, keys, (answers,))

    async def acquire(
        self, port: Port, claim: Claim, inbox: str, ticket: str
    ) -> tuple[list[Any], str]:
        (code, *rest), name = await self._script.acquire(port, claim, inbox, ticket)
        recorded = self._recorded
        if code == 3:
            # Only a request whose answer was lost may still lock it for us.
            claim.sent = claim.doubtful
            raise Answered(name, rest[0])
        value = None
        if code == 1:
            rest, value = rest[:3], rest[3] if len(rest) > 3 else None
            recorded.found, self.granted = value, True
        elif code == 0:
            *rest, value = rest
        if self._first and code in (0, 1):
            recorded.first, self._first = value, False
        return [code, *rest], name
