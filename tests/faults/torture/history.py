"""What the processes saw, each in its own words, on one clock.

The journal is one file to which all of them append. A record is a single write to a file opened
with O_APPEND, so records never mix. And it has a fixed size that divides a page: the kernel may
end a write that crosses from one page to the next when the process is killed in the middle of
it, but never within a page. So SIGKILL leaves a record or none, and never half of one.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django_redislock.base.clock import now

SIZE = 256
"""Bytes of a record."""

Event = dict[str, Any]


class Journal:
    """Where one process writes down what happens to it."""

    def __init__(self, path: Path, who: str) -> None:
        self._who = who
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, *, at: float | None = None, **fields: Any) -> None:
        event = {"at": now() if at is None else at, "who": self._who, "what": what, **fields}
        line = json.dumps(event).encode()
        assert len(line) < SIZE, line
        os.write(self._file, line.ljust(SIZE - 1) + b"\n")

    def close(self) -> None:
        os.close(self._file)


class Reader:
    """Follows a journal while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def news(self) -> list[Event]:
        """The records that came since the last call, in the order of the file."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = len(data) // SIZE
        self._offset += whole * SIZE
        return [json.loads(data[i * SIZE : (i + 1) * SIZE]) for i in range(whole)]


@dataclass(frozen=True)
class Terms:
    """What the judges know of a lock besides its history."""

    ttl: float
    places: int = 1
    """So many it has: a mutex has one."""
    window: float = 1.0
    """For so long a lock may be promised to a waiter that was killed (lua/queue.lua)."""
    lossy: bool = False
    """Whether a process may not hear of what the server has done."""
    doubles: bool = False
    """Whether two may hold it at a time. Then grants and answers may have different orders."""
    forgets: bool = False
    """Whether the server may forget a release, and keep its lock until the lease ends."""

    @property
    def orphan(self) -> float:
        """For how long after a failed or killed attempt the lock may be held for it: its ttl, and
        what it takes to hand the lock on."""
        return self.ttl + self.window

    @property
    def late(self) -> float:
        """An attempt that took so long may have held the lock and not heard of it in time. This is
        less than the ttl, since a holder's deadline comes before the server's."""
        return 0.9 * self.ttl


@dataclass(eq=False)
class Attempt:
    """One process's way to the lock and, perhaps, through its section."""

    who: str
    number: int
    asked: float
    patient: bool = True
    """It waits until it has it; else it may be refused."""
    waits: bool = True
    """It waits at all, and so may be promised the lock."""
    places: int = 1
    """How many places of the lock it wants: a writer wants all."""
    answered: float | None = None
    outcome: str = ""
    """"granted", "refused", or "failed": an error, so nobody knows what the server has done.
    Empty when the process was killed before it had an answer."""
    token: int | None = None
    ends: float = math.inf
    """The holder's own deadline, as far as it was recorded: a renewal may have moved it on."""
    given: float | None = None
    """When it began to release."""
    returned: float | None = None
    release: str = ""
    """"released", "lost" (told that it wasn't ours any more), or "unsure": an error."""
    killed: float | None = None
    """When its process was killed, before it began to release."""
    stops: list[tuple[float, float]] = field(default_factory=list)
    """When its process was stopped, and went on."""
    about: dict[str, Any] = field(default_factory=dict)
    """What only its kind of lock has."""

    @property
    def granted(self) -> bool:
        return self.outcome == "granted"

    @property
    def valid_from(self) -> float:
        assert self.answered is not None
        return self.answered

    @property
    def valid_until(self) -> float:
        """The end of its validity: it began to release, or its own deadline has passed.

        Of a holder that was killed, too, the lease is good until its deadline. Where there is
        none, it believed for as long as it lived.
        """
        ends = math.inf if self.given is None else self.given
        if self.ends < math.inf:
            return min(self.ends, ends)
        return ends if self.killed is None else min(self.killed, ends)

    @property
    def valid(self) -> bool:
        """Whether its holder could believe in it for a moment: not when the answer came late."""
        return self.granted and self.valid_until > self.valid_from

    @property
    def over_from(self) -> float:
        """The earliest moment at which its lease can have ended on the server."""
        if not self.release:
            return self.valid_until
        assert self.given is not None
        return self.ends if self.release == "lost" else min(self.given, self.ends)

    def over_by(self, terms: Terms) -> float:
        """The latest such moment, since nobody renews a lease without a holder."""
        if self.release in ("released", "lost"):
            assert self.returned is not None
            return self.returned
        last = self.killed if self.given is None else self.given
        return math.inf if last is None else last + terms.orphan

    @property
    def waited(self) -> float:
        assert self.answered is not None
        return self.answered - self.asked

    def __str__(self) -> str:
        token = "" if self.token is None else f", token {self.token}"
        return f"attempt {self.number} of {self.who} (asked at {self.asked:.6f}{token})"


@dataclass(frozen=True)
class Write:
    """A write that reached the register, in the order in which it did."""

    attempt: Attempt
    accepted: bool


@dataclass
class History:
    attempts: list[Attempt]
    writes: list[Write]
    left: list[str] | None = None
    """The keys that were there at the end and should not; None: nobody looked."""
    ended: float = math.inf
    """When no worker was left."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many events of each kind there are."""


def read(path: Path) -> History:
    return build(Reader(path).news())


def build(events: Iterable[Event]) -> History:
    """Make attempts of events. The order within one process is that of the file."""
    attempts: dict[tuple[str, int], Attempt] = {}
    latest: dict[str, Attempt] = {}
    history = History([], [])
    stopped: dict[str, list[tuple[float, float]]] = {}
    killed: dict[str, float] = {}
    for event in events:
        who, what, at = event["who"], event["what"], event["at"]
        history.counts[what] = history.counts.get(what, 0) + 1
        if what != "ask" and "about" in event:
            latest[who].about |= event["about"]
        if what == "ask":
            attempt = Attempt(
                who,
                event["number"],
                at,
                patient=event["patient"],
                waits=event["waits"],
                places=event["places"],
                about=event.get("about", {}),
            )
            attempts[who, attempt.number] = latest[who] = attempt
            history.attempts.append(attempt)
        elif what in ("granted", "refused", "failed"):
            attempt = latest[who]
            attempt.answered, attempt.outcome = at, what
            if what == "granted":
                attempt.token = event["token"]
                _believes(attempt, event["ends"])
        elif what == "step":
            _believes(latest[who], event["ends"])
        elif what == "give":
            latest[who].given = at
        elif what in ("released", "lost", "unsure"):
            latest[who].returned = at
            latest[who].release = what
        elif what == "write":
            written = attempts[event["writer"], event["number"]]
            history.writes.append(Write(written, event["accepted"]))
        elif what == "kill":
            killed[event["whom"]] = at
        elif what == "stop":
            stopped.setdefault(event["whom"], []).append((at, math.inf))
        elif what == "continue":
            began, _ = stopped[event["whom"]].pop()
            stopped[event["whom"]].append((began, at))
        elif what == "left":
            history.left = event["keys"]
        elif what == "end":
            history.ended = at
    for attempt in history.attempts:
        attempt.stops = stopped.get(attempt.who, [])
        if attempt is latest[attempt.who] and attempt.given is None:
            attempt.killed = killed.get(attempt.who)
    return history


def excused(attempts: Iterable[Attempt], terms: Terms) -> set[Attempt]:
    """The refusals for which there may be a reason that the history does not show.

    The lock may be held for an attempt that never heard of it, or too late: until it was granted
    after all, or until it is an orphan. And it may be promised to one that waits: nobody passes a
    waiter.
    """
    attempts = list(attempts)
    reasons = [(attempt, _secret(attempt, terms)) for attempt in attempts]
    return {
        attempt
        for attempt in attempts
        if attempt.outcome == "refused" and attempt.answered is not None
        for other, until in reasons
        if other is not attempt and other.asked <= attempt.answered and attempt.asked <= until
    }


def _secret(attempt: Attempt, terms: Terms) -> float:
    """Until when the lock may be held or kept for it, and nobody sees that."""
    if attempt.outcome in ("", "failed"):
        last = attempt.killed if attempt.answered is None else attempt.answered
        return math.inf if last is None else last + terms.orphan
    assert attempt.answered is not None
    if terms.forgets and attempt.returned is not None:
        return attempt.returned + terms.orphan
    if terms.lossy or attempt.answered - attempt.asked > terms.late:
        return attempt.answered + (0 if attempt.granted else terms.orphan)
    return attempt.answered if attempt.waits else -math.inf


def _believes(attempt: Attempt, ends: float | None) -> None:
    """A library that tells no deadline lets its holder believe until it releases."""
    if ends is not None:
        attempt.ends = ends if attempt.ends == math.inf else max(ends, attempt.ends)
