"""A process of its own that holds or waits for a lock, and does what a scenario tells it."""

from __future__ import annotations

import os
import signal
from typing import Any, NamedTuple

from tests.waiting import PATIENCE

from .adapters import Peer
from .forkserver import CONTEXT
from .hands import serve


class Answer(NamedTuple):
    value: Any
    at: float
    """When it was done, on the common clock."""
    error: str
    """The name of the exception, or ""."""


class Agent:
    def __init__(self, peer: type[Peer], url: str, timeout: float | None = None) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(
            target=serve, args=(theirs, peer, url, timeout), daemon=True
        )
        self.process.start()
        theirs.close()

    def begin(self, what: str, *arguments: object) -> None:
        """Tell it to do something, and don't wait."""
        self._pipe.send((what, arguments))

    def end(self, within: float = PATIENCE) -> Answer | None:
        """What came of it; None: nothing yet."""
        return Answer(*self._pipe.recv()) if self._pipe.poll(within) else None

    def do(self, what: str, *arguments: object) -> Answer:
        """Tell it to do something, and wait until it has."""
        self.begin(what, *arguments)
        answer = self.end()
        assert answer is not None, f"{what}() does not end"
        return answer

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.join()

    def close(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self._pipe.close()
