"""Requests to several servers at the same time, and how long to wait for their answers.

To start a thread takes longer than a server takes to answer. So the thread that asks sends the
request to all servers itself, over an idle line to each, and waits for all answers with one
poll().

That is for the usual: an idle line to each server, without TLS; a short request; answers that are
whole, ours and no error. For all else, and for a server that is slower than the others need, a
thread for each server goes on from where it is.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any

import redis

from ..base import polling
from ..base.clock import now
from ..base.exceptions import LockError, LockUnavailable
from ..primitives import scripts
from ..primitives.contract import Question, Scripts
from ..primitives.keys import name_of
from ..primitives.scripts import NONSENSE, ask
from .command import fail, foreign
from .line import MOST, Line
from .loans import lines_of
from .protocol import NOTHING, script, whole_answer
from .server import Server, server_of

SHORT = 4096
"""Bytes of a request that is sent at once even if the server hangs: an idle connection has room
for them."""

LEAST_MORE = 0.005
"""Seconds, at least, for further answers after the present ones have decided."""

_DOWN = LockUnavailable("It did not answer the last time either.")
_TO_COME = LockUnavailable("It has not answered yet.", doubtful=True, silent=True)


class Member:
    """The state that this process keeps of a server that it asks together with others."""

    def __init__(self, server: Server) -> None:
        self.silent = False
        """Whether it gave no answer in time when it was last asked."""
        self.pool = server.background_pool()
        """A pool whose connections have short time-outs: the project's pool may wait without a
        limit."""


class Round:
    """One request to several servers, and their answers as they come in."""

    box: Any
    """The queue of the answers that other threads or tasks have got."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.servers = servers = [*map(server_of, question.servers)]
        self.members = [server.kept(Member) for server in servers]
        self.outstanding = set(range(len(servers)))
        """The numbers of the servers whose answers have not been taken."""
        self._hopeless = {n for n, member in enumerate(self.members) if member.silent}
        self._answers: list[Any] = [_TO_COME] * len(servers)
        self._decided = False
        self._began = now()
        self.until = self._began + question.within
        """When there is no more time for any answer."""
        self._patience = self.until

    async def ask(self, port: Scripts, number: int) -> None:
        """Ask this server, in another thread or task, and hand in its answer; perhaps nobody waits
        for it now."""
        answer: Any
        try:
            answer = await ask(port, self.question.read, *self.question.request)
        except Exception as error:
            answer = error
        self.members[number].silent = isinstance(answer, LockUnavailable) and answer.silent
        self.box.put_nowait((number, answer))

    def take(self, number: int, answer: Any) -> None:
        """Enter the answer of this server. Raises an exception that is no `LockError`."""
        if isinstance(answer, Exception) and not isinstance(answer, LockError):
            raise answer
        self._answers[number] = answer
        self._hopeless.discard(number)
        self.outstanding.discard(number)

    def left(self) -> float:
        """Return how many seconds to wait for more answers; 0: the present ones are all."""
        if not self.outstanding:
            return 0.0
        if len(self.outstanding) == len(self._answers) and not self._hopeless:
            least = self._began + min(LEAST_MORE, self.question.within) - now()
            if least > 0:  # they get that in any case
                return least
        if not self._decided and self.question.enough(self._so_far()):
            # Servers that are about as fast as the others are waited for, too: it is good to know
            # all answers.
            self._decided = True
            more = 0.0
            if self.outstanding > self._hopeless:
                more = now() - self._began + LEAST_MORE
            self._patience = min(self._patience, now() + more)
        return max(0.0, self._patience - now())

    def _so_far(self) -> list[Any]:
        """Return all answers. As soon as a majority has answered, servers that were silent the
        last time count as down. Until then their answers are needed."""
        answered = sum(not isinstance(one, LockError) for one in self._answers)
        if 2 * answered <= len(self._answers):
            return self._answers
        return [_DOWN if n in self._hopeless else one for n, one in enumerate(self._answers)]

    def all(self) -> list[Any]:
        """Return the answer of each server, or an error."""
        return [
            self._missing(number) if answer is _TO_COME else answer
            for number, answer in enumerate(self._answers)
        ]

    def _missing(self, number: int) -> LockUnavailable:
        """Return the error for a server that gives no answer."""
        return LockUnavailable(
            f"{self.servers[number].using!r} did not answer within {self.question.within:.3g} s",
            name_of(self.question.request.keys[0]),
            doubtful=True,
            silent=True,
        )


class Requests:
    """The request of a round, over an idle line to each server."""

    def __init__(self, its: Round) -> None:
        self._round = its
        name, keys, args = its.question.request
        command = script(scripts.load(name).sha, keys, args)
        self._packed, self._key, self._word = command.packed, command.key, command.word or ""
        self._lines: dict[int, Line] = {}
        """Those over which an answer is still to come, by the number of the server. Whoever takes
        one out owes its end."""
        self._seen: dict[int, bytes] = {}
        """What has come of answers that are not whole."""

    def hear(self) -> None:
        """Send the request to all servers, and take their answers for as long as there is time.
        Ends before, if anything is unusual."""
        handled = sys.exception()
        try:
            self._hear()
        except OSError as error:  # the loss of a connection shows again when it is read
            if foreign(error, handled):
                raise

    def _hear(self) -> None:
        its = self._round
        if len(self._packed) > SHORT or any(server.clustered for server in its.servers):
            return  # a sharded server gets other keys
        numbers: dict[int, int] = {}
        for number, member in enumerate(its.members):
            line = lines_of(member.pool).ready(self)
            if line is None:
                return
            self._lines[number] = line
            if type(line.sock) is not socket.socket or (file := line.fileno()) < 0:
                return
            numbers[file] = number
        watch = polling.poll()
        for file, number in numbers.items():
            watch.register(file, polling.POLLIN)
            line = self._lines[number]
            line.busy = True
            line.sendall(self._packed)
        while numbers and (seconds := its.left()):
            for file, _ in watch.poll(ceil(seconds * 1000)):
                number = numbers.pop(file)
                watch.unregister(file)
                line = self._lines[number]
                self._seen[number] = seen = line.recv(MOST)
                answer = whole_answer(seen, self._word)
                if answer is NOTHING:
                    return
                try:
                    answer = its.question.read(answer)
                except NONSENSE:
                    return
                line.busy = False
                self._end(number)
                its.members[number].silent = False
                its.take(number, answer)

    def left(self, number: int) -> Callable[[], Any] | None:
        """Return the function that reads the rest of a server's answer, in a thread of its own.
        None: nothing was sent to it."""
        line = self._lines.get(number)
        if line is None or not line.busy:
            self._end(number)
            return None
        return partial(self._go_on, number)

    def _go_on(self, number: int) -> Any:
        line = self._lines.pop(number, None)
        handled = sys.exception()
        try:
            if line is None:
                raise redis.ConnectionError("The thread that asked was interrupted.")
            return line.go_on(self._seen.get(number), self._word, self._round.until)
        except BaseException as error:
            fail(error, self._key, handled)
        finally:
            if line is not None:
                line.loan.lines.put(line)

    def end(self) -> None:
        """Give up the requests that no thread goes on with. May be repeated."""
        for number in [*self._lines]:
            self._end(number)

    def _end(self, number: int) -> None:
        if (line := self._lines.get(number)) is not None:
            line.loan.lines.leave(line, self)
        self._lines.pop(number, None)
