"""What the processes of test_signals.py run."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from django_redislock import redis_lock
from tests.worker import say, told


def leave(number: int, frame: FrameType | None) -> None:
    """What web servers, task queues and our users do on SIGTERM."""
    sys.exit(0)


def work() -> None:
    """Take the lock, hold it until told to go on, release it: once for each kind of signal."""
    for handler in (signal.SIG_DFL, leave, signal.SIG_DFL):
        signal.signal(signal.SIGTERM, handler)
        say("ready")
        told()
        try:
            with redis_lock("job", ttl=1.5, wait=None):
                say("holding")
                told()
        except (KeyboardInterrupt, SystemExit) as error:
            say(type(error).__name__)
