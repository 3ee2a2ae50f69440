"""What the pages say in tables and lists is what the code says."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from django.core.management.base import CommandParser
from django_redis.client import DefaultClient
from redis.lock import Lock

from django_redislock import LockOrderError, redis_lock, signals
from django_redislock.management.commands.runperiodic import Command
from django_redislock.periodic import JobState, RunOutcome
from django_redislock.periodic.job import Job, JobOptions
from django_redislock.primitives import permits, scripts, timestamp
from django_redislock.primitives.redlock import Redlock
from django_redislock.settings import conf, kinds
from django_redislock.settings.policy import DEFAULTS
from django_redislock.testing import check_lock_order
from django_redislock.views import responses
from tests.docs.world import examples, text_of


def shown(page: str, number: int) -> dict[str, Any]:
    """The REDISLOCK of an example."""
    names: dict[str, Any] = {}
    exec(examples(page)[number], names)
    return names["REDISLOCK"]  # type: ignore[no-any-return]


def test_the_settings_of_the_readme() -> None:
    """They are the defaults, and an entry of `LOCKS`. docs/settings.md has all of them."""
    settings = shown("README.md", 9)
    assert conf.parse(settings).locks.find("report:7") == {"ttl": 300.0, "wait": 0.0}
    del settings["LOCKS"]
    assert settings.items() <= {key.upper(): its for key, its in DEFAULTS.items()}.items()


@pytest.mark.parametrize(
    ("page", "number", "name", "field", "value"),
    [
        ("docs/capacity.md", 0, "invoice:42", "using", "locks-billing"),
        ("docs/capacity.md", 0, "sync:7", "using", "locks-sync"),
        ("docs/capacity.md", 0, "report", "using", "locks"),
        ("docs/once.md", 6, "once:warm-cache", "ttl", 10),
        ("docs/once.md", 6, "single_flight:rates:EUR", "wait", 5),
        ("docs/periodic.md", 2, "periodic:x", "ttl", 10),
        ("docs/shared.md", 2, "exports", "limit", 3),
        ("docs/shared.md", 2, "catalogue:page", "kind", "read"),
        ("docs/timestamp-lock.md", 1, "shop:1", "timestamp_key", "lock.{name}"),
        ("docs/transactions.md", 2, "order:1", "release", "commit"),
        ("docs/transactions.md", 3, "order:1", "release", "warn"),
        ("docs/lock-order.md", 3, "stock", "lock_order", "off"),
        ("docs/lock-order.md", 3, "payments", "lock_order", "warn"),
    ],
)
def test_settings_mean(
    page: str, number: int, name: str, field: str, value: object, settings: Any
) -> None:
    """What an entry makes of a lock."""
    settings.REDISLOCK = shown(page, number)
    assert getattr(conf.policy(name, {}), field) == value


def test_the_commands_of_locks() -> None:
    """docs/offerings.md has all that a lock sends, and for scripts no other."""
    table = text_of("docs/offerings.md").partition("## All commands")[2]
    rows = dict(re.findall(r"^\| (.*?) \| (.*) \|$", table, re.MULTILINE))
    shown = {its.lower().replace(" ", "|") for its in re.findall(r"`([A-Z ]+)`", table)}
    needed = set(scripts.permissions().replace("+", "").split())
    assert {its.partition("|")[0] if its.startswith("pubsub") else its for its in shown} >= needed
    in_scripts = {its.partition(" ")[0] for its in re.findall(r"`([A-Z ]+)`", rows["scripts"])}
    assert in_scripts <= {its.upper() for its in needed}


def test_kinds_by_settings(settings: Any) -> None:
    """The primitive of each entry of kinds.md."""
    settings.REDISLOCK = shown("docs/kinds.md", 0)

    def primitive(name: str) -> Any:
        return kinds.primitive(conf.policy(name, {}))

    assert primitive("export") == permits.semaphore(3)
    assert primitive("catalogue") == permits.READ
    assert primitive("import") is timestamp.TOGETHER
    ledger = primitive("ledger")
    assert isinstance(ledger, Redlock)
    assert ledger.servers.aliases == ("redis-a", "redis-b", "redis-c")


def test_the_problems() -> None:
    """views.md explains each problem, by its status."""
    page = text_of("docs/views.md")
    known = [one for one in vars(responses).values() if isinstance(one, responses.Problem)]
    assert len(known) == 10
    for problem in known:
        assert f"| `{problem.code}` | {problem.status}" in page


def test_the_events() -> None:
    """signals.md has each field and each signal."""
    page = text_of("docs/signals.md")
    for name in (*signals.LockEvent.__dataclass_fields__, *vars(signals)):
        if name.startswith("lock_") or name in signals.LockEvent.__dataclass_fields__:
            assert f"`{name}`" in page


def test_the_jobs() -> None:
    """periodic.md has each option of a job with its default, each state and outcome, and each
    argument of runperiodic."""
    page = text_of("docs/periodic.md")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    for option in JobOptions.__annotations__:
        default = Job.__dataclass_fields__[option].default
        if option not in ("name", "tz"):
            text = f'"{default}"' if isinstance(default, str) else repr(default)
            assert rows[option] == f"`{text.removesuffix('.0')}`"
    for word in (*JobOptions.__annotations__, *JobState, *RunOutcome):
        assert f"| `{word}` |" in page
    parser = CommandParser()
    Command().add_arguments(parser)
    flags = [flag for action in parser._actions for flag in action.option_strings[-1:]]
    assert all(f"| `{flag}" in page for flag in flags if flag != "--help")


def test_the_arguments_of_other_locks() -> None:
    """The arguments in the table of migrating.md, with their defaults, are those of the other
    libraries."""
    table = text_of("docs/migrating.md")
    redis_py = {"timeout": None, "blocking_timeout": None}
    others: dict[Any, dict[str, Any]] = {Lock: redis_py, DefaultClient.lock: redis_py}
    for library, name, arguments in (
        ("redis_lock", "Lock", {"expire": None, "auto_renewal": False}),
        ("pottery", "Redlock", {"auto_release_time": 10, "context_manager_timeout": -1}),
    ):
        others[getattr(pytest.importorskip(library), name)] = arguments
    for lock, arguments in others.items():
        for argument, default in arguments.items():
            assert inspect.signature(lock).parameters[argument].default == default, argument
            assert f"{argument}={default}`" in table, argument


def test_the_error_of_two_orders() -> None:
    """lock-order.md quotes it, but for the places in the code."""
    with pytest.raises(LockOrderError) as caught, check_lock_order():
        with redis_lock("stock"), redis_lock("payments"):
            pass
        with redis_lock("payments"), redis_lock("stock"):
            pass
    page = " ".join(text_of("docs/lock-order.md").split())
    quoted = re.search(r"> Locks are taken.*? …", page)
    assert quoted is not None
    text = re.sub(r" at \S+:\d+ in \w+", "", quoted[0].replace("> ", "")).rstrip(" …")
    assert re.sub(r" at \S+:\d+ in [\w.<>]*\w", "", str(caught.value)).startswith(text)
