"""What the processes of test_redlock.py run."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.test import override_settings

from django_redislock import Redlock
from tests.faults.caches import caches
from tests.worker import say, told


@contextmanager
def using(urls: Sequence[str]) -> Iterator[list[str]]:
    """The aliases of these servers."""
    entries = {f"server-{number}": caches(url)["default"] for number, url in enumerate(urls)}
    with override_settings(CACHES=caches(urls[0]) | entries):
        yield list(entries)


def hold(ttl: str, *urls: str) -> None:
    """Hold the job on all these servers, until told to go on."""
    with using(urls) as aliases, Redlock("job", aliases, ttl=float(ttl)):
        say("held")
        told()


def contend(path: str, *urls: str) -> None:
    """Hold one of two names again and again; write down which, from when to when, on a common
    clock."""
    journal = os.open(path, os.O_WRONLY | os.O_APPEND)
    with using(urls) as aliases:
        say("ready")
        told()
        while True:
            name = random.choice(["one", "two"])
            with Redlock(name, aliases, ttl=10, wait=None):
                begin = time.monotonic()
                time.sleep(0.03)
                os.write(journal, f"{name} {begin} {time.monotonic()}\n".encode())
