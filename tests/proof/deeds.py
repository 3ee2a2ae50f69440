"""What is done under a lock, and not the lock itself: `once`, ticks of a job, notes, tasks.

Each kind takes its lock as the others do, and its records say what it was for: which work, which
tick, which note, which task. So it has rules of its own for the first judge.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from itertools import count, pairwise, permutations
from typing import Any

from redis import Redis, RedisError

from django_redislock.base.clock import now
from tests.faults.torture.checker import Problem, overlaps
from tests.faults.torture.history import Attempt, History, Terms
from tests.peers.adapters import Held, OurLease, Ours

from .kinds import PLACES
from .messages import Message, Messages

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


class _Called(Held):
    """What a call of a task returned."""

    def about(self) -> dict[str, Any]:
        return {"about": {"got": self._its.id}}

    def is_ours(self) -> bool:
        return True

    def release(self) -> None:
        """It has ended when it returned."""


class Limited(Ours):
    """Each process calls tasks, and is a worker of their queue. A name has the number of the
    moment at which it is called, so nothing hides that its last call was lost."""

    title = "`limited`"
    places = PLACES
    _item = 0
    _message: Message | None = None
    _turns = _calls = 0
    _open = True

    def rule(self) -> Any:
        from django_redislock.tasks import limited

        return limited("{item}", PLACES)

    @cached_property
    def _messages(self) -> Messages:
        return Messages(self.directory / "messages")

    @cached_property
    def _redis(self) -> Redis:
        return Redis.from_url(self.url, socket_timeout=self.timeout, decode_responses=True)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1)

    @cached_property
    def _task(self) -> Any:
        from django_redislock import current_lease
        from tests.tasks import by_hand

        def task(item: int) -> None:  # it is in the name
            self._begun.put(current_lease())
            self._over.wait()

        its = by_hand.task(task, numbers=(self._id(number) for number in count(1)))
        its.backlog.messages = self._messages  # type: ignore[assignment]
        return self.rule()(its)

    def _id(self, number: int) -> str:
        return f"{os.getpid()}-{number}"

    def about(self) -> dict[str, Any]:
        """Work twice as often as it calls: a message may be parked, and come again."""
        self._turns += 1
        self._message = self._messages.take() if self._turns % 3 or not self._open else None
        if self._message is not None:
            return {"about": {"item": self._message.args[0], "run": _first(self._message.id)}}
        self._calls += 1
        self._item = int(now() / PERIOD)
        return {"about": {"item": self._item, "call": f"m{self._id(self._calls)}"}}

    def acquire_as(self, mode: str, name: str, ttl: float, wait: float | None) -> Held | None:
        from django_redislock import LeaseLost

        _settings(ttl)
        if self._message is None:
            return _Called(self._task.enqueue(self._item))
        self._begun: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._over = threading.Event()
        run = self._thread.submit(self._work, self._message)
        run.add_done_callback(lambda _: self._begun.put(None))
        lease = self._begun.get()
        if lease is None:
            run.result()
            return None
        end = ExitStack()
        end.callback(run.result)
        end.callback(self._over.set)
        held = _Work(end, lease, LeaseLost)
        held.fencing_token = lease.fencing_token
        return held

    def _work(self, message: Message) -> None:
        """Work on a message, as a queue with retries does it."""
        from django_redislock import LockUnavailable

        try:
            self._task.backlog.work(message)
        except LockUnavailable:
            id, args, kwargs = message
            again = f"{_first(id)}:{time.time_ns()}"
            send = partial(self._task.put, args, kwargs, again)
            self._task.gate.enqueue(args, kwargs, send, id=again, again=True)
            raise
        finally:
            self._messages.done()

    def owes(self) -> bool:
        """Whether a message waits. Nobody calls any more; what is parked goes on by a sweep."""
        from django_redislock import LockError
        from django_redislock.tasks.guarded import sweep

        self._open = False
        [rule] = self._task.gate.rules
        while not self._messages.waiting():
            time.sleep(0.05)
            if self._messages.taken():
                continue
            with suppress(LockError, RedisError):
                left = 0
                for name in self._redis.zrange("redislock:tasks", 0, -1):
                    key = f"redislock:{{{name}}}:sent"
                    sent = dict.fromkeys(self._redis.zrange(key, 0, -1), 1)
                    if sent:  # by a process that was killed before: ten seconds later
                        self._redis.zadd(key, sent, xx=True)
                    left += len(sent) + sum(sweep(rule.of(name)))
                if not left:
                    return False
        return True


class Unique(Limited):
    title = "`unique`"
    places = 1

    def rule(self) -> Any:
        from django_redislock.tasks import unique

        return unique("{item}")


def _first(id: str) -> str:
    """Return the id of the first attempt."""
    return id.partition(":")[0]


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


def none_lost(history: History, terms: Terms) -> Iterator[Problem]:
    """Never more tasks of a name run than may. After each call that was answered its task begins,
    or another one of its name, and runs to its end; and of a unique name one task waits."""
    for item, attempts in _by(history, int).items():
        runs = [one for one in attempts if "run" in one.about]
        yield from (Problem("exclusive", what) for what in overlaps(_granted(runs), terms.places))
        # The queue of a task that could not begin tries again, and so it does after a kill.
        ended = [one for one in runs if one.granted and one.given is not None]
        calls = [one for one in attempts if "call" in one.about and one.granted]
        own = {one.about["got"]: one for one in calls if one.about["got"] == one.about["call"]}
        for call in calls:
            got = call.about["got"]
            if not any(
                one.about["run"] == got
                if got == call.about["call"]
                else one.valid_from >= call.asked
                for one in ended
            ):
                what = f"{call} of the task {item} got {got}, and no run has ended since"
                yield Problem("skipped", what)
        if terms.places == 1:
            firsts = {
                id: min((one.asked for one in runs if one.about["run"] == id), default=math.inf)
                for id in own
            }
            for (one, first), (other, second) in permutations(own.items(), 2):
                if first.valid_from < second.asked and firsts[one] > second.valid_from:
                    what = f"{second} has queued {other}, and {one} of {first} waited"
                    yield Problem("again", what)


RULES: dict[type[Ours], Callable[[History, Terms], Iterator[Problem]]] = {
    Once: done_once,
    Ticks: run_once,
    Notes: handed_on,
    Unique: none_lost,
    Limited: none_lost,
}
