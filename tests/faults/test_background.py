"""Threads of the background that are started while something interrupts their start."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from django_redislock.base.background import Background, Calls
from tests.faults.interruption import Interrupted, every_place
from tests.waiting import PATIENCE, eventually


class Refusal(RuntimeError):
    """As that of an interpreter that can't start a thread, but raised by a signal's handler."""


def test_an_interrupted_start() -> None:
    """Wherever an exception from outside comes, the next call starts the thread, and one runs."""
    runs: dict[int, list[int]] = {}
    threads: dict[int, Background] = {}

    def start(number: int) -> None:
        runs[number] = []
        threads[number] = Background(lambda: runs[number].append(1), "test")
        threads[number].start()

    for place in every_place(start, kinds=(Interrupted, Refusal)):
        assert place.instead is None
        if (thread := threads.get(place.number)) is not None:
            thread.start()
            eventually(lambda number=place.number: runs[number])
            assert runs[place.number] == [1], str(place)


def test_a_start_within_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal's handler or a finalizer does it that has something to tell, in the middle of
    somebody else's telling."""
    told: list[str] = []
    both = threading.Event()
    calls = Calls()

    def tell(word: str) -> Callable[[], object]:
        def run() -> None:
            told.append(word)
            if len(told) == 2:
                both.set()

        return run

    start = threading.Thread.start

    def interrupt(thread: threading.Thread) -> None:
        if thread.name == "redislock-signals":
            monkeypatch.undo()
            calls.add(tell("inner"))
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupt)
    outer = threading.Thread(target=calls.add, args=[tell("outer")], daemon=True)
    outer.start()
    outer.join(PATIENCE / 3)
    assert both.wait(PATIENCE / 3), told
    assert sorted(told) == ["inner", "outer"]
