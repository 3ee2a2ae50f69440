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
        self, servers: Sequence[Server], key: str, within: float, enough: Callable[..., bool]
    ) -> None:
        self.all: list[Any] = [_no_answer(server, key, within) for server in servers]
        """The answer of each server; until it comes, an error."""
        self._members = [server.kept(Member) for server in servers]
        self._hopeless = {n for n, member in enumerate(self._members) if member.silent}
        self._began = now()
        self._until = self._began + within
        self._enough = enough
        self._outstanding = len(servers)
        self._decided = False
        self._decide()

    def remember(self, number: int, answer: Any) -> None:
        """Note whether this server was silent, even if nobody waits for its answer now."""
        self._members[number].silent = isinstance(answer, LockUnavailable) and answer.silent

    def take(self, number: int, answer: Any) -> None:
        """Enter the answer of this server. Raises an exception that is no `LockError`."""
        if isinstance(answer, Exception) and not isinstance(answer, LockError):
            raise answer
        self.all[number] = answer
        self._hopeless.discard(number)
        self._outstanding -= 1
        self._decide()

    def _decide(self) -> None:
        if not self._decided and self._enough(self._so_far()):
            # Servers that are about as fast as the others are waited for, too: it is good to know
            # all answers.
            self._decided = True
            more = 0.0
            if self._outstanding > len(self._hopeless):
                more = now() - self._began + LEAST_MORE
            self._until = min(self._until, now() + more)

    def _so_far(self) -> list[Any]:
        """Return all answers. As soon as a majority has answered, servers that were silent the
        last time count as down. Until then their answers are needed."""
        answered = sum(not isinstance(one, LockError) for one in self.all)
        if 2 * answered <= len(self.all):
            return self.all
        return [_DOWN if n in self._hopeless else one for n, one in enumerate(self.all)]

    def left(self) -> float:
        """Return how many seconds to wait for more answers; 0: the present ones are all."""
        return max(0.0, self._until - now()) if self._outstanding else 0.0


def _no_answer(server: Server, key: str, within: float) -> LockUnavailable:
    return LockUnavailable(
        f"{server.using!r} did not answer within {within:.3g} s",
        name_of(key),
        doubtful=True,
        silent=True,
    )
