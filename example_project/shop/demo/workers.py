"""Worker processes, started by a command that anybody could type."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from select import select

from django.conf import settings
from django.core.management.base import CommandError

from ..models import Product
from . import interrupts


class Worker(subprocess.Popen[bytes]):
    """`manage.py` with a command. The process is gone when the `with` block is left."""

    def __init__(self, *command: str) -> None:
        self.command = command
        self.name = " ".join(command)
        super().__init__(
            [sys.executable, str(settings.BASE_DIR / "manage.py"), *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # The terminal's Ctrl-C does not reach it: the demo ends its workers itself.
            start_new_session=True,
        )

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        self.wait()  # after a Ctrl-C, Popen waits for a quarter of a second only
        super().__exit__(*exc_info)

    def hear(self) -> bytes:
        """Return the next line that the worker prints."""
        line: bytes = self.stdout.readline()
        if not line:
            self.finish()
            raise CommandError(f"{self.name} ended too early.")
        return line

    def speaks(self, within: float) -> bool:
        """Return whether `hear` has a line within so many seconds."""
        return bool(select([self.stdout], [], [], within)[0])

    def go_on(self) -> None:
        """Let the worker continue, if it waits for a line."""
        with suppress(BrokenPipeError):  # the worker has died; `hear` or `finish` will report it
            self.stdin.write(b"\n")

    def finish(self) -> None:
        """Wait for its end. It must succeed."""
        if self.wait():
            raise CommandError(f"{self.name} failed (exit code {self.returncode}).")


@contextmanager
def workers(product: Product, names: Sequence[str], *options: str) -> Iterator[list[Worker]]:
    """Start some workers, which wait for the start of the round."""
    commands = [("sell_worker", str(product.pk), name, *options) for name in names]
    with started(commands) as team:
        yield team


@contextmanager
def started(commands: Iterable[Sequence[str]]) -> Iterator[list[Worker]]:
    """Start a worker for each command, and wait until each has printed its first line."""
    with ExitStack() as stack:
        with interrupts.put_off():
            team = [stack.enter_context(Worker(*command)) for command in commands]
        for worker in team:
            worker.hear()
        yield team
