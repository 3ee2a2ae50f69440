"""The pages of periodic jobs."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from redis import Redis

from django_redislock.models import PeriodicJob
from django_redislock.periodic import Ledger
from django_redislock.primitives.ledger import RunOutcome
from tests.admin.conftest import client_of
from tests.operations.calling import AWAY
from tests.periodic.conftest import make, now, registry  # noqa: F401
from tests.periodic.test_ledger import claim, finish

LIST = "/admin/django_redislock/periodicjob/"
PAGE = f"{LIST}shop.report/change/"


@pytest.fixture
def job(make: Any, now: Any, redis: Redis) -> Any:  # noqa: F811
    """A job that has run three times."""
    job = make(name="shop.report", every=3600)
    hour = 3_600_000_000
    last = now() // hour * hour
    for tick, outcome, why in (
        (last - hour, RunOutcome.DONE, ""),
        (last, RunOutcome.LOST, "its process died"),
        (None, RunOutcome.FAILED, "ValueError: 3"),
    ):
        finish(job, claim(job, tick), outcome, why)
        redis.delete("redislock:{periodic:shop.report}")
    make(name="shop.idle", every=60)
    return job


@pytest.fixture
def looker(db: Any) -> Client:
    return client_of("ron", "view_periodicjob")


def shown(page: Any) -> list[str]:
    return [job.name for job in page.context["cl"].result_list]


def test_a_broken_periodic_py(looker: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of the admin work; the system check reports the error."""

    def discover() -> None:
        raise SyntaxError("in shop/periodic.py")

    monkeypatch.setattr("django_redislock.admin.jobs.discover", discover)
    assert looker.get("/admin/").status_code == 200


def test_the_list(looker: Client, job: Any) -> None:
    """Each job has its schedule, state and last run."""
    page = looker.get(LIST)
    text = page.content.decode()
    assert shown(page) == ["shop.idle", "shop.report"]
    assert "redislock-failing" in text
    assert "every hour" in text
    assert shown(looker.get(LIST, {"q": "report"})) == ["shop.report"]
    assert shown(looker.get(LIST, {"state": "failing"})) == ["shop.report"]
    assert "failing (1)" in text
    for column in range(1, 5):
        assert len(shown(looker.get(LIST, {"o": f"-{column}"}))) == 2


def test_a_job(looker: Client, job: Any) -> None:
    """A job's page has its last runs, and who paused it."""
    Ledger().pause("shop.report", by="eva", reason="it floods the mail server")
    text = looker.get(PAGE).content.decode().replace("<wbr>", "")
    assert "it floods the mail server" in text
    assert "redislock-strip" in text
    text = text[text.index("redislock-facts") :]
    assert text.index("ValueError: 3") < text.index("its process died")
    assert "by hand" in text
    assert looker.get(f"{LIST}nix/change/").status_code == 302


def test_who_may_look(reader: Client, job: Any) -> None:
    """Jobs have a permission of their own, and nobody can change them."""
    assert reader.get(LIST).status_code == 403
    assert reader.get(PAGE).status_code == 403
    looker = client_of("una", "view_periodicjob")
    assert looker.get(f"{LIST}add/").status_code == 403
    assert looker.post(PAGE, {"name": "x"}).status_code == 403
    assert looker.get(f"{LIST}shop.report/delete/").status_code == 403


def test_without_jobs(admin_client: Client, make: Any) -> None:  # noqa: F811
    """The page is offered only if there are jobs."""
    assert LIST not in admin_client.get("/admin/").content.decode()
    make(name="shop.report")
    assert LIST in admin_client.get("/admin/").content.decode()


def test_redis_away(looker: Client, job: Any, settings: Any) -> None:
    """The pages say so."""
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": AWAY}}
    for url in (LIST, PAGE):
        assert looker.get(url).status_code == 503


def test_rows(job: Any, redis: Redis) -> None:
    """As for locks, only `live` has rows."""
    assert PeriodicJob.live.count() == 2
    assert PeriodicJob.live.filter(state="failing").get().name == "shop.report"


def test_a_broken_ledger(looker: Client, job: Any, redis: Redis) -> None:
    """The pages work, and say what can't be read."""
    ledger = job.keys.ledger
    newest = redis.hget(ledger, "runs").split()[-1]
    redis.hset(ledger, mapping={newest: b"\xff|x", "paused": "x", "claimed": "nan"})
    assert shown(looker.get(LIST)) == ["shop.idle", "shop.report"]
    text = looker.get(PAGE).content.decode()
    assert "redislock-unreadable" in text
    assert "its process died" in text.replace("<wbr>", "")
    redis.delete(ledger)
    redis.set(ledger, "x")
    assert shown(looker.get(LIST)) == ["shop.idle", "shop.report"]
    assert "redislock-unreadable" in looker.get(PAGE).content.decode()
