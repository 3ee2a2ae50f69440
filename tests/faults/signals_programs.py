"""What the processes of test_signals.py run."""

from __future__ import annotations

import logging
import random
import signal
import sys
import time
from types import FrameType

from django_redislock import redis_lock
from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.server import server_of
from tests.waiting import PATIENCE, eventually
from tests.worker import say, told


def leave(number: int, frame: FrameType | None) -> None:
    """What web servers, task queues and our users do on SIGTERM."""
    sys.exit(0)


def work() -> None:
    """Take the lock, hold it until told to go on, release it: once for each kind of signal."""
    for handler in (signal.SIG_DFL, leave, signal.SIG_DFL):
        signal.signal(signal.SIGTERM, handler)
        # What the watchdog takes back of the last one must not be taken for what comes now.
        eventually(lambda: not watchdog(server_of("default"))._to_release)
        say("ready")
        told()
        try:
            with redis_lock("job", ttl=1.5, wait=None):
                say("holding")
                told()
        except (KeyboardInterrupt, SystemExit) as error:
            say(type(error).__name__)


class Limit(Exception):
    """As a soft time limit."""


def limits_at_random(seconds: str) -> None:
    """Take lock after lock, while signals come at random moments."""
    logging.disable()  # its handlers keep their lock if an exception comes just after they took it
    sent: list[Limit] = []
    came_out = 0

    def limit(number: int, frame: FrameType | None) -> None:
        sent.append(Limit(len(sent)))
        raise sent[-1]

    moments = random.Random(17)
    with redis_lock("job"):
        pass
    pool = server_of("default").shared_pool()
    before = pool._created_connections - len(pool._available_connections)
    signal.signal(signal.SIGALRM, limit)
    names, ends = 0, time.monotonic() + float(seconds)
    while time.monotonic() < ends:
        known = len(sent)
        names += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.00005, 0.002))
            while len(sent) == known:
                with redis_lock(f"job {names}"):
                    pass
        except Limit as error:
            came_out += error is sent[-1]
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    eventually(lambda: not watchdog(server_of("default"))._to_release)
    with redis_lock("job", wait=PATIENCE):
        pass
    lost = pool._created_connections - len(pool._available_connections) - before
    say(len(sent), len(sent) - came_out, max(lost, 0))
