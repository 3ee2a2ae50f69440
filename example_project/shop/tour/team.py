"""The tour's processes. They get signals, and a killed one is replaced."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock, Timer

from ..demo import interrupts
from ..demo.workers import Worker, started
from . import moments
from .moments import Doing

ROLES = ["customer"] * 3 + ["office", "branch", "old-program"] + ["scheduler"] * 2


class Team:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._workers: dict[int, Worker] = {}
        self._fates: dict[int, Doing] = {}
        # Buttons are pressed in threads of the server: two at a time, and one at the very end.
        self._lock = Lock()
        self._over = False

    def start(self, *command: str) -> None:
        worker = self._stack.enter_context(Worker(*command))
        self._workers[worker.pid] = worker
        self._fates.pop(worker.pid, None)  # a new process may have the number of an old one

    def fate(self, pid: int) -> Doing | None:
        """Return whether the process is killed or stopped; None if it is at work."""
        return self._fates.get(pid)

    def mark_killed(self, pid: int) -> None:
        self._workers.pop(pid, None)
        self._fates[pid] = Doing.KILLED

    def kill(self, pid: int) -> bool:
        """Send SIGKILL. A new process takes its place, as with a supervisor.

        Returns False, and does nothing, if there is no such process any more: the lease of a
        killed one is in Redis until it ends.
        """
        with self._lock:
            if self._over or (worker := self._workers.get(pid)) is None:
                return False
            worker.kill()
            worker.wait()
            self.mark_killed(pid)
            moments.note(who(worker), Doing.KILLED)
            self.start(*worker.command)
            return True

    def stop_for(self, pid: int, seconds: float) -> bool:
        """Send SIGSTOP: the process is paused, as in a long pause of a virtual machine. Then it
        continues. Returns False, and does nothing, if it is killed or stopped already."""
        with self._lock:
            if (worker := self._workers.get(pid)) is None or pid in self._fates:
                return False
            worker.send_signal(signal.SIGSTOP)
            self._fates[pid] = Doing.STOPPED
            moments.note(who(worker), Doing.STOPPED)
        timer = Timer(seconds, self._wake, [worker])
        timer.daemon = True  # Ctrl-C does not wait for it
        timer.start()
        return True

    def _wake(self, worker: Worker) -> None:
        with self._lock:
            if worker.pid in self._workers and not self._over:
                del self._fates[worker.pid]
                moments.note(who(worker), Doing.WOKEN)
                worker.send_signal(signal.SIGCONT)

    def end(self) -> None:
        with self._lock:
            self._over = True


def who(worker: Worker) -> str:
    """Return the customer's name, as its threads and its lane have it."""
    _traffic, role, number = worker.command
    return f"{role}-{number.removeprefix('--number=')}"


@contextmanager
def at_work() -> Iterator[Team]:
    """Run all processes until the block is left."""
    with started([("traffic", "accounts")]) as [accounts]:
        pass  # the process holds its lock now, and is killed here
    with ExitStack() as stack:
        team = Team(stack)
        team.mark_killed(accounts.pid)
        with interrupts.put_off():
            for number, role in enumerate(ROLES, 1):
                team.start("traffic", role, f"--number={number}")
        try:
            yield team
        finally:
            team.end()
