"""`manage.py redislock run NAME -- program`: run a program in one place at a time."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from argparse import SUPPRESS
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ...base.exceptions import LeaseLost, LockNotAcquired, LockUnavailable
from ...commands import ARGUMENTS, BUSY, LOST
from ...inspection.waiting_line import waiting_line
from ...lease.lease import Lease
from ...lease.lock import Lock
from ...locks.decorate import acquire
from ..arguments import MISCONFIGURED, Parser, number_argument, seconds_argument
from ..events import ENDING, FROM_TERMINAL, PASSED_ON, Events
from ..output import Printer

# A program that we run, and that gets the signals that we receive.
#
# One thread sends the signals and reaps the program. So no signal goes to a process that has
# been reaped and whose number may belong to another process by then.


_LOOK = 0.05
"""Seconds between two looks at a process group: its end sends no signal."""


class Child:
    """The program.

    It gets a process group of its own, so that signals also reach the processes that it starts. In
    the foreground of a terminal it stays in our group: another group could not read from the
    keyboard, and Ctrl-C reaches our group without us.
    """

    def __init__(
        self, program: Sequence[str], env: Mapping[str, str], write: Callable[[str], object]
    ) -> None:
        self._write = write
        self._grouped = not _in_foreground()
        self._process = subprocess.Popen(
            program, env=env, process_group=0 if self._grouped else None
        )

    def poll(self) -> int | None:
        """Return its exit code, as a shell has it; None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def pass_on(self, number: int) -> None:
        """Pass on a signal that we received."""
        if not self._grouped and number in FROM_TERMINAL:
            return
        if number in ENDING:
            self._wake_to(number)
        else:
            self._send(number)

    def end(self, events: Events, kill_after: float) -> int:
        """End it and the processes that it started: SIGTERM, then SIGKILL after `kill_after`
        seconds."""
        kill_at: float | None = time.monotonic() + kill_after
        self._wake_to(signal.SIGTERM)
        while (code := self.poll()) is None:
            event = events.next(kill_at)
            if event is None:
                self._send(signal.SIGKILL)
                kill_at = None
            elif event in PASSED_ON:
                self.pass_on(event)
        if self._grouped and kill_at is not None:
            self._end_group(events, kill_at)
        return code

    def _wake_to(self, number: int) -> None:
        # A stopped program, such as one that reads a terminal from the background, could not end,
        # and its lock would be renewed without end.
        self._send(number, signal.SIGCONT)

    def _send(self, *numbers: int) -> None:
        if self._process.returncode is not None:
            return
        try:
            for number in numbers:
                self._kill(number)
        except ProcessLookupError:
            pass
        except PermissionError:
            if self.poll() is None:  # macOS also raises this for an ended process
                name = signal.Signals(numbers[0]).name
                self._write(f"The program can't be sent {name}: it runs as another user.")

    def _kill(self, number: int) -> None:
        kill: Callable[[int, int], None] = os.killpg if self._grouped else os.kill
        kill(self._process.pid, number)

    def _end_group(self, events: Events, kill_at: float) -> None:
        try:
            # The number of a group is not reused as long as the group has members.
            while time.monotonic() < kill_at:
                self._kill(0)
                events.next(min(kill_at, time.monotonic() + _LOOK))
            self._kill(signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # no process is left, or none that is ours


def _in_foreground() -> bool:
    """Say whether our process group is in the foreground of a terminal."""
    with suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


NOT_FOUND = 127
NOT_EXECUTABLE = 126


class Run:
    help = "Run a program while holding a lock; for cron and deploy scripts."

    def add_arguments(self, parser: Parser) -> None:
        parser.usage = "%(prog)s NAME [options] -- program [argument ...]"
        parser.set_defaults(program=[])  # marks a subcommand that takes a program
        parser.name("What to lock.")
        for term in ("wait", "ttl", "at_least_for", "unavailable"):
            option = f"--{term.replace('_', '-')}"
            parser.add_argument(option, default=SUPPRESS, **ARGUMENTS[term])
        parser.add_argument(
            "--conflict-exit-code",
            type=number_argument(0, 255),
            default=BUSY,
            metavar="CODE",
            help=f"The exit code if somebody else has the lock; by default {BUSY}.",
        )
        parser.add_argument(
            "--kill-after",
            type=seconds_argument,
            default=10.0,
            metavar="SECONDS",
            help="If the lease is lost, the program gets SIGTERM, and this long after it SIGKILL; "
            "by default 10.",
        )

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        if not hasattr(os, "killpg"):
            raise CommandError(
                "redislock run passes signals on, and this system has none to pass on. Write a "
                "LockedCommand that runs the program: docs/commands.md.",
                returncode=MISCONFIGURED,
            )
        with Events("redislock run") as events:
            return self._locked(events, printer.command, options)

    def _locked(self, events: Events, command: BaseCommand, options: dict[str, Any]) -> int:
        lock = Lock(
            options["name"],
            scope=None,  # the name as `list` shows it
            label=shlex.join(options["program"]),
            release="exit",
            on_lost=events.nudge,
            **{term: options[term] for term in ("wait", "ttl", "unavailable") if term in options},
        )
        try:
            with ExitStack() as stack:
                with waiting_line(lock, command.stderr, quiet=not options["verbosity"]):
                    lease = stack.enter_context(acquire(lock))
                until = time.monotonic() + options.get("at_least_for", 0.0)
                events.collect()
                run = _Guarded(options["program"], lease, events, command)
                code = run.to_its_end(options["kill_after"])
                run.linger(until)
                return code
        except (LockNotAcquired, LockUnavailable) as error:
            code = options["conflict_exit_code"]
            if isinstance(error, LockUnavailable) and not error.skips:
                raise
            if isinstance(error, LockNotAcquired) and code:
                raise CommandError(str(error), returncode=code) from error
            if options["verbosity"]:
                command.stderr.write(f"Skipped: {error}", command.style.WARNING)
            return 0
        except LeaseLost as lost:
            raise CommandError(
                f"{lost} Another run may have overlapped.", returncode=LOST
            ) from lost


class _Guarded:
    """A program that runs only while its lease is held."""

    def __init__(
        self, program: Sequence[str], lease: Lease, events: Events, command: BaseCommand
    ) -> None:
        self._lease = lease
        self._events = events
        self._write = command.stderr.write
        self._asked_to_end = False
        fence = "" if lease.state == "unlocked" else str(lease.fencing_token)
        env = {**os.environ, "REDISLOCK_NAME": lease.name, "REDISLOCK_FENCING_TOKEN": fence}
        try:
            with events.mask_as_given():
                self._child = Child(program, env, self._write)
        except FileNotFoundError as error:
            raise CommandError(f"{program[0]}: not found", returncode=NOT_FOUND) from error
        except OSError as error:
            raise CommandError(
                f"{program[0]}: {error.strerror}", returncode=NOT_EXECUTABLE
            ) from error

    def to_its_end(self, kill_after: float) -> int:
        try:
            while (code := self._child.poll()) is None:
                event = self._events.next()
                if event in PASSED_ON:
                    self._asked_to_end |= event in ENDING
                    self._child.pass_on(event)
                elif self._lease._lifetime.lost is not None:
                    self._write(f"{self._lease._lifetime.lost} Ending the program.")
                    return self._child.end(self._events, kill_after)
            return code
        except BaseException:
            # Whatever was raised: the program must not go on without its lock.
            self._child.end(self._events, kill_after)
            raise

    def linger(self, until: float) -> None:
        """Wait until that time, unless we are asked to end, or the lease is lost."""
        while not self._asked_to_end and self._lease._lifetime.alive:
            event = self._events.next(until)
            if event is None:
                return
            self._asked_to_end = event in ENDING
