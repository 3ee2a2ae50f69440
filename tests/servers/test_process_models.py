"""Servers that fork before or after the application is loaded, and locks in their workers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from tests.processes import ROOT, UnixConnection
from tests.servers.server import guard
from tests.waiting import PATIENCE, eventually

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


class Server:
    """A master with two workers, and a Redis of their own."""

    def __init__(self, model: str, *, preload: bool, directory: Path) -> None:
        self._path = directory / "socket"
        if model == "pyuwsgi":
            options = [f"--http-socket={self._path}", *(() if preload else ("--lazy-apps",))]
        else:
            options = [f"--bind=unix:{self._path}", *(("--preload",) if preload else ())]
        self.redis_server = RedisServer()
        self.redis_server.start()
        self.redis = Redis.from_url(self.redis_server.url)
        self._log = directory / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *MODELS[model], *options],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "DJANGO_SETTINGS_MODULE": "tests.settings",
                    "REDISLOCK_TEST_URL": self.redis_server.url,
                    "XDG_RUNTIME_DIR": str(directory),
                },
                start_new_session=True,
            )
        self._guard = guard(self.process)

    def get(self, path: str = "/") -> int:
        """The worker that answered."""
        with contextlib.closing(UnixConnection(self._path)) as connection:
            connection.request("GET", path)
            return int(connection.getresponse().read())

    def up(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        try:
            self.get()
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._guard.kill()
        self._guard.communicate()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
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
    server = Server(model, preload=preload, directory=tmp_path)
    try:
        yield server
    finally:
        server.close()


def test_workers_lock(server: Server) -> None:
    """Each request gets its lock and is counted, a lease of a worker is renewed past its ttl, and
    the lock of a worker that is killed is free when its ttl is over."""
    eventually(server.up)
    redis = server.redis
    redis.set("counted", 0)
    with ThreadPoolExecutor(16) as visitors:
        workers = {*visitors.map(lambda _: server.get(), range(60))}
        assert server.process.pid not in workers
        assert int(redis.get("counted")) == 60

        visitors.submit(server.get, "/hold")
        holder = int(eventually(lambda: redis.get("holder")))
        for _ in range(5):
            before = redis.zscore("redislock:index", "held") or 0.0
            eventually(
                lambda before=before: (redis.zscore("redislock:index", "held") or 0.0) > before
            )
        os.kill(holder, signal.SIGKILL)
        eventually(lambda: not redis.exists("redislock:{held}"))
    assert server.get()
