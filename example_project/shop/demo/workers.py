"""Worker processes: real ones, started by the command that anybody could type."""

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
    """`manage.py` with a command. It is gone when the `with` block is left, whatever happens."""

    def __init__(self, *command: str) -> None:
        self.command = command
        self.name = " ".join(command)
        super().__init__(
            [sys.executable, str(settings.BASE_DIR / "manage.py"), *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Out of reach of the terminal's Ctrl-C: that is for the demo, which ends its workers.
            start_new_session=True,
        )

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        super().__exit__(*exc_info)

    def hear(self) -> bytes:
        """The next line that it says."""
        line: bytes = self.stdout.readline()
        if not line:
            self.finish()
            raise CommandError(f"{self.name} ended too early.")
        return line

    def speaks(self, within: float) -> bool:
        """Whether `hear` has something to hear, within so many seconds."""
        return bool(select([self.stdout], [], [], within)[0])

    def go_on(self) -> None:
        """Let it go on, from where it waits for a line."""
        with suppress(BrokenPipeError):  # It has died; `hear` or `finish` will say so.
            self.stdin.write(b"\n")

    def finish(self) -> None:
        """Wait for its end, which must be a good one."""
        if self.wait():
            raise CommandError(f"{self.name} failed (exit code {self.returncode}).")


@contextmanager
def workers(product: Product, names: Sequence[str], *options: str) -> Iterator[list[Worker]]:
    """Some workers, ready and waiting for the start."""
    commands = [("sell_worker", str(product.pk), name, *options) for name in names]
    with started(commands) as team:
        yield team


@contextmanager
def started(commands: Iterable[Sequence[str]]) -> Iterator[list[Worker]]:
    """A worker for each command, each of which has said its first line."""
    with ExitStack() as stack:
        with interrupts.put_off():
            team = [stack.enter_context(Worker(*command)) for command in commands]
        for worker in team:
            worker.hear()
        yield team
