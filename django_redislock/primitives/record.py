"""A record beside a lock: the result of the work that the lock protects, kept for a while or for
good; and the mutex that has one.

1.  The holder of the lock reads the record first: if there is one, the work is not done again.
2.  The record is written when the work has succeeded, and before the lock is released. So the next
    holder finds the record whenever the work was done.
3.  A write names its token. A write of a token that has lost its lease is refused, and so is a
    write that arrives after its token was withdrawn; otherwise a record that was forgotten since
    could come back.
4.  A record may be read without the lock, too: once written, it stays true.
5.  The mutex with a record (`Recorded`) looks at it in the same step in which it takes the lock. A
    record that answers the caller makes the lock needless: it is not taken, and what was handed to
    the caller goes to the next waiter. The release writes the record in the same step.
6.  A record may answer the caller although it is to be renewed, near the end of its ttl. The
    server says so to whoever comes while nobody has the lock.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from ..base import tokens
from . import mutex, queued
from .contract import (
    Claim,
    Done,
    Grant,
    Outcome,
    Port,
    Primitive,
    Refusal,
    Request,
    milliseconds,
    twice,
)
from .keys import Keys
from .scripts import ask, maybe, refused, text
from .timestamp import TOGETHER, Together


async def read(port: Port, keys: Keys) -> bytes | None:
    """Return the record; None if there is none, or its ttl is over. Raises `LockUnavailable`."""
    return await twice(lambda: ask(port, maybe, "record_get", [keys.record], [tokens.word()]))


async def write(port: Port, claim: Claim, value: bytes, ttl: float | None) -> Refusal | None:
    """Keep `value` for `ttl` seconds (None: without an end), if `claim` holds the lock. None:
    written.

    Raises `LockUnavailable`; it may be repeated.
    """
    keys = claim.keys
    its_keys = [keys.record, keys.lock, keys.gone(claim.token)]
    args = [claim.token, value, milliseconds_of(ttl)]
    return await twice(lambda: ask(port, refused, "record_write", its_keys, args), claim)


async def first(port: Port, keys: Keys, value: bytes, ttl: float | None) -> bytes:
    """Keep `value` unless there is a record. Returns the record. Raises `LockUnavailable`."""
    args = [tokens.word(), value, milliseconds_of(ttl)]
    return await twice(lambda: ask(port, text, "record_first", [keys.record], args))


async def forget(port: Port, keys: Keys) -> None:
    """Remove the record. Raises `LockUnavailable`."""
    await twice(lambda: port.script("record_delete", [keys.record], [tokens.word()]))


def milliseconds_of(ttl: float | None) -> int | str:
    """Return the argument that says for how long a record is kept."""
    return "" if ttl is None else milliseconds(ttl)


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

    def __init__(self, answers: str, *, old_clients: bool, stale: float | None = None) -> None:
        self.answers = answers
        """A Lua pattern of the records that answer the caller; "": none does."""
        self.stale = stale
        """A record that has no more seconds left than this is to be renewed."""
        self._both = old_clients
        base: Primitive = TOGETHER if old_clients else mutex
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

    def taking(self, claim: Claim) -> Request | None:
        """As `mutex.taking`: there must be no record, either, or it answers the caller."""
        if self._both or self.stale is not None:
            return None
        script, (*keys, clock), args = mutex.taking(claim)
        return Request(script, [*keys, claim.keys.record, clock], [*args, self.answers])

    def dropping(self, claim: Claim) -> Request | None:
        """As `mutex.dropping`, and the record is written."""
        if self._both or self.tried:
            return None
        request = mutex.dropping(claim)
        if self.result is None:
            return request
        value = [self.result.value, milliseconds_of(self.result.ttl)]
        return request._replace(
            keys=[*request.keys, claim.keys.record], args=[*request.args, *value]
        )

    async def acquire(self, port: Port, claim: Claim, wait: float | None) -> Outcome:
        """As `mutex.acquire`. Raises `Done`."""
        way = Together(self._acquire, self._release).acquire if self._both else self._acquire
        return await way(port, claim, wait)

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        """As `mutex.release`."""
        way = Together(self._acquire, self._release).release if self._both else self._release
        return await way(port, claim)

    async def _acquire(self, port: Port, claim: Claim, wait: float | None) -> Outcome:
        self._asked = self._granted = False
        got = await queued.acquire(port, claim, wait, self._ask)
        if isinstance(got, Grant) and not self._granted:
            # Another claim of this process has handed it over.
            self.found = await read(port, claim.keys)
        return got

    async def _ask(self, port: Port, claim: Claim, inbox: str, ticket: str) -> queued.Asked:
        """Ask for the lock and for the record."""
        script, keys = mutex.guarded(claim, "record_acquire", _keys(claim))
        stale = () if self.stale is None else (milliseconds(self.stale),)
        asking = queued.Script(script, keys, (self.answers, *stale), _acquired)
        (code, *rest), name = await asking.acquire(port, claim, inbox, ticket)
        if code == 3:
            # Only a request whose answer was lost may still lock it for us.
            claim.sent = claim.doubtful
            raise Done(rest[0], due=rest[1])
        if code in (0, 1):
            *rest, value = rest
            if not self._asked:
                self.first, self._asked = value, True
        if code == 1:
            self.found, self._granted = value, True
        if code == 0:
            rest.pop()  # the number of the name
        return (code, *rest), name

    async def _release(self, port: Port, claim: Claim) -> Refusal | None:
        if self.result is None:
            return await mutex.release(port, claim)
        self.tried |= claim.failed is not None
        return await queued.release(port, claim, partial(self._write_and_release, self.result))

    async def _write_and_release(self, result: Result, port: Port, claim: Claim) -> Refusal | None:
        """Write the record, and release the lock."""
        value, ttl, held = result
        if self.tried:
            # The first request had a lease. But a result that may change must not overwrite what
            # was written since that request, if it was carried out.
            held = not claim.owed
        self.tried = True
        more = (value, milliseconds_of(ttl), int(held))
        return await queued.Script("record_release", _keys(claim), more).release(port, claim)


def _keys(claim: Claim) -> list[str]:
    return [*claim.keys.mutex(claim.token), claim.keys.record]


def _acquired(answer: Any) -> queued.Acquired:
    """Read the answer of lua/record_acquire.lua: as of a mutex, and the record."""
    match answer:
        case [3, value, *due]:
            return 3, text(value), bool(due)
        case [0 | 1, *_, value]:
            return *queued.acquired(answer[:-1]), maybe(value)
    return queued.acquired(answer)
