"""A connection that listens to messages, read by one thread at a time; and the tracking of keys,
whose messages come over it.

redis-py's `get_message()` takes longer than Redis takes to hand a lock over, and it can't be
woken. So the messages are read here, from the socket that redis-py has connected. A connection
with TLS is always read by the thread that also writes to it, since two threads can't use a TLS
stream. A connection without a socket of the usual kind is read through redis-py, by that thread,
too.

By tracking, the server says at once that somebody else has changed a lock:

1.  The connection of the inbox subscribes to the channel of invalidations, and knows its number at
    the server (`Inbox.redirect`).
2.  The watchdog's connection asks the server to send them there (`CLIENT TRACKING ON REDIRECT`):
    for keys that it names (`OPTIN`), and not for changes that it makes itself (`NOLOOP`).
3.  It names keys by reading them. The first change of a key, by anybody else, is a message, and so
    are its deletion, its expiry and its eviction; then the server forgets that the key was read.
    So each renewal, which changes the key, is followed by another reading.
4.  The message makes the watchdog renew the lease. The answer says whether it is lost, and why.

All of this may fail without harm: then a loss is noticed by the next renewal, as without it.

Source: the Redis documentation of client-side caching.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import redis
from redis.exceptions import InvalidResponse, RedisError

from ..base import polling
from ..base.clock import now
from ..primitives.keys import Word
from .line import MOST
from .loans import apart, lines_of
from .maintenance import hand_on, is_notice
from .protocol import NOTHING, pack, reader

LOST = getattr(select, "POLLRDHUP", 0)
"""The event of a connection that the other end has closed. Elsewhere than on Linux there may be
none, and an idle connection that is lost is noticed by the next PING."""

ERROR = b"error"
"""The kind of an answer that refuses a request."""


class Heard(NamedTuple):
    """Something that the server says: a message, or the answer to a request."""

    kind: bytes
    """The server's word for it, such as `message` or `ssubscribe`; or `ERROR`."""
    channel: Any = None
    data: Any = None


_MESSAGES = re.compile(
    rb"[*>]3\r\n\$[78]\r\n(s?message)\r\n\$\d+\r\n([^\r]*)\r\n\$\d+\r\n([^\r]*)\r\n"
)
"""Whole messages as the server sends them, of names without line breaks."""


class Subscription:
    PING_EVERY = 10.0
    """Seconds without a message after which the connection has to prove that it lives."""

    failure: Exception | None = None
    """The error with which a reader found that the connection is lost."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._heard = self._pinged = now()
        self._connection: Any = pool.get_connection()
        self.since = now()
        """When it was connected."""
        sock = getattr(self._connection, "_sock", None)
        self._socket = sock if isinstance(sock, socket.socket) else None
        self.shared = type(sock) is socket.socket
        """Whether any thread may read, and not only the one that writes."""
        self.can_be_rung = self._socket is not None
        """Whether `ring` ends a wait."""
        self._answers = reader()
        self._reader, self._caretaker = _Bell(), _Bell()

    def client_id(self) -> int | None:
        """Return the number of this connection at the server. None: the server does not say.

        To be called before the first subscription: later such requests are refused.
        """
        self.send("CLIENT", "ID")
        try:
            number = self._connection.read_response()
        except redis.ResponseError:
            return None
        return number if isinstance(number, int) else None

    def send(self, *command: str | bytes) -> None:
        """Send a request. Only one thread may do so. Its answer comes among the messages."""
        self._connection.send_command(*command, check_health=False)

    def wait(self, seconds: float) -> bool:
        """Wait until there is something to read, for so many seconds, or until `ring` is called.
        Returns whether there is something."""
        if self._socket is None:
            return True
        return self._reader.wait(seconds, self._socket, polling.POLLIN)

    def ring(self) -> None:
        """Wake the thread that reads."""
        self._reader.ring()

    def wait_for_call(self, seconds: float) -> None:
        """Wait until `call` is called, or the connection is lost, for so many seconds. The thread
        that does so reads nothing, and messages don't wake it."""
        if self._caretaker.wait(seconds, self._socket, LOST) and self.failure is None:
            self.failure = RedisError("it was closed")

    def call(self) -> None:
        """End `wait_for_call`."""
        self._caretaker.ring()

    def messages(self, seconds: float) -> Sequence[Heard]:
        """Return what has come. Raises `RedisError` or `OSError` if the connection is lost. If it
        has no socket of the usual kind, this waits for so many seconds."""
        received = self._received(seconds)
        return [its if type(its) is Heard else _heard(its) for its in received]

    def _received(self, seconds: float) -> Sequence[Any]:
        """Return the answers that have come."""
        if self._socket is None:
            if not self._connection.can_read(timeout=seconds):
                return []
            self._heard = now()
            try:
                return [self._connection.read_response(disable_decoding=True, push_request=True)]
            except redis.ResponseError as error:
                return [error]
        some = self._read(self._socket)
        if not some:
            return []
        self._heard = now()
        if not self._answers.has_data():
            # A message alone is the most frequent case, and takes the reader ten times as long.
            *messages, rest = _MESSAGES.split(some)
            if not rest and not any(messages[::4]):
                return [*map(Heard, messages[1::4], messages[2::4], messages[3::4])]
        self._answers.feed(some)
        found = []
        while (answer := self._answers.gets()) is not NOTHING:
            if is_notice(answer):
                apart(partial(hand_on, self._connection, answer))
            else:
                found.append(answer)
        return found

    def _read(self, sock: socket.socket) -> bytes:
        """Return the bytes that have come. With TLS, there may be none of ours among them."""
        if self.shared:
            some = sock.recv(MOST)
        else:
            assert isinstance(sock, ssl.SSLSocket)
            timeout = sock.gettimeout()
            sock.settimeout(0)
            try:
                some = sock.recv(MOST)  # all of a record: a poll would not see the rest
            except ssl.SSLWantReadError:
                return b""
            finally:
                sock.settimeout(timeout)
        if not some:
            raise RedisError("it was closed")
        return some

    def prove(self) -> None:
        """Ask for a sign of life after a silence. Raises an error if the connection is lost, or
        if the last question got no answer."""
        if self.failure is not None:
            raise self.failure
        silent = now() - max(self._heard, self._pinged)
        if silent < self.PING_EVERY:
            return
        if self._pinged > self._heard:
            raise RedisError(f"no answer to a PING in {self.PING_EVERY} s")
        self._pinged = now()
        self.send("PING")

    def hang_up(self) -> None:
        """End the connection. Who reads it sees that at once."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it. Nobody may read any more."""
        self._connection.disconnect()
        self._reader.close()
        self._caretaker.close()

    def left_behind(self) -> None:
        """Close the child's copy of the socket, in a forked child. Otherwise the server would
        count this process as a listener for as long as the child lives. The parent continues with
        its own copy."""
        if self._socket is not None and self._socket.fileno() >= 0:
            os.close(self._socket.detach())


def _heard(answer: Any) -> Heard:
    """Raises `InvalidResponse` for what is neither a message nor an answer."""
    if isinstance(answer, Exception):
        return Heard(ERROR, None, answer)
    if answer is None or type(answer) is bytes:  # the answer to a PING, or what redis-py has taken
        return Heard(b"")
    if isinstance(answer, list | tuple) and answer:
        heard = Heard(*answer[:3])
        if heard.kind == b"invalidate":  # over RESP3
            heard = Heard(b"message", None, heard.channel)
        if heard.kind in (b"message", b"smessage"):
            fits = type(heard.data) is bytes or _are_keys(heard.data)
        else:
            fits = type(heard.kind) is bytes
        if fits:
            return heard
    raise InvalidResponse(f"neither a message nor an answer, but {type(answer).__name__}")


def _are_keys(value: Any) -> bool:
    """Return whether these are keys that were changed; None stands for all."""
    return value is None or (isinstance(value, list) and all(type(key) is bytes for key in value))


class _Bell:
    """Wakes a thread that waits for a socket."""

    def __init__(self) -> None:
        self._ears, self._bell = socket.socketpair()
        self._bell.setblocking(False)

    def wait(self, seconds: float, sock: socket.socket | None, events: int) -> bool:
        """Wait for these events of a socket, for so many seconds, or until `ring` is called.
        Returns whether there are any."""
        watch = polling.poll()
        watch.register(self._ears, polling.POLLIN)
        if sock is not None:
            watch.register(sock, events)
        ready = [file for file, _ in watch.poll(ceil(seconds * 1000))]
        if self._ears.fileno() in ready:
            self._ears.recv(MOST)
            ready.remove(self._ears.fileno())
        return bool(ready)

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # it was rung often enough, or is closed
            self._bell.send(b"\0")

    def close(self) -> None:
        self._ears.close()
        self._bell.close()


def track(pool: redis.ConnectionPool, redirect: int, keys: Sequence[str], within: float) -> bool:
    """Let the connection with the number `redirect` hear of the next change of each of these keys.
    Returns whether all of them exist.

    Raises `RedisError` or `OSError` if the server does not do so, or does not answer `within`
    these seconds.
    """
    commands: list[tuple[Word, ...]] = [
        ("CLIENT", "TRACKING", "ON", "REDIRECT", redirect, "OPTIN", "NOLOOP"),
        ("CLIENT", "CACHING", "YES"),
        ("EXISTS", *keys),
    ]
    packed = b"".join(map(pack, commands))
    answers = lines_of(pool).do(
        lambda line, until: line.answers(packed, len(commands), until), now() + within
    )
    for answer in answers:
        if isinstance(answer, redis.RedisError):
            raise answer
    return bool(answers[-1] == len(keys))
