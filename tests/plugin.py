"""Starts the Redis that all tests share, before pytest-django loads the settings that name it.

With `pytest -n`, each worker loads this plugin and has a Redis of its own.

It is a plugin, loaded with `-p tests.plugin` in pyproject.toml, since a conftest.py is read only
after pytest-django has loaded the settings. Which Redis: see `devtools/redis_server.py`.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.redis_server import RedisServer, RedisServerError

SERVER = pytest.StashKey[RedisServer]()

ROOM = pytest.StashKey["tempfile.TemporaryDirectory[str]"]()

FILES = 8192


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the server, and tell tests/settings.py and the tests' own subprocesses where it is."""
    # What pytest ignores, all that it starts would ignore, too.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Hundreds of tests have a server of their own, and connections to it that nobody closes while
    # this process lives. Many systems begin with 1024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES:
        most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    options = early_config.known_args_namespace
    if options.help or options.version:
        return
    try:
        server = RedisServer()
        server.start()
    except RedisServerError as error:
        raise pytest.UsageError(str(error)) from error
    early_config.add_cleanup(server.stop)
    early_config.stash[SERVER] = server
    os.environ["REDISLOCK_TEST_URL"] = server.url


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run one process if REDISLOCK_SERVER is a URL: workers would delete each other's keys."""
    return 0 if config.stash[SERVER].external else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each worker of a directory that all of them have."""
    room = node.config.stash.get(ROOM, None)
    if room is None:
        room = node.config.stash[ROOM] = tempfile.TemporaryDirectory(prefix="redislock-tests-")
        node.config.add_cleanup(room.cleanup)
    node.workerinput["room"] = room.name


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test that is marked `alone` while the other workers run none.

    Each test has a file locked: shared, or alone. It asks for that lock behind a gate, so that a
    test that waits to be alone is passed by nobody.
    """
    worker = getattr(item.config, "workerinput", None)
    if worker is None:
        return (yield)
    path = Path(worker["room"])
    alone = item.get_closest_marker("alone") is not None
    with (path / "gate").open("w") as gate, (path / "room").open("w") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        return (yield)


def pytest_report_header(config: pytest.Config) -> str:
    """Say on the first lines which server the tests have run against."""
    return f"redis: {config.stash[SERVER].description}"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """If the server died on the way, say so where one looks first: all failures follow from it."""
    server = config.stash[SERVER]
    if not server.external and not server.running:
        terminalreporter.section("the Redis of this test session died", red=True)
        terminalreporter.write_line(server.log())
