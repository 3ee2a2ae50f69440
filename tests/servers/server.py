"""A web server as a process of its own, on a port that it has found itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.processes import ROOT
from tests.waiting import PATIENCE, eventually

EXAMPLE = ROOT / "example_project"

_GUNICORN = ("-m", "gunicorn", "--bind=127.0.0.1:0", "--workers=2", "shop.wsgi")

KINDS: dict[str, Sequence[str]] = {
    "runserver": ("manage.py", "runserver", "--noreload", "127.0.0.1:0"),
    "gunicorn sync": (*_GUNICORN, "--worker-class=sync"),
    "gunicorn gthread": (*_GUNICORN, "--worker-class=gthread", "--threads=4"),
    "uvicorn": ("-m", "uvicorn", "--port=0", "shop.asgi:application"),
}
"""What follows `python` in example_project/."""

# It reads from a pipe that only we have open: when we are killed, the server has to end as well.
_GUARD = 'read -r _; kill -s KILL -- "-$1"'


class Started:
    """A server that was started as `python …`, and its workers, in a group of their own."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], log: Path, *, cwd: Path = ROOT
    ) -> None:
        self._log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=cwd,
                # XDG_RUNTIME_DIR: where newer gunicorns put a socket; by default the user's home.
                env={**os.environ, "XDG_RUNTIME_DIR": str(log.parent), **env},
                # Its workers end with it, and no Ctrl-C reaches it that is meant for pytest.
                start_new_session=True,
            )
        self.guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", f"{self.process.pid}"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text()

    def terminate(self) -> None:
        """Ask it to end, as a supervisor does."""
        self.process.send_signal(signal.SIGTERM)

    def ends(self) -> int:
        """Wait for its end; returns its exit code."""
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """End it and its workers, if they have not ended yet."""
        self.guard.kill()
        self.guard.communicate()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Server(Started):
    """The shop under a kind of server; `port` is where it listens."""

    def __init__(self, kind: str, env: Mapping[str, str], log: Path, *options: str) -> None:
        self.kind = kind
        env = {
            "DJANGO_SETTINGS_MODULE": "tests.servers.settings",
            "PYTHONPATH": f"{EXAMPLE}:{ROOT}",
            "PYTHONUNBUFFERED": "1",
            **env,
        }
        super().__init__([*KINDS[kind], *options], env, log, cwd=EXAMPLE)
        try:
            self.port: int = eventually(self._listening)
        except BaseException:
            self.close()
            raise

    @property
    def is_asgi(self) -> bool:
        return self.kind == "uvicorn"

    def _listening(self) -> int | None:
        assert self.process.poll() is None, self.log
        match = re.search(r"http://127\.0\.0\.1:(\d+)", self.log)
        return None if match is None else int(match[1])
