"""Requests to several servers at the same time, and how long to wait for their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from ..base.clock import now
from ..base.exceptions import LockError, LockUnavailable
from ..primitives.keys import name_of
from .command import Pool
from .server import Server

LEAST_MORE = 0.005
"""Seconds, at least, for further answers after the present ones have decided."""

_DOWN = LockUnavailable("It did not answer the last time either.")
_TO_COME = LockUnavailable("It has not answered yet.", doubtful=True, silent=True)


class Member:
    """The state that this process keeps of a server that it asks together with others."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.silent = False
        """Whether it gave no answer in time when it was last asked."""

    @cached_property
    def pool(self) -> Pool:
        """A pool whose connections have short time-outs: the project's pool may wait without a
        limit."""
        return self._server.background_pool()


class Answers:
    """The answers of several servers, as they come in."""

    def __init__(
        self, servers: Sequence[Server], within: float, enough: Callable[..., bool]
    ) -> None:
        self._servers = servers
        self._members = [server.kept(Member) for server in servers]
        self._hopeless = {n for n, member in enumerate(self._members) if member.silent}
        self._answers: list[Any] = [_TO_COME] * len(servers)
        self._outstanding = len(servers)
        self._enough = enough
        self._decided = False
        self._within = within
        self._began = now()
        self._until = self._began + within

    def remember(self, number: int, answer: Any) -> None:
        """Note whether this server was silent, even if nobody waits for its answer now."""
        self._members[number].silent = isinstance(answer, LockUnavailable) and answer.silent

    def take(self, number: int, answer: Any) -> None:
        """Enter the answer of this server. Raises an exception that is no `LockError`."""
        if isinstance(answer, Exception) and not isinstance(answer, LockError):
            raise answer
        self._answers[number] = answer
        self._hopeless.discard(number)
        self._outstanding -= 1

    def left(self) -> float:
        """Return how many seconds to wait for more answers; 0: the present ones are all."""
        if not self._outstanding:
            return 0.0
        if self._outstanding == len(self._answers) and not self._hopeless:
            least = self._began + min(LEAST_MORE, self._within) - now()
            if least > 0:  # they get that in any case
                return least
        if not self._decided and self._enough(self._so_far()):
            # Servers that are about as fast as the others are waited for, too: it is good to know
            # all answers.
            self._decided = True
            more = 0.0
            if self._outstanding > len(self._hopeless):
                more = now() - self._began + LEAST_MORE
            self._until = min(self._until, now() + more)
        return max(0.0, self._until - now())

    def _so_far(self) -> list[Any]:
        """Return all answers. As soon as a majority has answered, servers that were silent the
        last time count as down. Until then their answers are needed."""
        answered = sum(not isinstance(one, LockError) for one in self._answers)
        if 2 * answered <= len(self._answers):
            return self._answers
        return [_DOWN if n in self._hopeless else one for n, one in enumerate(self._answers)]

    def all(self, keys: Sequence[str]) -> list[Any]:
        """Return the answer of each server, or an error."""
        return [
            self.missing(number, keys) if answer is _TO_COME else answer
            for number, answer in enumerate(self._answers)
        ]

    def missing(self, number: int, keys: Sequence[str]) -> LockUnavailable:
        """Return the error for a server that gives no answer."""
        return LockUnavailable(
            f"{self._servers[number].using!r} did not answer within {self._within:.3g} s",
            name_of(keys[0]),
            doubtful=True,
            silent=True,
        )
