"""Histories that tests write by hand."""

from __future__ import annotations

from typing import Any

from .checker import Verdict, check
from .history import History, Terms, build

TERMS = Terms(ttl=4.0)
"""Of the lock in these stories. After five seconds, nothing is left of a dead process."""


class Story:
    """A history by hand. Times are whole seconds, as far as one can choose."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}
        self._token = 0
        self.left: list[str] | None = []

    def event(self, at: float, who: str, what: str, **fields: Any) -> None:
        self._events.append({"at": at, "who": who, "what": what, **fields})

    def ask(self, who: str, at: float, *, patient: bool = True, places: int = 1) -> None:
        self._numbers[who] = self._numbers.get(who, 0) + 1
        number, waits = self._numbers[who], patient
        self.event(at, who, "ask", number=number, patient=patient, waits=waits, places=places)

    def grant(
        self,
        who: str,
        at: float,
        *,
        asked: float,
        ends: float | None,
        token: int | None = None,
        patient: bool = True,
        places: int = 1,
    ) -> None:
        """Asked then, and told at `at` that it holds the lock until `ends`."""
        self.ask(who, asked, patient=patient, places=places)
        self._token += 1
        self.event(at, who, "granted", ends=ends, token=token or self._token)

    def write(self, who: str, *, accepted: bool = True) -> None:
        number = self._numbers[who]
        self.event(0, "register", "write", writer=who, number=number, accepted=accepted)

    def release(self, who: str, at: float, *, until: float, told: str = "released") -> None:
        self.event(at, who, "give")
        self.event(until, who, told)

    def refuse(self, who: str, at: float, *, asked: float, places: int = 1) -> None:
        self.ask(who, asked, patient=False, places=places)
        self.event(at, who, "refused")

    def history(self) -> History:
        if self.left is not None:
            self.event(1000, "arena", "left", keys=self.left)
        self.event(1000, "arena", "end")
        return build(self._events)

    def verdict(self, *, fair: bool = False) -> Verdict:
        return check(self.history(), TERMS, processes=3, fair=fair)

    def broken(self, *, fair: bool = False) -> set[str]:
        return {problem.rule for problem in self.verdict(fair=fair).problems}
