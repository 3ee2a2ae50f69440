"""A scheduler as a process: it runs jobs until a signal comes, and then lets them end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from django.core.management.base import BaseCommand

from ..commands import LOST, UNAVAILABLE
from ..inspection.words import count
from ..periodic.execution import STOPPED
from ..periodic.job import Job
from ..periodic.runner import Runner
from ..periodic.workers import Crew
from ..primitives.ledger import RunOutcome
from .events import ENDING, NUDGE, Events, Interrupted, require_main_thread
from .failing import WRONG

LAST_WORDS = 5.0
"""Seconds that coroutines have to end when they were cancelled."""


class Scheduler:
    """Runs jobs until it is told to stop."""

    def __init__(
        self, found: Sequence[Job], command: BaseCommand, options: dict[str, Any]
    ) -> None:
        require_main_thread("runperiodic")
        self._command = command
        self._options = options
        self._jobs = found
        self._events = Events()

    def run(self) -> int:
        """Returns the exit code."""
        try:
            with self._events as events:
                events.collect()
                self._crew = Crew(self._options["workers"], events.nudge)
                self._runner = Runner(self._jobs, self._crew)
                try:
                    return self._once() if self._options["once"] else self._serve()
                finally:
                    self._crew.dismiss()
        except Interrupted as interrupted:
            return 128 + interrupted.number

    def _serve(self) -> int:
        running = sum(job.enabled for job in self._jobs)
        self._say(f"{count(running, 'job')}, {count(self._options['workers'], 'worker')}.")
        while True:
            seconds = min(self._runner.step(), self._crew.settle())
            if self._stopped_within(seconds):
                return self._stop()

    def _once(self) -> int:
        seconds: float = self._runner.step()
        while (due := self._runner.due()) or self._crew.busy:
            if self._stopped_within(seconds if due else None):
                return self._stop()
            if due:
                seconds = self._runner.step()
        while (seconds := self._crew.settle()) != float("inf"):
            if self._stopped_within(seconds):
                return self._stop()
        self._runner.withdraw()
        if self._runner.away:
            return UNAVAILABLE
        outcomes = self._crew.outcomes
        if outcomes[RunOutcome.LOST] or outcomes[None]:
            return LOST
        return WRONG if outcomes[RunOutcome.FAILED] else 0

    def _stopped_within(self, seconds: float | None) -> bool:
        """Wait for something to happen. True: we are asked to end."""
        until = None if seconds is None else time.monotonic() + seconds
        event = self._events.next(until)
        if event == NUDGE:
            self._runner.ended()
        return event in ENDING

    def _stop(self) -> int:
        """Claim nothing more; let what runs come to its end, if it does so in time."""
        self._say(f"Stopping; {count(len(self._crew.busy), 'job')} running.")
        self._wait(self._options["grace"], lambda: self._crew.busy)
        cut_short = self._crew.busy
        if cut_short:
            self._crew.cancel()
            self._wait(LAST_WORDS, self._coroutines_run)
        for assignment in self._crew.busy:
            assignment.abandon()
        self._crew.settle(all_of_them=True)
        self._runner.withdraw()
        for assignment in cut_short:
            self._command.stderr.write(f"{assignment.job.name}: {STOPPED}.")
        return LOST if cut_short else 0

    def _wait(self, seconds: float, goes_on: Callable[[], object]) -> None:
        """Until it goes on no more, the time is over, or we are told to end once more."""
        until = time.monotonic() + seconds
        while goes_on():
            event = self._events.next(until)
            if event is None or event in ENDING:
                return

    def _coroutines_run(self) -> bool:
        return any(one.job.asynchronous for one in self._crew.busy)

    def _say(self, text: str) -> None:
        if self._options["verbosity"]:
            self._command.stderr.write(text)
