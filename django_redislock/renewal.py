"""The watchdog: one thread per process that keeps all its leases alive.

Every lease is renewed at a third of its ttl, up to 250 in one request. A failed renewal
makes a lease unknown and is tried again soon; when the lease's own deadline has passed, it
is lost. The watchdog has only a weak reference to a lease: when its owner object is gone,
nobody can release it any more, so it is left to expire, with a warning.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from . import connections
from .clock import now
from .exceptions import LeaseLost, LockError, LockUnavailable
from .io import IO, SyncIO, run
from .lease import Claim, Lease, LeaseState
from .primitives import mutex

if TYPE_CHECKING:
    import redis

logger = logging.getLogger("django_redislock")

BATCH = 250
"""Leases in one request: it keeps Redis for about as long as a few hundred plain commands."""
EARLY = 0.25
"""A renewal may come early by this part of its interval, so that batches form."""


async def renew(io: IO, leases: Sequence[Lease]) -> None:
    """Extend leases of one index in one request, and tell each what became of it.

    Raises `LockUnavailable`; then they are unknown.
    """
    sent = io.now()
    begun = []
    for lease in leases:
        lease.cap(sent)
        lease.renewals += 1
        lease.under_way += 1
        begun.append((lease, lease.ttl, lease.renewals, lease.under_way == 1))
    try:
        refusals = await mutex.extend(io, [lease.claim for lease in leases])
    except LockUnavailable:
        for lease in leases:
            lease.unknown()
        raise
    finally:
        for lease in leases:
            lease.under_way -= 1
    for (lease, ttl, number, first), refusal in zip(begun, refusals, strict=True):
        if refusal is None:
            lease.renewed(sent, ttl, alone=first and lease.renewals == number)
        elif not lease.closing:  # else its release has overtaken us
            lease.lose(refusal.error(lease.name))


class Withdrawal:
    """An acquire that may still arrive, and is to be taken back as long as it could hold."""

    def __init__(self, using: str, claim: Claim) -> None:
        self.using = using
        self.name = claim.keys.name
        self._claim = claim
        self._until = now() + claim.ttl

    async def release_through(self, io: IO) -> None:
        if now() < self._until:
            await mutex.release(io, self._claim)


class _Watched(NamedTuple):
    lease: weakref.ref[Lease]
    name: str
    label: str


class Watchdog:
    """Renews, and releases what nobody waits for."""

    def __init__(self) -> None:
        self._leases: dict[str, _Watched] = {}
        self._next = float("inf")
        # SimpleQueue and no Condition: its put() may be called by the garbage collector in
        # the middle of anything, as transactions.py does.
        self._wake: queue.SimpleQueue[Lease | Withdrawal | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._pools: dict[str, redis.ConnectionPool] = {}
        self._to_release: list[Lease | Withdrawal] = []

    def watch(self, lease: Lease) -> None:
        """Renew `lease` from now on, and notice when it is lost."""
        self._leases[lease.token] = _Watched(weakref.ref(lease), lease.name, lease.label)
        if lease.due < self._next:
            self._wake.put(None)
        if self._thread is None:
            self._start()

    def forget(self, lease: Lease) -> None:
        self._leases.pop(lease.token, None)

    def release_later(self, what: Lease | Withdrawal) -> None:
        """Release it in the background; may be called from a finalizer."""
        self._wake.put(what)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="redislock-watchdog", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            # From here on every new lease wakes us, also one that comes while we look.
            self._next = float("inf")
            try:
                due = self._look()
            except Exception:
                # Never die: all leases of the process would be lost.
                logger.exception("The watchdog failed; it goes on in a second.")
                due = now() + 1.0
            self._next = due
            self._sleep(due)

    def _sleep(self, until: float) -> None:
        timeout = None if until == float("inf") else max(0.0, until - now())
        try:
            what = self._wake.get(timeout=timeout)
            while True:
                if what is not None:
                    self._to_release.append(what)
                what = self._wake.get_nowait()
        except queue.Empty:
            pass

    def _look(self) -> float:
        """Renew and release what is due. Returns when to look next."""
        time = now()
        next_look = float("inf")
        down: set[str] = set()
        due: dict[tuple[str, str], list[Lease]] = {}
        for token, watched in self._leases.copy().items():
            lease = watched.lease()
            if lease is None:
                self._leases.pop(token, None)
                logger.warning(
                    "The lease on %r, taken at %s, was dropped without being released. It is not "
                    "renewed any more and ends with its ttl. Keep it, or write a with block.",
                    watched.name,
                    watched.label,
                )
            elif lease.lost is not None:
                self._leases.pop(token, None)
            elif lease.renew and lease.due - time <= EARLY * lease.ttl / 3:
                due.setdefault((lease.using, lease.claim.keys.index), []).append(lease)
            else:
                next_look = min(next_look, lease.due)
        for (using, _index), leases in due.items():
            for start in range(0, len(leases), BATCH):
                batch = leases[start : start + BATCH]
                # One server's trouble, whatever it is, must not cost another's leases: who
                # did not answer once is not asked again in this round.
                try:
                    if using in down:
                        for lease in batch:
                            lease.unknown()
                    elif not self._renew(using, batch):
                        down.add(using)
                except Exception:
                    logger.exception("Leases of %r could not be renewed", using)
                    for lease in batch:
                        lease.unknown()
            next_look = min(next_look, *(lease.due for lease in leases))
        self._release_pending(down)
        return min(next_look, now() + 1.0) if self._to_release else next_look

    def _renew(self, using: str, leases: list[Lease]) -> bool:
        """False: the server did not answer."""
        news = [lease.state != LeaseState.UNKNOWN for lease in leases]
        try:
            run(renew(self._io(using), leases))
        except LockUnavailable as error:
            level = logging.WARNING if any(news) else logging.DEBUG
            logger.log(level, "%d leases could not be renewed: %s", len(leases), error)
            return False
        return True

    def _release_pending(self, down: set[str]) -> None:
        kept: list[Lease | Withdrawal] = []
        for what in self._to_release:
            if what.using in down:
                kept.append(what)
                continue
            try:
                run(what.release_through(self._io(what.using)))
            except LockUnavailable:
                kept.append(what)  # until its time is over
                down.add(what.using)
            except LeaseLost:
                pass  # has been logged
            except LockError as error:
                logger.warning("%r could not be released: %s", what.name, error)
        self._to_release = kept

    def _io(self, using: str) -> SyncIO:
        address = connections.address(using)
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = connections.background_pool(using)
        return SyncIO(using, pool=pool)

    def after_fork(self) -> None:
        """In a child: the leases are the parent's, and the thread stayed there."""
        for watched in self._leases.values():
            lease = watched.lease()
            if lease is not None:
                lease.end()
        self.__init__()  # type: ignore[misc]


watchdog = Watchdog()

os.register_at_fork(after_in_child=watchdog.after_fork)
