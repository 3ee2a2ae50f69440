"""What several servers say that are asked at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .clock import now
from .exceptions import LockError, LockUnavailable
from .keys import name_of

MOMENT = 0.005
"""Seconds, at least, for those of several servers whose answers decide nothing any more."""


class Answers:
    """What several servers say, as it comes in."""

    def __init__(
        self, servers: Sequence[str], key: str, within: float, enough: Callable[..., bool]
    ) -> None:
        self.all: list[Any] = [_silence(server, key, within) for server in servers]
        self._began = now()
        self._until = self._began + within
        self._enough = enough
        self._outstanding = len(servers)
        self._decided = False
        self._decide()

    def take(self, number: int, answer: Any) -> None:
        if isinstance(answer, Exception) and not isinstance(answer, LockError):
            raise answer
        self.all[number] = answer
        self._outstanding -= 1
        self._decide()

    def _decide(self) -> None:
        if not self._decided and self._enough(self.all):
            # Who is about as fast as the others is heard, too: it is good to know of all.
            self._decided = True
            time_taken = now() - self._began
            self._until = min(self._until, now() + time_taken + MOMENT)

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
