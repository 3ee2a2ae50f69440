"""`SCOPE`: each tenant has names of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from redis import Redis

from django_redislock import (
    Lease,
    LeaseRevoked,
    LockNotAcquired,
    LockOrderError,
    LockReentered,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    TimestampLock,
    current_lease,
    deduplicate,
    held,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.commands import LockedCommand
from django_redislock.contrib.held import pattern
from django_redislock.inspection import Inspector
from django_redislock.lease.lock import Lock
from django_redislock.periodic.job import Job
from django_redislock.settings import conf, naming
from django_redislock.testing import (
    assert_held,
    assert_locked,
    check_lock_order,
    locks_always_busy,
)
from django_redislock.views import idempotent_view, lock_view
from tests.contract.api import Api, elsewhere
from tests.operations.calling import call
from tests.periodic.conftest import Make, make, registry  # noqa: F401  # fixtures
from tests.test_decorators import held_elsewhere

tenant: Any = None
"""The present one, in all threads: what a project finds out from the request."""


def scope() -> Any:
    if isinstance(tenant, Exception):
        raise tenant
    return tenant


@contextmanager
def of(name: Any) -> Iterator[None]:
    """Work for a tenant."""
    global tenant
    before, tenant = tenant, name
    try:
        yield
    finally:
        tenant = before


def asked_by(*tenants: Any, of_function: Callable[..., Any], by: Api | None = None) -> list[Any]:
    """What a function returns for one tenant after the other."""
    answers = []
    for name in tenants:
        with of(name):
            answers.append(of_function() if by is None else by.call(of_function))
    return answers


@pytest.fixture(autouse=True)
def scoped(settings: Any, redis: Redis) -> Redis:
    settings.REDISLOCK = {"SCOPE": f"{__name__}.scope", "LOCKS": {"shared:*": {"SCOPE": None}}}
    return redis


def names(redis: Redis) -> set[str]:
    """What is locked."""
    keys = (key.decode() for key in redis.keys("redislock:{*}"))
    return {key.removeprefix("redislock:{").removesuffix("}") for key in keys}


KINDS = [
    pytest.param(redis_lock, id="redis_lock"),
    pytest.param(lambda name, **options: Semaphore(name, 1, **options), id="Semaphore"),
    pytest.param(lambda name, **options: ReadWriteLock(name, **options).write(), id="write"),
    pytest.param(lambda name, **options: MultiLock([name], **options), id="MultiLock"),
]


class TestLocks:
    @pytest.mark.parametrize("kind", KINDS)
    def test_each_tenant_has_its_own(self, kind: Any, api: Api, redis: Redis) -> None:
        """One lock object is the lock of whichever tenant takes it."""
        lock = kind("invoice:42")
        with of("acme"):
            lease = api.acquire(lock)
            assert elsewhere(api, lock).result() is None
        with of("beta"):
            other = elsewhere(api, lock).result()
            assert not api.locked(kind("invoice:43"))
            assert api.locked(lock)
        assert not api.locked(lock)
        assert (lease.name, other.name) == ("acme/invoice:42", "beta/invoice:42")
        assert {"acme/invoice:42", "beta/invoice:42"} >= names(redis)
        api.release(lease)
        api.release(other)

    @pytest.mark.parametrize("kind", KINDS)
    def test_without_a_scope(self, kind: Any, api: Api) -> None:
        """No tenant, an argument and an entry of LOCKS lead to the same lock for all."""
        locks = {None: kind("job"), "acme": kind("job", scope=None), "beta": kind("shared:1")}
        for name, lock in locks.items():
            with of(name):
                lease = api.acquire(lock)
            assert lease.name in ("job", "shared:1")
            api.release(lease)

    def test_clearing(self, api: Api) -> None:
        """A lock is cleared for the present tenant."""
        lock = redis_lock("job")
        with of("acme"):
            lease = api.acquire(lock)
        with of("beta"):
            assert api.clear(lock, reason="stuck") is None
        with of("acme"):
            assert api.clear(lock, reason="stuck") is not None
        with pytest.raises(LeaseRevoked, match="acme/job"):
            api.extend(lease)

    def test_two_tenants_in_one_thread(self) -> None:
        """A thread that holds the lock of one tenant may take that of another one."""
        with of("acme"), redis_lock("job"):
            with of("beta"), redis_lock("job"):
                pass
            with pytest.raises(LockReentered):
                redis_lock("job").acquire()

    def test_a_decorator(self) -> None:
        """The tenant of the call counts, not that of the import."""
        with of("acme"):
            work = redis_lock("job:{pk}")(lambda pk: current_lease().name)
        names = asked_by("beta", None, of_function=lambda: work(7))
        assert names == ["beta/job:7", "job:7"]

    def test_several_names(self) -> None:
        """Code finds its fencing tokens by the names that it has written."""
        with of("acme"), MultiLock(["b:1", "a/1", "shared:1"]) as lease:
            assert [*lease.fencing_tokens] == ["a/1", "b:1", "shared:1"]
            assert lease.name == "acme/a/1, acme/b:1, shared:1"
        with of("acme"), MultiLock(["a/1", "b"], scope=None) as lease:
            assert [*lease.fencing_tokens] == ["a/1", "b"]
        with of("acme"), redis_lock("a/1") as lease:
            assert [*lease.fencing_tokens] == ["a/1"]

    def test_an_exported_lease(self, api: Api) -> None:
        """It is the same lease wherever it is restored."""
        with of("acme"):
            text = api.acquire(redis_lock("job")).export()
        with of("beta"):
            lease = api.restore(text)
        assert lease.name == "acme/job"
        api.release(lease)

    def test_keys_of_old_clients(self, redis: Redis) -> None:
        """A timestamp lock has the key that old clients know, whoever takes it."""
        with of("acme"), TimestampLock("lock.job"):
            assert redis.exists("lock.job")
        with of("acme"), redis_lock("job", timestamp_key="lock.{name}") as lease:
            assert lease.name == "acme/job"
            assert redis.exists("lock.job")


class TestRecords:
    """Each tenant does it once, and none gets the results of another."""

    @pytest.mark.parametrize("kind", [once, deduplicate])
    def test_once(self, kind: Any, api: Api) -> None:
        """Work that one tenant has done is not done for the others."""
        run = kind("seed")
        seeded = run(api.function(lambda: f"seeded {tenant}"))
        answers = asked_by("acme", "beta", "acme", of_function=seeded, by=api)
        assert answers == ["seeded acme", "seeded beta", None]
        with of("acme"):
            api.forget(run)
        assert asked_by("acme", "beta", of_function=seeded, by=api) == ["seeded acme", None]
        shared = kind("seed", scope=None)(api.function(lambda: f"seeded {tenant}"))
        assert asked_by("acme", "beta", of_function=shared, by=api) == ["seeded acme", None]

    def test_single_flight(self, api: Api) -> None:
        """A result is for the callers of one tenant."""
        rates = single_flight("rates", ttl=60)(api.function(lambda: tenant))
        answers = asked_by("acme", "beta", "acme", of_function=rates, by=api)
        assert answers == ["acme", "beta", "acme"]
        shared = single_flight("rates", ttl=60, scope=None)(api.function(lambda: tenant))
        assert asked_by("acme", "beta", of_function=shared, by=api) == ["acme", "acme"]

    def test_initialise(self, api: Api) -> None:
        """Each tenant has a first value."""
        salts = asked_by(
            "acme", "beta", "acme", of_function=lambda: api.initialise("salt", f"of {tenant}")
        )
        assert salts == ["of acme", "of beta", "of acme"]
        shared = asked_by(
            "acme", "beta", of_function=lambda: api.initialise("salt", tenant, scope=None)
        )
        assert shared == ["acme", "acme"]

    def test_wrong_arguments(self, api: Api) -> None:
        """An argument can only leave the scope out."""
        for kind in (redis_lock, once, single_flight, MultiLock, lock_view):
            with pytest.raises(TypeError, match=r"^scope must be None.*REDISLOCK\['SCOPE'\]$"):
                kind(["job"] if kind is MultiLock else "job", scope="acme")
        with pytest.raises(TypeError, match=r"^scope must be None"):
            api.initialise("salt", 1, scope="acme")


def request(**headers: str) -> HttpRequest:
    its = RequestFactory().post("/", headers=headers)
    its.user = User(pk=1)
    return its


class TestViews:
    def test_stored_responses(self) -> None:
        """User 1 of a tenant does not get the response of user 1 of another, at the same host."""

        def order(request: HttpRequest) -> HttpResponse:
            return HttpResponse(f"order of {tenant}")

        def ask(view: Any) -> bytes:
            return view(request(idempotency_key="1")).content  # type: ignore[no-any-return]

        view = idempotent_view()(order)
        answers = asked_by("acme", "beta", "acme", of_function=lambda: ask(view))
        assert answers == [b"order of acme", b"order of beta", b"order of acme"]
        of_key = idempotent_view(scope=lambda request: "me")(order)
        answers = asked_by("acme", "beta", of_function=lambda: ask(of_key))
        assert answers == [b"order of acme", b"order of beta"]
        shared = idempotent_view(scope=None)(order)
        answers = asked_by("acme", "beta", of_function=lambda: ask(shared))
        assert answers == [b"order of acme", b"order of acme"]

    @pytest.mark.parametrize(("options", "status"), [({}, 200), ({"scope": None}, 409)])
    def test_locked_views(self, options: Any, status: int) -> None:
        """A view is locked for one tenant."""
        view = lock_view("job", **options)(lambda request: HttpResponse())
        with of(None), held_elsewhere("job"), of("acme"):
            assert view(request()).status_code == status


class Nightly(LockedCommand):
    def handle(self, *args: Any, **options: Any) -> str:
        return current_lease().name


class TestCommands:
    def test_locked_commands(self) -> None:
        """A command runs once for each tenant."""
        command = Nightly()
        said = asked_by("acme", None, of_function=lambda: call_command(command))
        assert said == ["acme/command:test_tenants", "command:test_tenants"]
        command.lock_options = {"scope": None}
        assert asked_by("acme", of_function=lambda: call_command(command)) == [
            "command:test_tenants"
        ]

    def test_what_operators_see(self) -> None:
        """A list has the locks of all tenants, by the names that the other commands take."""
        with of("acme"):
            lease = redis_lock("job").acquire()
        [listed] = call("list", "--pattern", "acme/*", "--json").json["items"]
        assert listed["name"] == "acme/job"
        assert call("show", "acme/job").out.startswith("acme/job on 'default'\nHeld by ")
        assert call("clear", "acme/job", "--yes", "--reason", "stuck").code == 0
        with pytest.raises(LeaseRevoked, match="stuck"):
            lease.extend()

    @pytest.mark.parametrize("name", ["acme/report:1", "report:1"])
    def test_settings(self, name: str, settings: Any) -> None:
        """Patterns match what the code writes, and an operator may write both."""
        report = {"TTL": 7, "USING": "locks"}
        settings.CACHES = {**settings.CACHES, "locks": settings.CACHES["default"]}
        settings.REDISLOCK |= {"LOCKS": {"*": {"TTL": 3}, "report:*": report}}
        with of("acme"), redis_lock("report:1") as lease:
            assert lease.ttl == 7
        found = call("config", name, "--json").json["settings"]
        assert found["TTL"] == {"value": 7.0, "source": "LOCKS", "entry": "report:*"}
        assert call("show", name, "--json").json["using"] == "locks"

    def test_a_name_with_a_slash(self, settings: Any) -> None:
        """If its entry has no scope, the slash is a part of the name."""
        settings.REDISLOCK |= {"LOCKS": {"files/*": {"TTL": 7}, "a": {"SCOPE": None, "TTL": 5}}}
        assert conf.written("acme/files/1") == "files/1"
        assert conf.written("acme/a") == "acme/a"
        assert conf.written("acme/") == "acme/"

    def test_jobs(self, make: Make) -> None:  # noqa: F811
        """A tick is run once in the fleet, whoever is the present tenant."""
        job: Job = make(name="report")
        with of("acme"):
            assert job.keys.name == "periodic:report"

    def test_any_program(self, capfd: pytest.CaptureFixture[str]) -> None:
        """`redislock run` takes the name as a list shows it."""
        with of("acme"):
            call("run", "acme/job", "--", "sh", "-c", "echo $REDISLOCK_NAME")
        assert capfd.readouterr().out == "acme/job\n"


class TestOthers:
    def test_a_conflict(self, api: Api) -> None:
        """The error names the tenant, and so does the log."""
        lock = redis_lock("job", wait=0)
        with of("acme"):
            lease = api.acquire(lock)
            with pytest.raises(LockNotAcquired, match=r"^'acme/job' is held by") as raised:
                api.start(lambda: api.enter(lock, id)).result()
        assert raised.value.name == "acme/job"
        api.release(lease)

    def test_patterns_of_metrics(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A label of a metric is the pattern, not the tenant."""
        monkeypatch.setattr(naming, "patterns", ("job:*",))
        assert pattern("acme/job:7") == "job:*"

    def test_lock_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two orders are two orders, for whichever tenants."""
        monkeypatch.setattr(naming, "patterns", ())
        with check_lock_order():
            with of("acme"), redis_lock("a"), redis_lock("b"):
                pass
            with of("beta"), redis_lock("b"), pytest.raises(LockOrderError):
                redis_lock("a").acquire()

    def test_held(self) -> None:
        """The name is that of the present tenant, unless it names one."""
        with of("acme"), redis_lock("job") as lease, MultiLock(["a", "b"]) as both:
            assert held("job") is held("acme/job") is lease
            assert held("a") is both
            with of("beta"):
                assert held("job") is None
                assert held("acme/job") is lease

    def test_the_test_kit(self) -> None:
        """A test may name the tenant, or not."""
        with of("acme"):
            with assert_locked("job"), assert_locked("acme/job"), redis_lock("job"):
                assert_held("job")
                assert_held("acme/*")
                with pytest.raises(AssertionError):
                    assert_held("beta/job")
            with locks_always_busy("job"), pytest.raises(LockNotAcquired):
                redis_lock("job").__enter__()


class TestWrongScopes:
    @pytest.mark.parametrize(
        ("text", "error", "says"),
        [
            ("", ValueError, r"REDISLOCK\['SCOPE'\] must return a text without '/', or None"),
            ("a/b", ValueError, r"REDISLOCK\['SCOPE'\] must return a text without '/'.*'a/b'"),
            (7, TypeError, r"REDISLOCK\['SCOPE'\] must return a str, or None .*, not 7"),
            ("x" * 512, ValueError, "name has 516 characters"),
            ("a\nb", ValueError, "can't be printed"),
            ("a{b", ValueError, "brace"),
            (LookupError("no tenant"), LookupError, "no tenant"),
        ],
    )
    def test_what_it_returns(
        self, text: Any, error: type[Exception], says: str, api: Api, redis: Redis
    ) -> None:
        """Nothing is locked, and the error says whose fault it is."""
        with of(text), pytest.raises(error, match=says) as raised:
            api.acquire(redis_lock("job"))
        if text is raised.value:
            assert "REDISLOCK['SCOPE'] was asked for 'job'" in raised.value.__notes__[0]
        assert not names(redis)

    def test_a_path_that_leads_nowhere(self, settings: Any, api: Api) -> None:
        """The error names the setting."""
        settings.REDISLOCK = {"SCOPE": "shop.nowhere.scope"}
        with pytest.raises(ImproperlyConfigured, match=r"REDISLOCK\['SCOPE'\], 'shop.nowhere"):
            api.acquire(redis_lock("job"))

    def test_a_function_itself(self, settings: Any) -> None:
        """Settings may have the function instead of its path."""
        settings.REDISLOCK = {"SCOPE": lambda: "acme"}
        lease: Lease | None = redis_lock("job").acquire()
        assert lease is not None
        assert lease.name == "acme/job"
        assert Inspector().get("acme/job") is not None
        lease.release()

    def test_it_is_asked_when_the_lock_is_used(self, settings: Any) -> None:
        """And not when the lock is made."""
        settings.REDISLOCK = {"SCOPE": f"{__name__}.scope"}
        with of(LookupError()):
            lock: Lock = redis_lock("job")
            assert lock.name == "job"
