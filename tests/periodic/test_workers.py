"""The workers of a scheduler, when a job misbehaves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from django_redislock import LockUnavailable
from django_redislock.base import background
from django_redislock.periodic import RunOutcome
from django_redislock.periodic.execution import JobRun, Workers, aperform, perform
from django_redislock.periodic.job import Job
from django_redislock.primitives import ledger, mutex
from tests.periodic.conftest import Make, outcomes
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(2, lambda: None)
    yield workers
    workers.close()


def granted(job: Job) -> JobRun:
    """Return a run of a job, by hand."""
    job_run = JobRun(job, ledger.Wanted(tick=None))
    assert job_run.ask().grant is not None
    return job_run


def test_a_coroutine_that_keeps_the_loop(workers: Workers, make: Make) -> None:
    """While a job blocks the event loop, no more coroutines are claimed."""
    inside, leave = threading.Event(), threading.Event()

    async def blocks() -> None:
        inside.set()
        leave.wait(PATIENCE)

    async def quick() -> None: ...

    make(blocks, name="blocks")
    jobs = [make(quick, name=name) for name in ("second", "third")]
    workers.start(granted(make(blocks, name="keeps")))
    try:
        assert inside.wait(PATIENCE)
        assert workers.free(jobs[0])
        workers.start(granted(jobs[0]))
        assert not workers.free(jobs[1])
    finally:
        leave.set()
    eventually(lambda: outcomes("second") == ["done"])
    assert workers.free(jobs[1])


@pytest.mark.parametrize("warm", [False, True])
def test_no_more_threads(
    workers: Workers, make: Make, monkeypatch: pytest.MonkeyPatch, warm: bool
) -> None:
    """If no thread can be started for a run, a worker that is there takes it, or `start` itself
    ends with it."""
    threads: list[str] = []

    def function() -> None:
        threads.append(threading.current_thread().name)

    async def coroutine() -> None:
        function()

    if warm:
        workers.start(granted(make(function, name="before")))
        workers.start(granted(make(coroutine, name="before, in a loop")))
        eventually(lambda: outcomes("before") == outcomes("before, in a loop") == ["done"])
    monkeypatch.setattr(background, "start", lambda *_: None)
    before = {*threads}
    workers.start(granted(make(function, name="function")))
    workers.start(granted(make(coroutine, name="coroutine")))
    for name in ("function", "coroutine"):
        if warm:
            eventually(lambda name=name: outcomes(name) == ["done"])
        assert outcomes(name) == ["done"]
    assert {*threads} == (before or {"MainThread"})


def test_a_task_that_ends_the_loop(workers: Workers, make: Make) -> None:
    """`SystemExit` in a task of one job does not affect other jobs."""

    async def leave() -> None:
        raise SystemExit

    async def starts_it() -> None:
        task = asyncio.ensure_future(leave())
        with pytest.raises(SystemExit):
            await task

    async def quick() -> None: ...

    workers.start(granted(make(starts_it, name="starts it")))
    eventually(lambda: outcomes("starts it") == ["done"])
    workers.start(granted(make(quick, name="quick")))
    eventually(lambda: outcomes("quick") == ["done"])


def test_a_job_that_hangs(workers: Workers, make: Make, settings: Any, redis: Redis) -> None:
    """A job that hangs keeps its thread and gets no other one, even if its lease has ended."""
    settings.REDISLOCK = {"TTL": 0.5}
    inside, leave = threading.Event(), threading.Event()

    def hangs() -> None:
        inside.set()
        leave.wait(PATIENCE)

    job, other = make(hangs, name="hangs"), make(name="other")
    workers.start(granted(job))
    try:
        assert inside.wait(PATIENCE)
        redis.delete("redislock:{periodic:hangs}")
        [one] = workers.busy
        eventually(lambda: workers.free(other) and not workers.free(job))
        assert workers.busy == [one]
    finally:
        leave.set()
    eventually(lambda: workers.free(job))


def test_a_function_around_a_coroutine(make: Make) -> None:
    """A function that returns a coroutine has failed: the coroutine would run without the lock, or
    never."""

    async def work() -> None: ...

    def around() -> Any:
        return work()

    ended = perform(granted(make(around, name="around")))
    assert ended.outcome == RunOutcome.FAILED
    assert "coroutine" in ended.why


def test_done_while_redis_was_away(
    make: Make, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coroutine that ends in time is done, even if its lease ends before that can be entered;
    nobody cancels it any more."""
    settings.REDISLOCK = {"TTL": 0.5}
    finish, away_until = ledger.finish, time.monotonic() + 3600.0

    async def away(*arguments: Any) -> Any:
        if time.monotonic() < away_until:
            raise LockUnavailable("the cable is cut")
        return await finish(*arguments)

    async def work() -> None:
        nonlocal away_until
        away_until = time.monotonic() + 1.0

    monkeypatch.setattr(ledger, "finish", away)
    monkeypatch.setattr(mutex, "extend", away)
    ended = asyncio.run(aperform(granted(make(work, name="work"))))
    assert ended.outcome == RunOutcome.DONE
