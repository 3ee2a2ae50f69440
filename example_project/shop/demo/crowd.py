"""Processes that hold locks and wait for them, and one that was killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError

from django_redislock import redis_lock

from .workers import started

PATIENCE = 20.0
"""Seconds after which what does not happen is given up."""

BUSY = [
    # What it locks, what for, and how many seconds at a time.
    ("stock:1", "a lamp is sold", 4),
    ("stock:1", "a lamp is sold", 4),
    ("stock:1", "lamps are counted", 9),
    ("stock:2", "a chair is sold", 6),
    ("import:supplier", "a delivery", 15),
    ("import:supplier", "another delivery", 15),
    ("report:daily", "the daily report", 60),
]
KILLED = ("export:accounts", "the accounts, all of them", 900)
"""What it locked, what for, and for how many seconds that stays so."""


@contextmanager
def crowd() -> Iterator[None]:
    """They are there until the block is left."""
    kill_a_holder(*KILLED)
    commands = [
        ("hold", lock, f"--label={label}", f"--seconds={seconds}") for lock, label, seconds in BUSY
    ]
    with started(commands):
        yield


def kill_a_holder(lock: str, label: str, ttl: float) -> None:
    """Its lock is left behind."""
    give_up = time.monotonic() + PATIENCE
    with started([("hold", lock, f"--label={label}", f"--ttl={ttl}", "--seconds=900")]):
        while redis_lock(lock).holder() is None:
            if time.monotonic() > give_up:
                raise CommandError(f"Nobody held {lock} after {PATIENCE:g} s.")
            time.sleep(0.02)
