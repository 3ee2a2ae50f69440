"""What works without that which Windows lacks. It is simulated: tests/windows.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import LeaseLost, redis_lock
from django_redislock.base import polling
from tests.manage import Manage

pytestmark = pytest.mark.slow

WINDOWS = (sys.executable, "-m", "tests.windows")


@pytest.fixture
def windows(manage: Callable[..., Manage]) -> Callable[..., Manage]:
    return lambda *arguments: manage(*arguments, program=WINDOWS)


def test_it_is_imported(windows: Callable[..., Manage]) -> None:
    """Each module of the package."""
    process = windows("modules")
    assert (process.complains(), process.ends()) == ("", 0)


def test_locks(windows: Callable[..., Manage], redis_server: RedisServer) -> None:
    """Each kind, in threads and in tasks: they exclude each other, wait and are renewed."""
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(3)]
        process = windows("locks", *(one.url for one in (redis_server, *servers)))
        assert process.says() == f"{6 * 4 * 3 + 6 * 4} sections"
        assert (process.complains(), process.ends()) == ("", 0)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("nightly", "--lock-at-least-for=0.1"), 0),
        (("redislock", "list"), 0),
        (("redislock", "show", "job"), 0),
        (("redislock", "clear", "job", "--reason=test", "--yes"), 0),
        (("redislock", "config", "job"), 0),
        (("redislock", "doctor", "--fail-level=ERROR"), 0),
        (("runperiodic", "--once"), 0),
        (("redislock", "run", "job", "--", "true"), 78),
    ],
)
def test_commands(
    windows: Callable[..., Manage], redis: Redis, arguments: tuple[str, ...], code: int
) -> None:
    """All but `redislock run`, which says so."""
    with suppress(LeaseLost), redis_lock("job"):
        process = windows(*arguments)
        assert "Traceback" not in (complaint := process.complains())
        assert process.ends() == code, complaint
    assert complaint.startswith("CommandError: redislock run passes signals on") == (code == 78)


def test_what_waits_for_sockets() -> None:
    """It refuses a closed socket, as `select.poll` does."""
    with pytest.raises(ValueError, match="negative"):
        polling.Select().register(-1, polling.POLLIN)
