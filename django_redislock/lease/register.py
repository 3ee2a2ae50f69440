"""The register: which leases this process holds at a server, and on which keys; and what others
read of that.

It is asked before each acquire, since a thread or task may hold the lock already, and by whoever
wants to know what is held here. It has only weak references to leases, by their lifetimes.

Without a lock of its own: a finalizer or a signal's handler may come in between, in the middle of
any of these methods.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from ..base import tokens
from ..base.exceptions import LockError
from ..base.people import Holding
from ..base.servers import Servers
from ..primitives.contract import Claim, Port, milliseconds, run
from ..primitives.keys import Keys, presence
from ..primitives.redlock import Redlock
from ..transport.server import Server, every
from .lifetime import RELEASED, Lifetime

logger = logging.getLogger("django_redislock")

PRESENCE = 30.0
"""Seconds after which a process that holds leases and shows no sign of life is taken for dead."""
PRESENCE_EVERY = PRESENCE / 3


class Register:
    """The leases that this process holds at one server."""

    def __init__(self, _: Server) -> None:
        self.young: dict[str, Any] = {}
        """By key: the young leases (lease.py)."""
        self._lifetimes: dict[str, Lifetime] = {}
        self._tokens: dict[str, dict[str, int]] = {}
        """By key: the tokens of the leases on it, in order. Each has the id of the thread or task
        that holds the lease: an id keeps no task alive."""

    def left_behind(self) -> None:
        """In a forked child: the leases are the parent's."""
        while self.young:
            self.young.popitem()[1]._ended = RELEASED
        for lifetime in self._lifetimes.values():
            lifetime.end()

    @property
    def lifetimes(self) -> dict[str, Lifetime]:
        """All lifetimes, by token. Whoever looks takes notice of all leases."""
        if self.young:
            self.complete_all()
        return self._lifetimes

    def add_young(self, lease: Any) -> None:
        """Enter a young lease. There is one for each lock: any other one is completed at once."""
        claim = lease._claim
        if self.young.setdefault(claim.keys.lock, lease) is not lease:
            lease._complete()
            return
        for its in claim.keys.parts:
            self.young.setdefault(its.lock, lease)

    def remove_young(self, claim: Claim) -> bool:
        """Note that the lease of a claim is not young any more. Return False if it was not."""
        done = self._strike_young(claim.keys.lock, claim)
        for its in claim.keys.parts:
            self._strike_young(its.lock, claim)
        return done

    def _strike_young(self, key: str, claim: Claim) -> bool:
        lease = self.young.get(key)
        if lease is None or lease._claim is not claim:
            return False
        lease = self.young.pop(key, None)
        if lease is None or lease._claim is claim:
            return lease is not None
        # Another thread was faster, and the next lease is here already.
        self.add_young(lease)
        return False

    def complete_all(self) -> None:
        """Take notice of all leases."""
        for lease in [*self.young.values()]:
            lease._complete()

    def add(self, lifetime: Lifetime, me: Holding | None) -> None:
        """Enter a lease that `me` holds."""
        claim = lifetime.claim
        self._lifetimes[claim.token] = lifetime
        self.remove_young(claim)
        for keys in claim.watched_keys:
            self._enter(keys.lock, claim.token, id(me))

    def remove(self, claim: Claim) -> None:
        """Strike out the lease of a claim, if it is there."""
        self.remove_young(claim)
        if self._lifetimes.pop(claim.token, None) is not None:
            self._leave(claim)

    def move(self, lifetime: Lifetime, me: Holding) -> None:
        """Note that `me`, another thread or task, uses a lease from now on."""
        claim = lifetime.claim
        if claim.token not in self._lifetimes:
            return
        for keys in claim.watched_keys:
            self._enter(keys.lock, claim.token, id(me))
        if lifetime.closing:  # by another thread, which may not have seen these keys
            self._leave(claim)

    def knows(self, keys: Keys) -> bool:
        """Return whether this process may hold a lease on a lock."""
        young, tokens, key = self.young, self._tokens, keys.lock
        if key in young or key in tokens:
            return True
        return bool(keys.parts) and any(map(self.knows, keys.parts))

    def lifetimes_on(self, keys: Sequence[str] | None) -> list[Lifetime]:
        """Return the lifetimes of all leases on these keys. None: on any key."""
        lifetimes = self.lifetimes
        if keys is None:
            return [*lifetimes.copy().values()]
        tokens = [token for key in keys for token in tuple(self._tokens.get(key, ()))]
        return [its for token in tokens if (its := lifetimes.get(token)) is not None]

    def held(self, key: str, me: Holding | None = None) -> list[Any]:
        """Return the leases that this process, or one thread or task of it, holds on a key. The
        last one is the newest."""
        if key in self.young:
            self.complete_all()
        tokens = self._tokens.get(key)
        if not tokens:
            return []
        found = [
            self._lifetimes.get(token)
            for token, holder in tuple(tokens.items())
            if me is None or holder == id(me)
        ]
        return _leases(found, me)

    def leases(self, me: Holding | None = None) -> list[Any]:
        """Return all leases that this process, or one thread or task of it, holds here."""
        return _leases(self.lifetimes.copy().values(), me)

    def _enter(self, key: str, token: str, me: int) -> None:
        while True:
            tokens = self._tokens.setdefault(key, {})
            tokens[token] = me
            if self._tokens.get(key) is tokens:
                return

    def _leave(self, claim: Claim) -> None:
        for keys in claim.watched_keys:
            tokens = self._tokens.get(keys.lock)
            if tokens is None:
                continue
            tokens.pop(claim.token, None)
            if not tokens:
                # Other threads may have put another one there at the same time.
                for other, its in tuple(self._tokens.pop(keys.lock, {}).items()):
                    self._enter(keys.lock, other, its)


def _leases(found: Iterable[Lifetime | None], me: Holding | None) -> list[Any]:
    """Return the leases whose objects still exist, and that `me` holds, if that is given."""
    leases = [lifetime.lease() for lifetime in found if lifetime is not None]
    return [
        lease
        for lease in leases
        if lease is not None and (me is None or lease._holds.holder is me)
    ]


def show_life(port: Port, server: Server, index: str, within: float) -> None:
    """Show that this process lives, for the locks of an index."""
    key = presence(index, tokens.process)
    try:
        if isinstance(server.using, Servers):
            run(Redlock(server.using).show_life(port, key, PRESENCE, within))
        else:
            run(port.script("record_set", [key], [tokens.word(), b"", milliseconds(PRESENCE)]))
    except LockError as error:
        logger.debug("This process could not show a sign of life: %s", error)


def register(server: Server) -> Register:
    """Return the register of this process for a server."""
    return server.kept(Register)


def held_by(me: Holding) -> list[Any]:
    """Return what a thread or task of this process holds, at all servers."""
    return [lease for one in every(Register) for lease in one.leases(me)]
