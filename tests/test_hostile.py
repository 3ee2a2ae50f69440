"""Values that others may have written to Redis: they are shown to people, and break nothing."""

from __future__ import annotations

import json
import logging
import re
import shlex
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from redis import Redis

from django_redislock import (
    LeaseLost,
    LeaseRevoked,
    LockError,
    LockNotAcquired,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    TimestampLock,
    initialise,
    redis_lock,
    single_flight,
)
from django_redislock.base.people import MAX_LABEL, clean
from django_redislock.inspection import Inspector, Kind
from django_redislock.inspection.facts import UNREADABLE
from django_redislock.locks.single_flight import _Result
from django_redislock.management.arguments import FREE
from tests.admin.conftest import LIST, client_of
from tests.operations.calling import call
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

ESCAPES = "\x1b]0;owned\x07\nINFO all is well\r\u202egnp.exe\u2066\x00"
"""Sets a terminal's title, begins a line of a log, and turns the direction of what follows."""
LONG = ESCAPES + "x" * 1_000_000

TOKEN = "0" * 8 + "a" * 24
"""Of a lease that needs no process."""


def value(owner: str = ESCAPES, label: str = LONG) -> str:
    """What is at the key of a lock whose holder says this of itself."""
    now = int(time.time() * 1e6)
    return f"{TOKEN}|{now}|{now}|60000|{owner}|{label}"


def harmless(text: str, most: int = 20_000) -> None:
    """Nothing but printable lines, and no megabyte of them."""
    assert len(text) < most
    found = {char for line in text.splitlines() for char in line if not char.isprintable()}
    assert not found
    assert "\nINFO" not in text


def printed(*words: str) -> str:
    """What a command prints, on both streams, whether it fails or not."""
    out, err = StringIO(), StringIO()
    with suppress(SystemExit):  # what is shown is free
        call_command("redislock", *words, stdout=out, stderr=err)
    return out.getvalue() + err.getvalue()


class TestTexts:
    """Owners, labels, reasons and hosts are cleaned and cut where they are read."""

    @pytest.fixture
    def held(self, redis: Redis) -> Redis:
        """A lock, its waiter, its past, and how it was cleared."""
        redis.set("redislock:{job}", value(), px=60_000)
        redis.zadd("redislock:index", {"redislock:{job}": 9e15})
        redis.zadd("redislock:{job}:queue", {"b" * 32: int(time.time() * 1e6)})
        redis.hset("redislock:{job}:waiters", "b" * 32, f"1|60000|-|{ESCAPES}|{LONG}")
        before = f"{'c' * 32}|7|1700000000000000|60000|{ESCAPES}|{LONG}"
        redis.rpush("redislock:{job}:history", f"{before}\tcleared|5|{ESCAPES}|{LONG}")
        return redis

    def test_errors_and_logs(self, held: Redis, caplog: pytest.LogCaptureFixture) -> None:
        """A conflict can be printed with the holder's name."""
        with caplog.at_level(logging.DEBUG, "django_redislock"):
            with pytest.raises(LockNotAcquired) as caught, redis_lock("job", wait=0):
                pass
        harmless(str(caught.value))
        harmless(caught.value.holder.label, MAX_LABEL + 1)
        assert caught.value.holder.owner == clean(ESCAPES)
        assert caplog.records
        for record in caplog.records:
            harmless(record.getMessage())

    def test_a_lease_that_was_cleared(self, redis: Redis) -> None:
        """By whom, and why, is as harmless."""
        lease = redis_lock("job").acquire()
        assert lease is not None
        redis.delete("redislock:{job}")
        redis.set(f"redislock:{{job}}:gone:{lease.token}", f"cleared|{ESCAPES}|{LONG}")
        with pytest.raises(LeaseRevoked) as caught:
            lease.extend()
        harmless(str(caught.value))
        assert caught.value.by == clean(ESCAPES)
        assert len(caught.value.reason) == MAX_LABEL

    @pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
    def test_commands(self, held: Redis, form: list[str]) -> None:
        """On a terminal and for programs."""
        clear = "clear", "job", "--reason", ESCAPES
        for words in (
            ["list"],
            ["show", "job"],
            ["watch", "--count", "1"],
            clear,
            (*clear, "--yes"),
        ):
            harmless(printed(*words, *form))
        assert "all is well" in printed("show", "job", *form)

    @pytest.mark.django_db
    def test_pages(self, held: Redis) -> None:
        """The list, its filters, a lock's page, and its history."""
        with override_settings(ROOT_URLCONF="tests.admin.urls"):
            client = client_of("eva", "view_lockstatus", "clear_lock")
            listing = client.get(LIST)
            harmless(listing.content.decode(), 50_000)
            [host] = listing.context["cl"].queryset
            harmless(host.host, MAX_LABEL + 1)
            page = client.get(f"{LIST}default_3Ajob/")
            harmless(page.content.decode(), 50_000)
            seen = client.get(f"{LIST}default_3Ajob/clear/").context["form"].initial["seen"]
            reason = ESCAPES.replace("\x00", "")  # which Django refuses
            answer = client.post(f"{LIST}clear/", {"seen": seen, "reason": reason}, follow=True)
            assert "Cleared “job”." in answer.content.decode()
            history = client.get(f"{LIST}default_3Ajob/history/")
            harmless(history.content.decode(), 50_000)
            assert "all is well" in history.content.decode()

    def test_a_computation_that_failed(self, redis: Redis) -> None:
        """The text of an exception elsewhere is cleaned; a broken record is computed again."""
        rates = single_flight("rates", ttl=60)(lambda: 7)
        key = "redislock:{rates}:record"
        for said in (
            b'{"error": "E", "message": "\\u001b[2J", "owner": "x\\n"}',
            b'{"error": [], "message": {}}',
            b"[" * 100_000,
            b"\xff",
        ):
            written = _Result.parse(b"1|failed|" + said)
            assert written is not None
            harmless(str(written.error("rates")))
        for broken in (b"failed", b"\xff|text|7", b"1|teapot|7", b"9" * 5000 + b"|text|7"):
            redis.set(key, broken)
            assert rates() == 7


def test_one_rule() -> None:
    """A text is cut first, so that a megabyte takes no time."""
    assert clean("a\x1bb\u202ec\ud800") == "a?b?c?"
    assert clean("x" * 10**6) == "x" * MAX_LABEL
    assert clean("é 家") == "é 家"
    assert clean("می‌خواهم, 1\u202f000\xa0€") == r"می\u200cخواهم, 1\u202f000\xa0€"
    assert clean("\U000e0001" * 200) == (r"\U000e0001" * 20)


def test_what_is_no_holder(redis: Redis) -> None:
    """Numbers that no lock of ours could have are those of a stranger."""
    inspector = Inspector()
    for broken in (
        value().replace("|60000|", f"|{'9' * 5000}|"),
        value().replace("|60000|", "|-1|"),
        value().replace("|60000|", "|nan|"),
        f"{TOKEN}|{'9' * 20}|1|60000|owner|label",
        f"{TOKEN}|1|{'9' * 18}|60000|owner|label",
        f"{TOKEN}|1|1|٣|owner|label",
        f"{'é' * 32}|1|1|1|owner|label",
        TOKEN,
    ):
        redis.set("redislock:{job}", broken)
        seen = inspector.get("job")
        assert seen is not None
        assert seen.holder.owner is None


HUGE = "9" * 400
NOT_UTF8 = b"\xff\xfe|\xff"
DEEP = "[" * 10_000

Write = Callable[[Redis, str], object]


MAKES: dict[str, Write] = {
    "string": lambda redis, key: redis.set(key, NOT_UTF8),
    "list": lambda redis, key: redis.rpush(key, NOT_UTF8, "x"),
    "set": lambda redis, key: redis.sadd(key, NOT_UTF8),
    "hash": lambda redis, key: redis.hset(key, NOT_UTF8, NOT_UTF8),
    "zset": lambda redis, key: redis.zadd(
        key, {NOT_UTF8: float("inf"), "x": float("-inf"), "y": 1e300}
    ),
    "stream": lambda redis, key: redis.xadd(key, {"x": NOT_UTF8}),
}


def of_type(kind: str) -> Write:
    """A key of another type than we have there."""
    return lambda redis, key: (redis.delete(key), MAKES[kind](redis, key))


def string(text: Any) -> Write:
    return lambda redis, key: redis.set(key, text)


def fields(**said: Any) -> Write:
    return lambda redis, key: (redis.delete(key), redis.hset(key, mapping=said))


def entries(*texts: Any) -> Write:
    return lambda redis, key: (redis.delete(key), redis.rpush(key, *texts))


def scores(**said: float) -> Write:
    return lambda redis, key: (redis.delete(key), redis.zadd(key, said))


TYPES = [of_type(kind) for kind in MAKES]
TEXTS: list[Any] = [
    "",
    "|",
    "|||||||||",
    NOT_UTF8,
    HUGE,
    "nan",
    "-inf",
    "1e300",
    DEEP,
    "\t",
    f"{TOKEN}|{HUGE}|{HUGE}|{HUGE}|{ESCAPES}|{ESCAPES}",
    f"{TOKEN}|nan|inf|-1|o|l\tsemaphore|{HUGE}",
    f"{TOKEN}|1|99999999999999999|999999999999999|o|l\tread|\xb2",
]
HOSTILE: dict[str, list[Write]] = {
    "redislock:{job}": [*TYPES, *map(string, TEXTS)],
    "redislock:{job}:queue": [
        *TYPES,
        scores(**{"w" * 32: float("inf"), "x": -1e300, "y": 0.5}),
    ],
    "redislock:{job}:waiters": [*TYPES, *(fields(**{"b" * 32: text}) for text in TEXTS)],
    "redislock:{job}:holders": [*TYPES, *(fields(**{TOKEN: text}) for text in TEXTS)],
    "redislock:{job}:history": [
        *TYPES,
        *(entries(text, text) for text in TEXTS),
        *(entries(f"{value('o', 'l')}\t{text!s}") for text in TEXTS),
        *(entries(f"{value('o', 'l')}\tcleared|{text!s}|x") for text in TEXTS),
    ],
    "redislock:{job}:record": [*TYPES, *map(string, TEXTS)],
    "redislock:process:00000000": [*TYPES],
}
CASES = [
    pytest.param(key, write, id=f"{key.rpartition(':')[2]}-{number}")
    for key, writes in HOSTILE.items()
    for number, write in enumerate(writes)
]


@pytest.fixture
def held(redis: Redis) -> Redis:
    """A lock of ours with a waiter, and one that several may hold, in the index."""
    redis.set("redislock:{job}", value("o", "l"), px=60_000)
    redis.zadd("redislock:index", {"redislock:{job}": 9e15})
    redis.zadd("redislock:{job}:queue", {"b" * 32: int(time.time() * 1e6)})
    redis.hset("redislock:{job}:waiters", "b" * 32, "1|60000|-|owner|label")
    return redis


class TestValues:
    """Whatever stands at the key of a lock, or beside it: people see it, and the others."""

    @pytest.fixture
    def other(self, held: Redis) -> Iterator[None]:
        """A lock with which nothing is wrong; it is seen by everybody."""
        lease = redis_lock("other", label="healthy").acquire()
        yield
        assert lease is not None
        lease.release()

    @pytest.mark.parametrize(("key", "write"), CASES)
    @pytest.mark.usefixtures("other")
    def test_commands(self, held: Redis, key: str, write: Write) -> None:
        """They list, show and clear, or say in one line why not."""
        write(held, key)
        for words in (["list"], ["list", "--foreign"], ["watch", "--count", "1"]):
            harmless(printed(*words))
            listed = printed(*words, "--json")
            assert '"other"' in listed
        harmless(printed("show", "job"))
        json.loads(printed("show", "job", "--json"))
        harmless(printed("clear", "job"))
        try:
            harmless(printed("clear", "job", "--yes", "--reason", "hostile"))
        except CommandError as error:
            harmless(str(error))
            assert held.exists("redislock:{job}"), "it says that nothing was done"

    @pytest.mark.parametrize(
        ("beside", "write"),
        [
            *((beside, of_type("list")) for beside in ("queue", "waiters")),
            *((beside, fields(**{"b" * 32: "|"})) for beside in ("queue", "waiters")),
            ("history", of_type("hash")),
            ("history", entries("x\ty")),
        ],
    )
    def test_what_can_not_be_read(self, held: Redis, beside: str, write: Write) -> None:
        """It is a line that says so; what can be read is there as well."""
        write(held, f"redislock:{{job}}:{beside}")
        assert UNREADABLE in printed("show", "job")
        document = json.loads(printed("show", "job", "--json"))
        if beside == "history":
            assert document["past"]["unreadable"] == 1
        else:
            [waiter] = document["waiters"]
            assert (waiter["kind"], waiter["label"]) == ("foreign", UNREADABLE)
        assert document["lock"]["owner"] == "o"

    def test_the_index(self, held: Redis) -> None:
        """Names that none can have are no locks; another type is an error that says so."""
        odd = {NOT_UTF8: 9e15, b"": 9e15, "x" * 100_000: 9e15, "a}{b": float("inf"), "c": -1e300}
        held.zadd("redislock:index", odd)
        held.zadd("redislock:key:index", odd)
        assert "1 lock" in printed("list")
        assert "0 locks" in printed("list", "--cache-locks")
        assert Inspector().page().total >= 1
        held.delete("redislock:index")
        held.set("redislock:index", "x")
        with pytest.raises(CommandError, match="has a type that such a lock does not use"):
            printed("list")

    @pytest.mark.parametrize(
        "write", [*TYPES, fields(holder=NOT_UTF8, until="nan"), fields(holder="x", until="x")]
    )
    def test_beside_a_timestamp_lock(self, redis: Redis, write: Write) -> None:
        """The holder is known from our own record only."""
        lease = TimestampLock("redislock:old", ttl=60).acquire()
        assert lease is not None
        write(redis, lease._claim.keys.timestamp)
        assert "1 lock" in printed("list", "--cache-locks")
        seen = Inspector(cache_locks=True).get("redislock:old")
        assert seen is not None
        assert (seen.kind, seen.holder.owner) == (Kind.TIMESTAMP, None)
        redis.delete("redislock:old", lease._claim.keys.timestamp)

    def test_a_value_that_was_given_once(self, redis: Redis) -> None:
        """It is an error of ours, which names the key."""
        for text in (NOT_UTF8, DEEP * 10, "", "{"):
            redis.set("redislock:{initialise:salt}:record", text)
            for value in (1, lambda: 1):
                with pytest.raises(LockError, match=r"'redislock:\{initialise:salt\}:record'"):
                    initialise("salt", value)

    @pytest.mark.parametrize(
        "lock", [redis_lock("job"), Semaphore("job", 2), TimestampLock("redislock:old")]
    )
    def test_a_history_of_another_type(self, redis: Redis, lock: redis_lock) -> None:
        """It is only for people: it begins anew when a lock is cleared, and keeps nobody from
        clearing it."""
        lease = lock.acquire()
        assert lease is not None
        keys = lease._claim.keys
        redis.delete(keys.history)
        redis.set(keys.history, "x")
        assert lock.clear(by="eva", reason="hostile")
        assert not redis.exists(keys.lock)

    @pytest.mark.django_db
    @pytest.mark.usefixtures("other")
    def test_pages(self, held: Redis) -> None:
        """The list, a lock's page, its history and the confirmation, for each of these values."""
        with override_settings(ROOT_URLCONF="tests.admin.urls"):
            client = client_of("eva", "view_lockstatus", "clear_lock")
            for key, write in (case.values for case in CASES):
                seen = held.dump(key)
                write(held, key)
                answer = client.get(LIST, {"foreign": "1"})
                assert answer.status_code == 200
                assert "healthy" in answer.content.decode()
                for page in ("", "clear/", "history/"):
                    answer = client.get(f"{LIST}default_3Ajob/{page}")
                    assert answer.status_code in (200, 302), (key, write)
                held.delete(key)
                if seen is not None:
                    held.restore(key, 0, seen, replace=True)


WAITER = "b" * 32
SOON = 60_000
SHORTLY = 0.05


def in_the_queue(said: Any) -> Write:
    """A waiter that says this of itself."""
    return lambda redis, key: (
        redis.zadd(key.replace(":waiters", ":queue"), {WAITER: 1}),
        redis.hset(key, WAITER, said),
    )


def of_a_holder(said: Any, ends: float, token: Any = TOKEN) -> Write:
    """A holder of one of several places, whose lease ends in so many ms."""
    return lambda redis, key: (
        redis.zadd(key.removesuffix(":holders"), {token: time.time() * 1000 + ends}),
        redis.hset(key, token, said),
    )


def of_an_old_lock(holder: Any, ends: float) -> Write:
    """What is written beside a timestamp lock whose time is over in so many seconds."""

    def write(redis: Redis, key: str) -> None:
        until = str(time.time() + ends)
        redis.set("old", until)
        redis.hset(key, mapping={"holder": holder, "until": until})

    return write


HUGE_NUMBERS = [f"{HUGE}|60000|-|o|l", f"1|{HUGE}|-|o|l", f"1|60000|-|o|l\tsemaphore|{HUGE}"]
RECORDS = [
    *TEXTS,
    TOKEN + "|x",
    f"{TOKEN}+{HUGE}||60000|o|l\tsemaphore|2",
    f"{TOKEN}+1||{HUGE}|o|l",
]
CONTENTS: dict[str, list[Write]] = {
    "lock": [*map(string, TEXTS)],
    "members": [
        scores(x=9e12),
        scores(x=9e12 + 0.5, y=float("inf")),
        lambda redis, key: redis.zadd(key, {NOT_UTF8: 1e300, "y": float("-inf")}),
    ],
    "queue": [scores(**{"w" * 32: float("inf"), "x": -1e300, "y": 0.5})],
    "waiters": [*map(in_the_queue, [*TEXTS, *HUGE_NUMBERS])],
    "history": [
        *(entries(text, text) for text in RECORDS),
        *(entries(f"{value('o', 'l')}\treleased|{number}") for number in (HUGE, "-1", "x")),
    ],
    "index": [scores(**{"x": float("inf"), "y": float("-inf"), "redislock:{job}": 1e300})],
    "holders": [
        *(of_a_holder(said, ends) for said in RECORDS for ends in (SOON, SOON + 0.5, -1)),
        of_a_holder("x", SOON, token=NOT_UTF8),
        of_a_holder("x", float("inf")),
    ],
    "timestamp": [*(of_an_old_lock(said, ends) for said in RECORDS for ends in (60, -1))],
}
"""What may stand at a key of a lock, or beside it, if it has the right type."""

BESIDE = ("queue", "waiters", "history", "index")
LOCKS: dict[str, tuple[Callable[..., redis_lock], tuple[str, ...]]] = {
    "mutex": (lambda **options: redis_lock("job", **options), ("lock", *BESIDE)),
    "semaphore": (
        lambda **options: Semaphore("job", 1, **options),
        ("members", "holders", *BESIDE),
    ),
    "read": (
        lambda **options: ReadWriteLock("job", **options).read(),
        ("members", "holders", "queue", "waiters"),
    ),
    "write": (
        lambda **options: ReadWriteLock("job", **options).write(),
        ("members", "holders", "queue", "waiters"),
    ),
    "multi": (lambda **options: MultiLock(["other", "job"], **options), ("lock", *BESIDE)),
    "timestamp": (
        lambda **options: TimestampLock("old", **options),
        ("lock", "timestamp", "history", "index"),
    ),
    "both": (
        lambda **options: redis_lock("job", timestamp_key="old", **options),
        ("timestamp", "queue"),
    ),
}
"""Kinds of locks, and their keys."""
ROWS = [(kind, which) for kind, (_, keys) in LOCKS.items() for which in keys]


class TestBrokenKeys:
    """Another program may have overwritten any key of any kind of lock. Either the lock can still
    be taken; or the error says what to do, people see it, and clearing mends it."""

    @pytest.fixture
    def elsewhere(self) -> Iterator[ThreadPoolExecutor]:
        """Another thread."""
        with ThreadPoolExecutor(1) as pool:
            yield pool

    def key_of(self, kind: str, which: str) -> str:
        lock, _ = LOCKS[kind]
        keys = lock()._keys()
        if kind == "multi":
            keys = lock()._keys().parts[0]
            assert keys.name == "job"
        if which == "timestamp" and kind == "both":
            keys = keys.of_timestamp()
        return str(getattr(keys, "lock" if which == "members" else which))

    @pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
    @pytest.mark.parametrize(("kind", "which"), ROWS)
    def test_they_are_mended(
        self, redis: Redis, elsewhere: ThreadPoolExecutor, kind: str, which: str, held: bool
    ) -> None:
        """Whatever stands there, and whether or not somebody holds the lock."""
        lock, _ = LOCKS[kind]
        key = self.key_of(kind, which)
        for number, write in enumerate([*TYPES, *CONTENTS[which]]):
            redis.flushdb()
            other = elsewhere.submit(lock().acquire).result() if held else None
            write(redis, key)
            case = f"{number}: {redis.type(key)!r}"
            name = "old" if kind == "timestamp" else "job"
            words = self._advised(lock(wait=SHORTLY), key, case)
            if words:
                self._is_seen(words[-1], which, key)
            done = call(*(words or ["clear", name]), "--yes", "--reason=broken")
            assert done.code == 0 or (done.code == FREE and not words), (case, done)
            # What a lease has besides; and the lock of an old client, which has not ended.
            if other is not None or redis.exists("old"):
                call("clear", "other", "--yes", "--reason=broken")
                call("clear", "--cache-locks", "old", "--yes", "--reason=broken")
            if words := self._advised(lock(wait=5), key, case):
                assert which == "timestamp", case  # it is asked for when the mutex is free
                assert call(*words, "--yes", "--reason=broken").code == 0, case
                assert not self._advised(lock(wait=5), key, case)
            assert not redis.exists("redislock:{job}"), case
            if other is not None:
                with suppress(LeaseLost):
                    elsewhere.submit(other.release).result()

    @pytest.mark.parametrize("write", [*TYPES, *map(string, TEXTS)])
    def test_the_guard(self, redis: Redis, write: Write) -> None:
        """If it can't be read, nobody knows since when nothing was forgotten: it begins anew."""
        lock = redis_lock("job", ttl=0.2, after_loss="wait")
        first = lock.acquire(wait=PATIENCE)
        write(redis, "redislock:guard")
        with suppress(LeaseLost):  # it is short, and so is the wait for the next one
            first.release()
        second = lock.acquire(wait=PATIENCE)
        assert int(redis.get("redislock:guard")) > 1e15
        with suppress(LeaseLost):
            second.release()

    @pytest.mark.django_db
    @pytest.mark.parametrize("which", ["queue", "waiters", "record", "holders", "lock"])
    def test_in_the_admin(self, redis: Redis, which: str) -> None:
        """The list and the page of the lock say that it is broken; clearing it mends it."""
        key = "redislock:{job}" if which == "lock" else f"redislock:{{job}}:{which}"
        of_type("list")(redis, key)
        if which == "waiters":
            redis.zadd("redislock:{job}:queue", {WAITER: 1})
        redis.zadd("redislock:index", {"redislock:{job}": 9e15})
        with override_settings(ROOT_URLCONF="tests.admin.urls"):
            client = client_of("eva", "view_lockstatus", "clear_lock")
            for question in ({}, {"state": "broken"}):
                listing = client.get(LIST, question).content.decode()
                assert "redislock-broken" in listing
                assert f"the key {key} has a type" in listing
            page = client.get(f"{LIST}default_3Ajob/", follow=True).content.decode()
            assert "It is broken: the key" in page
            seen = client.get(f"{LIST}default_3Ajob/clear/").context["form"].initial["seen"]
            answer = client.post(
                f"{LIST}clear/", {"seen": seen, "reason": "broken"}, follow=True
            ).content.decode()
            assert "Cleared “job”." in answer
            assert not redis.exists(key)

    def _advised(self, lock: redis_lock, key: str, case: str) -> list[str]:
        """Take a lock. If that is an error, it names the key and a command: return that."""
        told = None
        try:
            with lock:
                pass
        except LockError as error:
            told = error
        if told is None or (isinstance(told, LockNotAcquired) and lock._policy().wait == SHORTLY):
            return []
        assert type(told) is LockError, case
        command = re.search(r"manage.py redislock (clear .*)", str(told))
        if command is None:
            assert "Give them different names" in str(told), (case, told)
            return []
        assert repr(key) in str(told), (case, told)
        return shlex.split(command[1])

    def _is_seen(self, name: str, which: str, key: str) -> None:
        """A list has it, and says why."""
        for words in (["list", "--json"], ["list", "--state", "broken", "--json"]):
            listed = call(*words)
            if which == "index":  # there is no list
                assert key in listed.err
                continue
            [lock] = [one for one in listed.json["items"] if one["name"] == name]
            if which in ("lock", "members"):  # a string may be the lock of another program
                assert lock["state"] == "broken" or lock["kind"] == "foreign"
                return
            assert lock["state"] == "broken"
            assert repr(key)[1:-1] in lock["why"]
        assert "It is broken: the key" in call("show", name).out


class TestTheLastFencingToken:
    """One key has it for all names. Whatever stands there, no token is given twice."""

    @pytest.fixture(params=["mutex", "semaphore", "multi", "busy", "guarded"])
    def take(self, request: pytest.FixtureRequest) -> Callable[[], int]:
        """Take a lock, release it, and return its fencing token; or that of a waiter to which a
        release hands it."""

        def plain(lock: redis_lock) -> int:
            with lock as lease:
                tokens = getattr(lease, "fencing_tokens", None) or {"": lease.fencing_token}
                return max(tokens.values())

        def busy() -> int:
            lock = redis_lock("job", wait=PATIENCE)
            with ThreadPoolExecutor() as pool:
                with redis_lock("job"):
                    waiter = pool.submit(plain, lock)
                    eventually(lambda: Inspector().waiters("job") or waiter.done())
                return waiter.result()

        return {
            "mutex": lambda: plain(redis_lock("job")),
            "semaphore": lambda: plain(Semaphore("job", 2)),
            "multi": lambda: plain(MultiLock(["job", "other"])),
            "busy": busy,
            "guarded": lambda: plain(redis_lock("job", ttl=1, after_loss="wait", wait=PATIENCE)),
        }[request.param]

    @pytest.mark.parametrize(
        "write",
        [
            *(of_type(kind) for kind in MAKES if kind != "string"),
            *map(string, ("", "x", NOT_UTF8, "-5", "nan", "1.5e300", HUGE, 2**53, "0" + "f" * 15)),
        ],
    )
    def test_it_can_not_be_read(
        self,
        redis: Redis,
        take: Callable[[], int],
        write: Write,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The server's clock takes its place. The log says so once, and the doctor until an
        operator has raised the tokens above those that rows have seen."""
        before = take()
        write(redis, "redislock:clock")
        caplog.clear()
        tokens = [take() for _ in range(3)]
        assert before < tokens[0] < tokens[1] < tokens[2] < (time.time() + 60) * 1e6
        [warning] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert "'redislock:clock' had no fencing token" in warning
        assert "`manage.py redislock fence`" in warning
        [finding] = [one for one in json.loads(printed("doctor", "--json")) if "W113" in one["id"]]
        assert "could not be read (once)" in finding["message"]
        assert "manage.py redislock fence" in finding["hint"]
        printed("fence", "job", "--above=1", "--yes")
        assert "W113" not in printed("doctor")

    def test_the_doctor_sees_it_first(self, redis: Redis) -> None:
        """W113: also before a lock is taken; the doctor leaves the key alone."""
        redis.set("redislock:clock", "x")
        assert "W113" in printed("doctor")
        assert redis.get("redislock:clock") == b"x"

    def test_there_is_none_above_it(self, redis: Redis, take: Callable[[], int]) -> None:
        """Then there is an error that says what to do."""
        take()
        redis.set("redislock:clock", 2**53 - 5)
        tokens = []
        with pytest.raises(LockError, match="No fencing token is left") as caught:
            while True:
                tokens.append(take())
        assert tokens == sorted({*tokens})
        assert "Delete this key" in str(caught.value)
        named = re.search("'(redislock:[^']*)'", str(caught.value))
        assert named
        redis.delete(named[1])
        assert take() < 2**52
