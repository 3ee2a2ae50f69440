"""What can go wrong, one error per decision that the caller can make.

All of them derive from redis-py's `LockError`, so that code that moves over from
`cache.lock()` keeps its `except`.

Errors travel: pickle keeps all that they know. Celery's result back-end writes `args` as JSON and
calls the class with them, so `args` are plain values from which the same message is made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from reprlib import repr as short
from typing import Any, NamedTuple

from redis.exceptions import LockError as RedisLockError

from .label import read


class LockError(RedisLockError):
    """Something is wrong with a lock. The base of all errors of this package."""

    def __init__(self, message: str = "", name: str | None = None) -> None:
        super().__init__(message, name)
        self.args = (message, name)  # redis-py keeps other ones from version 7 on
        self.name = name
        """The name of the lock, where it is known."""

    def __str__(self) -> str:
        return str(self.message)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel, from worker processes and task queues. As exceptions are made, only
        # those whose arguments are their message could.
        return _travelled, (type(self), self.args), self.__dict__


def _travelled(kind: type[LockError], args: tuple[Any, ...]) -> LockError:
    return kind.__new__(kind, *args)


_OURS = re.compile(rb"[0-9A-Za-z]{32}\|(\d{1,19})\|(\d{1,17})\|\d{1,15}\|([^|\t]*)\|([^\t]*)")
"""Token, fencing token, acquired at (µs), ttl (ms), owner and label. We write no longer numbers,
and neither a time nor a database could take them."""


class Holder(NamedTuple):
    """Who holds a lock, as the server told it in the answer to our own request."""

    owner: str | None
    """Host, process, and thread or task; None when a stranger's value is at the key."""
    label: str
    fencing_token: int | None
    acquired_at: datetime | None
    held: float | None
    """Seconds since it was acquired, by the server's clock."""
    remaining: float | None
    """Seconds that its lease still lives unless it is renewed; None: for ever."""

    def __str__(self) -> str:
        if self.owner is None:
            text = "a value that this package did not write"
        else:
            text = f"{self.owner} ({self.label})"
        if self.acquired_at is not None:
            text += f" since {self.acquired_at:%Y-%m-%d %H:%M:%S} UTC, for {self.held:.1f} s"
        if self.remaining is None:
            return f"{text}; it has no TTL and stays until somebody deletes it"
        return f"{text}; the lease ends in {self.remaining:.1f} s unless it is renewed"

    @property
    def seen_at(self) -> datetime | None:
        """When the server told it, by its own clock."""
        if self.acquired_at is None or self.held is None:
            return None
        return self.acquired_at + timedelta(seconds=self.held)

    def _plain(self) -> list[Any]:
        """As JSON can write it."""
        at = self.acquired_at
        return [*self._replace(acquired_at=at and at.isoformat())]  # type: ignore[arg-type]

    @classmethod
    def _of_plain(cls, values: Sequence[Any]) -> Holder:
        holder = cls(*values)
        at: Any = holder.acquired_at
        return holder._replace(acquired_at=datetime.fromisoformat(at)) if at else holder

    def came_after(self, time: datetime | None) -> bool:
        """It has held the lock since later than that, as far as this is known."""
        return time is not None and self.acquired_at is not None and self.acquired_at > time

    @classmethod
    def parse(cls, value: bytes, ttl_ms: int, now_us: int) -> Holder:
        """Read the value at a lock's key, which lua/mutex.lua writes (or a
        stranger); or what lua/permits.lua writes of one of several."""
        remaining = None if ttl_ms < 0 else ttl_ms / 1000
        ours = _OURS.match(value)
        if ours is None:
            return cls(None, "", None, None, None, remaining)
        fencing_token, acquired_us, owner, label = ours.groups()
        acquired = int(acquired_us)
        return cls(
            owner=read(owner),
            label=read(label),
            fencing_token=int(fencing_token),
            acquired_at=server_time(acquired),
            held=max(0, now_us - acquired) / 1e6,
            remaining=remaining,
        )


def server_time(microseconds: int) -> datetime:
    """The server's clock as an aware datetime."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


class LockNotAcquired(LockError):
    """Somebody else holds the lock, and the time to wait is over."""

    def __init__(
        self,
        name: str,
        holder: Holder | list[Any],
        waited: float,
        position: int = 0,
        lasted: float | None = None,
        holders: int = 1,
    ) -> None:
        if isinstance(holder, list):  # from `args` that were written as JSON
            holder = Holder._of_plain(holder)
        others = "" if holders == 1 else f" (and {holders - 1} more)"
        super().__init__(f"{name!r} is held by {holder}{others}. Waited {waited:.1f} s.", name)
        self.args = (name, holder._plain(), waited, position, lasted, holders)
        self.holder = holder
        """Who holds it; of several, the one whose lease ends first."""
        self.holders = holders
        """How many hold it."""
        self.waited = waited
        """Seconds that we waited."""
        self.position = position
        """How many waiters were before us when we gave up."""
        self.lasted = lasted
        """For how many seconds the lock was held the last time, where that is known."""


class LockReentered(LockError):
    """This very thread or task holds the lock already, and would wait for itself."""

    def __init__(self, name: str, label: str, advice: str = "") -> None:
        advice = advice or (
            "if the inner block belongs to the outer one, write reentrant=True on the inner lock"
        )
        super().__init__(
            f"{name!r} is already held by this very thread or task, taken at {label}. Waiting "
            f"for it would be waiting for ourselves; {advice}.",
            name,
        )
        self.args = (name, label, advice)
        self.label = label


class LockOrderError(LockError):
    """Two locks are taken in one order here, and in the other order there: a deadlock to come."""


class LockOrderWarning(UserWarning):
    """What `LockOrderError` says, where it is to be told only."""


class EarlyReleaseWarning(UserWarning):
    """A block was left and its lock released while a database transaction was open, so the next
    holder can read rows as they were before. Told if `release` is `"warn"`."""


class FlightFailed(LockError):
    """The computation that we waited for has failed where it was made."""

    def __init__(self, name: str, error: str, message: str, owner: str) -> None:
        super().__init__(f"{name!r} has failed at {owner}: {error}: {message}", name)
        self.args = (name, error, message, owner)
        self.error = error
        """The type of the exception, such as `"shop.rates.NoRates"`."""
        self.reason = message
        """What it said."""
        self.owner = owner
        """Where it was raised: host, process, and thread or task."""


class LeaseLost(LockError):
    """We held the lease and no longer do; somebody else may be at work."""

    def __init__(self, name: str | None, why: str) -> None:
        lease = "The lease" if name is None else f"The lease on {name!r}"
        super().__init__(f"{lease} is lost: {why}.", name)
        self.args = (name, why)
        self.why = why


def cleared(by: str, reason: str) -> str:
    """By whom a lock was cleared, and why."""
    return f"by {by or 'an operator'} ({reason or 'no reason given'})"


class LeaseRevoked(LeaseLost):
    """An operator cleared the lock while we held it."""

    def __init__(self, name: str, by: str, reason: str) -> None:
        super().__init__(name, f"cleared {cleared(by, reason)}")
        self.args = (name, by, reason)
        self.by = by
        self.reason = reason


class StaleLease(LeaseLost):
    """A row of the database has seen a newer fencing token, so nothing was read or written."""

    def __init__(
        self, name: str | None, model: str, pks: Sequence[Any], fencing_token: int, newer: int
    ) -> None:
        super().__init__(
            name,
            f"{model} {_listed(pks)} saw the fencing token {newer}, and ours is {fencing_token}; "
            f"if every new lease is refused, see `manage.py redislock fence {name or 'NAME'!r} "
            f"--model={model}`",
        )
        self.args = (name, model, _plain(pks), fencing_token, newer)
        self.model = model
        self.pks = tuple(pks)
        self.fencing_token = fencing_token
        """Ours, which came too late."""
        self.newer = newer
        """The newest one that these rows saw."""


class StaleRead(LockError):
    """The row was written since its instance was read, so the instance was not written.

    The lease is good: read the row again, through it.
    """

    def __init__(self, name: str | None, model: str, pks: Sequence[Any], why: str) -> None:
        super().__init__(
            f"{model} {_listed(pks)} {why}, so nothing was written. "
            f"Read it through fenced(lease), after the lock was acquired.",
            name,
        )
        self.args = (name, model, _plain(pks), why)
        self.model = model
        self.pks = tuple(pks)


def _plain(pks: Sequence[Any]) -> list[Any]:
    """As JSON can write them."""
    return [pk if isinstance(pk, int | str) else str(pk) for pk in pks]


def _listed(pks: Sequence[Any]) -> str:
    """A few of them, since there may be thousands, and whatever they contain, on one line."""
    return ", ".join(short(pk) for pk in pks[:3]) + (" and others" if len(pks) > 3 else "")


class LockUnavailable(LockError):
    """Redis could not be asked; the original error is `__cause__`."""

    def __init__(
        self,
        message: str,
        name: str | None = None,
        *,
        why: str = "",
        doubtful: bool = False,
        passing: bool = True,
        silent: bool = False,
    ) -> None:
        super().__init__(message, name)
        self.why = why
        """What redis-py said, where the rest of the message says which server it was."""
        self.using = ""
        """The alias of CACHES; of several servers, nothing."""
        self.where = ""
        """Host and port of the server, or its socket."""
        self.waited = 0.0
        """Seconds for which an acquire has asked again and again."""
        self.doubtful = doubtful
        """The command was sent, so the server may have carried it out."""
        self.passing = passing
        """It may go over by itself; False for a wrong password or a missing permission."""
        self.silent = silent
        """Nothing came back in time: whoever asks again waits for as long again."""
        self._message, self._doing = message, ""

    def at(self, using: str, where: str, doing: str) -> None:
        """Say which server it was, and what was to be done with the lock there."""
        self.using, self.where, self._doing = using, where, doing
        self._tell()

    def after(self, waited: float) -> None:
        """Say for how long it was asked."""
        self.waited = waited
        self._tell()

    def _tell(self) -> None:
        if self.why and self.using:
            server = repr(self.using) + ("" if self.where in self.using else f" ({self.where})")
            what = "did not answer" if self.silent else "could not be asked"
            lasted = f" for {self.waited:.3g} s" if self.waited >= 0.1 else ""
            doing = "" if self.name is None else f" while {self._doing} {self.name!r}"
            self.message = f"Redis {server} {what}{lasted}{doing}: {self.why}"
        elif self.waited >= 0.1:
            self.message = f"{self._message} Waited {self.waited:.1f} s."
        self.args = (self.message, self.name)
