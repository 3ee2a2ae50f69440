"""When something is wrong: one line on stderr, an exit code, and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import override_settings
from redis import Redis

from tests.manage import broken_project
from tests.operations.calling import AWAY, call, granted, run

pytestmark = pytest.mark.slow

ASKING = [
    ["list"],
    ["list", "--json"],
    ["list", "--foreign"],
    ["show", "job"],
    ["show", "job", "--json"],
    ["clear", "job"],
    ["clear", "--stale"],
    ["clear", "job", "--yes", "--reason", "r", "--json"],
    ["fence", "job", "--above", "1"],
    ["fence", "job", "--above", "1", "--yes", "--json"],
]
ALL = [*ASKING, ["watch", "--count", "1"], ["config", "job"]]


@pytest.mark.parametrize("arguments", ASKING, ids=" ".join)
def test_redis_away(arguments: list[str]) -> None:
    """The exit code is 69, and stdout is empty."""
    done = run(*arguments, url=AWAY)
    assert (done.code, done.out) == (69, "")
    assert done.err.startswith("CommandError: Redis 'default' (/nowhere) could not be reached")
    assert done.err.count("\n") == 1


def test_redis_away_while_watching() -> None:
    """The screen says so, and the exit code is 69."""
    done = run("watch", "--count", "2", "--interval", "0.1", url=AWAY)
    assert done.code == 69
    assert done.out.count("Redis 'default' (/nowhere) could not be reached") == 2
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("arguments", ALL[:-1], ids=" ".join)
def test_no_such_alias(arguments: list[str]) -> None:
    """The exit code is 78, and the error lists the aliases."""
    done = call(*arguments, "--using", "nix")
    assert (done.code, done.out) == (78, "")
    assert "no alias 'nix'" in done.err


@pytest.mark.parametrize("arguments", [*ALL, ["run", "job", "--", "true"]], ids=" ".join)
def test_wrong_settings(arguments: list[str]) -> None:
    """The exit code is 78, and the error says what is wrong."""
    for wrong, says in (
        ({"TIMEOUT": 5}, "REDISLOCK has no key 'TIMEOUT'"),
        ([], "REDISLOCK must be a dict, not []"),
    ):
        with override_settings(REDISLOCK=wrong):
            done = call(*arguments)
        assert (done.code, done.out) == (78, "")
        assert says in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show"], "required: NAME"),
        (["show", "a{b"], "contains a brace"),
        (["config", ""], "name is empty"),
        (["list", "--state", "gone"], "invalid choice"),
        (["list", "--sort", "age"], "invalid choice"),
        (["list", "--limit", "-1"], "0 for all"),
        (["watch", "--interval", "0"], "from 0.1"),
        (["watch", "--interval", "soon"], "from 0.1"),
        (["clear"], "Write names, or"),
        (["clear", "job", "--stale"], "Write names, or"),
        (["clear", "job", "--pattern", "*"], "Write names, or"),
        (["clear", "job", "--yes"], "--reason"),
        (["clear", "job", "--yes", "--reason", " "], "--reason"),
        (["clear", "job", "--as-of", "noon"], "a time with a time zone"),
        (["clear", "job", "--as-of", "2026-01-31T12:00:00"], "a time with a time zone"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage(arguments: list[str], says: str, redis: Redis) -> None:
    """The error says what to write, and nothing is done."""
    granted(redis, "job")
    assert says in call(*arguments).err
    assert redis.exists("redislock:{job}")


@pytest.mark.parametrize("arguments", [["show"], ["clear", "job", "--yes"]], ids=" ".join)
def test_usage_exit_code(arguments: list[str]) -> None:
    """The exit code is 2, whether argparse or the command notices."""
    assert run(*arguments).code == 2


@pytest.mark.parametrize("arguments", ALL, ids=" ".join)
def test_in_a_broken_project(arguments: list[str], tmp_path: Path) -> None:
    """The commands work in a project that is broken elsewhere."""
    done = run(*arguments, *broken_project(tmp_path))
    assert done.code in (0, 3)
    assert done.out
    assert done.err == ""
