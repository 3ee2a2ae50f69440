"""Processes of their own that the tests start, talk to in lines, and kill."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from tests.waiting import PATIENCE

ROOT = Path(__file__).parent.parent


class Closed(Protocol):
    def close(self) -> None: ...


Program = TypeVar("Program", bound=Closed)


@contextmanager
def all_closed(make: Callable[..., Program]) -> Iterator[Callable[..., Program]]:
    """Start programs by `make`; whatever becomes of the block, none is left."""
    with ExitStack() as started:
        yield lambda *args, **options: started.enter_context(closing(make(*args, **options)))


class Worker:
    """A process that runs a program: the name of one in tests/worker.py, or "module:function".

    With `url` it works on another Redis than the one that all tests share. In `cwd` it finds the
    package first.
    """

    def __init__(
        self,
        *command: str,
        url: str = "",
        env: Mapping[str, str] | None = None,
        stderr: int | None = None,
        cwd: Path = ROOT,
    ) -> None:
        environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", **(env or {})}
        if url:
            environ["REDISLOCK_TEST_URL"] = url
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=cwd,
            env=environ,
            start_new_session=True,
        )

    def says(self) -> str:
        """The next line that it says; "" when it has ended, or says nothing for too long."""
        assert self.process.stdout is not None
        # With the children that it has forked: they have its stdout, too.
        give_up = threading.Timer(PATIENCE, os.killpg, (self.process.pid, signal.SIGKILL))
        give_up.start()
        try:
            return self.process.stdout.readline().strip()
        finally:
            give_up.cancel()

    def lines(self, number: int) -> list[str]:
        """The next so many lines that it says."""
        return [self.says() for _ in range(number)]

    def holds(self) -> int:
        """Wait until it says that it holds the lock; returns its fencing token."""
        while (line := self.says()) == "waiting":
            pass
        word, fencing_token = line.split()
        assert word == "holding"
        return int(fencing_token)

    def go_on(self, word: str = "") -> None:
        """Send it a line, for which it waits."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        """Wait for its end; returns its exit code."""
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """Kill it, and wait until it is dead."""
        self.signal(signal.SIGKILL)
        self.ends()

    def stop(self) -> None:
        """Stop it, and wait until it stands still."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


Start = Callable[..., Worker]
"""As `Worker`, for the time of a test: the fixture `start`."""
