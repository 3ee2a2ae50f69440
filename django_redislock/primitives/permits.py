"""Semaphores and read-write locks: a name has permits, and each claim takes some of them.

1.  A claim of a semaphore takes one of its `limit` permits; a reader takes one of very many, and
    a writer takes all. So both follow one rule, which is in lua/permits.lua.
2.  Each holder has a lease of its own: a token, a time at which it ends, a fencing token,
    renewals. If a holder dies, its permit is free again at the end of its lease; the other holders
    do not notice.
3.  Waiters stand in the same queue as those of a mutex (queued.py, lua/queue.lua): first come,
    first served, with direct handoff. A release hands its permits to the head of the queue, as
    long as there is room for the next waiter. Nobody passes the head: so readers that come after a
    waiting writer do not starve it, and readers that have waited behind a writer go in together.
4.  Each claim says how many permits there are. The number may change while the lock is held and
    waited for, as in a rolling deployment: a claim for one of two permits waits until fewer than
    two others hold one, and no holder loses its permit.
5.  A writer may become a reader without a gap (`downgrade`). A reader can't become a writer: two
    readers that tried would wait for each other without end.

Sources: the semaphore is Dijkstra's ("Cooperating Sequential Processes", 1965); readers and
writers are those of Courtois, Heymans and Parnas (1971), whose two solutions let either the
writers or the readers starve. Here both stand in the one queue of the mutex.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from ..base import tokens
from ..base.people import Holder
from . import mutex, queued
from .contract import (
    Claim,
    Grant,
    Outcome,
    Port,
    Refusal,
    Request,
    Sight,
    milliseconds,
    twice,
)
from .keys import Keys, Word
from .scripts import ask, flag, refused, sight, text

MANY = 1_000_000_000
"""Readers at a time: more than there can be."""
SHOWN = 1000
"""Holders that are looked at in one request."""
LOOKS = 1000
"""How often a clear looks at a lock, until no holder is left that is to be cleared."""


@dataclass(frozen=True)  # without slots: a subclass has more attributes
class Permits:
    """The algorithm for claims of one kind: each takes one of `limit` permits, a writer takes
    all."""

    kind: str
    """As in lua/permits.lua: semaphore, read or write."""
    limit: int
    unfenced: ClassVar[str] = ""

    def taking(self, claim: Claim) -> Request | None:
        its, ttl = claim.keys, str(milliseconds(claim.ttl))
        args = [claim.token, ttl, claim.says, *map(str, self._wants)]
        keys = [*its.at_once(claim.token), its.holders, its.index.clock]
        return Request("permits_take", keys, args)

    def dropping(self, claim: Claim) -> Request | None:
        its = claim.keys
        return Request("permits_drop", [its.lock, its.queue, its.holders], [claim.token])

    async def acquire(self, port: Port, claim: Claim, wait: float | None) -> Outcome:
        script = queued.Script("permits_acquire", claim.keys.permits(claim.token), self._wants)
        return await queued.acquire(port, claim, wait, script.acquire)

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        script = queued.Script("permits_release", claim.keys.permits(claim.token))
        return await queued.release(port, claim, script.release)

    extend = staticmethod(partial(mutex.extend, permits=True))
    write_down = staticmethod(partial(mutex.write_down, permits=True))

    async def adopt(self, port: Port, token: str, claim: Claim) -> Grant | Refusal:
        script = queued.Script("permits_adopt", claim.keys.permits(token), self._wants)
        return await queued.adopt(port, token, claim, script)

    async def downgrade(self, port: Port, claim: Claim) -> Refusal | None:
        """Let `claim` hold its permit as this kind from now on, without a gap. None: it does.

        Asks twice when the connection is lost. Raises `LockUnavailable`; it may be repeated.
        """
        keys = claim.keys.permits(claim.token)
        args: list[str | int] = [claim.token, *self._wants]
        return await twice(lambda: ask(port, refused, "permits_downgrade", keys, args), claim)

    async def holders(self, port: Port, keys: Keys) -> list[Sight]:
        return [its for its, _ in await _holders(port, keys, SHOWN)]

    async def clear(
        self, port: Port, keys: Keys, seen: Sequence[bytes], by: str, reason: str
    ) -> list[bool]:
        def read(answer: Any) -> list[bool]:
            return [flag(one) for one, _ in zip(answer, seen, strict=True)]

        gone = [keys.gone(one.decode(errors="replace")) for one in seen]
        args: list[Word] = [tokens.word(), by, reason, *seen]
        return await ask(port, read, "permits_clear", [*keys.permits(""), *gone], args)

    @property
    def _wants(self) -> tuple[str, int]:
        return self.kind, self.limit


async def held_as(port: Port, keys: Keys) -> tuple[str, Holder] | None:
    """Return a kind of permits that is held, and its holder. Raises `LockError` for a key of
    another type."""
    for its, record in await _holders(port, keys, 1):
        kind = record.rpartition(b"\t")[2].partition(b"|")[0].decode(errors="replace")
        if kind in queued.NAMES:
            return kind, its.holder
    return None


async def _holders(port: Port, keys: Keys, most: int) -> list[tuple[Sight, bytes]]:
    """Return the present holders, and what each has written."""

    def read(answer: Any) -> list[tuple[Sight, bytes]]:
        now_us, *found = answer
        return [
            (sight(record or b"", pttl, now_us)._replace(token=text(token)), record or b"")
            for record, pttl, token in found
        ]

    args: list[Word] = [tokens.word(), most]
    return await ask(port, read, "permits_holders", [keys.lock, keys.holders], args)


READ = Permits("read", MANY)
WRITE = Permits("write", MANY)


def semaphore(limit: int | None) -> Permits:
    """Raises `ValueError` where the limit is missing."""
    if limit is None:
        raise ValueError(
            "a semaphore needs a limit, the number of holders that it may have at a time: write "
            "LIMIT beside KIND in the settings, or Semaphore(name, 3)"
        )
    return Permits("semaphore", limit)
