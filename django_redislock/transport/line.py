"""A line: a connection to which nobody else writes meanwhile. How a request goes out over it, and
how its answer is known.

1.  Somebody may have left unread answers on the connection. So all answers before the one with the
    word of our request are skipped.
2.  A line is dropped if anything but an answer ends its request, since an answer may still come.

redis-py's own `send_packed_command` and `read_response` take several times as long as the socket.
They are used for a connection without a socket of the usual kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Any

import redis

from ..base import polling, tokens
from ..base.clock import now
from ..primitives.waiting import NEVER
from .protocol import (
    ANSWER_WITHIN,
    NOTHING,
    PUSH,
    believed,
    is_last,
    is_ours,
    marks,
    packed_marker,
    reader,
    short_answer,
)

# Bytes that are read at a time, and those of the most frequent answers.
MOST, FEW = 65_536, 512
# Seconds that a step gets when its time is over. With 0 it could not wait at all.
LAST_MOMENT = 0.001
DISCONNECTED = "Another thread has disconnected the pool."


class Line:
    """A connection with a socket of the usual kind, also with TLS."""

    __slots__ = (
        *("__weakref__", "_own", "_patience", "_reader", "_usual", "busy", "clean", "connection"),
        *("fileno", "heard", "kept", "loan", "pushes", "recv", "sendall", "sock", "until"),
        "user",
    )

    loan: Any
    """Its `Loan`, which says when it goes back (loans.py)."""
    until: float
    """When that is."""
    heard: Callable[[float], Any]
    """Waits for so many milliseconds until there is something to read, or it was closed. Returns
    whether that is so."""

    def __init__(self, connection: Any, sock: Any) -> None:
        self.connection, self.sock = connection, sock
        # Whoever has it in hand. So it is clear, after an exception, whether it was returned.
        self.user: object = None
        # Whether an answer may still come; no answers to other requests come; it stays after its
        # request.
        self.busy = self.clean = self.kept = False
        self.pushes: list[Any] = []  # what redis-py has to handle when the request has ended
        self._reader = reader()
        self._begin()

    def _begin(self) -> None:
        sock = self.sock
        self.fileno, self.sendall, self.recv = sock.fileno, sock.sendall, sock.recv
        if sock.fileno() < 0:
            raise redis.ConnectionError(DISCONNECTED)
        watch = _watch(sock.fileno())
        # That of gevent belongs to the event loop of one thread.
        usual = type(watch).__module__ == "select"
        self.heard = watch.poll if usual else partial(_hears, sock.fileno)
        self._own = self._patience = sock.gettimeout()
        self._usual = ANSWER_WITHIN if self._own is None else self._own

    def ask(self, packed: bytes, word: str | None, until: float, before: int = 0) -> Any:
        """Send a request, and return its answer. `word` is the first of a script's ARGV; `None`
        means that the command is no script. The answer may take until then, by our clock, and no
        longer than the usual time. The answers to so many commands `before` it are skipped.

        Raises the error that is the answer; or that of redis-py for a lost connection.
        """
        self.busy = True
        try:
            if self._patience != self._usual or until - now() < self._usual:
                self._hurry(until)
            self.sendall(packed)
            seen = self.recv(FEW)
        except OSError as error:
            raise as_redis_py(error) from error
        if word is not None and (answer := short_answer(seen, word)) is not None:
            self.clean, self.busy = True, False
            return answer
        return self.go_on(seen, word, until, before)

    def go_on(self, seen: bytes | None, word: str | None, until: float, before: int = 0) -> Any:
        """Return the answer to a request that was sent, where `seen` has come already; `None`:
        nothing was read. The other arguments and the errors are those of `ask`."""
        if seen is not None:
            self._take(seen)
        answer = believed(self._answers(before + 1, word, until)[-1], word)
        self.busy = is_last(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def exchange(
        self,
        packed: bytes,
        word: str | None,
        until: float,
        patience: float = 0.0,  # noqa: ARG002  # of a connection that tasks share
        before: int = 0,
    ) -> Any:
        """Do what `ask` does, as a coroutine that never suspends."""
        return self.ask(packed, word, until, before)

    def answers(self, packed: bytes, number: int, until: float) -> list[Any]:
        """Send so many commands at once, and return their answers. Errors are returned, too."""
        self.busy = True
        self._write(packed, until)
        found = self._answers(number, None, until)
        self.busy = any(map(is_last, found))
        return found

    def _answers(self, number: int, word: str | None, until: float) -> list[Any]:
        """Return the answers to the last requests.

        They come in the order of the requests. Those of other requests end with one that has our
        word, or else before the answer to a marker.
        """
        found = [self._next(until)]
        if not self.clean and not (word is not None and is_ours(found[0], word)):
            marker = tokens.word()
            self._write(packed_marker(marker), until)
            while not marks(answer := self._next(until), marker):
                found.append(answer)
        while len(found) < number:
            found.append(self._next(until))
        self.clean = True
        return found[-number:]

    def _next(self, until: float) -> Any:
        """Return the next answer; an error is returned, not raised."""
        while (answer := self._reader.gets()) is NOTHING or type(answer) is PUSH:
            if answer is NOTHING:
                try:
                    self._hurry(until)
                    some = self.recv(MOST)
                except OSError as error:
                    raise as_redis_py(error) from error
                self._take(some)
            else:
                self.pushes.append(answer)
                self.kept = False
        return answer

    def overhear(self) -> list[Any]:
        """Read what has come without being asked, before the line goes back. Return the pushes
        that nobody has handled."""
        try:
            while self.heard(0):
                self._take(self.recv(MOST))
                while (answer := self._reader.gets()) is not NOTHING:
                    if type(answer) is PUSH:
                        self.pushes.append(answer)
                    else:
                        self.busy = True
            self.busy |= self._reader.has_data()
        except Exception:  # it is closed, or another thread has it
            self.busy = True
        return self.pushes

    def _take(self, some: bytes) -> None:
        if not some:
            raise redis.ConnectionError("Connection closed by server.")
        self._reader.feed(some)

    def _write(self, packed: bytes, until: float) -> None:
        try:
            self._hurry(until)
            self.sendall(packed)
        except OSError as error:
            raise as_redis_py(error) from error

    def _hurry(self, until: float) -> None:
        """Let the next step take until then, or the usual time."""
        wanted = self._usual
        if until != NEVER:
            # Rounded, so that the socket's time-out need not change with each request.
            wanted = min(wanted, ceil(max(until - now(), LAST_MOMENT) * 100) / 100)
        if wanted != self._patience:
            self._wait_for(wanted)

    def _wait_for(self, seconds: float | None) -> None:
        self.sock.settimeout(seconds)
        self._patience = seconds

    def restore(self) -> None:
        """Leave it to its next user as it was. It was alive just now, so its health is known."""
        if self._patience != self._own:
            with suppress(OSError):  # another thread has closed it
                self._wait_for(self._own)
        if interval := getattr(self.connection, "health_check_interval", 0):
            self.connection.next_health_check = time.monotonic() + interval


class LineByMethods(Line):
    """A connection that only redis-py's public methods use."""

    __slots__ = ()

    def _begin(self) -> None:
        self._usual = getattr(self.connection, "socket_timeout", None) or ANSWER_WITHIN

    def ask(self, packed: bytes, word: str | None, until: float, before: int = 0) -> Any:
        self.busy = True
        self._write(packed, until)
        return self.go_on(None, word, until, before)

    def _next(self, until: float) -> Any:
        within = max(min(until - now(), self._usual), LAST_MOMENT)
        if not self.connection.can_read(within):
            raise redis.TimeoutError(f"no answer within {within:.3g} s")
        try:
            return self.connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            return error

    def _write(self, packed: bytes, until: float) -> None:  # noqa: ARG002
        self.connection.send_packed_command([packed])

    def overhear(self) -> list[Any]:
        return []  # redis-py has handled them

    def restore(self) -> None: ...


def _watch(file: int) -> Any:
    """Return what says whether there is something to read."""
    its = polling.poll()
    its.register(file, polling.POLLIN)
    return its


def _hears(fileno: Callable[[], int], milliseconds: float) -> Any:
    # Another thread may have closed it.
    return fileno() < 0 or _watch(fileno()).poll(milliseconds)


def as_redis_py(error: OSError) -> redis.RedisError:
    """Return the error of a socket as redis-py would raise it."""
    kind = redis.TimeoutError if isinstance(error, TimeoutError) else redis.ConnectionError
    return kind(str(error))
