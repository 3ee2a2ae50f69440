"""What several servers say that are asked at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..base.clock import now
from ..base.exceptions import LockError, LockUnavailable
from ..primitives.keys import name_of
from . import server as connections

MOMENT = 0.005
"""Seconds, at least, for those of several servers whose answers decide nothing any more."""


_silent: set[str] = set()
"""Addresses of the servers that gave this process no answer in time when it asked them last."""

_DOWN = LockUnavailable("It did not answer the last time either.")


class Answers:
    """What several servers say, as it comes in."""

    def __init__(
        self, servers: Sequence[str], key: str, within: float, enough: Callable[..., bool]
    ) -> None:
        self.all: list[Any] = [_silence(server, key, within) for server in servers]
        self._addresses = [*map(connections.address, servers)]
        self._hopeless = {n for n, address in enumerate(self._addresses) if address in _silent}
        self._began = now()
        self._until = self._began + within
        self._enough = enough
        self._outstanding = len(servers)
        self._decided = False
        self._decide()

    def remember(self, number: int, answer: Any) -> None:
        """How this request has ended, perhaps when nobody waits for it any more."""
        silent = isinstance(answer, LockUnavailable) and answer.silent
        (_silent.add if silent else _silent.discard)(self._addresses[number])

    def take(self, number: int, answer: Any) -> None:
        if isinstance(answer, Exception) and not isinstance(answer, LockError):
            raise answer
        self.all[number] = answer
        self._hopeless.discard(number)
        self._outstanding -= 1
        self._decide()

    def _decide(self) -> None:
        if not self._decided and self._enough(self._so_far()):
            # Who is about as fast as the others is heard, too: it is good to know of all.
            self._decided = True
            more = now() - self._began + MOMENT if self._outstanding > len(self._hopeless) else 0.0
            self._until = min(self._until, now() + more)

    def _so_far(self) -> list[Any]:
        """As soon as a majority has answered, nobody counts on servers that were silent the last
        time: they are taken for down. Until then, they are needed."""
        answered = sum(not isinstance(one, LockError) for one in self.all)
        if 2 * answered <= len(self.all):
            return self.all
        return [_DOWN if n in self._hopeless else one for n, one in enumerate(self.all)]

    def left(self) -> float:
        """Seconds to wait for more; 0: that is all."""
        return max(0.0, self._until - now()) if self._outstanding else 0.0


def _silence(server: str, key: str, within: float) -> LockUnavailable:
    return LockUnavailable(
        f"{server!r} did not answer within {within:.3g} s",
        name_of(key),
        doubtful=True,
        silent=True,
    )
