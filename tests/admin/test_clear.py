"""Clearing locks: what was seen, with a reason, and written down."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test import Client
from django.utils.html import strip_tags
from redis import Redis

from django_redislock import LeaseRevoked, redis_lock
from django_redislock.admin import clear
from django_redislock.client import Lock
from django_redislock.inspection import Inspector, LockInfo
from django_redislock.inspection.words import process_name
from tests.admin.conftest import LIST, client_of
from tests.caches import caches
from tests.operations.calling import AWAY, before_clearing, granted, strangers, write_down
from tests.waiting import PATIENCE, eventually

CLEAR = f"{LIST}clear/"


def ask(client: Client, *names: str, **more: str) -> Any:
    """Tick these locks, and choose the action."""
    ids = [f"default:{name}" for name in names]
    choice = {"action": "clear_locks", "_selected_action": ids, "index": "0"}
    return client.post(LIST, choice | more)


def plain(page: Any) -> str:
    """The text of a page."""
    return strip_tags(page.content.decode())


def confirm(client: Client, page: Any, reason: str = "it hung", **more: str) -> list[str]:
    """Send the confirmation, and return the messages."""
    seen = page.context["form"].initial["seen"]
    answer = client.post(CLEAR, {"seen": seen, "reason": reason, **more}, follow=True)
    return [str(message) for message in answer.context["messages"]]


def test_clear(operator: Client) -> None:
    """The holder learns of it, the next waiter has the lock, and the history has an entry."""
    lease = redis_lock("job", label="here").acquire()
    with ThreadPoolExecutor(1) as thread:
        waiter = thread.submit(redis_lock("job", wait=PATIENCE).acquire)
        eventually(lambda: len(Inspector().waiters("job")) == 1)
        page = ask(operator, "job")
        text = plain(page)
        assert f" (here) is alive; two may work at once for up to {lease.ttl / 3:.1f} s." in text
        assert "Next: " in text
        assert "It is safer to end process " in text
        assert lease.token not in page.content.decode()
        [said] = confirm(operator, page)
        assert said.startswith("Cleared “job”. Now it is held by ")
        successor = waiter.result(PATIENCE)
        assert str(process_name(successor.owner)) in said
    with pytest.raises(LeaseRevoked, match=r"cleared by eva \(it hung\)"):
        lease.extend()
    successor.release()
    [entry] = LogEntry.objects.all()
    assert (entry.user.username, entry.object_id) == ("eva", "default:job")
    assert entry.get_change_message().startswith("Cleared: it hung. Held by ")
    assert "here" in entry.change_message
    assert lease.token not in entry.change_message


def test_one_lock(operator: Client, redis: Redis) -> None:
    """A lock can be cleared from its page."""
    granted(redis, "job")
    page = operator.get(f"{LIST}default_3Ajob/clear/")
    assert confirm(operator, page) == ["Cleared “job”. Nobody holds it now."]
    assert Inspector().get("job") is None
    with redis_lock("a:job"):
        write_down()
    answer = operator.get(f"{LIST}default_3Aa_3Ajob/clear/", follow=True)
    assert "Nobody holds “a:job” now." in answer.content.decode()
    answer = operator.get(f"{LIST}default_3Anix/clear/", follow=True)
    assert answer.redirect_chain == [(LIST, 302)]
    assert "Nobody holds “nix” now." in answer.content.decode()


def test_a_database_that_can_not_be_written(
    operator: Client, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The page says what was cleared, and that the history lacks it; the log has it."""
    granted(redis, "job", ttl=1800)
    granted(redis, "other")
    page = ask(operator, "job", "other")
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA query_only = ON")
        try:
            with caplog.at_level("ERROR", "django_redislock"):
                said = confirm(operator, page, "it\nhung")
        finally:
            cursor.execute("PRAGMA query_only = OFF")
    assert said[0] == "Cleared 2 locks: “job”, “other”. Nobody holds them now."
    assert said[1].startswith("This is missing from the history, which could not")
    assert Inspector().get("job") is None
    assert not LogEntry.objects.exists()
    job, other = (record.getMessage() for record in caplog.records)
    assert job.startswith("The history lacks what eva did to 'default:job': Cleared: it?hung")
    assert "default:other" in other


@pytest.mark.django_db(databases=["default", "other"])
def test_a_replica(redis: Redis, replica: None) -> None:
    """A router may refuse a relation between rows of two databases, and the history needs none."""
    operator = client_of("eva", "view_lockstatus", "clear_lock")
    granted(redis, "job")
    assert confirm(operator, ask(operator, "job")) == ["Cleared “job”. Nobody holds it now."]
    assert LogEntry.objects.get().object_repr == "job"
    assert "it hung" in plain(operator.get(f"{LIST}default_3Ajob/history/"))


def test_what_comes_after_the_deed(
    operator: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the locks can't be read again, the page says less."""
    granted(redis, "job")
    page = ask(operator, "job")
    broken = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a broken record")
    monkeypatch.setattr(clear, "_held", mock.Mock(side_effect=broken))
    assert [said.strip() for said in confirm(operator, page)] == ["Cleared “job”."]


def test_changed_hands(operator: Client, redis: Redis) -> None:
    """A later holder keeps its lock, the other locks are cleared, and the messages say so."""
    granted(redis, "gone")
    granted(redis, "old")
    lease = redis_lock("job").acquire()
    page = ask(operator, "job", "gone", "old")
    lease.release()
    redis.delete("redislock:{gone}")
    with redis_lock("job") as successor:
        assert confirm(operator, page) == [
            "Cleared “old”. Nobody holds it now.",
            "“job” has changed hands meanwhile, and was left alone.",
            "“gone” was free already.",
        ]
        successor.extend()
    assert [entry.object_id for entry in LogEntry.objects.all()] == ["default:old"]


def test_a_reason_is_needed(operator: Client, redis: Redis) -> None:
    """Without a reason the confirmation is shown again, unchanged."""
    granted(redis, "job")
    page = ask(operator, "job")
    seen = page.context["form"].initial["seen"]
    assert re.search(r'<input type="text" name="reason"[^>]* required', page.content.decode())
    assert f'<a role="button" href="{LIST}" class="closelink">' in page.content.decode()
    for reason in ("", "  ", "x" * 201):
        again = operator.post(CLEAR, {"seen": seen, "reason": reason})
        assert again.status_code == 200
        assert "errorlist" in again.content.decode()
        assert f'value="{seen}"' in again.content.decode()
    assert Inspector().get("job") is not None


@pytest.mark.parametrize("seen", ["", "x", "eyJkZWZhdWx0OmpvYiI6IngifQ:x:y"])
def test_what_was_not_shown(operator: Client, redis: Redis, seen: str) -> None:
    """Only locks that this site has shown are cleared."""
    granted(redis, "job")
    answer = operator.post(CLEAR, {"seen": seen, "reason": "r"}, follow=True)
    assert answer.redirect_chain
    assert Inspector().get("job") is not None
    assert operator.get(CLEAR).status_code == 302


def test_all_pages(operator: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """All locks of a search are cleared, in batches, more than one form could hold."""
    monkeypatch.setattr(clear, "WRITTEN_AT_ONCE", 50)
    for number in range(120):
        granted(redis, f"job:{number}")
    granted(redis, "other")
    page = operator.post(
        f"{LIST}?q=job:",
        {
            "action": "clear_locks",
            "_selected_action": ["default:job:1"],
            "select_across": "1",
            "index": "0",
        },
    )
    assert "And 20 more." in page.content.decode()
    [said] = confirm(operator, page)
    assert re.fullmatch(
        "Cleared 120 locks: “job:[0-9]+”, “job:[0-9]+” … “job:[0-9]+”[.] Nobody holds them now[.]",
        said,
    )
    assert [lock.name for lock in Inspector().all()] == ["other"]
    assert LogEntry.objects.count() == 120


def test_what_was_ticked_is_read(
    operator: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else, however many locks there are; also those of the cache."""
    for number in range(120):
        granted(redis, f"job:{number}")
    lock = Lock(redis, ":1:cached", timeout=60)
    assert lock.acquire()
    ids = ["default:job:7", "{default}::1:cached", "nonsense"]
    with monkeypatch.context() as patch:
        for reads_many in ("all", "page"):
            patch.setattr(Inspector, reads_many, None)
        page = operator.post(LIST, {"action": "clear_locks", "_selected_action": ids, "index": 0})
    [said] = confirm(operator, page)
    assert said == "Cleared 2 locks: “job:7”, “:1:cached”. Nobody holds them now."
    assert not lock.locked()
    assert Inspector().counts().total == 119


def test_who_may_clear(reader: Client, redis: Redis) -> None:
    """The permission is needed, whatever the way."""
    granted(redis, "job")
    ask(reader, "job")
    assert reader.get(f"{LIST}default_3Ajob/clear/").status_code == 403
    seen = clear.sealed([])
    assert reader.post(CLEAR, {"seen": seen, "reason": "r"}).status_code == 403
    assert "/clear/" not in reader.get(f"{LIST}default_3Ajob/change/").content.decode()
    blind = client_of("bob", "clear_lock")  # and not to see what it would be
    assert blind.get(f"{LIST}default_3Ajob/clear/").status_code == 403
    assert Inspector().get("job") is not None


def test_redis_away(operator: Client, redis: Redis, settings: Any) -> None:
    """Nothing was cleared, and the page says so."""
    granted(redis, "job")
    page = ask(operator, "job")
    there = settings.CACHES
    settings.CACHES = caches(AWAY)
    seen = page.context["form"].initial["seen"]
    answer = operator.post(CLEAR, {"seen": seen, "reason": "r"})
    assert answer.status_code == 503
    assert "Nothing was cleared." in answer.content.decode()
    assert not LogEntry.objects.exists()
    for url in (LIST, f"{LIST}default_3Ajob/change/", f"{LIST}default_3Ajob/clear/"):
        answer = operator.get(url)
        assert answer.status_code == 503
        assert "is not known now" in answer.content.decode()
    assert operator.get("/admin/").status_code == 200
    settings.CACHES = there
    assert Inspector().get("job") is not None


def test_redis_goes_away(
    operator: Client, redis: Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was cleared has an entry, and the messages say what became of the other locks."""
    for number in range(4):
        granted(redis, f"job:{number}")
    page = ask(operator, *(f"job:{number}" for number in range(4)))
    there = settings.CACHES
    done: list[str] = []

    def once(lock: LockInfo) -> None:
        if done:
            settings.CACHES = caches(AWAY)
        done.append(lock.name)

    before_clearing(monkeypatch, once)
    seen = page.context["form"].initial["seen"]
    answer = operator.post(CLEAR, {"seen": seen, "reason": "r"})
    settings.CACHES = there
    said = [str(message) for message in operator.get(LIST).context["messages"]]
    assert answer.status_code == 302
    assert said[0].startswith(f"Cleared “{done[0]}”.")
    assert said[1].startswith(f"“{done[1]}” may have been cleared, or not: ")
    assert said[2].startswith("2 locks were left alone, since Redis did not answer any more: ")
    assert {entry.object_repr for entry in LogEntry.objects.all()} == set(done)
    assert len(done) == 2


def test_values_of_others(operator: Client, redis: Redis) -> None:
    """Values of others can be cleared, also under odd names."""
    strangers(redis)
    page = operator.get(LIST, {"foreign": "1"})
    for lock in page.context["cl"].result_list:
        assert operator.get(f"{LIST}{quote(lock.pk)}/change/").status_code == 200
    ids = [lock.pk for lock in page.context["cl"].result_list]
    page = operator.post(
        f"{LIST}?foreign=1", {"action": "clear_locks", "_selected_action": ids, "index": "0"}
    )
    [said] = confirm(operator, page)
    assert said.startswith("Cleared 3 locks: ")
    assert Inspector().discover() == []
    for id in ids:
        assert "it hung" in operator.get(f"{LIST}{quote(id)}/history/").content.decode()


def test_another_value_of_others(operator: Client, redis: Redis) -> None:
    """The whole value counts, not its beginning; a name in braces is not the key that it names."""
    redis.set("redislock:{long}", "worker on host-with-a-long-name-A")
    redis.set("redislock:{{redislock-victim}}", "1")
    redis.set("redislock-victim", "1")
    try:
        page = operator.get(LIST, {"foreign": "1"})
        ids = [lock.pk for lock in page.context["cl"].result_list]
        assert len(ids) == 2
        page = operator.post(
            f"{LIST}?foreign=1", {"action": "clear_locks", "_selected_action": ids, "index": "0"}
        )
        redis.set("redislock:{long}", "worker on host-with-a-long-name-B")
        assert confirm(operator, page) == [
            "Cleared “{redislock-victim}”. Nobody holds it now.",
            "“long” has changed hands meanwhile, and was left alone.",
        ]
        assert redis.exists("redislock-victim")
    finally:
        redis.delete("redislock-victim")


def test_what_was_seen_is_old(
    operator: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A form is valid for an hour."""
    granted(redis, "job")
    page = ask(operator, "job")
    monkeypatch.setattr(clear, "GOOD_FOR", -1)
    assert confirm(operator, page) == ["This form is not the one that was shown. Start again."]
    assert Inspector().get("job") is not None


def test_an_alias_that_is_gone(operator: Client, redis: Redis, settings: Any) -> None:
    """A form is not valid after its alias was removed from the settings."""
    granted(redis, "job")
    page = ask(operator, "job")
    settings.CACHES = {"other": settings.CACHES["default"]}
    settings.REDISLOCK = {"USING": "other"}
    assert confirm(operator, page) == ["This form is not the one that was shown. Start again."]


def test_an_error_in_the_middle(
    operator: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks that were cleared before the error have entries, with ATOMIC_REQUESTS, too."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    for number in range(3):
        granted(redis, f"job:{number}")
    page = ask(operator, *(f"job:{number}" for number in range(3)))
    done: list[str] = []

    def twice(lock: LockInfo) -> None:
        if len(done) == 2:
            raise RuntimeError("a receiver of a signal, perhaps")
        done.append(lock.name)

    before_clearing(monkeypatch, twice)
    with pytest.raises(RuntimeError):
        confirm(operator, page)
    assert {entry.object_repr for entry in LogEntry.objects.all()} == set(done)


def test_names_that_are_no_texts(
    operator: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project's user names may be numbers."""
    granted(redis, "job")
    monkeypatch.setattr(User, "get_username", lambda self: 4711)
    assert confirm(operator, ask(operator, "job")) == ["Cleared “job”. Nobody holds it now."]


def test_too_many(
    operator: Client, redis: Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the form would be too large to send, the page says so before a reason is written."""
    granted(redis, "job")
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    monkeypatch.setattr(clear, "sealed", lambda locks: "x" * 901)
    assert ask(operator, "job").status_code == 302
    assert "too many locks for one form" in operator.get(LIST).content.decode()
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = None
    assert ask(operator, "job").status_code == 200


def test_the_way_back(operator: Client, redis: Redis) -> None:
    """After one lock its page comes, after several ones the list; the filters are kept."""
    for name in ("job:1", "job:2", "job:3"):
        granted(redis, name)
    kept = "_changelist_filters=q%3Djob%26state%3Dstale"
    page = operator.get(f"{LIST}default_3Ajob_3A1/change/?{kept}")
    assert f"{LIST}default_3Ajob_3A1/clear/?{kept}" in page.content.decode()
    question = operator.get(f"{LIST}default_3Ajob_3A1/clear/?{kept}")
    assert question.context["back_url"] == f"{LIST}default_3Ajob_3A1/change/?{kept}"
    to = question.context["clear_url"]
    assert to == f"{CLEAR}?{kept}"
    seen = question.context["form"].initial["seen"]
    answer = operator.post(to, {"seen": seen, "reason": "r"}, follow=True)
    assert answer.redirect_chain == [(f"{LIST}default_3Ajob_3A1/change/?{kept}", 302)]
    assert "Nobody holds it now." in plain(answer)
    assert f'href="{LIST}?q=job&amp;state=stale"' in answer.content.decode()
    question = ask(operator, "job:2", "job:3")
    assert "None of the holders can come back; nobody loses work. Nobody waits." in " ".join(
        plain(question).split()
    )
    seen = question.context["form"].initial["seen"]
    answer = operator.post(f"{CLEAR}?{kept}", {"seen": seen, "reason": "r"})
    assert answer["Location"] == f"{LIST}?q=job&state=stale"


def test_many_at_once(operator: Client, redis: Redis) -> None:
    """A summary: how many live, and for how long two may work."""
    granted(redis, "dead")
    with redis_lock("a", ttl=30), redis_lock("b", ttl=60):
        page = ask(operator, "a", "b", "dead")
    text = " ".join(plain(page).split())
    assert "2 of 3 holders may be alive; then two may work at once for up to 20.0 s." in text


def test_clearings(operator: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of all clearings: who, when, which and why, the newest first; and one of each lock.
    None of them asks Redis."""
    for name in ("job:1", "job:2"):
        granted(redis, name)
        confirm(operator, ask(operator, name), f"{name} hung")
    url = f"{LIST}clearings/"
    assert url in operator.get(LIST).content.decode()
    page = operator.get(url)
    text = " ".join(plain(page).split())
    assert text.index("job:2 hung") < text.index("job:1 hung")
    assert "eva" in text
    assert "Held by web3 · 1 · x (its/job.py:1 in job) for 15 min 00 s." in text
    assert f'href="{LIST}default_3Ajob_3A1/change/"' in page.content.decode()
    monkeypatch.setattr(clear, "AT_ONCE", 1)
    assert "job:1 hung" not in plain(operator.get(url))
    assert "job:1 hung" in plain(operator.get(url, {"p": 2}))
    kept = "_changelist_filters=q%3Djob"
    assert f'href="?p=2&amp;{kept}"' in operator.get(f"{url}?{kept}").content.decode()
    its = operator.get(f"{LIST}default_3Ajob_3A1/history/")
    assert "job:1 hung" in plain(its)
    assert "job:2 hung" not in plain(its)
    assert client_of("nobody").get(url).status_code == 403
