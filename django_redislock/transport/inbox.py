"""The inbox of a process at one server: its waiters learn here that they were handed a lock, and
the watchdog that a lock was deleted or overwritten.

One pub/sub connection serves all waiters, threads and tasks alike. One of the waiting threads
reads it, so that nobody has to be woken twice, and wakes the others; if it stops waiting, another
one goes on. A thread of the background connects, writes, and reads if no thread waits, but tasks
or the watchdog do. A wake-up is only a hint, so one that is lost or comes twice does no harm. If a
lock is handed on within the process, the inbox wakes the waiter with the grant.

Only the first waiter of each queue asks for the lock from time to time. The others rest until they
are woken, and one request of the process shows that all of them live (`LocalQueues`). So a wait
costs requests of each process, and not of each waiter.

On one primary, a process has one channel for all locks. Where a script may use keys of one slot
only, it has a channel for each lock for which it waits, in the slot of that lock (sharded pub/sub,
Redis 7). So only the node that has the lock passes the message on, and it knows who listens. Then
a process has an inbox at each node of a cluster where it waits. Without sharded pub/sub, each node
of a cluster passes on all messages, and no node knows who listens.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    RedisError,
    TryAgainError,
)

from ..base import tokens as words
from ..base.background import Background
from ..base.clock import now
from ..base.exceptions import LockError
from ..base.process import rlock
from ..primitives import scripts
from ..primitives.contract import Grant, Handed, run
from ..primitives.keys import Keys
from ..primitives.queued import read_message
from ..primitives.scripts import NONSENSE, nth
from ..primitives.waiting import backoff
from . import connections
from .cluster import Node
from .command import carry_out, foreign, primary_at
from .protocol import STUMBLES, script, text_of
from .server import Server
from .subscription import ERROR, Heard, Subscription

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
KEEP = 10.0
"""Seconds for which the channel of a lock is kept when nobody waits for that lock."""
_PASSING = (AskError, BusyLoadingError, ClusterDownError, TryAgainError)
"""Errors after which a subscription is asked for again. MOVED is an `AskError`, too."""
INVALIDATED = "__redis__:invalidate"
"""The channel of the messages that keys were changed (subscription.py)."""


Bell = SimpleQueue[None]
"""Wakes a thread. Only that thread takes from it."""
Waker = Callable[[bool, Grant | Handed | None], object]
"""Wakes a waiter. It is told whether its lock was handed over, or that it may have missed that;
and by which grant, if that is known."""


class Follower(Protocol):
    """The watchdog, as the inbox knows it."""

    def wake(self) -> None:
        """`Inbox.redirect` has changed."""

    def suspect(self, keys: Sequence[str] | None) -> None:
        """Somebody has changed these keys; None: perhaps any key."""


class Process:
    """What the waiters of this process say of its inboxes at one server."""

    def __init__(self, server: Server, prefix: str) -> None:
        self.id = "m" + secrets.token_hex(8)  # as lua/queue.lua's `understands` has it
        self.channel = f"{prefix}:inbox:{self.id}"
        """The channel for all locks."""
        self._server = server
        self.refused = False
        """Whether the server has no sharded pub/sub, or this user may not use it."""

    @property
    def sharded(self) -> bool:
        """Whether each lock has a channel of its own."""
        return self._server.clustered and not self.refused


class Inbox:
    """The waiters of this process at one server: with `nodes`, those for whose locks it has
    channels; at that node of a cluster, or at the server itself (None)."""

    def __init__(self, server: Server, prefix: str, *nodes: Node | None) -> None:
        self._process = server.kept(Process, prefix)
        self._node = nodes[0] if nodes else None
        self._sharded = bool(nodes)
        self.name = self._process.id if nodes else self._process.channel
        """What scripts are told of it. They make the channel of a lock from it (lua/queue.lua)."""
        self.listening = threading.Event()
        """Set while the connection has subscribed."""
        self._lost = False
        """Whether the connection was lost, and is not back: then it wakes all waiters."""
        self._server = server
        self._background = Background(self._run, "redislock-inbox")
        self._subscription: Subscription | None = None
        self._wakers: dict[str, Waker] = {}
        self._channels: dict[str, frozenset[str]] = {}
        """By token: the channels of the locks for which it may wait."""
        self._subscribed: set[str] = set()
        """The channels on which the server has confirmed that we listen."""
        self._asked: dict[str, float] = {}
        """When the server was asked for the others."""
        self._unused: dict[str, float] = {}
        """The channels that nobody needs now, and since when."""
        self._tasks: set[str] = set()
        """The tokens of those waiters that can't read: tasks, and those of several inboxes."""
        self._idle: dict[str, Bell] = {}
        """Waiting threads that could read, and the bell of each of them."""
        self._reader: str | None = None
        """The token of the waiting thread that reads, or `BACKGROUND`. It counts only as long as
        its waiter is registered: an exception may come between any two steps of a thread."""
        self._unheard = False
        """Whether the reader has taken messages, and has not yet passed on all of them."""
        # A signal's handler that waits for a lock may interrupt its own thread in here.
        self._choosing = rlock()
        self._local_queues = LocalQueues()
        self._looks_often = False
        """Whether the thread of the background looks after waiters that rest."""
        self._present_at = 0.0
        """When the next request shows that the waiters that rest live."""
        self._follower: Follower | None = None
        self._number: int | None = None
        """The number of the connection at the server, if messages about keys may go there."""
        self.redirect: int | None = None
        """The same, as soon as such messages are heard."""

    def start(self) -> bool:
        """Begin to listen, unless the inbox already does. Return False if it can't."""
        return self._background.start()

    def follow(self, follower: Follower) -> None:
        """From now on, tell it of the messages that keys were changed."""
        self._follower = follower
        self.start()
        if self.redirect is None:
            self._call()

    @property
    def may_follow(self) -> bool:
        """Whether such messages may come, as far as it is known."""
        return self._number is not None or not self.listening.is_set()

    def unfollow(self) -> None:
        """Note that the server does not send such messages to this connection."""
        self.redirect = self._number = None

    @property
    def started(self) -> bool:
        """Whether the inbox listens, or tries to. Only a process that waits needs that."""
        return self._background.started

    def register(self, token: str, wake: Waker, keys: Sequence[Keys], *, task: bool) -> None:
        """From now on, call `wake` (from another thread): with True when `token` gets its lock,
        with False when it may have missed that. `keys` are those of the locks for which it may
        wait."""
        self._wakers[token] = wake
        if len(keys) == 1:
            self._local_queues.join(token, keys[0])
        self._channels[token] = self._channels_of(keys)
        if task:
            self._tasks.add(token)
            if self._reader is None:
                self._call()
        if not self.hears(keys):
            self._call()

    def ready(self, keys: Sequence[Keys]) -> bool:
        """Return whether a waiter for these locks causes no new subscription."""
        return self.hears(keys) if self._sharded else self.started

    def hears(self, keys: Sequence[Keys]) -> bool:
        """Return whether this process listens to the messages for these locks."""
        return self._subscribed.issuperset(self._channels_of(keys))

    def _channels_of(self, keys: Sequence[Keys]) -> frozenset[str]:
        if not self._sharded:
            return frozenset((self._process.channel,))
        return frozenset(its.inbox(self._process.id) for its in keys)

    def forget(self, token: str) -> None:
        """Call nothing for `token` from now on."""
        self._wakers.pop(token, None)
        self._tasks.discard(token)
        self._channels.pop(token, None)
        self._local_queues.leave(token)
        self.rest(token)

    def rests(self, token: str) -> bool:
        """Return whether the waiter of `token` need not ask until it is woken: it is not the first
        of this process in its queue, and this process keeps its place."""
        heard = self._subscribed.issuperset(self._channels.get(token, ()))
        if not heard or not self._local_queues.rests(token):
            return False
        if not self._looks_often:
            self._call()
        return True

    def rests_away(self, token: str) -> bool:
        """Return whether the waiter of `token` need not look when Redis is back: this inbox does,
        and then wakes all; and the first of its waiters looks, too."""
        return self._lost and token not in [*self._wakers][:1]

    @property
    def awaited(self) -> bool:
        """Whether anybody waits."""
        return bool(self._wakers)

    def wake_all(self) -> None:
        """Let all waiters check whether they have missed something."""
        for token in list(self._wakers):
            self.wake(token, notified=False)

    def waited_for(self, keys: Keys) -> bool:
        """Whether anybody of this process waits for a lock."""
        return bool(self._local_queues.standing(keys))

    def wake_neighbours(self, keys: Keys) -> None:
        """Let the waiters for a lock ask who has it."""
        for token in self._local_queues.standing(keys):
            self.wake(token, notified=False)

    def read(self, token: str, bell: Bell, seconds: float) -> bool:
        """Let the waiting thread of `token` read the messages: return after the first ones, when
        its bell rings, or after so many seconds. Return False at once if it can't: another thread
        reads, and rings the bell when it stops to do so; or there is no connection."""
        self._idle[token] = bell  # first: whoever stops from now on, rings it
        its = self._subscription
        if its is None or its.failure or not its.shared or not self._may_read(token):
            return False
        # Only now, since it was not rung before.
        if not bell.empty():
            bell.get()
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
        elif idle := [*self._idle.values()]:
            # Of all of them, the last one that came goes on longest. It stays among them until it
            # stops to wait: otherwise the thread of the background would read at once again.
            idle[-1].put(None)
        elif self._tasks or self._follower:
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
            mine = self._reader == token
        if not mine and self._reader == BACKGROUND and not self._tasks:
            self._call()  # it makes room for a thread that waits
        return mine

    def _reads(self, token: str | None) -> bool:
        return token == BACKGROUND or token in self._wakers

    def _read(self, its: Subscription, seconds: float = 0.0) -> bool:
        """Wake those that got messages. Return False if the connection is lost."""
        handled = sys.exception()
        self._unheard = True
        try:
            for heard in its.messages(seconds):
                self._take(heard, its.since)
        except (OSError, RedisError, *STUMBLES) as error:
            if foreign(error, handled):
                raise
            its.failure = error
            self._call()
            return False
        self._unheard = False
        return True

    def _take(self, heard: Heard, since: float) -> None:
        kind, channel, data = heard
        if kind in (b"message", b"smessage"):
            if type(data) is bytes:
                token, handed = read_message(data.decode(errors="replace"), since)
                self._tell(token, notified=True, grant=handed)
            elif self._follower is not None:
                self._follower.suspect(None if data is None else [*map(text_of, data)])
        elif kind in (b"subscribe", b"ssubscribe"):
            self._asked.pop(name := text_of(channel), None)
            self._subscribed.add(name)
            if name == INVALIDATED:
                self.redirect = self._number
                if self._follower is not None:
                    self._follower.wake()
            else:
                self._lost = False
                self.listening.set()
                self._wake_those_of(name)  # messages that were sent before are lost
                self._call()
        elif kind == b"sunsubscribe":
            # The server says so, too, if the slot of this channel has moved to another node.
            self._subscribed.discard(name := text_of(channel))
            self._wake_those_of(name)
        elif kind == ERROR:
            self._refused(data)

    def _refused(self, error: Exception) -> None:
        """Note that a subscription was refused."""
        if not self._sharded and not self.listening.is_set():
            raise error
        if not self._sharded:
            self.unfollow()
            self._asked.clear()
            return
        if not isinstance(error, _PASSING):
            self._process.refused = True
            self._asked.clear()
        self.wake_all()  # after MOVED they find the new node

    def _wake_those_of(self, channel: str) -> None:
        for token, its in self._channels.copy().items():
            if channel in its:
                self.wake(token, notified=False)

    def wake(self, token: str, *, notified: bool, grant: Grant | None = None) -> None:
        """Wake the waiter of `token`. With a grant it has its lock: another thread or task of this
        process got the answer that says so."""
        self._tell(token, notified=notified, grant=grant)
        its = self._subscription
        if token == self._reader and its is not None:
            its.ring()

    def _tell(self, token: str, *, notified: bool, grant: Grant | Handed | None) -> None:
        """Wake a waiter. The one that reads the messages is awake, and looks by itself."""
        # In a function of its own, so that no variable of a loop keeps a waiter, and its client,
        # alive.
        if wake := self._wakers.get(token):
            wake(notified, grant)

    def _call(self) -> None:
        """Let the thread of the background look what it has to do."""
        its = self._subscription
        if its is not None:
            its.call()
            if self._reader == BACKGROUND:
                its.ring()

    # The thread of the background.

    def _run(self) -> None:
        failures = 0
        # If settings are overridden, as in tests, the alias may come to mean another server, which
        # has an inbox of its own.
        while (server := self._server.again()) is not None:
            # A node may have left the cluster.
            if self._sharded and failures and not self._wakers:
                break
            try:
                self._listen(server)
            except Exception as error:
                # Never die: without a connection, all waiters of this process are slow.
                self._subscribed.clear()
                self._asked.clear()
                if self.listening.is_set():
                    failures = 0
                    self.listening.clear()
                    self._lost = not self._sharded  # the lock may come to another node
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
            its = Subscription(primary_at(pool, self._node))
            # On a cluster, the nodes of the watchdog's keys are others.
            self._number = None if server.clustered else its.client_id()
            self._subscription = its
            while True:
                self._subscribe(its)
                self._attend(its)
                its.prove()
                self._look_after(server)
        finally:
            self._subscription = None
            self.unfollow()
            if its is not None:
                its.hang_up()
                self.rest(BACKGROUND)
                give_up = now() + GIVE_UP
                while self._reader is not None and self._reads(self._reader) and now() < give_up:
                    time.sleep(0.001)
                its.close()
            connections.close(pool)

    def _subscribe(self, its: Subscription) -> None:
        """Subscribe to the channels that are needed, and leave those of locks for which nobody has
        waited for a while."""
        time = now()
        needed = self._needed()
        for channel in needed.difference(self._subscribed):
            if self._asked.get(channel, 0.0) < time - GIVE_UP:
                self._asked[channel] = time
                its.send("SSUBSCRIBE" if self._sharded else "SUBSCRIBE", channel)
        if not self._sharded:
            return
        unused = {name: self._unused.get(name, time) for name in self._subscribed - needed}
        self._unused = unused
        for channel in [name for name, since in unused.items() if since < time - KEEP]:
            # In this order: whoever registers meanwhile either is seen here, or sees that it has
            # to be asked for anew.
            self._subscribed.discard(channel)
            if channel in self._needed():
                self._subscribed.add(channel)
            else:
                its.send("SUNSUBSCRIBE", channel)

    def _needed(self) -> set[str]:
        if not self._sharded:
            also = self._follower and self._number and self.listening.is_set()
            return {self._process.channel, *([INVALIDATED] if also else [])}
        return {channel for its in self._channels.copy().values() for channel in its}

    def _attend(self, its: Subscription) -> None:
        """Read if no waiting thread can, until something comes; else wait until that is so."""
        # Also where no messages about keys come: those about maintenance do (maintenance.py).
        followed = self._follower is not None and not self._idle
        needed = bool(self._tasks or self._asked) or followed or not its.shared
        often = self._looks_often or bool(self._asked) or not its.can_be_rung
        longest = LOOK_EVERY if often else its.PING_EVERY
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
        self._looks_often = bool(self._local_queues.resting)
        for token in self._local_queues.next_ones():
            self.wake(token, notified=False)
        if not self._looks_often or now() < self._present_at:
            return
        self._present_at = now() + PRESENT_EVERY
        for queue, tokens in self._local_queues.parts():
            for token in present(server, queue, tokens):
                self.wake(token, notified=False)


AT_ONCE = 500
"""Waiters in one request, which keeps Redis busy for a millisecond or two."""

SCRIPT = "queue_present"
WITHIN = 2.0
"""Seconds for an answer."""

Queue = tuple[str, str]
"""The keys of a queue, and of what its waiters say of themselves."""


class LocalQueues:
    """The waiters at one server that stand in one queue each."""

    def __init__(self) -> None:
        self._tokens: dict[Queue, dict[str, None]] = {}
        """The tokens of the waiters in each queue, in the order in which they came."""
        self._queues: dict[str, Queue] = {}
        """The queue of each token."""
        self.resting: set[str] = set()
        """The waiters that do not ask by themselves."""
        # A signal's handler that waits for a lock may interrupt its own thread in here.
        self._changing = rlock()

    def join(self, token: str, keys: Keys) -> None:
        queue = keys.queue, keys.waiters
        with self._changing:
            self._queues[token] = queue
            self._tokens.setdefault(queue, {})[token] = None

    def leave(self, token: str) -> None:
        """Forget a waiter. May be repeated."""
        with self._changing:
            self.resting.discard(token)
            queue = self._queues.get(token)
            if queue is not None:
                tokens = self._tokens.get(queue, {})
                tokens.pop(token, None)
                if not tokens:
                    self._tokens.pop(queue, None)
                self._queues.pop(token, None)

    def rests(self, token: str) -> bool:
        """Return whether this waiter does not ask by itself from now on, since another one stands
        before it."""
        with self._changing:
            queue = self._queues.get(token)
            rests = queue is not None and next(iter(self._tokens[queue])) != token
            (self.resting.add if rests else self.resting.discard)(token)
            return rests

    def next_ones(self) -> list[str]:
        """Return the waiters that rest, though they are the first of their queues by now."""
        with self._changing:
            if not self.resting:
                return []
            firsts = [next(iter(tokens)) for tokens in self._tokens.values()]
            return [token for token in firsts if token in self.resting]

    def standing(self, keys: Keys) -> list[str]:
        """Return the waiters in the queue of a lock."""
        with self._changing:
            return [*self._tokens.get((keys.queue, keys.waiters), ())]

    def parts(self) -> list[tuple[Queue, list[str]]]:
        """Return the waiters that rest, in parts for one request each."""
        parts: list[tuple[Queue, list[str]]] = []
        with self._changing:
            for queue, tokens in self._tokens.items():
                resting = [token for token in tokens if token in self.resting]
                parts += [
                    (queue, resting[first : first + AT_ONCE])
                    for first in range(0, len(resting), AT_ONCE)
                ]
        return parts


def present(server: Server, queue: Queue, tokens: list[str]) -> list[str]:
    """Show that these waiters live. Return those that stand in the queue no more: they were handed
    the lock, or passed over. Without an answer nothing is known, and nobody is returned."""
    # As EVAL: it is rare, and the server may have forgotten a script.
    source = scripts.load(SCRIPT).source
    command = script(source, queue, [words.word(), *tokens], "EVAL")
    try:
        answer = run(carry_out(server.links, command, until=now() + WITHIN))
    except LockError:
        return []
    try:
        return [nth(tokens, position) for position in answer]
    except NONSENSE:
        return []
