"""Ctrl-C and its like: KeyboardInterrupt, but not in the middle of starting a process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

RAISE = signal.default_int_handler


def end_as_ctrl_c_does() -> None:
    """Let a polite kill and a terminal that is closed end us with our children and files, too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup wants us to go on
            signal.signal(number, RAISE)


@contextmanager
def put_off() -> Iterator[None]:
    """Let the interrupt wait until the block is left.

    One that comes while `Popen` starts a process would leave it without anybody who knows of it.
    """
    pending = []
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) == RAISE
    ]
    for number in numbers:
        signal.signal(number, lambda *args: pending.append(args))
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, RAISE)
    if pending:
        raise KeyboardInterrupt
