"""A lock's page, and its history."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.test import Client
from django.utils.html import strip_tags
from redis import Redis

from django_redislock import redis_lock
from django_redislock.inspection import Inspector
from django_redislock.models import LockStatus
from tests.admin.conftest import LIST, client_of
from tests.caches import caches
from tests.operations.calling import AWAY, granted, write_down
from tests.periodic.conftest import make, registry  # noqa: F401 - fixtures
from tests.test_story import in_queue
from tests.waiting import PATIENCE, eventually

PAGE = f"{LIST}default_3Ajob/change/"
HISTORY = f"{LIST}default_3Ajob/history/"


def cleared_once() -> None:
    LogEntry.objects.create(
        user=User.objects.get(),
        content_type=get_content_type_for_model(LockStatus),
        object_id="default:job",
        object_repr="job",
        action_flag=CHANGE,
        change_message="Cleared: it hung.",
    )


def test_a_note(reader: Client, redis: Redis) -> None:
    """Whoever may look sees the progress. The note may be personal data: it needs a permission."""
    with redis_lock("job") as lease:
        lease.checkpoint(done=41, total=900, mail="eva@example.com")
        page = reader.get(PAGE).content.decode()
        assert "41 of 900, 5 %" in strip_tags(page)
        assert "eva@example.com" not in page
        page = client_of("iva", "view_lockstatus", "view_note").get(PAGE).content.decode()
        assert "eva@example.com" in page.replace("<wbr>", "")


def test_what_is_shown(operator: Client, settings: Any) -> None:
    """The page has holder, lease, waiters in order, and settings with their sources, and no
    token."""
    settings.REDISLOCK = {"LOCKS": {"job": {"TTL": 50}}}
    lease = redis_lock("job", label="here").acquire()
    with ThreadPoolExecutor(2) as threads:
        waiting = []
        for number in range(2):
            lock = redis_lock("job", wait=PATIENCE, label=f"waiter {number}")
            waiting.append(threads.submit(lock.acquire))
            eventually(lambda: len(Inspector().waiters("job")) == len(waiting))
        page = operator.get(PAGE)
        lease.release()
        for one in waiting:
            one.result(PATIENCE).release()
    text = page.content.decode().replace("<wbr>", "")
    assert lease.owner in text
    assert lease.token not in text
    assert text.index("waiter 0") < text.index("waiter 1")
    assert "REDISLOCK[&#x27;LOCKS&#x27;][&#x27;job&#x27;][&#x27;TTL&#x27;]" in text
    assert (
        text.index(">TTL</bdi></td>") < text.index("Defaults (") < text.index(">WAIT</bdi></td>")
    )
    assert "2026" in text or str(lease.acquired_at.year) in text
    assert f"{LIST}default_3Ajob/clear/" in text


def test_a_stale_one(operator: Client, redis: Redis) -> None:
    """The page says why the lock is stale."""
    granted(redis, "job")
    assert "no sign of life" in operator.get(PAGE).content.decode()


def test_of_which_nothing_is_known(operator: Client) -> None:
    """An unknown lock leads to the list, with its filters and a message."""
    for id, name in [
        ("default_3Anix", "nix"),
        ("nix_3Ajob", "nix:job"),
        ("job", "job"),
        ("default_3Aa_7Bb", "a_7Bb"),
    ]:
        url = f"{LIST}{id}/change/?_changelist_filters=state%3Dheld"
        answer = operator.get(url, follow=True)
        assert answer.redirect_chain == [(f"{LIST}?state=held", 302)]
        assert f"Nobody holds “{name}” now." in answer.content.decode()


def test_a_free_one(operator: Client) -> None:
    """The page of a lock that was released a moment ago has its past, and no link to clear it."""
    with redis_lock("job", label="here") as lease:
        write_down()
    successor = redis_lock("job").acquire()
    redis_lock("job").clear(by="eva", reason="it hung")
    assert successor is not None
    page = operator.get(PAGE)
    assert page.status_code == 200
    text = page.content.decode()
    assert "redislock-free" in text
    assert text.index("by eva (it hung)") < text.index(str(lease.fencing_token))
    assert "released" in text
    assert "/clear/" not in text
    assert "field-kind" not in text  # of which it was, Redis does not tell any more


def test_history_stays(operator: Client, redis: Redis) -> None:
    """The history stays after Redis has forgotten the lock."""
    with redis_lock("job"):
        pass
    cleared_once()
    redis.delete(*redis.keys("redislock*"))
    for url in (HISTORY, PAGE):
        page = operator.get(url)
        assert page.status_code == 200
        assert "it hung" in page.content.decode()


def test_history_without_redis(operator: Client, settings: Any) -> None:
    """The history is in the database."""
    cleared_once()
    settings.CACHES = caches(AWAY)
    assert "it hung" in operator.get(HISTORY).content.decode()
    answer = operator.get(f"{LIST}default_3Aother/history/")
    assert answer.status_code == 200
    assert "Nobody has cleared it here." in answer.content.decode()


def test_a_lock_of_the_cache(operator: Client, settings: Any) -> None:
    """Locks of the cache are listed and shown by their keys."""
    from django.core.cache import cache

    settings.CACHES = {
        "default": {
            **settings.CACHES["default"],
            "OPTIONS": {"CLIENT_CLASS": "django_redislock.client.LockingClient"},
        }
    }
    with cache.lock("redislock-test", timeout=60):
        [lock] = operator.get(LIST).context["cl"].result_list
        assert lock.name.endswith("redislock-test")
        assert lock.pk == f"{{default}}:{lock.name}"
        page = operator.get(f"{LIST}{quote(lock.pk)}/change/")
        assert page.status_code == 200
        assert "Settings" not in page.content.decode()


def test_other_keys_are_none_of_ours(operator: Client, redis: Redis) -> None:
    """An invented id shows no key that is not known as a lock, and does not make it one."""
    redis.set("redislock-secret", "x", px=60_000)
    granted(redis, "job")
    try:
        for key in ("redislock-secret", "redislock:{job}"):
            id = quote(f"{{default}}:{key}")
            assert operator.get(f"{LIST}{id}/change/").status_code == 302
            assert operator.get(f"{LIST}{id}/clear/").status_code == 302
            Inspector(cache_locks=True).get(key)
        assert not redis.exists("redislock:key:index")
        assert [lock.name for lock in LockStatus.live.all()] == ["job"]
    finally:
        redis.delete("redislock-secret")


def test_a_key_of_a_wrong_type(operator: Client, redis: Redis) -> None:
    """The list works, and the page says what can't be read."""
    granted(redis, "job")
    redis.set("redislock:{job}:queue", "x")
    assert operator.get(LIST).status_code == 200
    redis.set("redislock:{job}:history", "x")
    page = operator.get(PAGE)
    assert page.status_code == 200
    assert page.content.decode().count("what is written there can") == 2
    redis.set("redislock:index", "x")
    assert operator.get(LIST).status_code == 503


@pytest.mark.parametrize("page", ["", "default_3Ajob/change/", "default_3Ajob/history/"])
def test_redis_is_not_asked_for_strangers(db: Any, settings: Any, page: str) -> None:
    """Users without the permission get 403, whether Redis is away or not."""
    settings.CACHES = caches(AWAY)
    client = client_of("nobody")
    assert client.get(f"{LIST}{page}").status_code == 403
    assert client.get(f"{LIST}default_3Ajob/delete/").status_code == 403


@pytest.mark.parametrize(
    "id",
    ["local:job", "{local}:job", "nix:job", "", "default", "default:a%00b", "default:{a}\x00"],
)
@pytest.mark.parametrize("page", ["change", "clear", "history"])
def test_ids_of_no_lock(operator: Client, settings: Any, id: str, page: str) -> None:
    """An alias without locks, or an impossible name, is treated like a row that is gone."""
    local = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    settings.CACHES = {**settings.CACHES, "local": local}
    answer = operator.get(f"{LIST}{quote(id) or 'x'}/{page}/")
    if page == "history" and answer.status_code == 200:  # a name, of which nothing can be known
        assert "Nobody has cleared it here." in answer.content.decode()
        return
    assert answer.status_code == 302
    answer = operator.get(answer["Location"])
    assert answer.status_code in (200, 302)


def test_the_lock_of_a_job(make: Any, redis: Redis, operator: Client) -> None:  # noqa: F811
    """Its page leads to the job, for those who may see jobs."""
    make(name="shop.report", every=3600)
    granted(redis, "periodic:shop.report")
    page = f"{LIST}default_3Aperiodic_3Ashop.report/change/"
    job = "/admin/django_redislock/periodicjob/shop.report/change/"
    assert job not in operator.get(page).content.decode()
    both = client_of("ada", "view_lockstatus", "view_periodicjob")
    assert f'href="{job}"' in both.get(page).content.decode()


def test_the_timeline(operator: Client, redis: Redis) -> None:
    """Past holders, holders and waiters as bars; places are percentages, and nothing is styled
    inline."""
    granted(redis, "job", silent=900, ttl=3600)
    in_queue(redis, "job", *[f"web-{number % 2}:{number}:x" for number in range(12)], waited=90)
    page = operator.get(PAGE)
    drawn = page.context["timeline"]
    assert [(bar["look"], bar["text"].partition(" – ")[2]) for bar in drawn["bars"]] == [
        ("stale", "web3 · 1 · x"),
        ("waiting", "6 × web-0"),
        ("waiting", "6 × web-1"),
    ]
    held, waiting, _other = drawn["bars"]
    assert (held["x"], held["width"], drawn["now"]) == ("0.00%", "75.00%", "75.00%")
    assert float(held["lease"].rstrip("%")) > 25  # it ends beyond the picture
    assert waiting["text"].startswith("waiting, 1 min 3")
    assert float(waiting["x"].rstrip("%")) == pytest.approx(67.5, abs=0.5)
    text = page.content.decode()
    assert " style=" not in text[text.index("<svg class=") : text.index("</svg>")]
    assert "One by one (12)" in text


def test_the_timeline_of_the_past(operator: Client) -> None:
    """A lock that is free has a picture, too."""
    with redis_lock("job"):
        write_down()
    [bar] = operator.get(PAGE).context["timeline"]["bars"]
    assert (bar["look"], bar["x"], bar["lease"]) == ("past", "0.00%", "")
    assert "Nobody holds it now. Last held by " in strip_tags(operator.get(PAGE).content.decode())
