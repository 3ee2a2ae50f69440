"""The tour's processes. They get signals, and a killed one is replaced."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock, Timer

from ..demo import interrupts
from ..demo.workers import Worker, started

ROLES = ["customer"] * 3 + ["office", "branch", "old-program"] + ["scheduler"] * 2


class Team:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._workers: dict[int, Worker] = {}
        # Buttons are pressed in threads of the server, which must not start a process too late.
        self._lock = Lock()
        self._over = False

    def start(self, *command: str) -> None:
        worker = self._stack.enter_context(Worker(*command))
        self._workers[worker.pid] = worker

    def of(self, owner: str | None) -> Worker | None:
        """Return the process that the owner of a lock names, if it belongs to the tour."""
        _host, pid, _thread = (owner or "::").split(":", 2)
        return self._workers.get(int(pid or 0))

    def kill(self, worker: Worker) -> None:
        """Send SIGKILL. A new process takes its place, as with a supervisor."""
        with self._lock:
            worker.kill()
            worker.wait()
            if not self._over:
                self.start(*worker.command)

    def stop_for(self, worker: Worker, seconds: float) -> None:
        """Send SIGSTOP: the process is paused, as in a long pause of a virtual machine. Then it
        continues."""
        worker.send_signal(signal.SIGSTOP)
        timer = Timer(seconds, worker.send_signal, [signal.SIGCONT])
        timer.daemon = True  # Ctrl-C does not wait for it
        timer.start()

    def end(self) -> None:
        with self._lock:
            self._over = True


@contextmanager
def at_work() -> Iterator[Team]:
    """Run all processes until the block is left."""
    with started([("traffic", "accounts")]):
        pass  # the process holds its lock now, and is killed here
    with ExitStack() as stack:
        team = Team(stack)
        with interrupts.put_off():
            for number, role in enumerate(ROLES, 1):
                team.start("traffic", role, f"--number={number}")
        try:
            yield team
        finally:
            team.end()
