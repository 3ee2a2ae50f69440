"""Jobs: what can be said of them, and what is refused where it is written."""

from __future__ import annotations

from functools import lru_cache, partial, wraps
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils.decorators import method_decorator

from django_redislock import redis_lock
from django_redislock.periodic import Ledger, periodic
from django_redislock.periodic.job import SECOND, Cron, Every, jobs
from tests.periodic.conftest import Make

HOUR = 3600 * SECOND


def report() -> None: ...


def test_the_function_stays_what_it_was() -> None:
    """The job is named after the function's path, and the function can be called as before."""
    assert periodic(every=30)(report) is report
    [job] = jobs()
    assert (job.name, job.lock) == (
        "tests.periodic.test_job.report",
        "periodic:tests.periodic.test_job.report",
    )
    assert job.where.startswith("periodic/test_job.py:")
    assert job.schedule == Every(30.0)


def test_by_a_cron_expression(settings: Any) -> None:
    """The expression is in the project's time zone, or in another one."""
    settings.TIME_ZONE = "Europe/Berlin"

    @periodic("0 3 * * *")
    def here() -> None: ...

    @periodic("0 3 * * *", tz="America/New_York")
    def there() -> None: ...

    assert [job.schedule for job in jobs()] == [
        Cron("0 3 * * *", ZoneInfo("Europe/Berlin")),
        Cron("0 3 * * *", ZoneInfo("America/New_York")),
    ]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {}, "write either a cron expression or every="),
        (("* * * * *",), {"every": 3}, "write either a cron expression or every="),
        (("whenever",), {}, "'whenever' is not a cron expression: Wrong number of fields"),
        ((30,), {}, "schedule must be a cron expression such as"),
        (
            (),
            {"every": 0.5},
            "every must be between 1 and .* seconds, not 0.5; .* write a loop",
        ),
        ((), {"every": "30"}, "every must be a number of seconds"),
        ((), {"every": True}, "every must be a number of seconds"),
        ((), {"every": float("nan")}, "every must be between"),
        ((), {"every": 30, "tz": "Europe/Berlin"}, "tz is for cron expressions"),
        (("* * * * *",), {"tz": "Europe/Atlantis"}, "tz must be a known time zone"),
        (("* * * * *",), {"tz": 1}, "tz must be a time zone such as"),
        (
            (),
            {"every": 30, "overlap": "queue"},
            "overlap must be 'skip' or 'wait' or 'replace', not 'queue'",
        ),
        ((), {"every": 30, "on_crash": 1}, "on_crash must be 'lose' or 'retry', not 1"),
        ((), {"every": 30, "catch_up": None}, "catch_up must be 'latest' or 'none' or 'all'"),
        ((), {"every": 30, "grace": -1}, "grace must be between 0 and"),
        ((), {"every": 30, "jitter": 30}, "jitter must be shorter than the time between"),
        ((), {"every": 30, "at_most_for": 0}, "at_most_for must be between 0.1 and"),
        ((), {"every": 30, "at_least_for": None}, "at_least_for must be a number of seconds"),
        ((), {"every": 30, "catch_up": "all"}, "catch_up='all' needs overlap='wait'"),
        ((), {"every": 30, "enabled": 1}, "enabled must be True or False"),
        ((), {"every": 30, "name": 3}, "name must be a str"),
        ((), {"every": 30, "name": ""}, "name is empty"),
        ((), {"every": 30, "name": "a{b}"}, "name contains a brace"),
        ((), {"every": 30, "timeout": 3}, "timeout= is refused"),
        ((), {"every": 30, "ttl": 3}, r"periodic\(\) has no argument 'ttl'"),
    ],
)
def test_what_is_refused(arguments: Any, options: Any, message: str) -> None:
    """The error says what to write, and names the job and its place."""
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        periodic(*arguments, **options)(report)
    assert "The periodic job " in str(raised.value)
    assert " at periodic/test_job.py:" in str(raised.value)
    assert jobs() == []


def test_forgotten_parentheses() -> None:
    """Without parentheses, the function would be taken for the schedule."""
    with pytest.raises(TypeError, match="@periodic needs a schedule"):
        periodic(report)  # type: ignore[arg-type]


class Shop:
    @staticmethod
    def static() -> None: ...


def needs(shop: str) -> None: ...


def generates() -> Any:
    yield


class Work:
    def __call__(self) -> None: ...


def with_a_shop(function: Any) -> Any:
    @wraps(function)
    def wrapper() -> Any:
        return function("main")

    return wrapper


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (partial(needs, "main"), "needs"),
        (partial(needs, shop="main"), "needs"),
        (lru_cache(report), "report"),
        (with_a_shop(needs), "needs"),
        (redis_lock("{shop}")(partial(needs, "main")), "needs"),
        (method_decorator(redis_lock("shop"))(report), "report"),
    ],
)
def test_what_is_called_without_arguments(function: Any, name: str) -> None:
    """Whatever wraps a function, its own path is the name of the job."""
    periodic(every=30)(function)
    [job] = jobs()
    assert job.name == f"tests.periodic.test_job.{name}"
    assert job.where.endswith(f" in {name}")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (needs, "is called without arguments, and this function needs shop"),
        (generates, "a periodic job must not be a generator"),
        (Shop, "a periodic job must be a function"),
        (Shop.__dict__["static"], "a periodic job must be a function"),
        ("shop.tasks.report", "a periodic job must be a function, not 'shop.tasks.report'"),
        (partial(needs), "this function needs shop"),
        (redis_lock("{shop}")(needs), "this function needs shop"),
    ],
)
def test_what_is_no_job(function: Any, message: str) -> None:
    """What can't be called without arguments is refused."""
    with pytest.raises(TypeError, match=message):
        periodic(every=30, name="job")(function)
    assert jobs() == []


def test_an_object_needs_a_name() -> None:
    """An object has no path of its own."""
    with pytest.raises(TypeError, match="no dotted path for a name: write a name"):
        periodic(every=30)(Work())
    periodic(every=30, name="job")(Work())
    [job] = jobs()
    assert job.name == "job"


def test_two_of_one_name() -> None:
    """The error names both places, and the first job stays."""
    periodic(every=30, name="job")(report)
    with pytest.raises(ValueError, match=r"another job at periodic/test_job\.py") as e:
        periodic(every=60, name="job")(test_forgotten_parentheses)
    assert "in test_forgotten_parentheses" in str(e.value)
    assert "in report" in str(e.value)
    [job] = jobs()
    assert job.schedule == Every(30.0)


def test_two_of_one_factory() -> None:
    """Two jobs that are defined at one place are two jobs."""

    def make(seconds: float) -> None:
        @periodic(every=seconds, name="job")
        def _() -> None: ...

    make(30)
    with pytest.raises(ValueError, match=r"another job at .* has this name"):
        make(40)
    [job] = jobs()
    assert job.schedule == Every(30.0)


def test_a_module_that_is_reloaded() -> None:
    """A job that is defined again replaces itself."""
    source = "@periodic(every={seconds}, name='job')\ndef job(): ..."
    for seconds in (30, 40):
        exec(compile(source.format(seconds=seconds), __file__, "exec"), {"periodic": periodic})
    [job] = jobs()
    assert job.schedule == Every(40.0)


class TestSettings:
    """`REDISLOCK["JOBS"]` comes before what the code says."""

    def test_of_one_job_or_a_pattern(self, make: Make, settings: Any) -> None:
        """The exact name comes before a pattern."""
        make(name="a.b", every=30)
        make(name="a.c", every=30)
        settings.REDISLOCK = {
            "JOBS": {
                "a.*": {"ENABLED": False},
                "a.b": {"EVERY": 60, "OVERLAP": "wait", "GRACE": 5},
            }
        }
        one, other = jobs()
        assert (one.schedule, one.overlap, one.grace) == (Every(60.0), "wait", 5.0)
        assert (one.enabled, other.enabled) == (True, False)

    def test_of_another_kind_of_schedule(self, make: Make, settings: Any) -> None:
        """An interval may replace an expression, and the other way round."""
        make(name="a", every=30)
        make(name="b", schedule="* * * * *")
        settings.REDISLOCK = {
            "JOBS": {
                "a": {"SCHEDULE": "0 3 * * *", "TZ": "Europe/Berlin"},
                "b": {"EVERY": 5},
            }
        }
        assert [job.schedule for job in jobs()] == [
            Cron("0 3 * * *", ZoneInfo("Europe/Berlin")),
            Every(5.0),
        ]

    def test_the_zone_alone(self, make: Make, settings: Any) -> None:
        """TZ alone keeps the expression."""
        make(schedule="0 3 * * *")
        settings.REDISLOCK = {"JOBS": {"job": {"TZ": "Europe/Berlin"}}}
        assert jobs()[0].schedule == Cron("0 3 * * *", ZoneInfo("Europe/Berlin"))

    @pytest.mark.parametrize(
        ("says", "message"),
        [
            ({"job": {"EVERY": 0}}, r"REDISLOCK\['JOBS'\]\['job'\]\['EVERY'\]: every must be"),
            (
                {"job": {"TTL": 3}},
                r"REDISLOCK\['JOBS'\]\['job'\] has no key 'TTL'; it has SCHEDULE",
            ),
            ({"job": 3}, r"REDISLOCK\['JOBS'\]\['job'\] must be a dict"),
            ([], r"REDISLOCK\['JOBS'\] must be a dict"),
            ({3: {}}, r"REDISLOCK\['JOBS'\] has the key 3"),
            (
                {"j*": {"SCHEDULE": "x"}},
                r"REDISLOCK\['JOBS'\]\['j\*'\], for 'job': 'x' is not a cron",
            ),
            ({"job": {"JITTER": 4000}}, r"for 'job': jitter must be shorter"),
            ({"job": {"EVERY": 3, "SCHEDULE": "* * * * *"}}, "either a cron expression or every="),
        ],
    )
    def test_what_is_wrong(self, make: Make, settings: Any, says: Any, message: str) -> None:
        """The error names the entry."""
        make(every=3600)
        settings.REDISLOCK = {"JOBS": says}
        with pytest.raises(ImproperlyConfigured, match=message):
            jobs()

    def test_the_lock(self, make: Make, settings: Any) -> None:
        """LOCKS applies to the job's lock; at_most_for of the job limits how long it is held."""
        job = make()
        settings.REDISLOCK = {"LOCKS": {"periodic:*": {"TTL": 5, "MAX_HOLD": 60}}}
        assert (job.policy.ttl, job.policy.max_hold) == (5.0, 60.0)
        assert make(at_most_for=7.0).policy.max_hold == 7.0


class TestTicks:
    """Which tick is claimed after some have been missed."""

    def test_latest(self, make: Make) -> None:
        """The last missed tick is due."""
        job = make()
        assert job.due(0, 5 * HOUR + 1) == 5 * HOUR
        assert job.due(5 * HOUR, 5 * HOUR + 1) is None
        assert job.deadline(HOUR) is None, "until the next one"

    def test_none(self, make: Make) -> None:
        """The last tick is due, unless it was missed, too."""
        job = make(catch_up="none")
        assert job.due(0, 5 * HOUR) == 5 * HOUR
        assert job.deadline(5 * HOUR) == 5 * HOUR + 10 * SECOND
        assert make(catch_up="none", grace=60).deadline(0) == 60 * SECOND

    def test_all(self, make: Make) -> None:
        """Each missed tick is due, the oldest first; those that are too late are left out at
        once."""
        job = make(catch_up="all", overlap="wait")
        assert job.due(0, 5 * HOUR) == HOUR
        assert job.due(HOUR, 5 * HOUR) == 2 * HOUR
        assert job.due(5 * HOUR, 5 * HOUR) is None
        late = job.due(0, 100 * HOUR)
        assert late == 75 * HOUR
        deadline = job.deadline(late)
        assert deadline is not None
        assert deadline < 100 * HOUR
        assert job.due(late, 100 * HOUR) == 76 * HOUR

    def test_jitter(self, make: Make) -> None:
        """The delay is bounded, the same for all schedulers, and differs by tick and job."""
        job, other = make(jitter=60), make(name="other", jitter=60)
        delays = [job.ready(tick) - tick for tick in range(HOUR, 100 * HOUR, HOUR)]
        assert delays == [job.ready(tick) - tick for tick in range(HOUR, 100 * HOUR, HOUR)]
        assert all(0 <= delay < 60 * SECOND for delay in delays)
        assert len(set(delays)) > 90
        assert max(delays) - min(delays) > 40 * SECOND
        assert delays[0] != other.ready(HOUR) - HOUR
        ready = job.ready(5 * HOUR)
        assert job.due(4 * HOUR, ready - 1) is None
        assert job.due(4 * HOUR, ready) == 5 * HOUR
        assert job.due(0, ready - 1) == 4 * HOUR, "the one before is still the last that is ready"
        assert make(jitter=60, grace=1).deadline(5 * HOUR) == ready + SECOND


def test_in_words(make: Make) -> None:
    """The words name everything that is not a default."""
    job = make(
        every=300,
        jitter=3,
        overlap="wait",
        on_crash="retry",
        catch_up="all",
        grace=60,
        at_most_for=20,
        at_least_for=2,
        enabled=False,
    )
    assert job.words() == (
        "every 5 minutes; disabled; up to 3 s later; waits for its last run; retried after a "
        "crash; runs all missed ticks; at most 60 s late; for 20 s at most; for 2 s at least"
    )
    assert make(every=300, catch_up="none").words() == "every 5 minutes; runs no missed ticks"


def test_a_disabled_job_is_not_looked_at(make: Make) -> None:
    """A disabled job is listed as disabled."""
    make(enabled=False)
    [info] = Ledger().jobs()
    assert (info.state, info.next, info.plan) == ("disabled", None, "every hour; disabled")


def test_jobs_of_other_aliases(make: Make, settings: Any) -> None:
    """Each job is at the server of its lock."""
    make(name="a")
    make(name="b")
    settings.CACHES = {**settings.CACHES, "locks": settings.CACHES["default"]}
    settings.REDISLOCK = {"LOCKS": {"periodic:b": {"USING": "locks"}}}
    assert [(info.name, info.using) for info in Ledger().jobs()] == [
        ("a", "default"),
        ("b", "locks"),
    ]
    assert [info.name for info in Ledger("locks").jobs()] == ["b"]
    assert Ledger("locks").job("a") is None
