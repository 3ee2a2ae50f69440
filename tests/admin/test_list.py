"""The list of locks."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.html import escape
from django.utils.translation import override
from redis import Redis

from django_redislock import redis_lock
from django_redislock.admin import cells
from django_redislock.admin.pages import health
from django_redislock.base.tokens import NO_PROCESS
from django_redislock.models import LockStatus
from tests.admin.conftest import LIST, client_of
from tests.caches import caches, entry
from tests.operations.calling import AWAY, granted, strangers

ENDED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def shown(response: Any) -> list[str]:
    return [lock.name for lock in response.context["cl"].result_list]


def test_what_is_shown(operator: Client) -> None:
    """A row has name, holder, label and times; its token and fencing token are not there."""
    with redis_lock("job", ttl=60, label="here/it.py:3 in job") as lease:
        page = operator.get(LIST)
        text = page.content.decode().replace("<wbr>", "")
    host, pid, _ = lease.owner.split(":", 2)
    assert shown(page) == ["job"]
    assert f"{host} · {pid}" in text
    assert "here/it.py:3 in job" in text
    assert '<meter max="60.000" low="20.000" optimum="60.000" value="' in text
    assert f'title="{cells.moment(lease.acquired_at)}"' in text
    assert str(lease.fencing_token) not in text
    assert '<span class="redislock-state redislock-held"' in text
    assert lease.token not in text


def test_numbers_are_no_words(operator: Client, settings: Any) -> None:
    """Numbers for the browser are written alike in every language."""
    settings.USE_THOUSAND_SEPARATOR = True
    with redis_lock("job", ttl=6000) as lease, override("de"):
        text = operator.get(LIST).content.decode()
        page = operator.get(f"{LIST}default_3Ajob/change/").content.decode()
    assert '<meter max="6000.000"' in text
    assert str(lease.fencing_token) in page


def counts(response: Any) -> dict[str, int]:
    """The numbers above the list."""
    return {str(one.name): one.number for one in response.context["summary"]["counts"]}


def test_no_bar_of_the_dead(operator: Client, redis: Redis) -> None:
    """What remains of a lease is a bar if its holder lives; else only words."""
    granted(redis, "stale")
    text = operator.get(LIST).content.decode()
    assert "<meter" not in text
    assert "45 min 00 s" in text or "44 min 59 s" in text


def test_all_holders_are_found(operator: Client, redis: Redis) -> None:
    """Search, filters and counts see each holder of a lock. Its row names hosts, not the lease
    that ends first."""
    for number, seconds in ((1, 300), (2, 200), (3, 100)):
        owner, label = f"web{number}:1:x", f"place{number}.py:1 in f"
        facts = {"owner": owner, "label": label, "process": NO_PROCESS}
        granted(redis, "pool", places=10, silent=number, left=seconds, **facts)
    row = operator.get(LIST).content.decode()
    assert "3 of 10" in row
    assert "web1, web2, web3" in row
    for number in (1, 2, 3):
        for query in ({"host": f"web{number}"}, {"q": f"web{number}:1"}, {"q": f"place{number}"}):
            assert shown(operator.get(LIST, query)) == ["pool"]
    text = operator.get(LIST, {"_facets": "True"}).content.decode()
    assert [f"web{number} (1)" in text for number in (1, 2, 3)] == [True] * 3
    assert shown(operator.get(LIST, {"host": "web4"})) == []


def test_trouble_is_never_missed(
    operator: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of very many locks, those that are stale or waited for are found without reading the
    others, and are counted among all."""
    monkeypatch.setattr("django_redislock.inspection.inspector.READ_IN_FULL", 20)
    monkeypatch.setattr("django_redislock.admin.locks.MOST_LOCKS", 1)
    for number in range(50):
        granted(redis, f"job:{number:03}", process=NO_PROCESS)
    for name in ("z:1", "z:2"):
        granted(redis, name, ttl=9000)
    redis.zadd("redislock:{job:030}:queue", {"1": 1})
    operator.get(LIST)
    before = int(redis.info("commandstats")["cmdstat_get"]["calls"])
    page = operator.get(LIST, {"state": "stale"})
    assert int(redis.info("commandstats")["cmdstat_get"]["calls"]) - before < 15
    assert shown(page) == ["z:1", "z:2"]
    assert counts(page) == {"stale": 2, "held": 50, "waited for": 1, "waiting": 1, "locks": 52}
    assert "52 total" in page.content.decode()
    assert shown(operator.get(LIST, {"contended": "True"})) == ["job:030"]
    assert shown(operator.get(LIST, {"state": "stale", "q": "z:2", "o": "1"})) == ["z:2"]


def test_one_time_zone(operator: Client, redis: Redis, settings: Any) -> None:
    """All times of a page are in its time zone, those within sentences, too."""
    settings.TIME_ZONE = "Asia/Tokyo"
    redis.set("redislock:{old}", str(ENDED.timestamp()))
    text = operator.get(LIST, {"foreign": "1"}).content.decode()
    assert "its time was over at 2026-01-02 12:04:05 JST" in text
    (row,) = LockStatus.live.of(LockStatus.snapshot(foreign=True))
    assert row.info.why == "its time was over at 2026-01-02 03:04:05 UTC"


def test_search(operator: Client, redis: Redis) -> None:
    """The search looks at name, holder and label."""
    granted(redis, "import:1", owner="web1:1:x", label="imports/run.py:1 in run")
    granted(redis, "report", owner="web2:1:x")
    for text, found in (("IMPORT:", "import:1"), ("web2", "report"), ("run.py", "import:1")):
        assert shown(operator.get(LIST, {"q": text})) == [found]
    assert shown(operator.get(LIST, {"q": "nix"})) == []


def test_filters_and_their_counts(operator: Client, redis: Redis) -> None:
    """Each filter counts what it would show under the other filters."""
    granted(redis, "old", owner="web1:1:x")
    granted(redis, "older", owner="web2:1:x")
    with redis_lock("job"):
        assert "held (1)" not in operator.get(LIST, {"state": "stale"}).content.decode()
        page = operator.get(LIST, {"state": "stale", "_facets": "True"})
        text = page.content.decode()
        assert set(shown(page)) == {"old", "older"}
        assert "held (1)" in text
        assert "stale (2)" in text
        assert "web1 (1)" in text
        assert shown(operator.get(LIST, {"state": "stale", "host": "web2"})) == ["older"]
        assert shown(operator.get(LIST, {"contended": "True"})) == []
        assert len(shown(operator.get(LIST, {"contended": "False", "kind": "mutex"}))) == 3
        assert shown(operator.get(LIST, {"host": "gone"})) == []
        assert (
            "gone (0)" in operator.get(LIST, {"host": "gone", "_facets": "True"}).content.decode()
        )


def test_values_of_others(operator: Client, redis: Redis) -> None:
    """Values of others are shown on request."""
    strangers(redis)
    assert shown(operator.get(LIST)) == []
    page = operator.get(LIST, {"foreign": "1"})
    assert len(shown(page)) == 3
    assert "\x1b" not in re.sub(r'value="[^"]*"', "", page.content.decode())
    assert len(shown(operator.get(LIST, {"foreign": "1", "kind": "timestamp"}))) == 1


@pytest.mark.parametrize(
    ("column", "ascending", "descending"),
    [
        (1, "abc", "cba"),
        (2, "cab", "bac"),  # by urgency: two are stale
        (3, "bac", "cab"),
        (4, "bac", "cab"),
        (5, "bca", "acb"),
        (6, "cab", "bac"),
    ],
)
def test_order(
    operator: Client, redis: Redis, column: int, ascending: str, descending: str
) -> None:
    """Each column orders the list, both ways."""
    granted(redis, "a", silent=300, ttl=900, owner="m:1:x", fence=30)
    granted(redis, "b", silent=100, ttl=1000, owner="a:1:x", fence=20, process=NO_PROCESS)
    granted(redis, "c", silent=200, ttl=500, owner="z:1:x", fence=10)
    redis.zadd("redislock:{a}:queue", {"1": 1})
    redis.zadd("redislock:{c}:queue", {"1": 1, "2": 2})
    assert "".join(shown(operator.get(LIST, {"o": str(column)}))) == ascending
    assert "".join(shown(operator.get(LIST, {"o": f"-{column}"}))) == descending


def test_pages(operator: Client, redis: Redis) -> None:
    """A page has a hundred locks, which cost no SQL."""
    for number in range(230):
        granted(redis, f"job:{number:03}")
    with CaptureQueriesContext(connection) as queries:
        last = operator.get(LIST, {"o": "1", "p": "3"})
    assert shown(last) == [f"job:{number:03}" for number in range(200, 230)]
    assert len(queries) == 4  # the session, the user, and its permissions and its groups'


def test_only_the_page_is_read(
    operator: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many locks, a page costs as many reads as it has rows, but for those in trouble."""
    monkeypatch.setattr("django_redislock.inspection.inspector.READ_IN_FULL", 200)
    for number in range(230):
        granted(redis, f"job:{number:03}", ttl=2000 + number, process=NO_PROCESS)

    def gets() -> int:
        return int(redis.info("commandstats")["cmdstat_get"]["calls"])

    operator.get(LIST)
    for number, first, last in ((1, 0, 100), (2, 100, 200), (3, 200, 230)):
        before = gets()
        page = operator.get(LIST, {"p": number})
        assert gets() - before <= 100 + 10
        assert shown(page) == [f"job:{number:03}" for number in range(first, last)]
        assert counts(page) == {"held": 230, "locks": 230}
        assert "were looked at" not in page.content.decode()
    assert page.context["cl"].result_count == 230
    assert operator.get(LIST, {"p": 4}).status_code == 302


def test_questions_about_all_are_bounded(
    operator: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says that it did not look at all locks, and counts all of them."""
    for number in range(30):
        granted(redis, f"job:{number:03}", ttl=2000 + number)
    assert "were looked at" not in operator.get(LIST, {"o": "-1"}).content.decode()
    monkeypatch.setattr("django_redislock.admin.locks.MOST_LOCKS", 20)
    page = operator.get(LIST, {"o": "-1"})
    assert shown(page) == [f"job:{number:03}" for number in range(19, -1, -1)]
    assert "Only the 20 most urgent locks were looked at" in page.content.decode()
    assert counts(page) == {"stale": 30, "locks": 30}


@pytest.mark.parametrize(
    "query",
    [
        "size=3",
        "name__regex=x",
        "held=long",
        "state__x=1",
        "contended=maybe",
        "contended=",
    ],
)
def test_what_can_not_be_asked(operator: Client, query: str) -> None:
    """A wrong query leads to the list with the admin's mark for it."""
    with redis_lock("job"):
        answer = operator.get(f"{LIST}?{query}")
        assert answer.status_code in (302, 400)
        if answer.status_code == 302:
            assert answer["Location"] == f"{LIST}?e=1"


def test_summary(operator: Client, redis: Redis) -> None:
    """The summary counts locks, the worst first; each number is a link to what it has counted. It
    describes the server."""
    granted(redis, "old")
    redis.zadd("redislock:{old}:queue", {"1": 1, "2": 2})
    with redis_lock("job"):
        page = operator.get(LIST)
        assert [*counts(page)] == ["stale", "held", "waited for", "waiting", "locks"]
        assert [*counts(page).values()] == [1, 1, 1, 2, 2]
        found = [shown(operator.get(LIST + one.link)) for one in page.context["summary"]["counts"]]
        assert found == [["old"], ["job"], ["old"], ["old"], ["old", "job"]]
    [server] = page.context["summary"]["servers"]
    assert server["health"].primary
    assert server["health"].server.startswith(("Redis ", "Valkey "))


def test_what_the_doctor_says(operator: Client, redis: Redis) -> None:
    """Warnings of the server are shown, and are remembered for a while."""
    text = operator.get(LIST).content.decode()
    assert "The doctor has" in text

    def asked() -> int:
        stats = redis.info("commandstats")  # Redis 6.2 does not tell CONFIG GET from CONFIG SET
        return int(stats.get("cmdstat_config|get", stats.get("cmdstat_config"))["calls"])

    before = asked()
    operator.get(LIST)
    assert asked() == before


def test_asking_for_health(redis: Redis) -> None:
    """No command is sent that is meant to fail, unlike those of the doctor."""

    tried = {"hset", "publish", "subscribe", "evalsha"}

    def seen() -> dict[str, Any]:
        stats = redis.info("commandstats")
        return {command: stats.get(f"cmdstat_{command}") for command in tried}

    before = seen()
    assert health("default").primary
    assert seen() == before


def test_several_servers(operator: Client, settings: Any) -> None:
    """A server that is away is named; the locks of the others are shown with their alias."""
    there = settings.CACHES["default"]
    settings.CACHES = {"default": there, "gone": entry(AWAY)}
    settings.REDISLOCK = {"LOCKS": {"far:*": {"USING": "gone"}}}
    with redis_lock("job"):
        page = operator.get(LIST)
    assert shown(page) == ["job"]
    text = page.content.decode()
    assert "Redis “gone” (/nowhere) does not answer" in text
    assert text.index("does not answer") < text.index("could not be reached")
    assert "field-using" in text


@pytest.mark.parametrize("there", [True, False], ids=["there", "away"])
def test_a_refresh_leaves_messages(operator: Client, settings: Any, there: bool) -> None:
    """The answer to the script has no messages, so they remain for a person."""
    operator.post(f"{LIST}clear/", {"seen": "x", "reason": "x"})
    there = settings.CACHES
    if not there:
        settings.CACHES = caches(AWAY)
    refreshed = operator.get(LIST, headers={"X-Redislock-Refresh": "1"})
    assert "messagelist" not in refreshed.content.decode()
    settings.CACHES = there
    assert "messagelist" in operator.get(LIST).content.decode()
    assert "messagelist" not in operator.get(LIST).content.decode()


def test_without_locks(operator: Client) -> None:
    """In place of zeros, a sentence says what would be there; another one, that a filter has
    hidden all. What needs a script is hidden until the script shows it."""
    page = operator.get(LIST)
    assert shown(page) == []
    assert counts(page) == {}
    text = page.content.decode()
    assert "Nobody holds a lock now" in text
    assert 'with redis_lock("invoice:42"): …' in text
    assert '<p id="redislock-control" hidden>' in text
    with redis_lock("job"):
        for query in ({"q": "nix"}, {"state": "stale"}, {"host": "gone"}):
            text = operator.get(LIST, query).content.decode()
            assert "No lock matches" in text
            assert "Nobody holds" not in text
        assert "No lock matches" not in operator.get(LIST).content.decode()


@pytest.mark.parametrize(
    "name", ["<b>x</b>", "a/b?c=d&e#f", "ünï · 锁", "_2F_5F", "x" * 300], ids=str
)
def test_names_of_others(operator: Client, redis: Redis, name: str) -> None:
    """A foreign name is escaped, and its link leads to its page."""
    granted(redis, name)
    text = operator.get(LIST).content.decode()
    assert "<b>x" not in text
    (link,) = re.findall(rf'href="({LIST}[^"]+/change/)"', text)
    page = operator.get(html.unescape(link))
    assert page.status_code == 200
    assert escape(name) in page.content.decode().replace("<wbr>", "")
    assert "redislock-stale" in page.content.decode()


def test_a_superuser(admin_client: Client, redis: Redis) -> None:
    """Even a superuser has no link, field or action to add, change or delete a lock."""
    granted(redis, "job")
    page = admin_client.get(LIST)
    assert f"{LIST}add/" not in page.content.decode()
    form = page.context["action_form"]
    assert [value for value, _ in form.fields["action"].choices] == ["", "clear_locks"]
    assert admin_client.get(f"{LIST}add/").status_code == 403
    assert admin_client.get(f"{LIST}default:job/delete/").status_code == 403
    text = admin_client.get(f"{LIST}default_3Ajob/change/").content.decode()
    assert "deletelink" not in text
    content = text[text.index('id="content"') :]
    assert not re.findall(r'<textarea|<input(?! type="hidden")|type="submit"', content)


@pytest.mark.django_db
@pytest.mark.parametrize("page", ["", "default_3Ajob/change/", "default_3Ajob/clear/"])
def test_who_is_not_logged_in(page: str) -> None:
    """The admin asks for a login first."""
    answer = Client().get(f"{LIST}{page}")
    assert answer.status_code == 302
    assert "/login/" in answer["Location"]


@pytest.mark.django_db
def test_the_index() -> None:
    """The admin's index shows the locks to users with the permission."""
    assert "Locks" in client_of("ron", "view_lockstatus").get("/admin/").content.decode()
    assert "Locks" not in client_of("nobody").get("/admin/").content.decode()


@pytest.mark.django_db
def test_who_may_look() -> None:
    """Users need the permission, and nobody may add, change or delete."""
    assert client_of("nobody").get(LIST).status_code == 403
    assert client_of("clearer", "clear_lock").get(LIST).status_code == 403
    reader = client_of("ron", "view_lockstatus")
    assert reader.get(f"{LIST}add/").status_code == 403
    with redis_lock("job"):
        page = reader.get(LIST)
        assert b"clear_locks" not in page.content
        assert b"delete_selected" not in page.content
        assert reader.get(f"{LIST}default:job/delete/").status_code == 403
        assert reader.post(f"{LIST}default:job/change/", {"name": "x"}).status_code == 403
