"""The system checks: each test carries the id of what it checks."""

from __future__ import annotations

import math
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.core.cache import caches as django_caches
from django.test import override_settings
from django_redis.pool import ConnectionFactory

from django_redislock import redis_lock
from django_redislock.doctor import caches as cache_entries
from django_redislock.doctor import settings as jobs
from django_redislock.doctor.checks import check_deployment, check_jobs, check_settings
from django_redislock.periodic import job as registry
from django_redislock.periodic import periodic
from tests.caches import caches, cluster, entry

ROOT = Path(__file__).parent.parent
LOCATION = "redis://redis.invalid:6379/0"
THREE = ["a", "b", "c"]
"""Where nobody answers, and nobody is asked."""


def configured(**settings: Any) -> override_settings:
    return override_settings(REDISLOCK=settings)


def static() -> list[checks.CheckMessage]:
    return check_settings(app_configs=None, databases=None)


def ids(messages: list[checks.CheckMessage]) -> list[str]:
    return [str(message.id).removeprefix("redislock.") for message in messages]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Nobody may connect, or look up a host, but for the threads in which something goes on that
    earlier tests have begun."""
    tried: list[Any] = []
    here = threading.current_thread()

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*args: Any, **options: Any) -> Any:
            if threading.current_thread() is not here:
                return real(*args, **options)
            tried.append(args)
            raise AssertionError(f"connects to {args}")

        return refuse

    monkeypatch.setattr(socket.socket, "connect", refusing(socket.socket.connect))
    monkeypatch.setattr(socket, "getaddrinfo", refusing(socket.getaddrinfo))
    yield tried
    assert not tried


@pytest.fixture(autouse=True)
def _pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """django-redis keeps one for each LOCATION, with the options of whoever comes first."""
    monkeypatch.setattr(ConnectionFactory, "_pools", {})


class TestRegistered:
    def test_where_all_is_well(self, no_network: list[Any]) -> None:
        """`manage.py check` says nothing of a project as the README has it, and connects to
        nothing; `check --tag redislock` finds ours."""
        assert checks.run_checks(tags=["redislock"]) == []
        assert static() == []

    @pytest.mark.django_db(databases="__all__")  # Django 6.1 asks them when it checks models
    def test_wrong_settings_are_told(self) -> None:
        """By any `manage.py check`."""
        with configured(TTL=0):
            assert "E001" in ids(checks.run_checks())

    def test_for_deployment(self) -> None:
        """The servers are asked by `check --deploy`. What is only to know is not told there."""
        with override_settings(CACHES=caches("redis://localhost:1/0")):
            assert "E101" not in ids(checks.run_checks(tags=["redislock"]))
            deployed = checks.run_checks(tags=["redislock"], include_deployment_checks=True)
        assert "E101" in ids(deployed)
        assert not {one for one in ids(check_deployment()) if one.startswith("I")}

    def test_not_for_deployment_while_the_settings_are_wrong(self, no_network: list[Any]) -> None:
        """Then nobody knows whom to ask; the settings come first."""
        with configured(TTL=0):
            assert check_deployment() == []

    def test_an_alias_that_is_asked(self) -> None:
        """Each one that LOCKS names is."""
        with (
            override_settings(CACHES=dict.fromkeys(("default", "a", "b"), entry(NOWHERE))),
            configured(USING="a", LOCKS={"x": {"USING": "b"}}),
        ):
            away = [message for message in check_deployment() if ids([message]) == ["E101"]]
            assert [message.obj for message in away] == ["CACHES['a']", "CACHES['b']"]


class TestW007:
    """KEY_PREFIX is set, and locks don't use it."""

    def entry(self, **more: Any) -> override_settings:
        return override_settings(CACHES={"default": {**entry(LOCATION), **more}})

    def test_without_a_prefix(self, no_network: list[Any]) -> None:
        """Two projects would share their locks; the hint is a PREFIX that keeps them apart."""
        with self.entry(KEY_PREFIX="shop"):
            (message,) = static()
        assert ids([message]) == ["W007"]
        assert 'REDISLOCK = {"PREFIX": "shop:redislock"}' in str(message.hint)

    @pytest.mark.parametrize("prefix", ["shop:redislock", "redislock"])
    def test_with_a_prefix(self, prefix: str) -> None:
        """A PREFIX that somebody wrote was meant, also when it is the default."""
        with self.entry(KEY_PREFIX="shop"), configured(PREFIX=prefix):
            assert static() == []

    def test_without_a_key_prefix(self) -> None:
        """An empty KEY_PREFIX, Django's default, keeps nothing apart either."""
        with self.entry(KEY_PREFIX=""):
            assert static() == []


class TestW008:
    """A setting is named nearly like ours."""

    @pytest.mark.parametrize(
        "name", ["REDIS_LOCK", "REDISLOCKS", "REDIS_LOCKS", "DJANGO_REDISLOCK", "REDSLOCK"]
    )
    def test_a_misspelt_name(self, name: str) -> None:
        """Nobody would read it, so it is told, with the right name."""
        with override_settings(**{name: {"TTL": 5}}):
            (message,) = static()
        assert ids([message]) == ["W008"]
        assert name in message.msg
        assert "REDISLOCK" in str(message.hint)

    @pytest.mark.parametrize(
        "others", [{"REDIS_LOCK": "a word"}, {"REDIS_URL": {}}, {"REDIS_LOCK_TIMEOUTS": {}}]
    )
    def test_the_settings_of_others(self, others: dict[str, Any]) -> None:
        """What is no dict, or has another name, is none of ours."""
        with override_settings(**others):
            assert static() == []


class TestW010:
    """The project looks as if it had tenants, and has no SCOPE."""

    def entry(self) -> override_settings:
        other = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
        every = {**caches(LOCATION), "pages": {**other, "KEY_FUNCTION": "shop.cache.make_key"}}
        return override_settings(CACHES=every)

    def test_a_key_function(self, no_network: list[Any]) -> None:
        """A tenant may be in the keys of any cache; the hint has a function to write."""
        with self.entry():
            (message,) = static()
        assert ids([message]) == ["W010"]
        assert "CACHES['pages'] has a KEY_FUNCTION" in message.msg
        assert '{"SCOPE": "shop.tenants.scope"}' in str(message.hint)

    def test_an_app(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
        """django-tenants says so by itself."""
        (tmp_path / "django_tenants").mkdir()
        (tmp_path / "django_tenants" / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        settings.INSTALLED_APPS = ["django_tenants", *settings.INSTALLED_APPS]
        (message,) = static()
        assert ids([message]) == ["W010"]
        assert "INSTALLED_APPS has 'django_tenants'" in message.msg
        assert "return connection.schema_name" in str(message.hint)

    @pytest.mark.parametrize(
        "says", [{"SCOPE": None}, {"SCOPE": str}, {"LOCKS": {"shop:*": {"SCOPE": str}}}]
    )
    def test_with_a_scope(self, says: Any) -> None:
        """Somebody has thought of it, also if there is no scope, or one for some locks."""
        with self.entry(), configured(**says):
            assert static() == []


class TestW011:
    """UNAVAILABLE is said of what never goes on without Redis."""

    @pytest.mark.parametrize(
        ("says", "what"),
        [
            ({"once:mail": {"UNAVAILABLE": "run"}}, "names such as 'once:*'"),
            ({"once:mail": {"UNAVAILABLE": "skip"}}, "names such as 'once:*'"),
            ({"task:*": {"UNAVAILABLE": "run"}}, "names such as 'task:*'"),
            ({"periodic:*": {"UNAVAILABLE": "run"}}, "names such as 'periodic:*'"),
            ({"idempotency:*": {"UNAVAILABLE": "run"}}, "names such as 'idempotency:*'"),
            ({"*": {"UNAVAILABLE": "run"}}, "names such as 'once:*'"),
            ({"x": {"KIND": "redlock", "USING": THREE, "UNAVAILABLE": "run"}}, "a Redlock"),
            (None, "names such as 'once:*'"),
        ],
    )
    def test_of_these(self, says: dict[str, Any] | None, what: str) -> None:
        """It has no effect there, also if it is said of all locks; the hint takes it back."""
        said: dict[str, Any] = {"UNAVAILABLE": "run"} if says is None else {"LOCKS": says}
        with override_settings(CACHES=dict.fromkeys(("default", *THREE), entry(LOCATION))):
            with configured(**said):
                messages = [message for message in static() if "W011" in str(message.id)]
        [message] = messages
        assert message.msg.startswith("REDISLOCK")
        assert f"which does not hold for {what}: without Redis" in message.msg
        assert '|= {"UNAVAILABLE": "raise"}' in str(message.hint)

    @pytest.mark.parametrize(
        "says",
        [
            {"LOCKS": {"page:*": {"UNAVAILABLE": "run"}}},
            {"LOCKS": {"page:*": {"UNAVAILABLE": "skip"}}},
            {"LOCKS": {"once:*": {"UNAVAILABLE": "raise"}}},
            {"UNAVAILABLE": "skip"},
        ],
    )
    def test_of_others(self, says: dict[str, Any]) -> None:
        """Names that may go on, and a default that lets nothing run."""
        with override_settings(CACHES=caches(LOCATION)), configured(**says):
            assert static() == []


class Scopes:
    def __call__(self) -> str:
        return "acme"

    def needs(self, request: Any) -> str:
        return "acme"

    async def waits(self) -> str:
        return "acme"


class TestE005:
    """SCOPE or VIEW_RESPONSE is no function that can be called."""

    @pytest.mark.parametrize("response", ["shop.views.busy", "tests.test_checks.LOCATION"])
    @pytest.mark.parametrize("where", ["project", "entry"])
    def test_a_response(self, response: str, where: str) -> None:
        """The first conflict would be an error of the server; the hint says what to write."""
        settings: dict[str, Any] = {"VIEW_RESPONSE": response}
        if where == "entry":
            settings = {"LOCKS": {"shop:*": settings}}
        with configured(**settings):
            (message,) = static()
        assert ids([message]) == ["E005"]
        assert str(message.msg).startswith(f"REDISLOCK['VIEW_RESPONSE'], {response!r}, ")
        assert "'shop.views.busy', and in shop/views.py: def busy(" in str(message.hint)

    @pytest.mark.parametrize("response", ["tests.test_checks.static", Scopes().waits, None])
    def test_a_response_that_can_be_called(self, response: Any) -> None:
        """A view may be asynchronous, and its response, too."""
        with configured(VIEW_RESPONSE=response):
            assert static() == []

    @pytest.mark.parametrize(
        ("scope", "says"),
        [
            ("shop.nowhere.scope", "can't be imported: No module named 'shop'"),
            ("tests.test_checks.nothing", 'can\'t be imported: .* "nothing"'),
            ("tests.test_checks.LOCATION", "is no plain function without arguments"),
            (Scopes().needs, "is no plain function without arguments"),
            (Scopes().waits, "is no plain function without arguments"),
        ],
    )
    @pytest.mark.parametrize("where", ["project", "entry"])
    def test_what_can_t_be_called(self, scope: Any, says: str, where: str) -> None:
        """Each lock would fail; the hint says what to write."""
        settings = {"SCOPE": scope}
        if where == "entry":
            settings = {"LOCKS": {"shop:*": settings}}
        with configured(**settings):
            (message,) = static()
        assert ids([message]) == ["E005"]
        assert re.match(rf"REDISLOCK\['SCOPE'\], .*{says}", message.msg)
        assert "'shop.tenants.scope', and in shop/tenants.py: def scope()" in str(message.hint)

    @pytest.mark.parametrize(
        "scope", ["tests.test_tenants.scope", Scopes(), partial(Scopes().needs, None), None]
    )
    def test_what_can_be_called(self, scope: Any) -> None:
        """It is not called: a check belongs to no tenant."""
        with configured(SCOPE=scope):
            assert static() == []


class TestE001:
    """The settings can't be understood."""

    def test_a_kind(self) -> None:
        """What belongs together is looked at together."""
        entry = {"KIND": "semaphore", "LIMIT": 3, "TTL": 60}
        with configured(LOCKS={"a": entry, "b": {"KIND": "read"}, "c": {"LIMIT": 3}}):
            assert static() == []
        with configured(LOCKS={"a": {"KIND": "semaphore"}}):
            (message,) = static()
            assert message.msg.startswith("REDISLOCK['LOCKS']['a']: a semaphore needs a limit")
            assert '"LIMIT": 3' in message.hint
        with configured(LOCKS={"a": {"KIND": "redlock"}}):
            (message,) = static()
            assert '|= {"USING": ["redis-a", "redis-b", "redis-c"]}' in message.hint
        with configured(LOCKS={"a": {"KIND": "latch", "LIMIT": 0}}):
            assert [str(message.msg).partition(": ")[0] for message in static()] == [
                "REDISLOCK['LOCKS']['a']['KIND']",
                "REDISLOCK['LOCKS']['a']['LIMIT']",
            ]

    @pytest.mark.parametrize(
        "value",
        [
            None,
            [],
            "redislock",
            42,
            {None: 1},
            {("a", "b"): 1},
            {"LOCKS": None},
            {"LOCKS": []},
            {"LOCKS": {"a": None}},
            {"LOCKS": {"a": {None: 1}}},
            {"LOCKS": {None: {"TTL": 3}}},
            {"TTL": math.nan},
            {"TTL": {}},
            {"USING": ["default"]},
            {"USING": None},
            {"PREFIX": b"x"},
            {"ON_CONFLICT": range(3)},
            {"REPLICAS": 10**30},
        ],
        ids=repr,
    )
    def test_whatever_it_is(self, value: Any) -> None:
        """It never raises; and it tells just what whoever takes a lock would be told."""
        with override_settings(REDISLOCK=value):
            (message,) = static()
            assert ids([message]) == ["E001"]
            assert message.hint
            with pytest.raises(Exception, match=re.escape(str(message.msg))):
                redis_lock("job")._policy()
            assert check_deployment() == []


class TestE002:
    """The alias can't be used for locks."""

    @pytest.mark.parametrize(
        ("entries", "says"),
        [
            ({}, "has no alias 'locks'"),
            ({"locks": None}, "CACHES"),
            ({"locks": {}}, "CACHES"),
            ({"locks": {"BACKEND": "no.such.Backend"}}, "CACHES"),
            (
                {"locks": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
                "served by django.core.cache.backends.locmem.LocMemCache",
            ),
            ({"locks": {"BACKEND": "django_redis.cache.RedisCache"}}, "connection"),
            ({"locks": entry("nonsense")}, "must be a URL"),
            ({"locks": entry(LOCATION, CLIENT_CLASS="no.such.Client")}, "no"),
            (
                {
                    "locks": entry(LOCATION),
                    "twin": entry(LOCATION, CONNECTION_POOL_KWARGS={"db": 3}),
                },
                "shares one pool",
            ),
        ],
    )
    def test_whatever_it_is(self, entries: Any, says: str, no_network: list[Any]) -> None:
        """One message with the reason, and an entry to paste."""
        default = entry(LOCATION + "?other")
        with override_settings(CACHES={"default": default, **entries}), configured(USING="locks"):
            (message,) = static()
            assert ids([message]) == ["E002"]
            assert says in str(message.msg)
            assert message.obj == "CACHES['locks']"
            assert check_deployment() == []
            with suppress(AttributeError):  # one that could not even be made
                del django_caches["locks"]  # django-redis 6.0 can't close what it can't use

    def test_of_an_entry(self) -> None:
        """Also an alias that only LOCKS names."""
        with configured(LOCKS={"report:*": {"USING": "nowhere"}}):
            (message,) = static()
            assert ids([message]) == ["E002"]


class TestW001:
    """An entry in LOCKS that applies to nothing."""

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("report:{report.pk}", '["report:*"] ='),
            ("a:{b}:c:{d}", '["a:*:c:*"] ='),
            ("a}", '["a"] ='),
        ],
    )
    def test_a_template(self, name: str, hint: str) -> None:
        """Who writes the decorator's template there is told the pattern."""
        with configured(LOCKS={name: {"TTL": 5}}):
            (message,) = static()
        assert ids([message]) == ["W001"]
        assert hint in str(message.hint)

    @pytest.mark.parametrize("name", ["x" * 513, "a\nb"])
    def test_no_name(self, name: str) -> None:
        """A name that no lock can have."""
        with configured(LOCKS={name: {"TTL": 5}}):
            assert ids(static()) == ["W001"]

    def test_others(self) -> None:
        """Patterns and names are no mistakes."""
        with configured(LOCKS={"report:*": {}, "a[12]?": {}, "x" * 512: {}, "größe": {}}):
            assert static() == []


def advice(caches: Any, **settings: Any) -> dict[str, checks.CheckMessage]:
    """What `check --deploy` says of the entries of CACHES, apart from what their servers say."""
    with override_settings(CACHES=caches), configured(**settings):
        messages = check_deployment()
        assert static() == []
    named = dict(zip(ids(messages), messages, strict=True))
    assert named.pop("E101", None)
    return named


NOWHERE = "redis://localhost:1/0"
"""Nobody answers there, and says so at once."""
TIMEOUTS = {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 2}
APART = {"USING": "locks"}
CACHE = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
DJANGO = "django.core.cache.backends.redis.RedisCache"


def locks(url: str = NOWHERE, **options: Any) -> dict[str, Any]:
    """An alias for locks, beside a cache that is elsewhere."""
    return {"default": CACHE, "locks": entry(url, **{**TIMEOUTS, **options})}


def test_a_good_entry() -> None:
    """Locks with a database of their own: there is nothing to say."""
    assert advice(locks(), **APART) == {}


class TestW002:
    """`cache.clear()` takes the locks with it."""

    def test_the_default_cache(self) -> None:
        """It is what `from django.core.cache import cache` means."""
        told = advice(caches(NOWHERE, **TIMEOUTS))
        assert list(told) == ["W002"]

    def test_the_hint_names_a_database_that_is_free(self) -> None:
        """No other entry uses it."""
        entries = {number: entry(f"redis://localhost:1/{number}") for number in "012"}
        told = advice({"default": entries["1"], **entries}, USING="default")
        assert "redis://localhost:1/3" in str(told["W002"].hint)

    @pytest.mark.parametrize(
        "other",
        [
            entry(NOWHERE),
            entry("redis://localhost:1"),
            entry("redis://localhost:1?db=0"),
            {"BACKEND": DJANGO, "LOCATION": ["redis://x/3", NOWHERE]},
            {"BACKEND": DJANGO, "LOCATION": "redis://localhost:1", "OPTIONS": {"db": "0"}},
        ],
    )
    def test_the_same_database(self, other: Any) -> None:
        """However another entry names it."""
        told = advice({**locks(), "other": other}, **APART)
        assert list(told) == ["W002"]
        assert "'other'" in str(told["W002"].msg)

    def test_databases_that_are_one(self) -> None:
        """SELECT changes nothing on Redis Cloud, so another number is the same database."""
        cloud = "redis://redis-1.c1.us-east-1-2.ec2.redns.redis-cloud.com:1"
        entries = {
            name: entry(f"{cloud}/{number}", **TIMEOUTS)
            for number, name in enumerate(("default", "locks"))
        }
        told = advice(entries, **APART)
        assert list(told) == ["W002"]
        assert "a server of their own" in str(told["W002"].hint)

    @pytest.mark.parametrize(
        "location", ["redis://localhost:1/1", "redis://localhost:2/0", "unix:///x?db=0", "1.2.3.4"]
    )
    def test_another_database(self, location: str) -> None:
        """Then nothing is said."""
        assert advice({**locks(), "other": entry(location)}, **APART) == {}

    @pytest.mark.parametrize(
        "other",
        [
            None,
            {},
            {"BACKEND": "x", "LOCATION": None},
            {"BACKEND": "x", "LOCATION": Path("/tmp")},
            {"BACKEND": "x", "LOCATION": [("a", 1)]},
            {"BACKEND": "x", "LOCATION": NOWHERE, "OPTIONS": {"CONNECTION_POOL_KWARGS": 3}},
            {"BACKEND": "x", "LOCATION": "redis://localhost", "OPTIONS": {"db": "x"}},
        ],
        ids=repr,
    )
    def test_whatever_another_entry_is(self, other: Any) -> None:
        """It does not concern us, and never makes the check fail."""
        entries = {**locks(), "other": other}
        with override_settings(CACHES=entries), configured(**APART):
            assert not {"W002"} & set(ids([*static(), *check_deployment()]))

    def test_another_alias_for_locks(self) -> None:
        """Two aliases that are both for locks are no cache."""
        both = {**locks(), "more": locks()["locks"]}
        with override_settings(CACHES=both), configured(**APART, LOCKS={"x": {"USING": "more"}}):
            assert "W002" not in ids(check_deployment())
        # So is one that only the code names, for which the doctor was asked.
        with override_settings(CACHES={**both, "locks": CACHE}), configured(USING="default"):
            assert list(cache_entries.advice("more")) == []


class TestW003:
    """No timeouts."""

    NONE = {"socket_timeout": None, "socket_connect_timeout": None}

    def test_missing(self) -> None:
        """It says what to write. redis-py 8 has some of its own; they count."""
        pool = {"CONNECTION_POOL_KWARGS": self.NONE}
        told = advice({"default": CACHE, "locks": entry(NOWHERE, **pool)}, **APART)
        assert list(told) == ["W003"]

    @pytest.mark.parametrize(
        ("url", "pool"),
        [
            (NOWHERE, {**NONE, "socket_timeout": 3}),
            (NOWHERE, {**NONE, "socket_connect_timeout": 3}),
            (f"{NOWHERE}?socket_timeout=3&socket_connect_timeout=3", {}),
            ("unix:///nowhere", NONE),
        ],
    )
    def test_enough(self, url: str, pool: dict[str, Any]) -> None:
        """Each of them bounds the connecting, also in the URL; a Unix socket is connected at once.
        Locks wait for answers no longer than 5 s."""
        assert advice(locks(url, CONNECTION_POOL_KWARGS=pool), **APART) == {}


class TestW004:
    """A pool that is too small."""

    def test_small(self) -> None:
        """It says how many connections there are."""
        told = advice(locks(CONNECTION_POOL_KWARGS={"max_connections": 9}), **APART)
        assert list(told) == ["W004"]
        assert "has 9 connections" in str(told["W004"].msg)
        assert '"max_connections": 100' in str(told["W004"].hint)

    @pytest.mark.parametrize(
        "options",
        [
            {"CONNECTION_POOL_KWARGS": {"max_connections": 10}},
            {
                "CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool",
                "CONNECTION_POOL_KWARGS": {"max_connections": 2},
            },
        ],
    )
    def test_enough(self, options: dict[str, Any]) -> None:
        """Ten connections are enough, and a blocking pool refuses nobody."""
        assert advice(locks(**options), **APART) == {}

    def test_classes_of_their_own(self) -> None:
        """A connection that is made in another way is not judged."""
        told = advice(
            locks(CONNECTION_POOL_KWARGS={"connection_class": print, "max_connections": 3}),
            **APART,
        )
        assert list(told) == ["W004"]


class TestE003:
    """A periodic job can't be run as it is."""

    def test_where_it_is_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By any `manage.py check`, with its name and place."""

        def discover() -> None:
            periodic(every=0, name="report")(self.test_where_it_is_written)

        monkeypatch.setattr(jobs, "discover", discover)
        [message] = checks.run_checks(tags=["redislock"])
        assert ids([message]) == ["E003"]
        assert "The periodic job 'report' at tests/test_checks.py:" in str(message.msg)

    def test_what_else_is_wrong_with_a_module(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is told as Python tells it."""

        def discover() -> None:
            raise ValueError("somebody else's")

        monkeypatch.setattr(jobs, "discover", discover)
        with pytest.raises(ValueError, match="somebody else's"):
            check_jobs()

    def test_settings_that_do_not_go_with_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each of them may be good in itself."""
        monkeypatch.setattr(registry, "_registry", {})
        periodic(every=30, name="report")(lambda: None)
        with configured(JOBS={"rep*": {"JITTER": 60}}):
            assert ids(check_jobs()) == ["E003"]
        with configured(JOBS={"rep*": {"JITTER": 6}}):
            assert check_jobs() == []


class TestW006:
    """An entry in JOBS applies to nothing."""

    def test_it_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By its name or pattern."""
        monkeypatch.setattr(registry, "_registry", {})
        with configured(JOBS={"shop.*": {"ENABLED": False}}):
            [message] = check_jobs()
        assert ids([message]) == ["W006"]
        assert "REDISLOCK['JOBS']['shop.*']" in str(message.msg)

    def test_not_while_the_settings_are_wrong(self) -> None:
        """That comes first."""
        with configured(JOBS={"shop.*": {"EVERY": 0}, "a": 3}):
            assert check_jobs() == []
            assert [message.hint for message in static()] == [
                'REDISLOCK["JOBS"]["shop.*"]["EVERY"] = 300',
                'REDISLOCK["JOBS"]["a"] = {"EVERY": 300}',
            ]


class TestW005:
    """A socket timeout that is shorter than replicas may take."""

    def test_with_replicas(self) -> None:
        """As it would break each lock whose replicas are slow."""
        short = locks(SOCKET_TIMEOUT=0.5)
        assert advice(short, **APART) == {}
        assert list(advice(short, **APART, REPLICAS=1)) == ["W005"]
        assert list(advice(short, **APART, LOCKS={"x": {"REPLICAS": 1}})) == ["W005"]
        assert advice(locks("redis://localhost:1/1"), **APART, REPLICAS=1) == {}


class TestE004:
    """E004: AFTER_LOSS is "wait" where it can't be kept."""

    def test_a_kind(self, settings: Any) -> None:
        settings.REDISLOCK = {
            "AFTER_LOSS": "wait",
            "LOCKS": {"exports": {"KIND": "semaphore", "LIMIT": 3}, "report:*": {"TTL": 60}},
        }
        [one] = static()
        assert one.id == "redislock.E004"
        assert one.msg.startswith(
            "REDISLOCK['LOCKS']['exports']: after_loss='wait' is for a mutex, not for a semaphore."
        )

    def test_a_cluster(self, settings: Any) -> None:
        settings.CACHES = cluster([NOWHERE])
        settings.REDISLOCK = {"LOCKS": {"invoice:*": {"AFTER_LOSS": "wait"}}}
        [one] = static()
        assert one.id == "redislock.E004"
        assert (
            "can't be kept on a Redis Cluster or another sharded server, as 'default' is"
            in one.msg
        )

    def test_an_alias_that_is_wrong(self, settings: Any) -> None:
        """That is said, and nothing more."""
        settings.REDISLOCK = {"AFTER_LOSS": "wait", "USING": "missing"}
        assert [one.id for one in static()] == ["redislock.E002"]


def test_each_id_is_documented() -> None:
    """docs/checks.md has one row for each; this file, or one of three others, has a test."""
    package = ROOT / "django_redislock"
    source = "".join(path.read_text("utf-8") for path in (package / "doctor").glob("*.py"))
    found = set(re.findall(r"\b[EWI]\d{3}\b", source))
    page = (ROOT / "docs" / "checks.md").read_text("utf-8")
    rows = re.findall(r"^\| `redislock\.(\w+)` ", page, re.MULTILINE)
    assert sorted(rows) == sorted(found)
    tests = "".join(
        (ROOT / "tests" / f"test_{x}.py").read_text("utf-8")
        for x in ("checks", "development", "doctor", "hostile")
    )
    assert found <= set(re.findall(r"[EWI]\d{3}", tests))
