"""The inbox of a process at one server: its waiters learn here that they were handed a lock.

One pub/sub connection serves all waiters, threads and tasks alike. One of the waiting threads
reads it, so that nobody has to be woken twice, and wakes the others; if it stops waiting, another
one goes on. A thread of the background connects, and reads if no thread waits, but tasks do. A
wake-up is only a hint, so one that is lost or comes twice does no harm. If a lock is handed on
within the process, the inbox wakes the waiter with the grant.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from typing import Protocol

from redis.exceptions import RedisError

from ..base.background import Background
from ..base.clock import now
from ..primitives.contract import Grant
from ..primitives.keys import Keys
from ..primitives.waiting import backoff
from . import pools
from .command import foreign
from .crowds import Crowds, present
from .server import Server
from .subscription import Subscription

logger = logging.getLogger("django_redislock")

BACKGROUND = "background"
"""The thread of the background, in place of a waiter's token."""
LOOK_EVERY = 0.5
"""Seconds after which waiters that rest are looked after."""
PRESENT_EVERY = 2.0
"""Seconds after which they show that they live. SIGN_OF_LIFE in lua/queue.lua is longer, by enough
for a request that gets no answer."""
GIVE_UP = 1.0
"""Seconds in which a thread notices that the connection that it reads is lost."""


class Waker(Protocol):
    def __call__(self, notified: bool, grant: Grant | None = None) -> object: ...


class Inbox:
    """The waiters of this process at one server."""

    def __init__(self, server: Server, prefix: str) -> None:
        self.channel = f"{prefix}:inbox:{secrets.token_hex(8)}"
        self.listening = threading.Event()
        """Set while the connection has subscribed."""
        self._server = server
        self._background = Background(self._run, "redislock-inbox")
        self._subscription: Subscription | None = None
        self._wakers: dict[str, Waker] = {}
        self._tasks: set[str] = set()
        """The tokens of those waiters that are tasks."""
        self._idle: dict[str, threading.Event] = {}
        """Waiting threads that could read, and the event that wakes each of them."""
        self._reader: str | None = None
        """The token of the waiting thread that reads, or `BACKGROUND`. It counts only as long as
        its waiter is registered: an exception may come between any two steps of a thread."""
        self._unheard = False
        """Whether the reader has taken messages, and has not yet passed on all of them."""
        # A signal's handler that waits for a lock may interrupt its own thread in here.
        self._choosing = threading.RLock()
        self._crowds = Crowds()
        self._looks_often = False
        """Whether the thread of the background looks after waiters that rest."""
        self._present_at = 0.0
        """When the next request shows that the waiters that rest live."""

    def start(self) -> None:
        """Begin to listen, unless the inbox already does."""
        self._background.start()

    @property
    def started(self) -> bool:
        """Whether the inbox listens, or tries to. Only a process that waits needs that."""
        return self._background.started

    def register(
        self, token: str, wake: Waker, keys: Keys | None = None, *, task: bool = False
    ) -> None:
        """From now on, call `wake(True)` (from another thread) when `token` gets its lock, and
        `wake(False)` when it may have missed that. `keys` have the queue, if it stands in one
        only."""
        self._wakers[token] = wake
        if keys is not None:
            self._crowds.join(token, keys)
        if task:
            self._tasks.add(token)
            if self._reader is None:
                self._call()

    def forget(self, token: str) -> None:
        """Call nothing for `token` from now on."""
        self._wakers.pop(token, None)
        self._tasks.discard(token)
        self._crowds.leave(token)
        self.rest(token)

    def rests(self, token: str) -> bool:
        """Return whether the waiter of `token` need not ask until it is woken: it is not the first
        of this process in its queue, and this process keeps its place."""
        if not self.listening.is_set() or not self._crowds.rests(token):
            return False
        if not self._looks_often:
            self._call()
        return True

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
            self._ring(token)

    def read(self, token: str, woken: threading.Event, seconds: float) -> bool:
        """Let the waiting thread of `token` read the messages: return after the first ones, when
        it is woken, or after so many seconds. Return False at once if it can't: another thread
        reads, and sets `woken` when it stops to do so; or there is no connection."""
        self._idle[token] = woken  # first: whoever stops from now on, sets it
        its = self._subscription
        if its is None or its.failure or not its.shared or not self._may_read(token):
            return False
        # Only now, since it was not rung before.
        if woken.is_set():
            woken.clear()
        elif its.wait(seconds) and not self._read(its):
            self._reader = None
            return False
        return True

    def rest(self, token: str) -> None:
        """Stop reading for `token`, and let another one read. May be repeated."""
        self._idle.pop(token, None)
        if self._reader != token and self._reads(self._reader):
            return
        missed, self._unheard = self._unheard, False
        self._reader = None
        if missed:  # an exception came in between
            self.wake_all()
        elif self._idle:
            # Of all of them, the last one that came goes on longest.
            self._idle.popitem()[1].set()
        elif self._tasks:
            self._call()

    def left_behind(self) -> None:
        """Close the child's copy of the connection, in a forked child."""
        if self._subscription is not None:
            self._subscription.left_behind()

    def _may_read(self, token: str) -> bool:
        """Return whether `token` is the one that reads, from now on or already."""
        with self._choosing:
            if not self._reads(self._reader):
                self._reader = token
            return self._reader == token

    def _reads(self, token: str | None) -> bool:
        return token == BACKGROUND or token in self._wakers

    def _read(self, its: Subscription, seconds: float = 0.0) -> bool:
        """Wake those that got messages. Return False if the connection is lost."""
        handled = sys.exception()
        self._unheard = True
        try:
            for message in its.messages(seconds):
                self._wake(message.decode(errors="replace"), notified=True)
        except (OSError, RedisError) as error:
            if foreign(error, handled):
                raise
            its.failure = error
            self._call()
            return False
        self._unheard = False
        return True

    def _wake(self, token: str, *, notified: bool) -> None:
        # In a function of its own, so that no variable of a loop keeps a waiter, and its client,
        # alive.
        if wake := self._wakers.get(token):
            wake(notified)
            self._ring(token)

    def _call(self) -> None:
        """Let the thread of the background look what it has to do."""
        its = self._subscription
        if its is not None:
            its.call()

    def _ring(self, token: str) -> None:
        its = self._subscription
        if token == self._reader and its is not None:
            its.ring()

    # The thread of the background.

    def _run(self) -> None:
        failures = 0
        # If settings are overridden, as in tests, the alias may come to mean another server, which
        # has an inbox of its own.
        while (server := self._server.again()) is not None:
            try:
                self._listen(server)
            except Exception as error:
                # Never die: without a connection, all waiters of this process are slow.
                if self.listening.is_set():
                    failures = 0
                    self.listening.clear()
                    self.wake_all()  # nobody rests now
                level = logging.DEBUG if failures else logging.WARNING
                logger.log(level, "Lost the connection that wakes waiting locks: %s", error)
            failures += 1
            time.sleep(backoff(failures, 0.25))
        self._server.drop(self)

    def _listen(self, server: Server) -> None:
        """Listen until the connection is lost, which raises."""
        pool = server.background_pool()
        its = None
        try:
            its = Subscription(pool, self.channel)
            self._subscription = its
            self.listening.set()
            self.wake_all()  # messages that were sent before are lost
            while True:
                self._attend(its)
                its.prove()
                self._look_after(server)
        finally:
            self._subscription = None
            if its is not None:
                its.hang_up()
                self.rest(BACKGROUND)
                self._until_nobody_reads()
                its.close()
            pools.close(pool)

    def _attend(self, its: Subscription) -> None:
        """Read if no waiting thread can, until something comes; else wait until that is so."""
        needed = bool(self._tasks) or not its.shared
        # A connection that only this thread may read keeps it from hearing a call.
        longest = LOOK_EVERY if needed or self._looks_often else its.PING_EVERY
        if not (needed and self._may_read(BACKGROUND)):
            its.wait_for_call(longest)
        # Also if nobody waits: the answer to a PING has to be read.
        if self._may_read(BACKGROUND):
            if its.wait(longest if needed else 0.0):
                self._read(its, longest)
            if not self._tasks and its.shared:
                self.rest(BACKGROUND)

    def _look_after(self, server: Server) -> None:
        """Let a waiter that rests go on if it is the first of its queue by now, or has lost its
        place, and show that all of them live."""
        self._looks_often = self._crowds.any_rests
        for token in self._crowds.next_ones():
            self._wake(token, notified=False)
        if not self._looks_often or now() < self._present_at:
            return
        self._present_at = now() + PRESENT_EVERY
        for queue, tokens in self._crowds.resting():
            for token in present(server, queue, tokens):
                self._wake(token, notified=False)

    def _until_nobody_reads(self) -> None:
        give_up = now() + GIVE_UP
        while self._reader is not None and self._reads(self._reader) and now() < give_up:
            time.sleep(0.001)
