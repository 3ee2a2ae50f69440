"""The rows behind the pages: Django's queries, carried out on what is seen at Redis."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.exceptions import FieldError
from django.db import NotSupportedError, connection, models
from django.db.models import F, Q
from django.test.utils import CaptureQueriesContext
from redis import Redis

from django_redislock import LockUnavailable, redis_lock
from django_redislock.inspection import Inspector
from django_redislock.models import LockId, LockStatus
from tests.caches import entry
from tests.operations.calling import AWAY, granted

pytestmark = pytest.mark.django_db


@pytest.fixture
def live(redis: Redis) -> Any:
    """Four locks."""
    granted(redis, "import:1", owner="web1:1:x", label="imports/run.py:1 in run")
    granted(redis, "import:2", owner="web2:1:x", silent=100)
    granted(redis, "Report", owner="web2:7:x", silent=5)
    redis.set("redislock:{strange}", "a value")
    return LockStatus.live.of(LockStatus.snapshot(foreign=True))


def names(locks: Any) -> list[str]:
    return [lock.name for lock in locks]


CONDITIONS = {
    "exact": (Q(name="import:1"), {"import:1"}),
    "iexact": (Q(name__iexact="report"), {"Report"}),
    "in": (Q(name__in=["Report", "import:2", "nix"]), {"Report", "import:2"}),
    "pk in": (Q(pk__in=["default:Report"]), {"Report"}),
    "contains": (Q(name__contains="port"), {"import:1", "import:2", "Report"}),
    "contains, capitals": (Q(name__contains="IMPORT"), set()),
    "icontains": (Q(name__icontains="IMPORT"), {"import:1", "import:2"}),
    "startswith": (Q(name__startswith="import"), {"import:1", "import:2"}),
    "istartswith": (Q(name__istartswith="REP"), {"Report"}),
    "endswith": (Q(name__endswith=":1"), {"import:1"}),
    "iendswith": (Q(name__iendswith="PORT"), {"Report"}),
    "gt": (Q(held__gt=50), {"import:1", "import:2"}),
    "lte": (Q(held__lte=50), {"Report"}),
    "gte and lt": (Q(held__gte=50, held__lt=500), {"import:2"}),
    "null": (Q(held__isnull=True), {"strange"}),
    "not null": (Q(held__isnull=False), {"import:1", "import:2", "Report"}),
    "or": (Q(name="Report") | Q(host="web1"), {"Report", "import:1"}),
    "xor": (Q(host="web2") ^ Q(name="Report"), {"import:2"}),
    "not": (~Q(host="web2"), {"import:1", "strange"}),
    "not, of what is not there": (~Q(held__gt=50), {"Report", "strange"}),
    "a boolean": (Q(contended=False), {"import:1", "import:2", "Report", "strange"}),
    "a time": (
        Q(acquired_at__lt=datetime(2000, 1, 1, tzinfo=UTC)),
        set(),
    ),
    "nothing": (Q(pk__in=[]), set()),
}


@pytest.mark.parametrize(("condition", "expected"), CONDITIONS.values(), ids=list(CONDITIONS))
def test_filters(live: Any, condition: Q, expected: set[str]) -> None:
    """Conditions mean what they mean in Django."""
    found = live.filter(condition)
    assert set(names(found)) == expected
    assert live.filter(condition).count() == len(expected)
    assert live.filter(condition).exists() == bool(expected)
    assert set(names(live.exclude(~condition))) == expected


def test_orders(live: Any) -> None:
    """Rows are ordered by fields, both ways; a lease without an end is the longest."""
    assert names(live) == ["import:1", "import:2", "strange", "Report"]
    assert names(live.order_by("-remaining")) == ["strange", "Report", "import:2", "import:1"]
    assert names(live.order_by("name")) == ["Report", "import:1", "import:2", "strange"]
    assert names(live.order_by("host", "-pk")) == ["strange", "import:1", "import:2", "Report"]
    assert names(live.order_by(F("name").desc()))[0] == "strange"
    assert names(live.order_by("name").reverse())[0] == "strange"
    with pytest.raises(NotSupportedError, match="ordered by their fields"):
        list(live.order_by("?"))
    with pytest.raises(FieldError):
        live.order_by("size")


def test_slices(live: Any) -> None:
    """Slices, first(), last() and get() work."""
    ordered = live.order_by("name")
    assert names(ordered[1:3]) == ["import:1", "import:2"]
    assert ordered[3].name == "strange"
    assert ordered[1:3].count() == 2
    assert ordered[3:9].count() == 1
    assert ordered.first().name == "Report"
    assert ordered.last().name == "strange"
    assert live.get(name="Report").host == "web2"
    with pytest.raises(LockStatus.DoesNotExist):
        live.get(name="nix")


def test_refuses(live: Any) -> None:
    """Operations and conditions that need a database table are refused."""
    for forbidden in (
        lambda: live.update(name="x"),
        live.delete,
        lambda: live.create(name="x"),
        lambda: live.values("name"),
        lambda: live.annotate(n=F("name")),
        lambda: live.aggregate(models.Count("pk")),
        lambda: list(live.filter(name=F("host"))),
        lambda: list(live.filter(name__regex="x")),
        lambda: list(live.filter(acquired_at__year=2026)),
        lambda: list(live.filter(held__icontains=5)),
        lambda: list(live.filter(contended__startswith="T")),
    ):
        with pytest.raises(NotSupportedError):
            forbidden()
    with pytest.raises(FieldError):
        live.filter(size=3)
    with pytest.raises(ValueError, match="expected a number"):
        live.filter(held="long")


def test_one_snapshot(redis: Redis) -> None:
    """All queries of one snapshot agree; a new snapshot sees what is new. No SQL is sent."""
    granted(redis, "one")
    snapshot = LockStatus.snapshot()
    with CaptureQueriesContext(connection) as queries:
        live = LockStatus.live.of(snapshot)
        assert names(live) == ["one"]
        granted(redis, "two")
        assert names(live.filter(name="two")) == []
        assert LockStatus.live.count() == 2
    assert not queries.captured_queries


def test_fields() -> None:
    """A row has the values of the inspection, and no token."""
    with redis_lock("job", ttl=60, label="here") as lease:
        [lock] = LockStatus.live.all()
        info = Inspector().get("job")
    assert info is not None
    assert (lock.pk, lock.name, lock.using) == ("default:job", "job", "default")
    assert (lock.owner, lock.label, lock.state) == (lease.owner, "here", "held")
    assert lock.host == lease.owner.partition(":")[0]
    assert lock.fencing_token == lease.fencing_token
    assert (lock.ttl, lock.waiters, lock.contended) == (60, 0, False)
    assert 0 <= lock.held < 60 - lock.remaining + 1
    assert lease.token not in str({**lock.__dict__, "info": repr(lock.info)})


def test_locks_of_the_cache() -> None:
    """Locks of the cache have ids that no other lock can have."""
    where = LockId.parse("{default}::1:receipt")
    assert (where.cache_locks, where.name) == (True, ":1:receipt")
    assert LockId.parse("default:{odd}").cache_locks is False
    for wrong in ("job", "nix:job", ":job"):
        with pytest.raises(ValueError, match="begins with an alias of CACHES"):
            LockId.parse(wrong)


def test_ids(redis: Redis, settings: Any) -> None:
    """Ids are printable and lead back to the lock, whatever its name and alias."""
    there = settings.CACHES["default"]
    settings.CACHES = {"default": there, "a": there, "a:b": there}
    settings.REDISLOCK = {"LOCKS": {"1": {"USING": "a"}, "2": {"USING": "a:b"}}}
    for name in ("100%", "%41", "a\r\n\tb\0c", "{odd}", "naïve:日本", "x" * 512):
        redis.set(f"redislock:{{{name}}}", "1")
    found = list(LockStatus.live.of(LockStatus.snapshot(foreign=True)))
    assert len(found) == 6
    for lock in found:
        assert lock.pk.isprintable()
        assert LockStatus.at(lock.pk).name == lock.name
    assert LockId.parse("a:b:c") == ("a:b", False, "c")
    assert LockId.parse("a:c") == ("a", False, "c")


def test_what_was_asked_before_is_asked_again(redis: Redis) -> None:
    """A queryset without a given snapshot asks each time."""
    locks = LockStatus.live.filter(name="job")
    assert not locks.exists()
    granted(redis, "job")
    assert locks.exists()
    assert locks.all().count() == 1


async def test_asynchronously(redis: Redis) -> None:
    """Django's asynchronous methods work."""
    granted(redis, "job")
    assert await LockStatus.live.acount() == 1
    assert [lock.name async for lock in LockStatus.live.all()] == ["job"]
    assert [lock.name async for lock in LockStatus.live.aiterator()] == ["job"]


def test_a_lock_is_not_written(redis: Redis) -> None:
    """Locks can't be saved, deleted or created."""
    granted(redis, "job")
    lock = LockStatus.live.get()
    for forbidden in (lock.save, lock.delete, lambda: LockStatus.objects.create(name="x")):
        with pytest.raises(NotSupportedError):
            forbidden()
    assert LockStatus.live.count() == 1


def test_without_time_zones(redis: Redis, settings: Any) -> None:
    """Without USE_TZ, times are naive."""
    settings.USE_TZ = False
    granted(redis, "job")
    assert LockStatus.live.filter(acquired_at__lt=datetime.now()).count() == 1  # noqa: DTZ005


def test_redis_away(settings: Any) -> None:
    """`LockUnavailable` is raised; of several servers, those that answer are shown."""
    there = settings.CACHES["default"]
    settings.CACHES = {"default": there, "gone": entry(AWAY)}
    settings.REDISLOCK = {"LOCKS": {"far:*": {"USING": "gone"}}}
    with redis_lock("job"):
        snapshot = LockStatus.snapshot()
        assert [row.name for row in snapshot.rows] == ["job"]
    assert list(snapshot.away) == ["gone"]

    settings.REDISLOCK = {"USING": "gone"}
    with pytest.raises(LockUnavailable):
        LockStatus.live.count()


def test_two_aliases_of_one_server(settings: Any) -> None:
    """Locks of a server with two aliases are shown once."""
    there = settings.CACHES["default"]
    settings.CACHES = {"default": there, "same": there}
    settings.REDISLOCK = {"LOCKS": {"far:*": {"USING": "same"}}}
    with redis_lock("job"):
        assert names(LockStatus.live.all()) == ["job"]
