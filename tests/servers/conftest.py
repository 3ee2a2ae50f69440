"""Each kind of server, with a Redis and a database of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from devtools.redis_server import RedisServer
from tests.servers.server import EXAMPLE, KINDS, Server
from tests.servers.visitor import PREFIX, Visitor
from tests.waiting import PATIENCE, eventually

Open = Callable[..., Visitor]


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the shop's tables."""
    database = tmp_path_factory.mktemp("shop") / "migrated.sqlite3"
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity=0"],
        cwd=EXAMPLE,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "shop.settings", "SHOP_DB": f"{database}"},
        timeout=PATIENCE,
        check=True,
    )
    return database


@pytest.fixture(scope="package")
def open_shop(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Open]:
    """Open the shop under a kind of server."""
    with ExitStack() as stack:

        def open_shop(kind: str, *options: str) -> Visitor:
            pytest.importorskip(kind.split(maxsplit=1)[0] if kind != "runserver" else "django")
            directory = tmp_path_factory.mktemp("server")
            database = directory / "shop.sqlite3"
            shutil.copy(migrated, database)
            redis_server = stack.enter_context(RedisServer())
            env = {"REDIS_URL": redis_server.url, "SHOP_DB": f"{database}"}
            server = Server(kind, env, directory / "log", *options)
            visitor = stack.enter_context(Visitor(server, redis_server, database))
            eventually(lambda: visitor.ask("GET", "/").status == 200)
            return visitor

        yield open_shop


@pytest.fixture(scope="package", params=KINDS)
def shop(open_shop: Open, request: pytest.FixtureRequest) -> Visitor:
    """The shop under each kind of server. It is open for all tests, so each sells its own."""
    return open_shop(request.param)


@pytest.fixture
def in_the_shop(shop: Visitor, settings: Any) -> None:
    """Let this process lock as the shop does."""
    caches = {**settings.CACHES["default"], "LOCATION": shop.redis_server.url}
    settings.CACHES = {"default": caches}
    settings.REDISLOCK = {"PREFIX": PREFIX}
