"""devtools/postgres_server.py: private, and gone with its parent."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.postgres_server import (
    NoPostgresServer,
    PostgresServer,
    find_postgres,
)
from tests.processes import ROOT
from tests.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def programs() -> str:
    try:
        return find_postgres()
    except NoPostgresServer as missing:
        pytest.skip(str(missing).partition("\n")[0])


def is_running(pid: int) -> bool:
    """A killed orphan may be left for a while as a zombie, which is not running."""
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return state.strip()[:1] not in ("", "Z")


def test_it_runs_until_it_is_stopped(programs: str) -> None:
    """In a directory that nobody else can enter, and that is gone with it."""
    psycopg = pytest.importorskip("psycopg")
    with PostgresServer() as server:
        directory = Path(server.directory)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        with psycopg.connect(host=server.directory, user="postgres") as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
            assert connection.execute("SHOW fsync").fetchone() == ("off",)
    assert not directory.exists()
    server.stop()


def test_it_ends_with_its_parent(programs: str) -> None:
    """Also with one that is killed, and can't say goodbye."""
    program = (
        "from devtools.postgres_server import PostgresServer; server = PostgresServer();"
        "server.start(); print(server.directory, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as parent:
        assert parent.stdout is not None
        directory = Path(parent.stdout.readline().strip())
        pid = int((directory / "data" / "postmaster.pid").read_text().splitlines()[0])
        parent.kill()
    eventually(lambda: not directory.exists())
    assert not is_running(pid)
