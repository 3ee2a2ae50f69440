"""`redislock metrics` and `fleet_view`: what all processes hold and wait for."""

from __future__ import annotations

import http.client
import select
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory
from prometheus_client.parser import text_string_to_metric_families as parse
from redis import Redis

from django_redislock import Semaphore, redis_lock
from django_redislock.client import Lock
from django_redislock.contrib.prometheus import fleet
from django_redislock.contrib.prometheus.fleet import FAMILIES, Busy, Fleet, Server
from django_redislock.contrib.prometheus.views import fleet_view
from django_redislock.inspection import Listing, inspectors
from django_redislock.settings import naming
from django_redislock.tasks import limited, unique
from tests.caches import caches
from tests.manage import Manage
from tests.operations.calling import AWAY, call, granted, run, write_down
from tests.tasks.by_hand import task
from tests.tasks.test_operators import lose_leases, park
from tests.test_decorators import held_elsewhere
from tests.waiting import PATIENCE, eventually

Samples = dict[tuple[str, ...], float]


def samples(text: str | bytes, name: str) -> Samples:
    """The values of a metric, by its labels without the server."""
    text = text.decode() if isinstance(text, bytes) else text
    return {
        tuple(one.labels[label] for label in FAMILIES[name][1] if label != "using"): one.value
        for family in parse(text)
        for one in family.samples
        if one.name == name
    }


def scraped(name: str) -> Samples:
    return samples(Fleet().scrape()[0], name)


@pytest.fixture(autouse=True)
def _patterns(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had been decorated."""
    monkeypatch.setattr(naming, "patterns", ())
    settings.REDISLOCK = {"LOCKS": {"job:*": {}, "pool": {}}}


def test_the_text(redis: Redis) -> None:
    """Each metric has its help and type; a name in the settings may have any characters."""
    done = call("metrics")
    assert done.code == 0
    families = {family.name: family for family in parse(done.out)}
    assert families.keys() == {name.removesuffix("_total") for name in FAMILIES}
    assert families["redislock_clearings"].type == "counter"
    assert {family.type for family in families.values()} == {"gauge", "counter"}
    assert all(family.documentation for family in families.values())
    assert done.out.endswith("\n")
    assert not done.out.endswith("\n\n")


def test_labels_are_escaped(settings: Any) -> None:
    """A name in the settings may have any characters."""
    odd = 'a"b\\c:*'
    settings.REDISLOCK = {"LOCKS": {odd: {}}}
    with redis_lock('a"b\\c:1'):
        assert scraped("redislock_locks")[odd, "held"] == 1


def test_locks_by_state(redis: Redis) -> None:
    """All locks of all processes, by state and pattern; no name is a label."""
    granted(redis, "job:dead", owner="web3:7:x")
    granted(redis, "job:silent", silent=25)
    with redis_lock("job:1"), redis_lock("secret name"):
        found = scraped("redislock_locks")
    assert found == {
        ("job:*", "held"): 1,
        ("job:*", "unknown"): 1,
        ("job:*", "stale"): 1,
        ("job:*", "broken"): 0,
        ("other", "held"): 1,
        ("other", "unknown"): 0,
        ("other", "stale"): 0,
        ("other", "broken"): 0,
    }


def test_locks_of_the_cache(redis: Redis) -> None:
    """Locks that are named by their keys count as well."""
    lock = Lock(redis, ":1:report", timeout=60)
    assert lock.acquire()
    write_down()
    assert scraped("redislock_locks")["other", "held"] == 1
    lock.release()


def test_who_waits(redis: Redis) -> None:
    """How many wait, for how many locks, and for how long the first one has."""
    with held_elsewhere("job:1"):
        waits = threading.Thread(target=lambda: redis_lock("job:1", wait=PATIENCE).acquire())
        waits.start()
        eventually(lambda: scraped("redislock_waiters")["job:*",] == 1)
        assert scraped("redislock_contended_locks") == {("job:*",): 1, ("other",): 0}
        eventually(lambda: scraped("redislock_oldest_wait_seconds")["job:*",] > 0.2)
        assert scraped("redislock_oldest_wait_seconds")["other",] == 0
    waits.join(PATIENCE)


def test_tasks(redis: Redis) -> None:
    """Those of all names of a pattern, by stage; and those that nobody lets go on."""
    sync = limited("sync:{pk}", 2)(task(lambda pk: None))
    park(sync, 3)
    for number in range(2):
        unique("reindex:{pk}")(task(lambda pk: None)).enqueue(number)
    found = scraped("redislock_tasks")
    assert {its: number for its, number in found.items() if number} == {
        ("task:sync:*", "running"): 2,
        ("task:sync:*", "parked"): 3,
        ("task:reindex:*", "queued"): 2,
    }
    assert ("task:reindex:*", "parked") in found  # 0 before it is 1
    assert scraped("redislock_stuck_tasks") == {("task:sync:*",): 0, ("task:reindex:*",): 0}
    lose_leases(redis)
    assert scraped("redislock_stuck_tasks")["task:sync:*",] == 3


def test_the_oldest_hold(redis: Redis) -> None:
    """Of a lock with several holders, each counts."""
    granted(redis, "job:1", silent=100, left=60)
    granted(redis, "pool", silent=300, left=60, places=3, process="dead0001")
    with Semaphore("pool", 3):
        found = scraped("redislock_oldest_hold_seconds")
    assert 100 <= found["job:*",] < 100 + PATIENCE
    assert 300 <= found["pool",] < 300 + PATIENCE


def test_clearings(redis: Redis) -> None:
    """Those of all operators count, also of locks that are named by their keys."""
    granted(redis, "job:dead")
    assert scraped("redislock_clearings_total") == {(): 0}
    lock = Lock(redis, ":1:report", timeout=60)
    assert lock.acquire()
    for inspector in inspectors("default"):
        for found in inspector.all():
            assert inspector.clear(found, by="ann", reason="stuck")
    assert scraped("redislock_clearings_total") == {(): 2}


def test_missed_wakeups(redis: Redis) -> None:
    """Handovers that no message announced."""
    assert scraped("redislock_missed_wakeups_total") == {(): 0}
    redis.set("redislock:missed_wakeups", 3)
    assert scraped("redislock_missed_wakeups_total") == {(): 3}


def test_more_locks_than_are_read(monkeypatch: pytest.MonkeyPatch, redis: Redis) -> None:
    """What is not read is counted, and it is not what is in trouble."""
    monkeypatch.setattr(fleet, "MOST_LOCKS", 2)
    granted(redis, "job:dead")
    with ExitStack() as held:
        for number in range(3):
            held.enter_context(redis_lock(f"job:{number}"))
        assert scraped("redislock_unread_locks") == {(): 2}
        assert scraped("redislock_locks")["job:*", "stale"] == 1
        assert scraped("redislock_locks")["job:*", "held"] == 1


def test_few_waiters_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many locks are waited for, a scrape has a bounded number of requests."""
    monkeypatch.setattr(fleet, "MOST_LINES", 0)
    with held_elsewhere("job:1"):
        waits = threading.Thread(target=lambda: redis_lock("job:1", wait=PATIENCE).acquire())
        waits.start()
        eventually(lambda: scraped("redislock_waiters")["job:*",] == 1)
        assert scraped("redislock_oldest_wait_seconds")["job:*",] == 0
    waits.join(PATIENCE)


class TestRedisAway:
    def test_once(self) -> None:
        """The text says so, and so does the exit code."""
        done = run("metrics", url=AWAY)
        assert done.code == 69
        assert samples(done.out, "redislock_up") == {(): 0}
        assert samples(done.out, "redislock_locks") == {}

    def test_view(self, settings: Any) -> None:
        """The answer is a good one: a failed scrape would say less than `redislock_up 0`."""
        settings.CACHES = caches(AWAY)
        answer = view("Bearer s3cret")
        assert answer.status_code == 200
        assert samples(answer.content, "redislock_up") == {(): 0}


def view(authorization: str | None, method: str = "get") -> Any:
    headers = {} if authorization is None else {"Authorization": authorization}
    request = getattr(RequestFactory(headers=headers), method)("/metrics")
    return fleet_view(token="s3cret")(request)


class TestView:
    @pytest.mark.parametrize(
        "given", [None, "", "s3cret", "Bearer", "Bearer ", "Bearer wrong", "Basic s3cret"]
    )
    def test_a_wrong_token(self, given: str | None) -> None:
        """Nothing is read, and nothing is said."""
        answer = view(given)
        assert answer.status_code == 401
        assert answer["WWW-Authenticate"] == "Bearer"
        assert b"redislock" not in answer.content

    @pytest.mark.parametrize("given", ["Bearer s3cret", "bearer  s3cret"])
    def test_the_token(self, given: str) -> None:
        answer = view(given)
        assert answer.status_code == 200
        assert answer["Content-Type"].startswith("text/plain; version=")
        assert answer["Cache-Control"] == "no-store"
        assert samples(answer.content, "redislock_up") == {(): 1}

    def test_a_token_in_letters_that_are_not_ascii(self) -> None:
        assert view("Bearer s3cret\u00e9").status_code == 401

    def test_other_methods(self) -> None:
        assert view("Bearer s3cret", "post").status_code == 405

    @pytest.mark.parametrize("token", ["", " ", None])
    def test_without_a_token(self, token: Any) -> None:
        """It refuses when the URLs are imported, and says what to do."""
        with pytest.raises(ImproperlyConfigured, match=r"fleet_view\(token=…\) needs a token"):
            fleet_view(token=token)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return str(answer.read().decode())


class TestServe:
    @pytest.mark.parametrize(
        ("address", "how"),
        [(":0", signal.SIGINT), ("127.0.0.1:0", signal.SIGTERM), ("[::1]:0", signal.SIGTERM)],
    )
    def test_serve(self, manage: Callable[..., Manage], address: str, how: signal.Signals) -> None:
        """It says where it is, answers, and ends without a word when it is told to."""
        if address.startswith("[") and not socket.has_dualstack_ipv6():
            pytest.skip("needs IPv6")
        process = manage("redislock", "metrics", "--serve", address)
        url = process.says().removeprefix("Serving ")
        for one in {url, url.replace("[::]", "127.0.0.1")}:
            assert samples(get(one), "redislock_up") == {(): 1}
        with pytest.raises(urllib.error.HTTPError) as missing:
            get(url.replace("/metrics", "/"))
        assert missing.value.code == 404
        missing.value.close()
        process.signal(how)
        assert process.complains() == ""
        assert process.process.returncode == 0

    def test_a_port_that_is_taken(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            done = call("metrics", "--serve", f"127.0.0.1:{taken.getsockname()[1]}")
        assert done.code == 1
        assert done.err.startswith("Can't listen on 127.0.0.1:")

    @pytest.mark.parametrize("address", ["9108", "host", "::1:9108", ":port", ":65536", ":-1"])
    def test_a_wrong_address(self, address: str) -> None:
        done = call("metrics", f"--serve={address}")
        assert done.code
        assert "9108'" in done.err

    def test_head(self) -> None:
        with Server("127.0.0.1", 0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            connection = http.client.HTTPConnection(*server.server_address[:2])  # type: ignore[arg-type]
            connection.request("HEAD", "/metrics")
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"")
            connection.close()
            server.shutdown()


class TestSlowClients:
    @pytest.fixture
    def server(self) -> Iterator[Server]:
        with Server("127.0.0.1", 0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield server
            server.shutdown()

    def slow(self, server: Server) -> socket.socket:
        """A client that has sent half of its request."""
        client = socket.create_connection(server.server_address[:2])  # type: ignore[arg-type]
        client.settimeout(PATIENCE)
        client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        return client

    def test_they_are_in_nobodys_way(self, server: Server) -> None:
        """Not even as many as there may be at once: the oldest are dropped."""
        clients = [self.slow(server) for _ in range(fleet.MOST_AT_ONCE - 1)]
        for number in range(3):
            clients.append(self.slow(server))
            assert samples(get(server.url), "redislock_up") == {(): 1}
            assert clients[number].recv(1) == b""
        clients[-1].sendall(b"\r\n\r\n")
        assert clients[-1].recv(12) == b"HTTP/1.0 200"
        for client in clients:
            client.close()

    def test_a_byte_now_and_then(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        """The time is that for the whole request, and a part of it is not answered."""
        monkeypatch.setattr(fleet, "SLOWEST", 0.5)
        with self.slow(server) as client:
            give_up = time.monotonic() + PATIENCE
            while not select.select([client], [], [], 0.05)[0]:
                assert time.monotonic() < give_up
                client.sendall(b"x")
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""

    def test_no_thread_can_be_started(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The scrape fails, and the next one is answered."""
        with monkeypatch.context() as patch:
            patch.setattr(fleet, "start", lambda *_: None)
            with pytest.raises(http.client.RemoteDisconnected):
                get(server.url)
        assert samples(get(server.url), "redislock_up") == {(): 1}


class TestSlowRedis:
    @pytest.fixture
    def reading(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Counts the readings, and holds them up until `go`."""
        page, reading = Listing.page, Reading()

        def slowly(self: Listing, **question: Any) -> Any:
            reading.number += 1
            reading.begun.set()
            assert reading.go.wait(PATIENCE)
            return page(self, **question)

        monkeypatch.setattr(Listing, "page", slowly)
        yield reading
        reading.go.set()

    def test_scrapes_share_an_answer(self, reading: Reading) -> None:
        """Those that come while Redis is read get what is read; a later one reads anew."""
        its = Fleet()
        texts: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: texts.append(its.scrape()[0])) for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        assert reading.begun.wait(PATIENCE)
        reading.go.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(texts) == 5
        assert reading.number <= 2  # a thread may have started late
        before = reading.number
        its.scrape()
        assert reading.number == before + 1

    def test_scrapes_do_not_pile_up(
        self, reading: Reading, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A scrape that would wait for long gets 503."""
        monkeypatch.setattr(fleet, "PATIENCE", 0.01)
        its = Fleet()
        first = threading.Thread(target=its.scrape)
        first.start()
        assert reading.begun.wait(PATIENCE)
        with pytest.raises(Busy):
            its.scrape()
        status, _, body = fleet.response(its)
        assert (status, body) == (
            503,
            b"Redis is still being read for another scrape, after 0.01 s.\n",
        )
        reading.go.set()
        first.join(PATIENCE)


class Reading:
    def __init__(self) -> None:
        self.number = 0
        self.begun = threading.Event()
        self.go = threading.Event()
