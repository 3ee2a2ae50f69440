"""The examples of docs/periodic.md do what the page says."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from redis import Redis

from django_redislock.management.commands.runperiodic import Command
from django_redislock.periodic import JobState, RunOutcome, job_finished
from django_redislock.periodic.job import Job, JobOptions
from django_redislock.periodic.registry import jobs
from django_redislock.settings import conf
from tests.blocks import blocks

PAGE = (Path(__file__).parent.parent.parent / "docs" / "periodic.md").read_text(encoding="utf-8")
JOBS, CARTS, SETTINGS, MONITOR, ALERT, TASK = blocks("periodic.md")


def run(text: str, **names: Any) -> dict[str, Any]:
    namespace = {"__name__": "shop.periodic", **names}
    exec(compile(text, "docs/periodic.md", "exec"), namespace)
    return namespace


def run_now(redis: Redis, name: str) -> None:
    """It has missed a tick."""
    job = next(job for job in jobs() if job.name == name)
    redis.hset(job.keys.ledger, "claimed", (int(redis.time()[0]) - 7200) * 1_000_000)
    call_command("runperiodic", "--once")


def test_jobs() -> None:
    """Named after their paths."""
    run(JOBS)
    report, sync = jobs()
    assert (report.name, report.asynchronous) == ("shop.periodic.stock_report", False)
    assert report.words() == "at 03:00 every day, Europe/Berlin"
    assert (sync.name, sync.asynchronous) == ("shop.periodic.sync", True)
    assert sync.words() == "every 30 seconds"


def test_the_lease(redis: Redis) -> None:
    """It is there, with its fencing token."""
    seen: list[Any] = []

    def put_back(cart: int, fencing_token: int) -> None:
        seen.append((cart, fencing_token > 0))

    run(CARTS, abandoned=lambda: [1, 2], put_back=put_back)
    run_now(redis, "shop.periodic.abandoned_carts")
    assert seen == [(1, True), (2, True)]


def test_the_settings(settings: Any) -> None:
    """They beat the code."""
    run(JOBS)
    settings.REDISLOCK = run(SETTINGS)["REDISLOCK"]
    report, sync = jobs()
    assert report.words() == "at 05:00 every day, Europe/Berlin; at most 600 s late"
    assert sync.words() == "every 5 minutes"
    assert report.policy.ttl == 10
    assert conf.job("legacy.x") == {"enabled": False}


def test_monitoring(redis: Redis, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that has failed, and one that nobody runs."""

    def fail() -> None:
        raise ValueError("no paper")

    run(CARTS, abandoned=fail, put_back=None)
    run(MONITOR)
    name = "shop.periodic.abandoned_carts"
    assert capsys.readouterr().out == f"{name} overdue None None\n"
    with pytest.raises(SystemExit):
        run_now(redis, name)
    capsys.readouterr()
    run(MONITOR)
    assert capsys.readouterr().out == f"{name} failing None ValueError: no paper\n"


def test_an_alert(capsys: pytest.CaptureFixture[str]) -> None:
    """The receiver tells of what has gone wrong."""
    alert = run(ALERT)["alert"]
    try:
        for outcome in RunOutcome:
            event = SimpleNamespace(job="job", outcome=outcome, why="why")
            job_finished.send(sender=None, event=event)
    finally:
        assert job_finished.disconnect(alert)
    assert capsys.readouterr().out == "job failed why\njob lost why\n"


def test_a_task() -> None:
    """From Django 6.0 on; before that it is Python all the same."""
    compile(TASK, "docs", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    pytest.importorskip("django.tasks")
    # A task has to be what its module's name says: that of this test has none.
    text = TASK.replace("@task\n", "")
    run(text)
    assert [job.name for job in jobs()] == ["shop.periodic.rebuild_index"]


def test_the_options() -> None:
    """Each one is in the table, with its default."""
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    for option in JobOptions.__annotations__:
        assert option in rows, option
        default = Job.__dataclass_fields__[option].default
        if option not in ("name", "tz"):
            shown = f'"{default}"' if isinstance(default, str) else repr(default)
            assert rows[option] == f"`{shown.removesuffix('.0')}`"
    assert {
        state for state in JobState if f"`{state}`" in rows or f"| `{state}` |" in PAGE
    } == set(JobState)
    assert all(f"| `{outcome}` |" in PAGE for outcome in RunOutcome)


def test_the_arguments_of_runperiodic() -> None:
    """Each one is in the table."""
    from django.core.management.base import CommandParser

    parser = CommandParser()
    Command().add_arguments(parser)
    for action in parser._actions:
        for flag in action.option_strings[-1:]:
            assert flag == "--help" or f"| `{flag}" in PAGE
