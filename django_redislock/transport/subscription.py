"""A connection that has subscribed to one channel, read by one thread at a time.

redis-py's `get_message()` takes longer than Redis takes to hand a lock over, and it can't be
woken. So the messages are read here, from the socket. A connection with TLS, or one of an unusual
kind, is read through redis-py, and always by the same thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
from math import ceil
from typing import Any

import redis
from redis.exceptions import RedisError

from ..base.clock import now
from . import pools
from .command import Pool
from .wire import MOST

LOST = getattr(select, "POLLRDHUP", 0)
"""The event of a connection that the other end has closed. Elsewhere than on Linux there may be
none, and an idle connection that is lost is noticed by the next PING."""
LONGEST = 4096
"""Bytes of a message that has not been read to its end, at most."""


class Subscription:
    PING_EVERY = 10.0
    """Seconds without a message after which the connection has to prove that it lives."""

    failure: Exception | None = None
    """The error with which a reader found that the connection is lost."""

    def __init__(self, pool: Pool, channel: str) -> None:
        self._heard = self._pinged = now()
        self._pubsub = redis.Redis(connection_pool=pools.any_primary(pool)).pubsub()
        self._pubsub.subscribe(channel)
        message = self._pubsub.get_message(timeout=self.PING_EVERY)
        if message is None:
            raise RedisError(f"no answer to a SUBSCRIBE in {self.PING_EVERY} s")
        sock = getattr(self._pubsub.connection, "_sock", None)
        self._socket: Any = sock if type(sock) is socket.socket else None
        self._reader, self._caretaker = _Bell(), _Bell()
        self._unread = b""
        # What a message has before its data. Other answers, to a PING, only show that the
        # connection lives; so do parts of one that redis-py has read.
        name = channel.encode()
        self._message = re.compile(
            rb"\$7\r\nmessage\r\n\$%d\r\n%b\r\n\$\d+\r\n([^\r]*)\r\n" % (len(name), name)
        )

    @property
    def shared(self) -> bool:
        """Whether any thread may read, and not only the one that has subscribed."""
        return self._socket is not None

    def wait(self, seconds: float) -> bool:
        """Wait until there is something to read, for so many seconds, or until `ring` is called.
        Returns whether there is something."""
        if self._socket is None:
            return True
        return self._reader.wait(seconds, self._socket, select.POLLIN)

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

    def messages(self, seconds: float) -> list[bytes]:
        """Return the data of the messages that have come. Raises `RedisError` or `OSError` if the
        connection is lost. If it is not shared, this waits for so many seconds."""
        if self._socket is None:
            message = self._pubsub.get_message(timeout=seconds)
            if message is None:
                return []
            self._heard = now()
            return [message["data"]] if message["type"] == "message" else []
        some = self._socket.recv(MOST)
        if not some:
            raise RedisError("it was closed")
        self._heard = now()
        *messages, rest = self._message.split(self._unread + some)
        self._unread = rest[-LONGEST:]
        return messages[1::2]

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
        self._pubsub.ping()

    def hang_up(self) -> None:
        """End the connection. Who reads it sees that at once."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it. Nobody may read any more."""
        self._pubsub.close()
        self._reader.close()
        self._caretaker.close()

    def left_behind(self) -> None:
        """Close the child's copy of the socket, in a forked child. Otherwise the server would
        count this process as a listener for as long as the child lives. The parent continues with
        its own copy."""
        connection = getattr(self._pubsub.connection, "_sock", None)
        if isinstance(connection, socket.socket):  # a server in memory has none
            os.close(connection.detach())


class _Bell:
    """Wakes a thread that waits for a socket."""

    def __init__(self) -> None:
        self._ears, self._bell = socket.socketpair()
        self._bell.setblocking(False)

    def wait(self, seconds: float, sock: socket.socket | None, events: int) -> bool:
        """Wait for these events of a socket, for so many seconds, or until `ring` is called.
        Returns whether there are any."""
        watch = select.poll()
        watch.register(self._ears, select.POLLIN)
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
