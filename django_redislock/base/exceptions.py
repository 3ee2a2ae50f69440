"""The errors: one for each decision that a caller can make.

They derive from redis-py's `LockError`, so that code that moves over from `cache.lock()` keeps its
`except`.

Errors travel to other processes. Pickle keeps all their attributes. Celery's result back-end
writes `args` as JSON and calls the class with them, so `args` are plain values that make the same
message.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from reprlib import repr as short
from typing import Any

from redis.exceptions import LockError as RedisLockError

from .people import Holder


class LockError(RedisLockError):
    """The base of all errors of this package."""

    def __init__(self, message: str = "", name: str | None = None) -> None:
        super().__init__(message, name)
        self.args = (message, name)  # redis-py sets other ones from version 7 on
        self.name = name
        """The name of the lock, where it is known."""

    def __str__(self) -> str:
        return str(self.message)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is pickled as its class and `args`, which does not restore its
        # other attributes.
        return _travelled, (type(self), self.args), self.__dict__


def _travelled(kind: type[LockError], args: tuple[Any, ...]) -> LockError:
    return kind.__new__(kind, *args)


class LockNotAcquired(LockError):
    """Somebody else holds the lock, and the wait is over."""

    progress = ""
    """After a wait: how far the work of the holder is, if it notes that, such as
    `"41 of 900, 5 %, about 42 s to go"`."""

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
        """The holder. Of several holders, the one whose lease ends first."""
        self.holders = holders
        """How many holders the lock has."""
        self.waited = waited
        """Seconds of waiting."""
        self.position = position
        """How many waiters were ahead at the end of the wait."""
        self.lasted = lasted
        """For how many seconds the lock was held the last time, if known."""


class LockReentered(LockError):
    """The same thread or task holds the lock already, and would wait for itself."""

    def __init__(self, name: str, label: str, advice: str = "") -> None:
        advice = advice or (
            "if the inner block belongs to the outer one, write reentrant=True on the inner lock"
        )
        super().__init__(
            f"{name!r} is already held by this very thread or task, taken at {label}. It would "
            f"wait for itself; {advice}.",
            name,
        )
        self.args = (name, label, advice)
        self.label = label


class LockOrderError(LockError):
    """Two locks are taken in opposite orders at two places, so a deadlock is possible."""


class LockOrderWarning(UserWarning):
    """The message of `LockOrderError`, if `LOCK_ORDER` is `"warn"`."""


class EarlyReleaseWarning(UserWarning):
    """A block released its lock while a database transaction was open, so the next holder can read
    rows as they were before. Given if `release` is `"warn"`."""


class ComputationFailed(LockError):
    """Another caller computed the value, and its computation failed."""

    def __init__(self, name: str, error: str, message: str, owner: str) -> None:
        super().__init__(f"{name!r} failed at {owner}: {error}: {message}", name)
        self.args = (name, error, message, owner)
        self.error = error
        """The type of the exception, such as `"shop.rates.NoRates"`."""
        self.reason = message
        """The message of the exception."""
        self.owner = owner
        """The caller that raised it: host, process, and thread or task."""


class TooManyResumptions(LockError):
    """The work of this lock has been taken up too often by holders that did not end it."""

    def __init__(self, name: str, resumptions: int, most: int) -> None:
        super().__init__(
            f"{name!r} was taken up {resumptions} times after a note of a holder that did not "
            f"end, and max_resumptions is {most}. Perhaps the work fails at the same place each "
            f"time. Look at it: manage.py redislock show {shlex.quote(name)}. To begin anew: "
            f"manage.py redislock forget-note {shlex.quote(name)}",
            name,
        )
        self.args = (name, resumptions, most)
        self.resumptions = resumptions
        """How often a holder has inherited the note."""


class LeaseLost(LockError):
    """The lease is no longer held; somebody else may hold the lock."""

    def __init__(self, name: str | None, why: str) -> None:
        lease = "The lease" if name is None else f"The lease on {name!r}"
        super().__init__(f"{lease} is lost: {why}.", name)
        self.args = (name, why)
        self.why = why


def cleared(by: str, reason: str) -> str:
    """Return by whom a lock was cleared, and why."""
    return f"by {by or 'an operator'} ({reason or 'no reason given'})"


class LeaseRevoked(LeaseLost):
    """An operator cleared the lock while it was held."""

    def __init__(self, name: str, by: str, reason: str) -> None:
        super().__init__(name, f"cleared {cleared(by, reason)}")
        self.args = (name, by, reason)
        self.by = by
        self.reason = reason


class StaleLease(LeaseLost):
    """A row of the database saw a newer fencing token, so nothing was read or written."""

    def __init__(
        self, name: str | None, model: str, pks: Sequence[Any], fencing_token: int, newer: int
    ) -> None:
        super().__init__(
            name,
            f"{model} {_listed(pks)} saw the fencing token {newer}, which is newer than "
            f"{fencing_token}; "
            f"if every new lease is refused, see `manage.py redislock fence {name or 'NAME'!r} "
            f"--model={model}`",
        )
        self.args = (name, model, _plain(pks), fencing_token, newer)
        self.model = model
        self.pks = tuple(pks)
        self.fencing_token = fencing_token
        """The fencing token of the lease."""
        self.newer = newer
        """The newest fencing token that these rows saw."""


class StaleRead(LockError):
    """The row was written after its instance was read, so the instance was not written.

    The lease is valid: read the row again, through `fenced(lease)`.
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
    """Return values that JSON can write."""
    return [pk if isinstance(pk, int | str) else str(pk) for pk in pks]


def _listed(pks: Sequence[Any]) -> str:
    """Return the first three on one line, whatever they contain."""
    return ", ".join(short(pk) for pk in pks[:3]) + (" and others" if len(pks) > 3 else "")


class LockUnavailable(LockError):
    """Redis could not be reached; the original error is `__cause__`. Or it has lost its data, and
    nobody new gets the lock yet (`AFTER_LOSS` is `"wait"`)."""

    away = False
    """There was no connection, or no answer in time; of an acquire, for all of its wait. False if
    the server has answered anything, or if no connection of the pool was free."""
    skips = False
    """It is away, and `unavailable` is `"skip"`."""

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
        """The message of redis-py."""
        self.using = ""
        """The alias of CACHES. "" for several servers."""
        self.where = ""
        """Host and port of the server, or its socket."""
        self.waited = 0.0
        """Seconds for which an acquire asked again and again."""
        self.doubtful = doubtful
        """The command was sent, so the server may have carried it out."""
        self.passing = passing
        """The cause may pass by itself. False for a wrong password or a missing permission."""
        self.silent = silent
        """No answer came in time, so asking again can take as long again."""
        self._message, self._doing = message, ""

    def at(self, using: str, where: str, doing: str) -> None:
        """Add the server, and what was being done with the lock, to the message."""
        self.using, self.where, self._doing = using, where, doing
        self._update_message()

    def after(self, waited: float) -> None:
        """Add the seconds of asking to the message."""
        self.waited = waited
        self._update_message()

    def _update_message(self) -> None:
        if self.why and self.using:
            server = repr(self.using) + ("" if self.where in self.using else f" ({self.where})")
            what = "did not answer" if self.silent else "could not be reached"
            lasted = f" for {self.waited:.3g} s" if self.waited >= 0.1 else ""
            doing = "" if self.name is None else f" while {self._doing} {self.name!r}"
            self.message = f"Redis {server} {what}{lasted}{doing}: {self.why}"
        elif self.waited >= 0.1:
            self.message = f"{self._message} Waited {self.waited:.1f} s."
        self.args = (self.message, self.name)
