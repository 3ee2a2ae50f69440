"""What the processes of these tests run: schedulers, each with one job."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from io import StringIO
from typing import Any

from django.conf import settings
from django.core.management import call_command

from django_redislock import current_lease
from django_redislock.periodic import periodic
from tests.worker import say, told

NAME = "job"


def write(path: str, *words: object) -> None:
    """A line of the journal that all processes write, each in one piece."""
    journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(journal, (" ".join(map(str, words)) + "\n").encode())
    os.close(journal)


class _Begins(StringIO):
    """Where the scheduler says that it begins: from then on signals stop it in good order."""

    def write(self, text: str) -> int:
        if "worker" in text:
            say("begins")
        return len(text)


def serve(*options: str) -> None:
    """A scheduler."""
    call_command("runperiodic", *options, stderr=_Begins())


def fleet(path: str, every: str, number: str, catch_up: Any = "latest") -> None:
    """One of many: tells how its own clock is set, and writes down what it runs."""
    overlap: Any = "wait" if catch_up == "all" else "skip"

    @periodic(every=float(every), name=NAME, catch_up=catch_up, overlap=overlap)
    def job() -> None:
        write(path, number, current_lease().fencing_token)

    say("clock", time.time() - time.monotonic())
    serve()


def holds(path: str, every: str, **options: Any) -> None:
    """Its job says that it runs, and ends when it is told to; its lease is a short one."""
    settings.REDISLOCK = {"TTL": 1.0}

    @periodic(every=float(every), name=NAME, **options)
    def job() -> None:
        fence = current_lease().fencing_token
        write(path, os.getpid(), fence)
        say("runs", fence)
        told()

    serve()


def retried(path: str, every: str) -> None:
    """The same, and its runs are tried again."""
    holds(path, every, on_crash="retry")


def waits(path: str, every: str) -> None:
    """The same, and its ticks wait for the last run."""
    holds(path, every, overlap="wait")


def sleeps(path: str, every: str, on_crash: Any = "lose") -> None:
    """A coroutine that goes on for ever."""

    @periodic(every=float(every), name=NAME, on_crash=on_crash)
    async def job() -> None:
        write(path, os.getpid(), current_lease().fencing_token)
        say("runs", current_lease().fencing_token)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            say("cancelled")
            raise

    serve("--grace=0")


def lingers(path: str, every: str) -> None:
    """Its lock outlives its job."""

    @periodic(every=float(every), name=NAME, at_least_for=3600)
    def job() -> None:
        write(path, os.getpid())

    serve()


def hangs(path: str, every: str) -> None:
    """A function that goes on for ever."""

    @periodic(every=float(every), name=NAME)
    def job() -> None:
        say("runs", current_lease().fencing_token)
        time.sleep(3600)

    serve("--grace=0")


def by_hand(kind: str) -> None:
    """A run by hand, of a function or of a coroutine that goes on for ever."""
    forever = 3600

    @periodic(every=forever, name="function")
    def function() -> None:
        say("runs")
        time.sleep(forever)

    @periodic(every=forever, name="coroutine")
    async def coroutine() -> None:
        say("runs")
        await asyncio.sleep(forever)

    call_command("runperiodic", kind)


def announces(every: str) -> None:
    """A job that writes a line of its own, on a terminal."""

    @periodic(every=float(every), name=NAME)
    def job() -> None:
        say("here I am")

    call_command("runperiodic")


def forks(path: str, every: str) -> None:
    """Its job has a child of its own, which it ends by a signal."""

    @periodic(every=float(every), name=NAME)
    def job() -> None:
        child = os.fork()
        if not child:
            time.sleep(3600)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        say("child", os.WTERMSIG(status))

    serve()
