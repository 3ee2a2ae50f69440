"""Servers that fork before or after the application is loaded, and locks in their workers."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from tests.processes import UnixConnection
from tests.servers.server import Started
from tests.waiting import eventually

APP = "tests.servers.locking_app"
WSGI, ASGI = f"{APP}:application", f"{APP}:asgi"
GUNICORN = ("-m", "gunicorn", "--workers=2", "--log-level=critical", "--graceful-timeout=1")
UWSGI = (
    *("-c", "import sys, pyuwsgi; pyuwsgi.run(sys.argv[1:])"),
    *("--master", "--processes=2", "--enable-threads", "--die-on-term", "--need-app"),
    *("--disable-logging", f"--module={WSGI}"),
)
MODELS = {
    "gunicorn sync": (*GUNICORN, WSGI),
    "gunicorn gthread": (*GUNICORN, "--worker-class=gthread", "--threads=4", WSGI),
    "gunicorn gevent": (*GUNICORN, "--worker-class=gevent", WSGI),
    "gunicorn uvicorn": (*GUNICORN, "--worker-class=uvicorn_worker.UvicornWorker", ASGI),
    "pyuwsgi": (*UWSGI, "--threads=4"),
}
"""What follows `python`, but for the socket, and for when the application is loaded."""


class Server(Started):
    """A master with two workers, and a Redis of their own."""

    def __init__(self, model: str, directory: Path, *, preload: bool, **env: str) -> None:
        self._path = directory / "socket"
        if model == "pyuwsgi":
            options = [f"--http-socket={self._path}", *(() if preload else ("--lazy-apps",))]
        else:
            options = [f"--bind=unix:{self._path}", *(("--preload",) if preload else ())]
        self.redis_server = RedisServer()
        self.redis_server.start()
        self.redis = Redis.from_url(self.redis_server.url)
        project = {
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "REDISLOCK_TEST_URL": self.redis_server.url,
        }
        super().__init__([*MODELS[model], *options], {**project, **env}, directory / "log")

    @contextlib.contextmanager
    def asked(self, path: str) -> Iterator[UnixConnection]:
        with contextlib.closing(UnixConnection(self._path)) as connection:
            connection.request("GET", path)
            yield connection

    def get(self, path: str = "/") -> str:
        with self.asked(path) as connection:
            return connection.getresponse().read().decode()

    def up(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            self.get()
        except OSError:
            return False
        return True

    def renewed(self, name: str, times: int = 1) -> None:
        """Wait until the lease of a lock has been renewed so often."""
        for _ in range(times):
            before = self.redis.pexpiretime(f"redislock:{{{name}}}") or 0.0
            eventually(
                lambda before=before: (
                    (self.redis.pexpiretime(f"redislock:{{{name}}}") or 0) > before
                )
            )

    def close(self) -> None:
        super().close()
        self.redis.close()
        self.redis_server.stop()


@pytest.fixture(params=[True, False], ids=["preload", "each worker"])
def preload(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=MODELS)
def server(request: pytest.FixtureRequest, preload: bool, tmp_path: Path) -> Iterator[Server]:
    model: str = request.param
    pytest.importorskip(model.split(maxsplit=1)[0])
    if "uvicorn" in model:
        pytest.importorskip("uvicorn_worker")
    with contextlib.closing(Server(model, tmp_path, preload=preload)) as server:
        yield server


def test_workers_lock(server: Server) -> None:
    """Each request gets its lock and is counted, a lease of a worker is renewed past its ttl, and
    the lock of a worker that is killed is free when its ttl is over."""
    eventually(server.up)
    redis = server.redis
    redis.set("counted", 0)
    with ThreadPoolExecutor(16) as visitors:
        workers = {*visitors.map(lambda _: server.get(), range(60))}
        assert str(server.process.pid) not in workers
        assert int(redis.get("counted")) == 60

        visitors.submit(server.get, "/hold/1")
        holder = int(eventually(lambda: redis.get("holder")))
        server.renewed("held", times=5)
        os.kill(holder, signal.SIGKILL)
        eventually(lambda: not redis.exists("redislock:{held}"))
    assert server.get()


def test_a_lease_of_the_master(tmp_path: Path) -> None:
    """The lease that a master takes when it loads the application is the master's: its workers
    know that it is not theirs, come and go, and lock for themselves."""
    pytest.importorskip("gunicorn")
    with contextlib.closing(
        Server("gunicorn sync", tmp_path, preload=True, LOADED_TTL="2")
    ) as server:
        eventually(server.up)
        owner = server.redis.get("redislock:{loaded}").decode().split("|")[4]
        assert owner.split(":")[1] == str(server.process.pid)
        assert server.get("/loaded") == "released True"

        os.kill(int(server.get()), signal.SIGKILL)
        server.renewed("loaded", times=2)
        assert server.get("/loaded") == "released True"

        # What gunicorn does to a worker that has to go at once: its handler raises SystemExit.
        with server.asked("/hold/20"):
            holder = int(eventually(lambda: server.redis.get("holder")))
            os.kill(holder, signal.SIGQUIT)
            eventually(lambda: not server.redis.exists("redislock:{held}"))
            assert server.redis.zscore("redislock:index", "redislock:{held}") is None
        server.renewed("loaded")

        server.terminate()
        assert server.ends() == 0
        eventually(lambda: not server.redis.exists("redislock:{loaded}"))
