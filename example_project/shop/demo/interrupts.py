"""Ctrl-C and similar signals: KeyboardInterrupt, but not while a process is being started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

RAISE = signal.default_int_handler


def end_as_ctrl_c_does() -> None:
    """Let SIGTERM and a closed terminal end this process with its children and files, too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup asks us to continue
            signal.signal(number, RAISE)


@contextmanager
def put_off() -> Iterator[None]:
    """Delay the interrupt until the block is left. If it came while `Popen` starts a process,
    nothing would know of that process."""
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
