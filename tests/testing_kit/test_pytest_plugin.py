"""The plugin, in projects of their own, beside pytest-django and pytest-xdist."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from tests.testing_kit.conftest import Run

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

needs_fakeredis = pytest.mark.skipif(
    "not __import__('importlib.util').util.find_spec('fakeredis')"
)

LOCKS = """
import pytest
from django.test import TestCase
from django_redislock import redis_lock

def test_one():
    assert redis_lock("invoice:42").acquire(wait=0)

def test_two():
    assert redis_lock("invoice:42").acquire(wait=0)

class Tests(TestCase):
    @classmethod
    def setUpTestData(cls):
        with redis_lock("data"):
            pass

    def test_sync(self):
        assert redis_lock("invoice:42").acquire(wait=0)

    async def test_async(self):
        assert await redis_lock("invoice:42").aacquire(wait=0)
"""


def test_it_does_nothing_unasked(run: Run) -> None:
    """The plugin imports neither Django, nor this package, nor redis; its fixture is there."""
    test = """
import sys

def test_imports():
    loaded = {name.partition(".")[0] for name in sys.modules}
    assert "django_redislock_pytest" in loaded
    assert not loaded & {"django_redislock", "redis", "django_redis", "fakeredis"}
    assert not [name for name in sys.modules if name.startswith("django.db")]
"""
    result = run("-p", "no:django", files={"test_it.py": test, "pytest.ini": "[pytest]\n"})
    result.assert_outcomes(passed=1)


def test_beside_pytest_django(run: Run) -> None:
    """pytest-django finds the settings first, and nothing is imported."""
    test = """
import sys

def test_imports(settings):
    assert settings.SECRET_KEY
    assert "django_redislock" not in sys.modules
"""
    run(files={"test_it.py": test}).assert_outcomes(passed=1)


@pytest.mark.parametrize("mode", ["free", pytest.param("memory", marks=needs_fakeredis)])
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_every_test(run: Run, mode: str, workers: tuple[str, ...]) -> None:
    """Plain tests, tests of a `TestCase`, async tests and class set-up have it. None of pytest's
    warnings is ours."""
    if workers:
        pytest.importorskip("xdist")
    ini = f"redislock = {mode}\nfilterwarnings = error::pytest.PytestWarning"
    result = run(*workers, files={"test_it.py": LOCKS}, ini=ini)
    result.assert_outcomes(passed=4)


@needs_fakeredis
def test_the_fixture(run: Run) -> None:
    """One test may have it, whatever the others have."""
    test = """
import pytest
from django.core.exceptions import ImproperlyConfigured
from django_redislock import redis_lock

@pytest.mark.parametrize("again", range(2))
def test_memory(redis_locks, again):
    lease = redis_lock("invoice:42", ttl=30).acquire(wait=0)
    redis_locks.advance(31)
    assert lease.state == "lost"

def test_another():
    with pytest.raises(ImproperlyConfigured):
        redis_lock("invoice:42").acquire()
"""
    run(files={"test_it.py": test}).assert_outcomes(passed=3)


def test_names_are_apart(
    run: Run,
    redis: Redis,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Two workers hold the same name on one Redis at once, even if a test overrides the settings.
    Keys of others are not touched."""
    pytest.importorskip("xdist")
    test = """
import os, pathlib, time, pytest
from django_redislock import redis_lock

@pytest.mark.parametrize("number", range(2))
def test_both(number, settings):
    settings.REDISLOCK = {"TTL": 60, "AFTER_LOSS": "wait"}
    with redis_lock("invoice:42", wait=0):
        here = pathlib.Path(os.environ["MEETING"])
        (here / str(number)).touch()
        give_up = time.monotonic() + 60
        while len(list(here.iterdir())) < 2:
            assert time.monotonic() < give_up
            time.sleep(0.01)
"""
    monkeypatch.setenv("REAL_REDIS", redis_server.url)
    monkeypatch.setenv("MEETING", str(tmp_path))
    redis.set("redislock:{invoice:42}", "somebody else", ex=600)
    result = run("-n", "2", files={"test_it.py": test}, ini="redislock = apart")
    result.assert_outcomes(passed=2)
    redis.delete("redislock:{invoice:42}")


def test_wrong_words(run: Run) -> None:
    """The error comes before any test."""
    result = run(files={"test_it.py": LOCKS}, ini="redislock = fre")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*redislock in the ini-file must be one of free, memory, apart*"])


def test_without_settings(run: Run) -> None:
    """Locks need Django's settings."""
    test = "def test_it(redis_locks): ..."
    result = run(files={"test_it.py": test, "pytest.ini": "[pytest]\n"})
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*set DJANGO_SETTINGS_MODULE*"])
