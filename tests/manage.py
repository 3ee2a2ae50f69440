"""`manage.py` as a process of its own: `python -m tests.manage COMMAND …`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from django.core.management import execute_from_command_line

from tests.processes import ROOT, Worker
from tests.waiting import PATIENCE

PROGRAM = (sys.executable, "-m", "tests.manage")


def with_stderr(redirection: str) -> tuple[str, ...]:
    """`PROGRAM`, with its stderr elsewhere, as a shell says it: `2>&-` closes it."""
    return ("sh", "-c", f'exec "$@" {redirection}', "sh", *PROGRAM)


def environ(url: str = "") -> dict[str, str]:
    """For a project on the tests' Redis, or on another one."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        **({"REDISLOCK_TEST_URL": url} if url else {}),
    }


def broken_project(folder: Path) -> tuple[str, str]:
    """Options for one without a database, without migrations that were run, and with URLs that
    don't import."""
    (folder / "broken.py").write_text(
        "from tests.settings import *\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3',"
        " 'NAME': '/nowhere/db'}}\n"
        "ROOT_URLCONF = 'no.such.module'\n"
    )
    return "--settings=broken", f"--pythonpath={folder}"


class Manage(Worker):
    """A command that a test talks to, like a worker; what it says on stderr is kept apart."""

    def __init__(self, *arguments: str, url: str = "", program: Sequence[str] = PROGRAM) -> None:
        self.process = subprocess.Popen(
            [*program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environ(url),
            # Without a terminal, as cron starts it: no Ctrl-C reaches it that is meant for pytest.
            start_new_session=True,
        )

    def complains(self) -> str:
        """Wait for its end; returns what it has said on stderr."""
        self.ends()
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def rest(self) -> str:
        """What is said until nobody is left who could say anything on stdout."""
        assert self.process.stdout is not None
        begin = time.monotonic()
        text = self.process.stdout.read()
        # It can't be interrupted: whoever is left has to end some time, and is noticed by that.
        assert time.monotonic() - begin < PATIENCE, "somebody was left"
        return text

    def close(self) -> None:
        # Not communicate(): a program that is left has these pipes, too.
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


if __name__ == "__main__":
    # A process that was started in the background of a shell ignores them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    execute_from_command_line(["manage.py", *sys.argv[1:]])
