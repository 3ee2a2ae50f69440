"""The inbox of a process at one server: its waiters learn here that they were handed a lock.

One pub/sub connection and one reader thread serve all waiters, threads and tasks alike. A wake-up
is only a hint, so one that is lost or comes twice does no harm. If a lock is handed on within the
process, the inbox wakes the waiter with the grant.
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
from redis.exceptions import RedisError

from ..base.background import Background
from ..primitives.contract import Grant
from ..primitives.waiting import backoff
from . import pools
from .server import Server

logger = logging.getLogger("django_redislock")


class Waker(Protocol):
    def __call__(self, notified: bool, grant: Grant | None = None) -> object: ...


class Inbox:
    """The waiters of this process at one server."""

    PING_EVERY = 10.0
    """Seconds without a message after which the connection has to prove that it lives."""

    def __init__(self, server: Server, prefix: str) -> None:
        self.channel = f"{prefix}:inbox:{secrets.token_hex(8)}"
        self.listening = threading.Event()
        """Set while the connection has subscribed."""
        self._server = server
        self._connection: object = None
        self._background = Background(self._run, "redislock-inbox")
        self._wakers: dict[str, Waker] = {}

    def start(self) -> None:
        """Begin to listen, unless the inbox already does."""
        self._background.start()

    @property
    def started(self) -> bool:
        """Whether the inbox listens, or tries to. Only a process that waits needs that."""
        return self._background.started

    def register(self, token: str, wake: Waker) -> None:
        """From now on, call `wake(True)` (from another thread) when `token` gets its lock, and
        `wake(False)` when it may have missed that."""
        self._wakers[token] = wake

    def forget(self, token: str) -> None:
        """Call nothing for `token` from now on."""
        self._wakers.pop(token, None)

    @property
    def awaited(self) -> bool:
        """Whether anybody waits."""
        return bool(self._wakers)

    def wake_all(self) -> None:
        """Let all waiters check whether they have missed something."""
        for token in list(self._wakers):
            self._wake(token, notified=False)

    def hand_over(self, token: str, grant: Grant) -> None:
        """Wake the waiter of `token`, which has its lock: another thread or task of this process
        got the answer that says so."""
        if wake := self._wakers.get(token):
            wake(True, grant)

    def left_behind(self) -> None:
        """Close the child's copy of the socket, in a forked child. Otherwise the server would
        count this process as a listener for as long as the child lives. The parent continues with
        its own copy."""
        connection = getattr(self._connection, "_sock", None)
        if connection is not None:
            os.close(connection.detach())

    def _run(self) -> None:
        failures = 0
        # If settings are overridden, as in tests, the alias may come to mean another server, which
        # has an inbox of its own.
        while (server := self._server.again()) is not None:
            try:
                for token in self._messages(server):
                    self._wake(token, notified=True)
            except Exception as error:
                # Never die: without a reader, all waiters of this process are slow.
                if self.listening.is_set():
                    failures = 0
                level = logging.DEBUG if failures else logging.WARNING
                logger.log(level, "Lost the connection that wakes waiting locks: %s", error)
            self.listening.clear()
            failures += 1
            time.sleep(backoff(failures, 0.25))
        self._server.drop(self)

    def _wake(self, token: str, *, notified: bool) -> None:
        # In a function of its own, so that no variable of a loop keeps a waiter, and its client,
        # alive.
        if wake := self._wakers.get(token):
            wake(notified)

    def _messages(self, server: Server) -> Iterator[str]:
        """Yield the tokens in the messages, until the connection fails."""
        pool = server.background_pool()
        pubsub = None
        try:
            pubsub = redis.Redis(connection_pool=pools.any_primary(pool)).pubsub()
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
                    self.wake_all()  # messages that were sent before are lost
                elif message["type"] == "message":
                    yield message["data"].decode()
        finally:
            if pubsub is not None:
                pubsub.close()
            pools.close(pool)
