"""The tour's processes: whose signals they get, and who comes in place of one that is killed."""

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
        """The process that is meant by the owner of a lock, if it is one of ours."""
        _host, pid, _thread = (owner or "::").split(":", 2)
        return self._workers.get(int(pid or 0))

    def kill(self, worker: Worker) -> None:
        """SIGKILL. A new one takes its place, as a supervisor would see to."""
        with self._lock:
            worker.kill()
            worker.wait()
            if not self._over:
                self.start(*worker.command)

    def stop_for(self, worker: Worker, seconds: float) -> None:
        """SIGSTOP: it stands still, as in a long pause of a virtual machine; then it goes on."""
        worker.send_signal(signal.SIGSTOP)
        timer = Timer(seconds, worker.send_signal, [signal.SIGCONT])
        timer.daemon = True  # Ctrl-C does not wait for it
        timer.start()

    def end(self) -> None:
        with self._lock:
            self._over = True


@contextmanager
def at_work() -> Iterator[Team]:
    """They are there until the block is left."""
    with started([("traffic", "accounts")]):
        pass  # It holds its lock now, and is killed here.
    with ExitStack() as stack:
        team = Team(stack)
        with interrupts.put_off():
            for number, role in enumerate(ROLES, 1):
                team.start("traffic", role, f"--number={number}")
        try:
            yield team
        finally:
            team.end()
