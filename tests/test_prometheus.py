"""django_redislock.contrib.prometheus: what is counted, and that no label is a name."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from redis import Redis

from django_redislock import (
    Lease,
    LeaseLost,
    LockNotAcquired,
    MultiLock,
    Semaphore,
    TimestampLock,
    redis_lock,
    signals,
)
from django_redislock.client import Lock as DropIn
from django_redislock.commands import LockedCommand
from django_redislock.contrib.held import OTHER, pattern
from django_redislock.contrib.prometheus import metrics
from django_redislock.contrib.prometheus.fleet import FAMILIES
from django_redislock.settings import naming
from django_redislock.signals import LockEvent
from django_redislock.testing import redis_unavailable
from django_redislock.transport.server import server_of_client
from django_redislock.views import lock_view
from tests.docs.world import examples
from tests.test_decorators import held_elsewhere
from tests.test_learned import listens, waits
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "metrics.md"

named = override_settings(REDISLOCK={"LOCKS": {"job": {}, "job:*": {}}})
"""The names of these tests have patterns."""


@pytest.fixture(autouse=True)
def _known_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had been decorated yet."""
    monkeypatch.setattr(naming, "patterns", ())


@pytest.fixture(autouse=True)
def _connected() -> Iterator[None]:
    """All metrics begin at zero, and are switched off again."""
    gc.collect()  # leases that earlier tests have dropped
    for metric in (
        metrics.ATTEMPTS,
        metrics.WAIT,
        metrics.HOLD,
        metrics.HANDOVERS,
        metrics.UNKNOWN,
        metrics.UNLOCKED,
        metrics.LOST,
        metrics.ACTIVE,
    ):
        metric.clear()
    metrics._active._forget()
    signals.observe(metrics.count)
    with named:
        yield
    signals.unobserve(metrics.count)


def value(metric: str, lock: str = "job", using: str = "default", **labels: str) -> float:
    found = REGISTRY.get_sample_value(metric, {"lock": lock, "using": using, **labels})
    return 0.0 if found is None else found


def attempts(outcome: str, lock: str = "job") -> float:
    return value("redislock_attempts_total", lock, outcome=outcome)


def active(lock: str = "job", using: str = "default") -> float:
    return value("redislock_active", lock, using)


def exposed() -> set[str]:
    """All values of the label `lock`."""
    text = generate_latest(REGISTRY).decode()
    return set(re.findall(r'^redislock_.*[{,]lock="([^"]*)"', text, re.MULTILINE))


class TestMetrics:
    def test_a_block(self) -> None:
        """A block is one attempt, and one active lock while it runs; then its wait and hold are
        counted."""
        with redis_lock("job"):
            assert (attempts("acquired"), active()) == (1, 1)
            assert value("redislock_hold_seconds_count") == 0
        assert (attempts("acquired"), attempts("conflict"), active()) == (1, 0, 0)
        assert value("redislock_wait_seconds_count", outcome="acquired") == 1
        assert 0 <= value("redislock_wait_seconds_sum", outcome="acquired") < PATIENCE
        assert value("redislock_hold_seconds_count") == 1
        assert 0 < value("redislock_hold_seconds_sum") < PATIENCE

    def test_handovers(self, redis: Redis) -> None:
        """What was acquired after a wait is counted by the way in which the waiter learned it."""
        with ThreadPoolExecutor(1) as threads:
            with redis_lock("job"):
                waiter = threads.submit(waits)
                listens(redis)
            waiter.result(PATIENCE)
            redis_lock("job", ttl=1, renew=False).acquire()
            threads.submit(waits).result(PATIENCE)
        ways = {
            way: value("redislock_handovers_total", wakeup=way)
            for way in ("process", "message", "poll")
        }
        assert ways == {"process": 1, "message": 0, "poll": 1}
        assert attempts("acquired") == 4

    def test_unknown(self) -> None:
        """A renewal without an answer is counted once, until one succeeds."""
        with redis_lock("job") as lease:
            assert value("redislock_unknown_total") == 0
            assert 'redislock_unknown_total{lock="job"' in generate_latest(REGISTRY).decode()
            lease._lifetime.unknown()
            lease._lifetime.unknown()
            assert value("redislock_unknown_total") == 1
        assert value("redislock_lost_total") == 0

    def test_unlocked(self) -> None:
        """A block that runs without its lock is counted, and is neither an attempt nor a hold."""
        lock = redis_lock("job", unavailable="run")
        with lock:
            assert value("redislock_unlocked_total") == 0
            assert 'redislock_unlocked_total{lock="job"' in generate_latest(REGISTRY).decode()
        before = attempts("acquired"), attempts("conflict")
        with redis_unavailable(), lock:
            assert value("redislock_unlocked_total") == 1
            assert active() == 0
        assert (attempts("acquired"), attempts("conflict")) == before

    @pytest.mark.parametrize(
        "lock", [TimestampLock("job"), MultiLock(["job"]), Semaphore("job", 3)], ids=repr
    )
    def test_other_kinds(self, lock: redis_lock) -> None:
        """Other kinds are active while they are held."""
        with lock:
            assert active() == 1
        assert active() == 0

    def test_an_async_block(self) -> None:
        """An asynchronous block is counted in the thread of its event loop."""
        threads = []

        def where(event: LockEvent) -> None:
            threads.append(threading.current_thread())

        async def block() -> None:
            async with redis_lock("job"):
                assert active() == 1

        signals.observe(where)
        try:
            asyncio.run(block())
        finally:
            signals.unobserve(where)
        assert (attempts("acquired"), active()) == (1, 0)
        assert value("redislock_hold_seconds_count") == 1
        assert threads == [threading.main_thread()] * 2

    def test_conflicts(self) -> None:
        """A conflict is an attempt with its own outcome, and with the time waited in vain."""
        with held_elsewhere():
            assert redis_lock("job").acquire(wait=0) is None
            with pytest.raises(LockNotAcquired), redis_lock("job", wait=0.05):
                pass
            asyncio.run(redis_lock("job").aacquire(wait=0))
            assert active() == 1
        assert (attempts("acquired"), attempts("conflict")) == (1, 3)
        assert 0.05 <= value("redislock_wait_seconds_sum", outcome="conflict") < PATIENCE
        assert value("redislock_hold_seconds_count") == 1

    def test_a_lost_lock(self, redis: Redis) -> None:
        """A lost lock was held and is no longer active. Before the loss, the counter is 0 and not
        absent."""
        with pytest.raises(LeaseLost):
            with redis_lock("job", ttl=0.3):
                labels = {"lock": "job", "using": "default"}
                assert REGISTRY.get_sample_value("redislock_lost_total", labels) == 0
                redis.delete("redislock:{job}")
                eventually(lambda: value("redislock_lost_total") == 1)
                eventually(lambda: active() == 0)
        assert value("redislock_lost_total") == 1
        assert value("redislock_hold_seconds_count") == 1
        assert active() == 0

    def test_a_cleared_lock(self) -> None:
        """A cleared lock is lost once, in the process of its holder."""
        lease = redis_lock("job", ttl=0.3).acquire()
        redis_lock("job").clear(reason="stuck")
        eventually(lambda: lease.state == "lost" and active() == 0)
        assert value("redislock_lost_total") == 1
        assert value("redislock_hold_seconds_count") == 1

    def test_threads(self) -> None:
        """Nothing is counted twice or forgotten."""

        def work(number: int) -> None:
            for _ in range(20):
                with redis_lock(f"job:{number}"):
                    pass

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert attempts("acquired", "job:*") == 160
        assert value("redislock_hold_seconds_count", "job:*") == 160
        assert active("job:*") == 0


class TestActive:
    def test_exported(self) -> None:
        """An exported lease does not stay active, and restoring one does not count below zero."""
        lease = redis_lock("job").acquire()
        restored = Lease.restore(lease.export())
        del lease
        gc.collect()
        restored.release()
        assert active() == 0
        assert value("redislock_hold_seconds_count") == 1

    def test_dropped(self, caplog: pytest.LogCaptureFixture) -> None:
        """A dropped lease is no longer active after the next event."""
        caplog.set_level(logging.CRITICAL, "django_redislock")
        assert redis_lock("job").acquire() is not None
        gc.collect()
        with redis_lock("job:2"):
            pass
        assert active() == 0

    def test_settings_that_change(self) -> None:
        """A lock ends under the label under which it began."""
        lease = redis_lock("job").acquire()
        with override_settings(REDISLOCK={}):
            lease.release()
        assert active() == 0
        assert exposed() == {"job", OTHER}

    def test_the_drop_in(self, redis: Redis) -> None:
        """A lock that is renewed is active; one that just expires is not."""
        using = server_of_client(redis).using
        lock = redis.lock("job", lock_class=DropIn)
        lock.acquire()
        assert active(using=using) == 1
        lock.release()
        lock = redis.lock("job", timeout=10, lock_class=DropIn)
        lock.acquire()
        assert active(using=using) == 0
        lock.release()
        assert active(using=using) == 0
        assert value("redislock_hold_seconds_count", using=using) == 2

    def test_after_fork(self) -> None:
        """A child that drops its parent's lease does not end it."""
        lease = redis_lock("job").acquire()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                del lease
                gc.collect()
                with redis_lock("job:2"):
                    pass
                os.write(write, f"{active():g} {active('job:*'):g}".encode())
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read) as told:
            assert told.read() == "1 0"
        assert active() == 1
        lease.release()
        assert active() == 0


class TestLabels:
    def test_entries_of_locks(self) -> None:
        """The exact name comes first, then the longest pattern, as for settings."""
        locks: dict[str, Any] = {"job:*": {}, "job:7": {"TTL": 5}, "job:big:*": {}}
        with override_settings(REDISLOCK={"LOCKS": locks}):
            assert [pattern(f"job:{rest}") for rest in ("7", "8", "big:8")] == [
                "job:7",
                "job:*",
                "job:big:*",
            ]

    def test_templates(self) -> None:
        """A lock has the label of a template that matches its name, wherever it is taken; an entry
        of LOCKS comes first."""

        @redis_lock("report:{pk}")
        def report(pk: int) -> None: ...

        @redis_lock("report:{kind}:{pk:>5}")
        def special(kind: str, pk: int) -> None: ...

        @redis_lock("odd[1]:{pk}")
        def odd(pk: int) -> None: ...

        report(1)
        with redis_lock("report:2"):
            pass
        special("big", 3)
        odd(4)
        assert exposed() == {"report:*", "report:*:*", "odd[[]1]:*"}
        assert attempts("acquired", "report:*") == 2
        with override_settings(REDISLOCK={"LOCKS": {"rep*": {}}}):
            assert pattern("report:1") == "rep*"

    def test_views_and_commands(self) -> None:
        """Their templates count, too."""

        class Import(LockedCommand):
            lock_name = "import:{source}"

            def add_arguments(self, parser: Any) -> None:
                parser.add_argument("source")

            def handle(self, *args: Any, **options: Any) -> None:
                assert active("import:*") == 1

        lock_view("checkout:{pk}")(lambda request, pk: None)
        call_command(Import(), "bank")
        assert pattern("checkout:3") == "checkout:*"
        assert exposed() == {"import:*"}

    def test_a_dotted_path(self) -> None:
        """A function without a name for its lock is its own label."""

        @redis_lock()
        def nightly() -> None: ...

        nightly()
        (path,) = exposed()
        assert path.endswith("test_a_dotted_path.locals.nightly")

    def test_names_are_no_labels(self) -> None:
        """A name without a pattern is never a label."""
        redis_lock("secret")(lambda: None)()
        redis_lock(lambda pk: f"secret:{pk}")(lambda pk: None)(3)
        with held_elsewhere("secret:4"):
            redis_lock("secret:4").acquire(wait=0)
        with redis_lock("ada@example.org"):
            pass
        assert exposed() == {OTHER}
        text = generate_latest(REGISTRY).decode()
        assert "secret" not in text
        assert "ada" not in text

    def test_the_cap(self) -> None:
        """Templates that a program makes up become at most a hundred labels."""
        for number in range(150):
            redis_lock(f"tenant-{number}:{{pk}}")(lambda pk: None)
            redis_lock("again:{pk}")(lambda pk: None)
        assert len(naming.patterns) == naming.MAX_PATTERNS == 100
        assert pattern("tenant-3:1") == "tenant-3:*"
        assert {pattern(f"tenant-{number}:1") for number in range(99, 150)} == {OTHER}
        assert pattern("again:1") == "again:*"


class TestSwitch:
    def test_one_that_raises(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An error of the counting is logged, and the block has its lock."""

        def bad(name: str) -> str:
            raise RuntimeError("no label")

        monkeypatch.setattr(metrics, "pattern", bad)
        with redis_lock("job") as lease:
            lease.check()
        assert [record.getMessage() for record in caplog.records if record.exc_info] == [
            "An observer of 'acquired' failed for 'job'",
            "An observer of 'released' failed for 'job'",
        ]

    def test_connected_once(self) -> None:
        """Switching on twice counts once, and off is off."""
        signals.observe(metrics.count)
        with redis_lock("job"):
            pass
        assert attempts("acquired") == 1
        signals.unobserve(metrics.count)
        assert not signals.wanted("acquired")
        with redis_lock("job"):
            pass
        assert attempts("acquired") == 1

    def test_installed_apps(self) -> None:
        """INSTALLED_APPS switches it on."""
        told = run_setup("import django_redislock.signals as s; print(len(s.observers))")
        assert told == "2"

    @pytest.mark.parametrize(
        ("app", "module", "package"),
        [
            ("prometheus", "prometheus_client", "prometheus-client"),
            ("opentelemetry", "opentelemetry", "opentelemetry-api"),
        ],
    )
    def test_without_the_library(self, app: str, module: str, package: str) -> None:
        """The error says what to install."""
        with pytest.raises(subprocess.CalledProcessError) as failed:
            run_setup("", missing=module)
        assert (
            f"ImproperlyConfigured: 'django_redislock.contrib.{app}' is in INSTALLED_APPS and "
            f"needs {package}: python -m pip install 'django-redislock[{app}]'"
        ) in failed.value.stderr

    def test_locks_need_no_library(self) -> None:
        """Without the app, its library is not imported. (redis-py looks for opentelemetry.)"""
        told = run(
            "import sys\nsys.modules['prometheus_client'] = sys.modules['opentelemetry'] = None\n"
            "import django\ndjango.setup()\nimport django_redislock.client\n"
            "print({name.split('.')[2] for name in sys.modules "
            "if name.startswith('django_redislock.contrib.')})"
        )
        assert told == "{'once'}"  # of the settings of the tests


def run(program: str, **environ: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", **environ},
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    ).stdout.strip()


def run_setup(then: str, *, missing: str = "", **environ: str) -> str:
    """Set up a project with the INSTALLED_APPS of the page."""
    apps = example("INSTALLED_APPS = ").replace("...,", "'django_redislock',")
    return run(
        f"import sys\nif {missing!r}: sys.modules[{missing!r}] = None\n"
        f"{apps}\n"
        f"import tests.settings as settings\nsettings.INSTALLED_APPS = INSTALLED_APPS\n"
        f"import django\ndjango.setup()\n{then}",
        **environ,
    )


def test_multiprocess(tmp_path: Path) -> None:
    """In that mode living processes are summed up, and a forked child starts at zero."""
    told = run_setup(
        """
import os
from django_redislock import redis_lock
from django_redislock.transport.server import server_of_client
from prometheus_client import CollectorRegistry, multiprocess

def active():
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    labels = {"lock": "other", "using": "default"}
    return int(registry.get_sample_value("redislock_active", labels))

held = redis_lock("parent").acquire()
print(active())
ready, wrote = os.pipe()
go, goes = os.pipe()
child = os.fork()
if not child:
    with redis_lock("child"):
        os.write(wrote, b"1")
        os.read(go, 1)
    held = redis_lock("child").acquire()
    os._exit(0)
os.read(ready, 1)
print(active())
os.write(goes, b"1")
os.waitpid(child, 0)
print(active())
multiprocess.mark_process_dead(child)
print(active())
held.release()
print(active())
""",
        PROMETHEUS_MULTIPROC_DIR=str(tmp_path),
    )
    assert told.split() == ["1", "2", "2", "1", "0"]


def example(begin: str) -> str:
    """The first example of the page that begins so."""
    return next(code for code in examples("docs/metrics.md") if code.startswith(begin))


def ours() -> Iterator[tuple[str, tuple[str, ...]]]:
    """All metrics, with their labels: those of a process, and those of the fleet."""
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            yield metric._name + "_total" * (metric._type == "counter"), metric._labelnames
    for name, (_, labels) in FAMILIES.items():
        yield name, labels


class TestThePage:
    def test_the_settings(self) -> None:
        """An entry of LOCKS is a pattern."""
        names: dict[str, Any] = {}
        exec(example("REDISLOCK = "), names)
        with override_settings(REDISLOCK=names["REDISLOCK"]):
            assert pattern("invoice:42") == "invoice:*"
            assert pattern("nightly-import") == "nightly-import"

    def test_the_table(self) -> None:
        """Each metric has a line with its labels, and no others are mentioned."""
        page = PAGE.read_text()
        labels = dict(ours())
        for name, its in labels.items():
            line = next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))
            assert line.endswith(f"| {', '.join(f'`{label}`' for label in its)} |")
        mentioned = set(re.findall(r"redislock_\w+", page))
        assert {name.removesuffix("_bucket") for name in mentioned} == labels.keys()
