"""LOCATION may hold a password, which no error shows."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_redislock import LockUnavailable, redis_lock
from django_redislock.transport.entries import location_of
from tests.caches import caches as entries
from tests.crash import report

URLS = [
    "redis://:s3cr{}et@localhost:6379/0",
    "redis://:31337{}s3cret@localhost:6379/0",
    "rediss://user:s3cr{}et@localhost:6379/0",
    "redis://s3cr{}et@localhost",
    "unix://:s3cr{}et@/tmp/redis.sock",
    "unix://s3cr{}et@/tmp/redis.sock?db=1",
]


def shown(call: Callable[[], Any]) -> tuple[type[BaseException], int | None, str]:
    """What is raised, its exit code, and what a crash reporter shows of it."""
    try:
        call()
    except BaseException as error:
        return type(error), getattr(error, "returncode", None), report(error)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("special", "/#?")
@pytest.mark.parametrize("url", URLS)
def test_a_password_that_is_not_encoded(url: str, special: str) -> None:
    """An error says what to write and shows nothing of LOCATION, wherever it is needed."""
    calls = [
        lambda: redis_lock("job", wait=0).acquire(),
        lambda: asyncio.run(redis_lock("job", wait=0).aacquire()),
    ]
    with override_settings(CACHES=entries(url.format(special))):
        for call in calls:
            kind, _, text = shown(call)
            assert kind is ImproperlyConfigured
            assert "CACHES['default']['LOCATION'] must be a URL" in text
            assert "s3cr" not in text
            assert "31337" not in text


@pytest.mark.parametrize(
    "command",
    [
        ["list"],
        ["show", "job"],
        ["clear", "job", "--reason", "test"],
        ["run", "job", "--", sys.executable, "-c", ""],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("special", "/#?")
def test_commands(command: list[str], special: str, capfd: pytest.CaptureFixture[str]) -> None:
    """They exit with 78, and show nothing of LOCATION."""
    with override_settings(CACHES=entries(URLS[0].format(special))):
        kind, code, text = shown(lambda: call_command("redislock", *command))
    assert kind is CommandError
    assert code == 78
    assert "s3cr" not in text + "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("foo://", {}, "schemes"),
        ("foo://user:s3cret@localhost/0", {}, "schemes"),
        ("redis://user:s3cret@localhost", {"CONNECTION_POOL_CLASS": "no.Such"}, "named 'no'"),
        ("redis://user:s3cret@localhost", {"CONNECTION_FACTORY": "no.Such"}, "named 'no'"),
        (
            "redis://user:s3cret@localhost",
            {"CONNECTION_POOL_KWARGS": {"max_connections": "many"}},
            "max_connections",
        ),
    ],
)
@pytest.mark.parametrize(
    "use",
    [
        lambda: redis_lock("job", wait=0).acquire(),
        lambda: asyncio.run(redis_lock("job", wait=0).aacquire()),
        lambda: call_command("redislock", "list"),
        lambda: call_command("redislock", "run", "job", "--", sys.executable, "-c", ""),
    ],
    ids=["acquire", "aacquire", "list", "run"],
)
def test_an_entry_of_which_no_pool_can_be_made(
    use: Callable[[], Any], url: str, options: dict[str, Any], why: str
) -> None:
    """Whatever its classes raise, the settings are wrong: commands exit with 78, and no password
    is shown."""
    with override_settings(CACHES=entries(url, **options)):
        kind, code, text = shown(use)
        with suppress(AttributeError):  # made in an event loop, or not at all
            del caches["default"]
    assert (kind, code) in ((ImproperlyConfigured, None), (CommandError, 78))
    assert "CACHES['default'] can't be used for locks: " in text
    assert why in text
    assert "s3cr" not in text


@pytest.mark.django_db(databases="__all__")  # Django 6.1 asks them when it checks models
@pytest.mark.parametrize("special", "/#?")
@pytest.mark.parametrize("command", [["check"], ["redislock", "doctor"]], ids=" ".join)
def test_findings(command: list[str], special: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The check and the doctor find it, and show nothing of it either."""
    with override_settings(CACHES=entries(URLS[0].format(special))):
        kind, _, text = shown(lambda: call_command(*command))
    text += "".join(capfd.readouterr())
    assert issubclass(kind, CommandError)
    assert "redislock.E002" in text
    assert "s3cr" not in text


def test_a_node_of_a_cluster() -> None:
    """Its URL is no exception; nor is it shown when it can't be a node's, or the nodes' databases
    differ."""
    factory = "django_redislock.cluster.ClusterConnectionFactory"
    with override_settings(CACHES=entries(URLS[0].format("/"), CONNECTION_FACTORY=factory)):
        kind, _, text = shown(lambda: redis_lock("job", wait=0).acquire())
        assert kind is ImproperlyConfigured
        assert "s3cr" not in text
    for url, said in (
        ("unix:///tmp/redis.sock?password=s3cret", "'unix:///tmp/redis.sock' can't be a node"),
        (
            ["redis://user:s3cret@localhost/3", "redis://user:s3cret@127.0.0.1"],
            r"names the databases \[0, 3\]",
        ),
    ):
        with override_settings(CACHES=entries(url, CONNECTION_FACTORY=factory)):
            with pytest.raises(ImproperlyConfigured, match=said) as caught:
                redis_lock("job", wait=0).acquire()
            assert "s3cr" not in str(caught.value)


def test_a_database_of_a_cluster_for_the_cache() -> None:
    """Locks can use it; redis-py's client of a cluster, which a project's cache uses, can't."""
    factory = "django_redislock.cluster.ClusterConnectionFactory"
    url = "redis://user:s3cret@localhost:1/3"
    with override_settings(CACHES=entries(url, CONNECTION_FACTORY=factory)):
        with pytest.raises(ImproperlyConfigured, match="can't use database 3 of a cluster"):
            caches["default"].get("key")
        with pytest.raises(LockUnavailable, match="Connection refused"):
            redis_lock("job", wait=0).acquire()


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("redis://localhost", "localhost:6379"),
        ("redis://:s3cret@localhost:6380/2", "localhost:6380"),
        ("redis://user:s3%2F%23%3F%40cret@[::1]:6379", "[::1]:6379"),
        ("rediss://:p@ss@redis.example.com/0?ssl_cert_reqs=none#1", "redis.example.com:6379"),
        ("unix:///tmp/redis.sock?db=3", "/tmp/redis.sock"),
        ("unix:///tmp/a@b.sock?password=p@ss", "/tmp/a@b.sock"),
        ("unix://user:s3cret@/tmp/redis.sock", "/tmp/redis.sock"),
        ("redis://localhost/0?username=a@b&password=s3cret", "localhost:6379"),
    ],
)
def test_what_can_be_read(url: str, where: str) -> None:
    """All that redis-py understands: the host is shown, and who logs in is not."""
    its = location_of(url)
    assert its is not None
    assert its.where == where
    assert "s3" not in its.address
    assert "p@ss" not in its.address


def test_addresses_differ() -> None:
    """In the password, too, which they don't show."""
    urls = ["redis://:a@localhost", "redis://:b@localhost", "redis://localhost/1"]
    assert len({its.address for url in urls if (its := location_of(url))}) == len(urls)
