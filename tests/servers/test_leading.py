"""A `Leader` that `AppConfig.ready` starts: who leads under which server, and in which command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from tests.processes import ROOT
from tests.servers import test_process_models as models
from tests.servers.server import Started
from tests.waiting import PATIENCE, eventually

EVERYTHING_ELSE = [
    ("check",),
    ("migrate", "--plan"),
    ("shell", "-c", "import time; time.sleep(1)"),
    ("redislock", "config", "leader:scheduler"),
]

LOCK = "redislock:{leader:scheduler}"
WSGI, ASGI = (f"tests.servers.leading.{kind}:application" for kind in ("wsgi", "asgi"))
SETTINGS = "tests.servers.leading.settings"


CONFIG = ("--config=python:tests.servers.leading.gunicorn_config",)


def noted(redis: Redis) -> list[str]:
    return [each.decode() for each in redis.lrange("noted", 0, -1)]


@pytest.mark.parametrize("preload", [True, False], ids=["preload", "each worker"])
@pytest.mark.parametrize("model", models.MODELS)
def test_one_worker_leads(
    model: str, preload: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never the master. When it is killed, another one leads after its ttl; when the server ends,
    the last one has ended its leadership."""
    pytest.importorskip(model.split(maxsplit=1)[0])
    if "uvicorn" in model:
        pytest.importorskip("uvicorn_worker")
    monkeypatch.setitem(
        models.MODELS,
        model,
        (
            *(
                part.replace(models.WSGI, WSGI).replace(models.ASGI, ASGI)
                for part in models.MODELS[model]
            ),
            *(CONFIG if "gevent" in model else ()),
        ),
    )
    with contextlib.closing(
        models.Server(model, tmp_path, preload=preload, DJANGO_SETTINGS_MODULE=SETTINGS)
    ) as server:
        eventually(server.up)

        def leading() -> int | None:
            number, leads = server.get().split()
            return int(number) if leads == "True" else None

        first: int = eventually(leading)
        assert first != server.process.pid
        eventually(lambda: noted(server.redis) == [f"gain {first}"])
        owner = server.redis.get(LOCK).decode().split("|")
        assert any(f":{first}:" in part for part in owner)
        os.kill(first, signal.SIGKILL)
        second = eventually(lambda: (found := leading()) != first and found)
        eventually(lambda: noted(server.redis) == [f"gain {first}", f"gain {second}"])
        server.terminate()
        if "uvicorn" not in model:  # which ends its workers by a signal
            eventually(lambda: f"loss {second}" in noted(server.redis))


@pytest.mark.parametrize("command", EVERYTHING_ELSE, ids=" ".join)
def test_a_command(command: tuple[str, ...], redis: Redis) -> None:
    """It takes no part."""
    redis.delete("noted")
    ended = subprocess.run(
        [sys.executable, "-m", "django", *command],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": SETTINGS},
        cwd=ROOT,
        timeout=PATIENCE * 2,
        check=False,
        capture_output=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert not redis.exists("redislock:clock"), "no lock was taken"
    assert noted(redis) == []


@pytest.mark.parametrize("options", [(), ("--noreload",)], ids=["reloader", "noreload"])
def test_runserver(options: tuple[str, ...], redis: Redis, tmp_path: Path) -> None:
    """The process that serves leads, and the one that watches the files takes no part."""
    redis.delete("noted")
    command = ("-m", "django", "runserver", *options, "127.0.0.1:0")
    with contextlib.closing(
        Started(command, {"DJANGO_SETTINGS_MODULE": SETTINGS}, tmp_path / "log")
    ) as server:
        (gain,) = eventually(lambda: noted(redis))
        leads = gain == f"gain {server.process.pid}"
        assert leads is (options == ("--noreload",))
        assert not redis.exists(f"{LOCK}:waiters")
    redis.delete("noted", LOCK)
