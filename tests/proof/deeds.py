"""What is done under a lock, and not the lock itself: `once`, ticks of a periodic job, notes.

Each kind takes its lock as the others do, and its records say what it was for: which work, which
tick, which note. So it has rules of its own for the first judge.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from django_redislock.base.clock import now
from tests.faults.torture.checker import Problem, overlaps
from tests.faults.torture.history import Attempt, History, Terms
from tests.peers.adapters import Held, OurLease, Ours

PERIOD = 0.2
"""Seconds in which all processes want the same work done."""
JOBS = 8
"""Each has a tick a second: the shortest period there is."""
PROCESSES = 8
"""As many of them a fault of the server may harm."""
KEPT = 60
"""Seconds for which a work stays done."""


def _settings(ttl: float) -> None:
    from django.conf import settings

    settings.REDISLOCK = {"TTL": ttl}


class _Work(OurLease):
    def __init__(self, block: Any, lease: Any, *refusal: type[Exception]) -> None:
        super().__init__(lease, *refusal)
        self._block = block

    def release(self) -> None:
        self._ask(lambda: self._block.__exit__(None, None, None))


class Once(Ours):
    """A work has the number of the moment at which it is asked for."""

    title = "`once`"
    _work = 0

    def about(self) -> dict[str, Any]:
        self._work = int(now() / PERIOD)
        return {"about": {"item": self._work}}

    def acquire_as(self, mode: str, name: str, ttl: float, wait: float | None) -> Held | None:
        from django_redislock import LeaseLost, current_lease, once

        _settings(ttl)
        block = once(f"{name}-{self._work}", ttl=KEPT, wait=wait, on_conflict="skip")
        if not block.__enter__():
            block.__exit__(None, None, None)
            return None
        lease = current_lease()
        held = _Work(block, lease, LeaseLost)
        held.fencing_token = lease.fencing_token
        return held


class _Run(OurLease):
    """A job, which waits in its thread until it is told to end."""

    def __init__(self, tick: tuple[str, int], lease: Any, *refusal: type[Exception]) -> None:
        super().__init__(lease, *refusal)
        self._tick = tick
        self.fencing_token = lease.fencing_token
        self.over = threading.Event()

    def about(self) -> dict[str, Any]:
        return {"about": {"item": self._tick}}

    def release(self) -> None:
        self._ask(self._its.check)
        self.over.set()


class Ticks(Ours):
    """Each process is a scheduler, and holds the lock when it runs a tick."""

    title = "ticks"

    def acquire_as(self, mode: str, name: str, ttl: float, wait: float | None) -> Held | None:
        if not hasattr(self, "_runs"):
            _settings(ttl)
            self._runs: queue.SimpleQueue[_Run] = queue.SimpleQueue()
            threading.Thread(target=self._schedule, daemon=True).start()
        try:
            return self._runs.get(timeout=wait or ttl)
        except queue.Empty:
            return None

    def _schedule(self) -> None:
        from django_redislock import LeaseLost, current_lease
        from django_redislock.periodic import periodic
        from django_redislock.periodic.execution import Workers
        from django_redislock.periodic.job import jobs
        from django_redislock.periodic.runner import runners

        def job() -> None:
            [run] = workers.busy
            assert run.wanted.tick is not None
            tick = run.job.name, run.wanted.tick // 1_000_000
            held = _Run(tick, current_lease(), LeaseLost)
            self._runs.put(held)
            held.over.wait()

        for number in range(JOBS):
            periodic(every=1, name=f"job {number}", catch_up="all", overlap="wait")(job)
        workers = Workers(1, lambda: None)
        [runner] = runners(jobs(), workers, stays=True)
        while True:
            time.sleep(min(runner.step(), 0.01))


class _Noted(OurLease):
    def about(self) -> dict[str, Any]:
        return {"about": {"inherited": (self._its.inherited or {}).get("n")}}

    def work(self, tell: Callable[..., None]) -> None:
        """Two checkpoints, each of which nobody else has."""
        for number in (1, 2):
            note = self._its.fencing_token * 10 + number
            tell("noting", about={"noting": note})
            try:
                self._ask(lambda note=note: self._its.checkpoint(n=note))
            except Exception:
                return  # the lock is lost, or nobody knows whether it was written
            tell("noted", about={"noted": note})


class Notes(Ours):
    """Each holder writes notes; one that is killed leaves the last one."""

    title = "notes"
    held = _Noted


def _by(history: History, key: Callable[[Any], Any]) -> dict[Any, list[Attempt]]:
    found: dict[Any, list[Attempt]] = defaultdict(list)
    for attempt in history.attempts:
        if (item := attempt.about.get("item")) is not None:
            found[key(item)].append(attempt)
    return found


def _granted(attempts: list[Attempt]) -> list[Attempt]:
    return sorted((one for one in attempts if one.granted), key=lambda one: one.valid_from)


def done_once(history: History, terms: Terms) -> Iterator[Problem]:
    """A work that is done is not done again, nobody is beside another one, and whoever is refused
    is refused for a reason."""
    for item, attempts in _by(history, int).items():
        granted = _granted(attempts)
        yield from (Problem("exclusive", what) for what in overlaps(granted, 1))
        done = [one for one in granted if one.release == "released"]
        over = min((one.returned or 0.0 for one in done), default=float("inf"))
        again = [one for one in granted if one.asked > over]
        if len(done) > 1 or again:
            yield Problem("again", f"the work {item} is done, and {(again or done)[-1]} did it")
        for refused in attempts:
            if refused.outcome != "refused" or refused.answered is None:
                continue
            others = [
                one
                for one in attempts
                if one is not refused
                and one.asked <= refused.answered
                # Where messages get lost, one that was refused may have held it for a while.
                and (terms.lossy or one.outcome != "refused")
            ]
            if not others:
                yield Problem("skipped", f"{refused} was refused, and nobody had begun")
            elif refused.patient and not any(
                one.outcome != "granted" or (one.given or float("inf")) <= refused.answered
                for one in others
            ):
                yield Problem("skipped", f"{refused} waited, and nobody had done the work")


def run_once(history: History, terms: Terms) -> Iterator[Problem]:
    """A tick is run once. A fault may cost a process the one that it is claiming or running."""
    holes = 0
    for job, runs in _by(history, lambda tick: tick[0]).items():
        yield from (Problem("exclusive", what) for what in overlaps(_granted(runs), 1))
        ticks = Counter(run.about["item"][1] for run in runs)
        holes += max(ticks) - min(ticks) + 1 - len(ticks)
        for tick, times in ticks.items():
            if times > 1:
                yield Problem("again", f"the tick {tick} of {job} was run {times} times")
    harmed = {"kill": 1, "stop": 1, "lose": 1, "restart": PROCESSES, "pause": PROCESSES}
    excuses = sum(history.counts.get(fault, 0) * each for fault, each in harmed.items())
    if holes > excuses:
        yield Problem("skipped", f"{holes} ticks were not run, and {excuses} processes harmed")


def handed_on(history: History, terms: Terms) -> Iterator[Problem]:
    """A holder finds the last note of one that did not end, and none of one that did."""
    granted = sorted(_granted(history.attempts), key=lambda one: one.token or 0)
    for before, after in pairwise(granted):
        its = before.about
        last = its.get("noted", its["inherited"])
        may: set[int | None] = {last, its.get("noting", last)}
        if before.release == "released":
            may = {None}
        elif before.given is not None and before.release != "lost":
            may.add(None)
        if after.about["inherited"] not in may:
            found = after.about["inherited"]
            yield Problem("inherited", f"{after} found {found}, and not {may}, after {before}")


RULES: dict[type[Ours], Callable[[History, Terms], Iterator[Problem]]] = {
    Once: done_once,
    Ticks: run_once,
    Notes: handed_on,
}
