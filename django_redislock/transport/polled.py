"""A script's request to several servers, sent by the thread that asks.

To start a thread takes longer than a server takes to answer. So the thread that asks sends the
request to all servers itself, over an idle connection to each, and waits for all answers with one
poll().

That is for the usual: an idle connection to each server, without TLS; a short request; answers
that are whole, ours and no error. For all else, and for a server that is slower than the others
need, a thread goes on with the `Request` from where it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any

import redis
from redis.exceptions import NoScriptError, RedisError

from ..base import polling
from ..base.clock import now
from ..primitives import scripts
from ..primitives.contract import Word
from ..primitives.shapes import SHAPES
from .command import Pool, fail, foreign
from .packing import pack, pack_script
from .reader import NOTHING
from .wire import (
    LAST_MOMENT,
    MOST,
    answer_over,
    give_back,
    plain_socket,
    put_back,
    whole_answer,
)

SHORT = 4096
"""Bytes of a request that is sent at once even if the server hangs: an idle connection has room
for them."""


class Request:
    """The request to one server."""

    sent = False
    _seen = b""
    _answer: Any = NOTHING

    def __init__(self, all_: Requests, pool: Any) -> None:
        self.pool = pool
        self._all = all_
        self._connection: list[Any] = []
        """The connection, until another method moves it into a list of its own. There are no calls
        between the two lines that do so, as in wire.py: so only one method has it, even if two
        threads call them."""
        self._ending: list[Any] = []

    def connect(self) -> int:
        """Return the number of an idle connection's socket, or -1."""
        self._sock: Any = plain_socket(self.pool, self._connection)
        return -1 if self._sock is None else int(self._sock.fileno())

    def send(self, packed: bytes) -> None:
        self.sent = True
        handled = sys.exception()
        try:
            self._sock.sendall(packed)
        except OSError as error:
            # The loss of a connection shows again when it is read.
            if foreign(error, handled):
                raise

    def hear(self) -> Any:
        """Read what has come. Returns the answer if that is all of it, else `NOTHING`."""
        handled = sys.exception()
        try:
            self._seen = self._sock.recv(MOST)
            self._answer = whole_answer(self._seen, self._all.word)
        except (OSError, RedisError) as error:
            if foreign(error, handled):
                raise
        return self._answer

    def answer(self) -> Any:
        """Return the answer, in the thread that goes on with this request."""
        hand: list[Any] = []
        handled = sys.exception()
        try:
            hand += self._connection
            del self._connection[:]
            try:
                if not hand:
                    raise redis.ConnectionError("The thread that asked was interrupted.")
                if self._answer is not NOTHING:  # it has not the shape of such an answer
                    return self._answer
                within = max(self._all.until - now(), LAST_MOMENT)
                return answer_over(hand[0], self._sock, self._seen, self._all.word, within)
            except NoScriptError:
                raise
            except BaseException as error:
                fail(error, self._all.command, handled, *hand)
        finally:
            # Twice, since an exception from outside may come in the middle of the first call.
            try:
                give_back(self.pool, hand)
            except BaseException:
                give_back(self.pool, hand)
                raise

    def end(self) -> None:
        """Give the connection back unless `answer` has it, and close it if an answer may come. May
        be repeated."""
        ending = self._ending
        ending += self._connection
        del self._connection[:]
        if ending:
            if self.sent and self._answer is NOTHING:
                ending[0].disconnect()
            put_back(self.pool, ending)


class Requests:
    """The requests to all servers."""

    def __init__(
        self,
        pools: Sequence[Pool],
        name: str,
        keys: Sequence[str],
        args: Sequence[Word],
        within: float,
    ) -> None:
        self._name, self._keys, self._args = name, keys, args
        self.word = str(args[0])
        self.until = now() + within
        self._left = {number: Request(self, pool) for number, pool in enumerate(pools)}
        """Those with which this thread still has to do, by the number of the server."""

    @property
    def command(self) -> tuple[Word, ...]:
        """The command, for messages."""
        return "EVALSHA", self._name, len(self._keys), *self._keys

    def _packed(self) -> bytes:
        sha, keys = scripts.load(self._name).sha, self._keys
        args = scripts.shortened(self._name, self._args)
        if self._name in scripts.AT_ONCE:
            return pack_script(sha, keys, args)
        return pack(("EVALSHA", sha, len(keys), *keys, *args))

    def heard(self, left: Callable[[], float]) -> Iterator[tuple[int, Any]]:
        """Send the request to all servers, and yield the number and the answer of each server, for
        as long as seconds are `left`. Ends before, if anything is unusual."""
        requests, packed = self._left, self._packed()
        fits, number_of_keys = SHAPES[self._name], len(self._keys)
        if len(packed) > SHORT:
            return
        numbers = {one.connect(): number for number, one in requests.items()}
        watch = polling.poll()
        for file in numbers:
            if file >= 0:
                watch.register(file, polling.POLLIN)
        if -1 in numbers or watch.poll(0):  # one was closed, or has unread answers
            self.end()
            return
        for one in requests.values():
            one.send(packed)
        while requests and (seconds := left()):
            for file, _ in watch.poll(ceil(seconds * 1000)):
                number = numbers[file]
                answer = requests[number].hear()
                if answer is NOTHING or not fits(answer, number_of_keys):
                    return
                yield number, answer
                requests[number].end()
                del requests[number]
                watch.unregister(file)

    def handed_over(self) -> Iterator[tuple[int, Request]]:
        """Yield the other requests, for threads that go on with them."""
        for number in [*self._left]:
            yield number, self._left[number]
            del self._left[number]

    def end(self) -> None:
        """End the requests that are left. May be repeated."""
        for one in self._left.values():
            one.end()
