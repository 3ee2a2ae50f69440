"""The pages of periodic jobs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.db import DatabaseError, connections
from django.test import Client
from django.utils import timezone
from redis import Redis

from django_redislock.models import PeriodicJob
from django_redislock.periodic import Ledger
from django_redislock.periodic.job import job_of_lock
from django_redislock.primitives.ledger import RunOutcome
from tests.admin.conftest import client_of
from tests.caches import caches
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


@pytest.fixture
def operator(db: Any) -> Client:
    """Who may look, pause and run, but not see locks."""
    return client_of("eva", "view_periodicjob", "pause_periodicjob", "run_periodicjob")


def info_of(name: str = "shop.report") -> Any:
    return Ledger().job(name)


def done(answer: Any) -> str:
    """The messages of the page to which a form leads."""
    assert answer.status_code == 200
    return " ".join(str(message) for message in answer.context["messages"])


def post(client: Client, what: str, **fields: str) -> str:
    return done(client.post(f"{LIST}shop.report/{what}/", fields, follow=True))


def entries() -> list[tuple[str, str, str]]:
    """Who did it, to what, and what the history says; the oldest first."""
    return [
        (entry.user.get_username(), entry.object_repr, entry.get_change_message())
        for entry in LogEntry.objects.order_by("pk")
    ]


class TestActing:
    def test_on_the_page_of_a_job(self, operator: Client, job: Any) -> None:
        """Each button does what it says, and the history has who, what and why."""
        page = operator.get(PAGE).content.decode()
        assert f'action="{LIST}shop.report/run/"' in page
        assert "Asked for a run of “shop.report”. Schedulers look every 10 seconds." in post(
            operator, "run"
        )
        assert info_of().request.by == "eva"
        assert "Run requested" in operator.get(PAGE).content.decode()
        assert "Paused “shop.report”." in post(operator, "pause", reason="no paper.")
        assert info_of().paused[1:] == ("eva", "no paper.")
        page = operator.get(PAGE).content.decode()
        assert f'action="{LIST}shop.report/resume/"' in page
        assert f'action="{LIST}shop.report/pause/"' not in page
        assert "Resumed “shop.report”" in post(operator, "resume")
        assert info_of().paused is None
        assert "not paused" in post(operator, "resume")
        assert entries() == [
            ("eva", "shop.report", "Asked for a run."),
            ("eva", "shop.report", "Paused: no paper."),
            ("eva", "shop.report", "Resumed."),
        ]
        for url in (PAGE, f"{LIST}shop.report/history/"):
            assert "Paused: no paper." in operator.get(url).content.decode()

    def test_from_the_list(self, operator: Client, job: Any) -> None:
        """Several jobs at once, with one reason."""

        def act(action: str, **fields: str) -> str:
            ticked = {"_selected_action": ["shop.idle", "shop.report"], "index": "0"}
            return done(operator.post(LIST, {"action": action, **ticked, **fields}, follow=True))

        assert "“shop.idle”, “shop.report”" in act("run_jobs")
        assert "Nothing was paused: write the reason." in act("pause_jobs", reason=" ")
        assert info_of().paused is None
        assert "Paused “shop.idle”, “shop.report”." in act("pause_jobs", reason="a move")
        assert [job.state for job in Ledger().jobs()] == ["paused", "paused"]
        assert "Resumed" in act("resume_jobs")
        assert [job.paused for job in Ledger().jobs()] == [None, None]
        assert len(entries()) == 6

    def test_somebody_else_was_first(self, operator: Client, job: Any) -> None:
        """The page says so, and nothing is written into the history."""
        Ledger().request_run("shop.report", by="ron")
        assert "somebody else has asked" in post(operator, "run")
        assert info_of().request.by == "ron"
        assert entries() == []

    def test_a_disabled_job(self, operator: Client, job: Any, settings: Any) -> None:
        """No scheduler would run it."""
        settings.REDISLOCK = {"JOBS": {"shop.report": {"ENABLED": False}}}
        assert "It is disabled" in post(operator, "run")

    def test_who_may(self, looker: Client, job: Any) -> None:
        """Pausing and running have permissions of their own; to look at a page changes nothing."""
        page = looker.get(PAGE).content.decode()
        pauser = client_of("pia", "view_periodicjob", "pause_periodicjob")
        for what in ("run", "pause", "resume"):
            assert f"/{what}/" not in page
            assert looker.post(f"{LIST}shop.report/{what}/", {"reason": "x"}).status_code == 403
        assert pauser.post(f"{LIST}shop.report/run/").status_code == 403
        assert "Paused" in post(pauser, "pause", reason="why")
        runner = client_of("rut", "run_periodicjob")
        assert runner.post(f"{LIST}shop.report/run/").status_code == 403, "but not look"
        for what in ("run", "resume"):
            superuser = Client()
            superuser.force_login(User.objects.create_superuser(f"su-{what}"))
            assert superuser.get(f"{LIST}shop.report/{what}/").status_code == 302
        assert (info_of().request, info_of().paused.by) == (None, "pia")

    def test_from_another_site(self, db: Any, job: Any) -> None:
        """A form without its token is refused."""
        client = Client(enforce_csrf_checks=True)
        client.force_login(User.objects.create_superuser("sue"))
        assert client.post(f"{LIST}shop.report/run/").status_code == 403

    def test_redis_is_away(self, operator: Client, job: Any, settings: Any) -> None:
        """What may have been done is said, and is in the history."""
        settings.CACHES = caches(AWAY)
        answer = operator.post(f"{LIST}shop.report/run/")
        assert answer.status_code == 302
        [message] = get_messages(answer.wsgi_request)
        assert "It is not known whether this was done to “shop.report”" in str(message)
        assert entries() == [("eva", "shop.report", "Perhaps: Asked for a run.")]

    @pytest.mark.parametrize(
        "error", [DatabaseError("read only"), ValueError("a router"), RuntimeError("anything")]
    )
    def test_the_history_can_not_be_written(
        self,
        error: Exception,
        operator: Client,
        job: Any,
        monkeypatch: pytest.MonkeyPatch,
        caplog: Any,
    ) -> None:
        """It is done, and the log has what the history lacks."""

        def fails(*_: Any) -> None:
            raise error

        monkeypatch.setattr(type(LogEntry.objects), "bulk_create", fails)
        said = post(operator, "run")
        assert "This is missing from the history" in said
        assert info_of().request is not None
        assert "eva did to 'shop.report': Asked for a run." in caplog.text

    @pytest.mark.django_db(databases=["default", "other"])
    def test_a_replica(self, job: Any, replica: None) -> None:
        """A router may refuse a relation between rows of two databases; the history needs none."""
        operator = client_of("eva", "view_periodicjob", "pause_periodicjob", "run_periodicjob")
        for what in ("run", "pause", "resume"):
            post(operator, what, reason="no paper")
        assert [said for _, _, said in entries()] == [
            "Asked for a run.",
            "Paused: no paper.",
            "Resumed.",
        ]
        assert "no paper" in operator.get(PAGE).content.decode()

    def test_an_error_in_the_middle(
        self, operator: Client, job: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was done before is in the history, and what perhaps was done."""
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
        pause = Ledger.pause

        def fails(ledger: Ledger, name: str, **by: str) -> bool:
            if name == "shop.report":
                raise RuntimeError("anything")
            return pause(ledger, name, **by)

        monkeypatch.setattr(Ledger, "pause", fails)
        ticked = {"_selected_action": ["shop.idle", "shop.report"], "reason": "a move"}
        with pytest.raises(RuntimeError):
            operator.post(LIST, {"action": "pause_jobs", "index": "0", **ticked})
        assert [said for _, _, said in entries()] == [
            "Paused: a move.",
            "Perhaps: Paused: a move.",
        ]


def test_trouble_comes_first(looker: Client, job: Any, redis: Redis, now: Any) -> None:  # noqa: F811
    """In the list; and each failing job has its error in its row."""
    redis.hset("redislock:{periodic:shop.idle}:ledger", "claimed", now())
    page = looker.get(LIST)
    assert shown(page) == ["shop.report", "shop.idle"]
    text = page.content.decode()
    assert text.index("ValueError: 3") < text.index("shop.idle")
    assert "redislock-new" in text


def test_no_scheduler(looker: Client, job: Any, redis: Redis, now: Any) -> None:  # noqa: F811
    """The list says that nobody asks for ticks, and since when, until somebody does."""
    assert "No scheduler asks for ticks." in looker.get(LIST).content.decode()
    ledgers = [f"redislock:{{periodic:{name}}}:ledger" for name in ("shop.idle", "shop.report")]
    for ledger in ledgers:
        redis.hset(ledger, "seen", now() - 250_000_000)
    assert "No scheduler has asked for ticks for 4 min 1" in looker.get(LIST).content.decode()
    assert "No scheduler has asked for ticks" in looker.get(PAGE).content.decode()
    redis.hset(ledgers[0], "seen", now())
    assert "No scheduler" not in looker.get(LIST).content.decode()


def test_times_have_the_instant(looker: Client, job: Any) -> None:
    """What is relative has the instant as a tooltip, in the time zone of the page."""
    with timezone.override("Asia/Tokyo"):
        text = looker.get(LIST).content.decode()
    assert re.search(r'title="[\d-]{10} [\d:]{8} JST">in ', text)
    assert re.search(r'title="[\d-]{10} [\d:]{8} JST"><bdi dir="ltr">\d+ s</bdi> ago<', text)
    assert "UTC" not in text


def test_the_strip(looker: Client, job: Any) -> None:
    """Each run is a bar with its facts as a title, and no style of its own."""
    text = looker.get(LIST).content.decode()
    strip = text[text.index('<svg class="redislock-strip') :].partition("</svg>")[0]
    kinds = re.findall(r'class="redislock-run-(\w+)"', strip)
    assert kinds == ["done", "lost", "failed"]
    titles = re.findall(r"<title>(.*?)</title>", strip)
    assert titles[1].endswith("its process died")
    assert re.search(r" C[SD]T, failed, 0\.\d s, ValueError: 3$", titles[2])
    assert "style=" not in strip
    assert "done: 1, lost: 1, failed: 1" in strip


def test_the_lock_of_a_job(looker: Client, job: Any) -> None:
    """The page of a job leads to that of its lock."""
    url = "/admin/django_redislock/lockstatus/default_3Aperiodic_3Ashop.report/change/"
    assert f'href="{url}"' in looker.get(PAGE).content.decode()
    found = job_of_lock("periodic:shop.report")
    assert found is not None
    assert found.name == "shop.report"
    assert job_of_lock("shop.report") is job_of_lock("periodic:nix") is None


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
    text = text[text.index("redislock-tables") :]
    assert text.index("ValueError: 3") < text.index("its process died")
    assert "by hand" in text
    gone = looker.get(f"{LIST}nix/change/", follow=True)
    assert gone.redirect_chain == [(LIST, 302)]
    assert "There is no job “nix”." in gone.content.decode()


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
    settings.CACHES = caches(AWAY)
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
