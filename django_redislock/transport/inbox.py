"""Where the waiters of a process are told that they have been handed a lock.

One pub/sub connection and one reader thread for all of them, threads and tasks alike. A
wake-up is only a hint, so a lost or doubled one does no harm. Who is handed a lock by somebody of
the same process is told through the inbox, too, and is given the grant.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Protocol

import redis
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import RedisError

from ..base import fork
from ..base.background import Background
from ..primitives.contract import Grant
from ..primitives.waiting import backoff
from . import server as connections

logger = logging.getLogger("django_redislock")


class Waker(Protocol):
    def __call__(self, told: bool, grant: Grant | None = None) -> object: ...


class Inbox:
    """The waiters of this process at one server."""

    PING_EVERY = 10.0
    """Seconds without a message after which the connection has to prove that it lives."""

    def __init__(self, using: str, prefix: str) -> None:
        self.channel = f"{prefix}:inbox:{secrets.token_hex(8)}"
        self.listening = threading.Event()
        self._using = using
        self._address = connections.address(using)
        self._connection: object = None
        self._background = Background(self._run, "redislock-inbox")
        self._wakers: dict[str, Waker] = {}

    def start(self) -> None:
        self._background.start()

    def register(self, token: str, wake: Waker) -> None:
        """From now on, call `wake(True)` (from another thread) when `token` gets its lock, and
        `wake(False)` when it may have missed that."""
        self._wakers[token] = wake

    def forget(self, token: str) -> None:
        self._wakers.pop(token, None)

    @property
    def awaited(self) -> bool:
        """Somebody waits."""
        return bool(self._wakers)

    def bequeath(self, token: str, grant: Grant) -> None:
        """`token` has its lock: somebody else of this process was told."""
        if wake := self._wakers.get(token):
            wake(True, grant)

    def drop(self) -> None:
        """In a forked child: close our copy of the socket, or the server would count us as a
        listener for as long as the child lives. The parent goes on using it."""
        connection = getattr(self._connection, "_sock", None)
        if connection is not None:
            os.close(connection.detach())

    def _run(self) -> None:
        failures = 0
        while self._leads_here():
            try:
                for token in self._messages():
                    self._wake(token, told=True)
            except Exception as error:
                # Never die: without a reader, all waiters of this process are slow.
                if self.listening.is_set():
                    failures = 0
                level = logging.DEBUG if failures else logging.WARNING
                logger.log(level, "Lost the connection that wakes waiting locks: %s", error)
            self.listening.clear()
            failures += 1
            time.sleep(backoff(failures, 0.25))
        for key in [key for key, box in _inboxes.copy().items() if box is self]:
            _inboxes.pop(key, None)

    def _wake(self, token: str, *, told: bool) -> None:
        # On its own, so that no variable of a loop keeps a waiter, and its client, that has gone.
        if wake := self._wakers.get(token):
            wake(told)

    def _leads_here(self) -> bool:
        """Where settings are overridden, as in tests, the alias may come to mean another server:
        that one has an inbox of its own."""
        try:
            return connections.address(self._using) == self._address
        except ImproperlyConfigured:
            return False
        except Exception:
            return True  # they are being overridden at this very moment; we look again

    def _messages(self) -> Iterator[str]:
        """The tokens that we are told of, until the connection fails."""
        pool = connections.background_pool(self._using)
        pubsub = None
        try:
            pubsub = redis.Redis(connection_pool=connections.any_primary(pool)).pubsub()
            pubsub.subscribe(self.channel)
            self._connection = pubsub.connection
            pinged = False
            while True:
                message = pubsub.get_message(timeout=self.PING_EVERY)
                if message is None:
                    if pinged:
                        raise RedisError(f"no answer to a PING in {self.PING_EVERY} s")
                    pubsub.ping()
                    pinged = True
                    continue
                pinged = False
                if message["type"] == "subscribe":
                    self.listening.set()
                    # What was sent while we were away is lost: let everybody look.
                    for token in list(self._wakers):
                        self._wake(token, told=False)
                elif message["type"] == "message":
                    yield message["data"].decode()
        finally:
            if pubsub is not None:
                pubsub.close()
            connections.close(pool)


_inboxes: dict[tuple[str, str], Inbox] = {}


def inbox(using: str, prefix: str, *, start: bool) -> Inbox | None:
    """The inbox of this process at the server of `using`.

    Only a process that waits needs one: without `start`, None when there is none yet.
    """
    key = prefix, connections.address(using)
    found = _inboxes.get(key)
    if start:
        # Two threads may make one each, but both get the one that was first.
        found = found or _inboxes.setdefault(key, Inbox(using, prefix))
        found.start()
    return found


def _after_fork() -> None:
    for box in _inboxes.values():
        box.drop()
    _inboxes.clear()  # their threads stayed with the parent


fork.in_child(_after_fork)
