"""A private PostgreSQL for the tests: found, started, and gone with its parent.

    with PostgresServer() as server:
        psycopg.connect(host=server.directory, user="postgres")

It listens on a Unix socket only, in a directory that nobody else can enter, and never waits for
the disk. For Linux and macOS.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

STOP_SECONDS = 30.0

DEBIAN = Path("/usr/lib/postgresql")
"""The folders of Debian and Ubuntu with the programs of each version, outside of PATH."""

CHOICES = """\
  Debian, Ubuntu:    apt-get install --no-install-recommends postgresql
  macOS:             brew install postgresql
  anywhere else:     put its initdb and pg_ctl on PATH"""

# It ends with its parent, even when that is killed with SIGKILL and can't say goodbye: the kernel
# then closes the pipe on our standard input, and `read` returns. A line means the same.
#
# $1 is the directory. The line on standard output says that the server answers; all else goes to
# standard error. pg_ctl starts the server in a session of its own, out of reach of Ctrl-C.
SUPERVISOR = """\
set -e
trap 'cd /; command -p rm -rf "$1"' EXIT
initdb --pgdata data --username postgres --auth trust --encoding UTF8 --no-locale --no-sync >&2
pg_ctl start --wait --pgdata data --log log \
  --options "-F -k '$1' -c listen_addresses= -c max_connections=50" >&2 || { cat log >&2; exit 1; }
echo ready
read -r line || :
pg_ctl stop --mode immediate --pgdata data >&2
"""


class PostgresServerError(Exception):
    """PostgreSQL could not be started; the message says why."""


class NoPostgresServer(PostgresServerError):
    """PostgreSQL is not installed."""


def find_postgres(path: str | None = None) -> str:
    """Return the directory of its programs: on PATH, as pg_config says, or Debian's newest."""
    places = [path or os.environ.get("PATH", os.defpath)]
    if config := shutil.which("pg_config", path=path):
        answer = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        places.append(answer.stdout.strip())
    versions = [each for each in DEBIAN.glob("*/bin") if re.fullmatch(r"\d+", each.parent.name)]
    places += map(str, sorted(versions, key=lambda each: int(each.parent.name), reverse=True))
    for place in places:
        initdb = shutil.which("initdb", path=place)
        if initdb and shutil.which("pg_ctl", path=os.path.dirname(initdb)):
            return os.path.dirname(initdb)
    raise NoPostgresServer(f"PostgreSQL is not installed.\nAny one of these will do:\n{CHOICES}")


class PostgresServer:
    """A private PostgreSQL between `start()` and `stop()`; its superuser is `postgres`."""

    def __init__(self) -> None:
        self.programs = find_postgres()
        self.directory = ""
        """The directory of its socket, which clients use as host."""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and return when it answers."""
        # A path short enough for a socket (TMPDIR may be too long), and readable by every user.
        self.directory = tempfile.mkdtemp(prefix="redislock-", dir="/tmp")
        user = None
        if os.geteuid() == 0:  # as which it refuses to run
            user = _somebody()
            os.chown(self.directory, user.pw_uid, user.pw_gid)
        path = f"{self.programs}:{os.environ.get('PATH', os.defpath)}"
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", SUPERVISOR, "postgres-supervisor", self.directory],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, "PATH": path},
                user=user and user.pw_uid,
                group=user and user.pw_gid,
                extra_groups=user and [],
                start_new_session=True,
            )
            try:
                self._await_answer(log)
            except BaseException:
                self.stop()
                raise

    def _await_answer(self, log: IO[bytes]) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as answer:
            if not answer.readline():
                log.seek(0)
                text = log.read().decode(errors="replace")
                raise PostgresServerError(f"PostgreSQL was not started: {text}")

    def stop(self) -> None:
        """End the server at once and wait until it is gone. Safe to repeat."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            with process.stdin as pipe, suppress(BrokenPipeError):  # if the server died before
                pipe.write(b"stop\n")
            process.wait(STOP_SECONDS)


def _somebody() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
