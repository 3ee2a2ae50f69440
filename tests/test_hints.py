"""Hints can be pasted: each one is, at the end of the settings, and then its finding is gone."""

from __future__ import annotations

import copy
import re
from contextlib import suppress
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import caches
from django.test import override_settings
from django_redis.pool import ConnectionFactory

from django_redislock.doctor.finding import Finding
from django_redislock.doctor.rules import deployment_findings
from django_redislock.doctor.settings import job_findings, settings_findings, usage_findings
from django_redislock.periodic import job as registry
from django_redislock.settings import naming
from django_redislock.transport.server import server_of
from tests.pasting import paste
from tests.processes import ROOT

NOWHERE = "redis://localhost:1/0"
"""Nobody answers there, and says so at once."""
REDIS = "django_redis.cache.RedisCache"
DJANGO = "django.core.cache.backends.redis.RedisCache"
MEMORY = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
TIMEOUTS = {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 2}
NO_TIMEOUTS = {"socket_timeout": None, "socket_connect_timeout": None}
CLUSTER = "django_redislock.cluster.ClusterConnectionFactory"


def entry(url: Any = NOWHERE, backend: str = REDIS, **options: Any) -> dict[str, Any]:
    its = options if backend == DJANGO else {**TIMEOUTS, **options}
    return {"BACKEND": backend, "LOCATION": url, "OPTIONS": its}


def one(url: Any = NOWHERE, backend: str = REDIS, **options: Any) -> dict[str, Any]:
    """Settings with an entry that is for the cache and for locks."""
    return {"CACHES": {"default": entry(url, backend, **options)}}


def apart(url: Any = NOWHERE, *, redislock: Any = None, **options: Any) -> dict[str, Any]:
    """Settings with an entry for locks."""
    caches = {"default": MEMORY, "locks": entry(url, **options)}
    return {"CACHES": caches, "REDISLOCK": {"USING": "locks", **(redislock or {})}}


def redislock(**settings: Any) -> dict[str, Any]:
    return {"REDISLOCK": settings}


FINDINGS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("E001", {"REDISLOCK": wrong})
        for wrong in (
            None,
            [],
            {None: 1},
            {("a", "b"): 1},
            {"TTL": "30"},
            {"TTL": float("nan")},
            {"TIMEOUT": 5},
            {"TLL": 5},
            {"AUTO": True},
            {"wait": 3},
            {"PREFIX": ""},
            {"USING": ["default"]},
            {"KIND": "semaphore"},
            {"VIEW_PROBLEM_TYPE": "a b"},
            {"LOCKS": None},
            {"LOCKS": {3: {}}},
            {"LOCKS": {"a": None}},
            {"LOCKS": {"a\n": {"TTL": 0, "WIAT": 1}}},
            {"LOCKS": {"a": {"LIMIT": 0}}},
            {"LOCKS": {"a": {"TIMESTAMP_KEY": ""}}},
            {"LOCKS": {"a": {"KIND": "semaphore"}}},
            {"LOCKS": {"a": {"USING": ["default", "x", "y"]}}},
            {"LOCKS": {"a": {"KIND": "read", "TIMESTAMP_KEY": "a"}}},
            {"LOCKS": {"a": {"TIMESTAMP_KEY": "a", "FRACTIONS": True}}},
            {"LOCKS": {"a": {"KIND": "redlock"}}},
            {"LOCKS": {"a": {"PREFIX": "x"}}},
            {"JOBS": 3},
            {"JOBS": {"a": {"EVERY": 0, "SCHEDUL": "* * * * *"}}},
        )
    ),
    ("E002", {**one(), **redislock(USING="locks")}),
    ("E002", {**one(), **redislock(LOCKS={"a": {"USING": "locks"}})}),
    ("E002", {"CACHES": {"default": MEMORY}}),
    ("E002", {"CACHES": {"default": MEMORY}, **redislock(TTL=5)}),
    ("E002", {**one(), **redislock(USING=":memory:")}),
    ("E002", one("nonsense")),
    ("E002", one("foo://")),
    ("E002", one(CONNECTION_POOL_CLASS="no.Such")),
    (
        "E002",
        {
            "CACHES": {"default": entry(), "b": entry(), "c": MEMORY, "d": entry("redis://x/7")},
            **redislock(LOCKS={"a": {"KIND": "redlock", "USING": ["b", "c", "d"]}}),
        },
    ),
    ("E004", redislock(AFTER_LOSS="wait", LOCKS={"a": {"KIND": "semaphore", "LIMIT": 3}})),
    ("E004", {**one(CONNECTION_FACTORY=CLUSTER), **redislock(AFTER_LOSS="wait")}),
    ("W001", redislock(LOCKS={"report:{report.pk}": {"TTL": 5}})),
    ("W001", redislock(LOCKS={"a\nb": {}})),
    *(
        ("W002", settings)
        for settings in (
            one(),
            one("redis://localhost:1"),
            one("redis://localhost:1/"),
            one("redis://localhost:1?db=0"),
            one("redis://ann:s3cret@localhost:1/0?health_check_interval=3"),
            one("rediss://:s3cret@localhost:1"),
            one("redis://localhost:1?db=0&password=s3cret"),
            one("unix:///nowhere"),
            one("unix:///nowhere?db=0"),
            one("unix://:s3cret@/nowhere"),
            one("unix:///nowhere?health_check_interval=3"),
            one([NOWHERE, "redis://replica:1/0"]),
            one("redis://:s3cret@localhost:1/0,redis://replica:1/0"),
            one("redis://localhost:1", PASSWORD="s3cret", KEY_PREFIX="x"),
            one("redis://localhost:1", DJANGO, db="0", password="s3cret"),
            {**one(), **redislock(TTL=5, LOCKS={"a": {"USING": "default"}})},
            {
                "CACHES": {"default": MEMORY, "locks": entry(), "other": entry()},
                **redislock(USING="locks"),
            },
            {"CACHES": {"default": entry(), "locks": entry("redis://localhost:1/1")}},
        )
    ),
    ("W003", apart(CONNECTION_POOL_KWARGS=NO_TIMEOUTS)),
    ("W004", apart(CONNECTION_POOL_KWARGS={"max_connections": 3})),
    ("W004", apart(f"{NOWHERE}?max_connections=3")),
    ("W005", apart(SOCKET_TIMEOUT=0.5, redislock={"REPLICAS": 1})),
    ("W005", apart(f"{NOWHERE}?socket_timeout=0.5", redislock={"REPLICAS": 1})),
    ("W005", apart("redis://:s3cret@localhost:1?socket_timeout=.5", redislock={"REPLICAS": 1})),
    ("W006", redislock(JOBS={"shop.*": {"ENABLED": False}})),
    ("W007", {"CACHES": {"default": {**entry(), "KEY_PREFIX": "shop"}}}),
    ("W007", {"CACHES": {"default": {**entry(), "KEY_PREFIX": "{shop}"}}, **redislock(TTL=5)}),
    ("W008", {"REDIS_LOCK": {"TTL": 5}}),
    ("W008", {"REDIS_LOCK": {"TTL": 5}, **redislock(WAIT=5)}),
    ("W009", {"DEBUG": True, **apart(redislock={"USING": ":memory:"}), **one()}),
    (
        "W010",
        {"CACHES": {"default": MEMORY | {"KEY_FUNCTION": "shop.keys.make"}, "locks": entry()}},
    ),
    ("W011", redislock(LOCKS={"once:*": {"UNAVAILABLE": "skip"}})),
    ("W011", redislock(LOCKS={"*": {"UNAVAILABLE": "run"}})),
    ("W011", redislock(UNAVAILABLE="run")),
    ("I103", redislock(LOCKS={"reprot:*": {"TTL": 5}})),
    ("I104", redislock(LOCKS={"zzz": {"TTL": 5}})),
]

NOT_PASTED = {
    "E003": "tests/test_advice.py has the messages about jobs",
    "E005": "a person writes the function",
    "E101": "a person starts the server",
    "E102": "a person upgrades the server",
    "W107": "what was lost is lost",
    "W108": "the next renewal mends it",
    "I101": "nothing is wrong",
    # With real servers:
    "E103": "tests/test_doctor.py::test_e103_a_replica",
    "E104": "tests/cluster/test_cluster.py::test_a_single_server_that_is_a_node",
    "E105": "tests/test_doctor.py::TestE105",
    "E106": "a person starts the server with another configuration",
    "E107": "tests/test_doctor.py::TestReplicas",
    "E108": "a person gives locks another server",
    "W101": "tests/test_doctor.py::TestW101",
    "W102": "tests/test_doctor.py::test_options_of_the_server",
    "W103": "tests/test_doctor.py::TestReplicas",
    "W104": "tests/test_doctor.py::TestReplicas",
    "W105": "a person lets the clocks be set",
    "W106": "tests/test_doctor.py::test_w106_clients",
    "W109": "tests/test_doctor.py::TestW109",
    "W110": "there is no newer release in a test",
    "W111": "permissions, as E105, or another server",
    "W112": "permissions, as E105, or another server",
    "W114": "tests/test_doctor.py::TestW114",
    "W113": "tests/test_hostile.py::TestTheLastFencingToken::test_it_can_not_be_read",
    "I102": "tests/test_doctor.py::TestE105",
    "I105": "tests/test_doctor.py::TestE105",
}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pool, no job and no template of another test."""
    monkeypatch.setattr(ConnectionFactory, "_pools", {})
    monkeypatch.setattr(registry, "_registry", {})
    monkeypatch.setattr(naming, "patterns", ("report:*",))


def found() -> list[Finding]:
    """What the checks and the doctor say, apart from what servers would say."""
    said = [*settings_findings()]
    if all(finding.alias for finding in said):
        said += [*job_findings(), *usage_findings()]
    return [*said, *(one for one in deployment_findings() if not one.id.endswith("E101"))]


def of(id: str) -> list[Finding]:
    try:
        return [finding for finding in found() if finding.id == f"redislock.{id}"]
    finally:
        # Django closes all caches when the settings change, and django-redis 6 makes a pool to
        # close it, also one that can't be made.
        for alias in settings.CACHES:
            with suppress(AttributeError):  # it was not made
                del caches[alias]


@pytest.mark.parametrize(
    ("id", "given"), FINDINGS, ids=lambda it: it if isinstance(it, str) else ""
)
def test_hints(id: str, given: dict[str, Any], settings: Any) -> None:
    """Each one is pasted at the end of the settings, and the finding does not come again; several
    findings with one id are pasted one after the other. No hint shows a password."""
    for name, value in given.items():
        setattr(settings, name, copy.deepcopy(value))
    assert of(id)
    before = copy.deepcopy(settings.CACHES)
    for _ in range(4):
        if not (left := of(id)):
            break
        assert "s3cret" not in left[0].hint
        paste(left[0].hint, settings)
    assert of(id) == []
    if id == "W002":
        same_server(before, settings.CACHES)


def same_server(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Each cache is what it was, and locks have the server that they had, with all options."""
    [(alias, its)] = [(alias, its) for alias, its in after.items() if before.get(alias) != its]
    old = before.get(alias, before["default"])
    with override_settings(CACHES={"old": old, "new": its}):
        pools = [server_of(name).shared_pool() for name in ("old", "new")]
    assert pools[0].connection_class == pools[1].connection_class
    options = ("host", "port", "path", "username", "password", "health_check_interval", *TIMEOUTS)
    for option in map(str.lower, options):
        assert len({pool.connection_kwargs.get(option) for pool in pools}) == 1
    assert {**old, **its, "LOCATION": None} == {**old, "LOCATION": None}


def test_each_finding_is_here() -> None:
    """A finding needs a hint that is pasted here or elsewhere, or a reason."""
    page = (ROOT / "docs" / "checks.md").read_text("utf-8")
    ids = set(re.findall(r"^\| `redislock\.(\w+)` ", page, re.MULTILINE))
    assert ids == {id for id, _ in FINDINGS} | NOT_PASTED.keys()
