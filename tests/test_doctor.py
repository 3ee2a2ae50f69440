"""`manage.py redislock doctor`, on real servers that are set up badly; and what the rules make of
what can't be set up here. Each test carries the id of what it finds."""

from __future__ import annotations

import json
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from django.core.management import CommandError, call_command
from django.test import override_settings
from redis import Redis

from devtools.redis_server import RedisServer, find_server
from django_redislock import (
    LeaseLost,
    LeaseState,
    LockUnavailable,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    TimestampLock,
    initialise,
    once,
    redis_lock,
)
from django_redislock.doctor import caches as entries
from django_redislock.doctor import rules, vendors
from django_redislock.doctor import server as asking
from django_redislock.doctor.checks import check_deployment, check_settings
from django_redislock.doctor.settings import overlap
from django_redislock.inspection import Inspector
from django_redislock.primitives import scripts
from django_redislock.settings import naming
from django_redislock.tasks import limited, unique
from tests.caches import caches, entry
from tests.manage import broken_project, environ
from tests.operations.calling import AWAY, run, write_down
from tests.pasting import paste
from tests.processes import ROOT
from tests.tasks.by_hand import Task, task
from tests.tasks.test_operators import die, lose_leases, park
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

SAFE = ("--appendonly", "yes")
"""What a server of its own should say, and ours for tests does not."""

Finding = dict[str, Any]


class Report(NamedTuple):
    """What the doctor found, and its exit code."""

    code: int
    findings: dict[str, Finding]
    last: str

    @property
    def wrong(self) -> set[str]:
        """The ids of errors and warnings."""
        return {name for name in self.findings if not name.startswith("I")}


def doctor(*arguments: str) -> Report:
    """Ask it, in this process."""
    out = StringIO()
    code, last = 0, ""
    try:
        call_command("redislock", "doctor", "--json", *arguments, stdout=out)
    except CommandError as error:
        code, last = error.returncode, str(error)
    findings = json.loads(out.getvalue())
    named = {one["id"].removeprefix("redislock."): one for one in findings}
    return Report(code, named, last)


def deployed() -> list[str]:
    """What `check --deploy` says."""
    return [str(message.id).removeprefix("redislock.") for message in check_deployment()]


@pytest.fixture
def serve(settings: Any, tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Start servers; the locks are on the last one, which nobody else uses."""
    if find_server().url is not None:
        pytest.skip("needs servers of its own")
    started: list[RedisServer] = []
    settings.SILENCED_SYSTEM_CHECKS = ["redislock.W002"]  # it is the default cache as well

    def serve(*args: str, user: str = "", **options: Any) -> RedisServer:
        directory = tmp_path / str(len(started))
        directory.mkdir()
        server = RedisServer(args=["--dir", str(directory), *SAFE, *args], **options)
        server.start()
        started.append(server)
        settings.CACHES = caches(server.url.replace("unix://", f"unix://{user}"))
        return server

    yield serve
    for server in started:
        server.stop()


@pytest.fixture
def good(serve: Callable[..., RedisServer]) -> Iterator[Redis]:
    """A plain client on a server that is set up well."""
    with Redis.from_url(serve().url) as client:
        yield client


def replica_of(primary: RedisServer) -> tuple[str, ...]:
    """Options that make one."""
    return ("--replicaof", "127.0.0.1", str(primary.tcp_port))


# All is well.


def test_nothing_is_wrong(good: Redis) -> None:
    """I101 says what was seen, and looking has left no key."""
    report = doctor()
    assert (report.code, list(report.findings)) == (0, ["I101"])
    assert re.match(
        r"(Redis|Valkey) [\d.]+, a round trip takes [\d.]+ ms, clients: \d+ of 10000, "
        r"replicas: 0, AFTER_LOSS: go\.",
        report.findings["I101"]["message"],
    )
    assert not good.keys("*")
    assert deployed() == ["W002"]


def test_after_loss(good: Redis, settings: Any) -> None:
    """I101 says whether locks wait after lost data, and since when nothing was lost."""
    settings.REDISLOCK = {"LOCKS": {"invoice:*": {"AFTER_LOSS": "wait"}}}
    says = doctor().findings["I101"]["message"]
    assert "AFTER_LOSS: wait (no guard: from the first acquire on, new locks wait for a" in says
    good.set("redislock:guard", 1_790_000_000_000_000)
    report = doctor()
    assert not report.wrong, "the guard has no TTL, rightly"
    says = report.findings["I101"]["message"]
    assert "AFTER_LOSS: wait (nothing was lost since 2026-09-21 14:13:20 UTC)" in says


def test_locks_that_are_held_and_waited_for(good: Redis) -> None:
    """Neither held locks nor what they leave is reported."""
    with redis_lock("a"), redis_lock("b"):
        pass
    with redis_lock("a"), redis_lock("c"):
        assert doctor().wrong == set()


def test_it_opens_no_connection_that_stays(good: Redis) -> None:
    """Neither the doctor nor the checks leave a connection open."""
    redis_lock("a").holder()  # the project has one of its own
    doctor()
    before = len(good.client_list())
    doctor()
    check_deployment()
    eventually(lambda: len(good.client_list()) == before)


# What is wrong with a server.


def memory(limit: str, policy: str) -> tuple[str, ...]:
    return "--maxmemory", limit, "--maxmemory-policy", policy


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--cluster-enabled", "yes"), {"E104"}),
        # An eviction policy that drops nothing, and one that never has to.
        (memory("100mb", "noeviction"), set()),
        (memory("0", "allkeys-lru"), set()),
        # Neither snapshots nor an append-only file, or one of these.
        (("--appendonly", "no", "--save", ""), {"W102"}),
        (("--appendonly", "no", "--save", "3600", "1"), set()),
        (("--appendonly", "yes", "--save", ""), set()),
    ],
)
def test_options_of_the_server(
    options: tuple[str, ...], told: set[str], serve: Callable[..., RedisServer]
) -> None:
    """E104: a node of Redis Cluster. W101: memory. W102: persistence."""
    server = serve(*options)
    report = doctor()
    assert report.wrong == told
    if told == {"W102"}:
        with Redis.from_url(server.url) as client:
            client.execute_command(*report.findings["W102"]["hint"].split())
        assert doctor().wrong == set()


class TestE101:
    """Redis can't be reached."""

    @pytest.mark.parametrize("arguments", [[], ["--fail-level", "WARNING"]])
    def test_one_line(self, arguments: list[str]) -> None:
        """Exit code 69, one line on stderr, no traceback, nothing on stdout."""
        done = run("doctor", *arguments, url=AWAY)
        assert (done.code, done.out) == (69, "")
        assert done.err.startswith("CommandError: Redis could not be reached through CACHES['def")
        assert done.err.count("\n") == 1

    def test_json(self) -> None:
        """The same, with the list on stdout."""
        done = run("doctor", "--json", url=AWAY)
        assert (done.code, done.err.count("\n")) == (69, 1)
        assert done.json[0]["id"] == "redislock.E101"

    def test_a_wrong_password(self, serve: Callable[..., RedisServer]) -> None:
        """The finding has the server's own words."""
        serve("--requirepass", "secret", user="default:wrong@")
        report = doctor()
        assert report.code == 69
        assert "invalid" in report.findings["E101"]["message"]

    def test_it_can_not_be_silenced(self, settings: Any) -> None:
        """If Redis can't be reached, the doctor must not say that nothing is wrong."""
        settings.CACHES = caches(AWAY)
        settings.SILENCED_SYSTEM_CHECKS = ["redislock.E101"]
        assert doctor().code == 69

    def test_whatever_a_provider_of_credentials_raises(self, settings: Any) -> None:
        """Any exception becomes a finding, without a traceback, and the checks go on."""

        class Provider(redis.CredentialProvider):
            def get_credentials(self) -> Any:
                raise KeyError("vault")

        settings.CACHES = caches(
            environ()["REDISLOCK_TEST_URL"].replace("db=0", "db=7"),
            CONNECTION_POOL_KWARGS={"credential_provider": Provider()},
        )
        assert "KeyError: 'vault'" in doctor().findings["E101"]["message"]
        assert "E101" in deployed()

    def test_a_server_that_stalls(self, serve: Callable[..., RedisServer]) -> None:
        """Neither the doctor nor `check --deploy` waits for long."""
        server = serve()
        server.pause()
        try:
            began = time.monotonic()
            assert "E101" in doctor().findings
            assert deployed() == ["W002", "E101"]
            assert time.monotonic() - began < 10
        finally:
            server.resume()

    def test_one_of_two(self, serve: Callable[..., RedisServer], settings: Any) -> None:
        """The findings of the other server are reported."""
        serve("--appendonly", "no")
        settings.CACHES = settings.CACHES | {"away": entry(AWAY)}
        report = doctor("--using", "default", "--using", "away")
        assert report.code == 69
        assert {"E101", "W102"} <= report.findings.keys()
        assert report.findings["E101"]["alias"] == "away"
        out = StringIO()
        with pytest.raises(CommandError, match="'away'"):
            call_command("redislock", "doctor", "--using=default", "--using=away", stdout=out)
        assert "[default]" in out.getvalue()
        assert "[away]" not in out.getvalue()


@pytest.mark.parametrize(
    ("told", "info"),
    [
        *[("E102", {"redis_version": version}) for version in ("5.0.14", "6.0.16", "2.8")],
        *[(None, {"redis_version": version}) for version in ("6.2.0", "7.0.15", "7.4", "8.2.1")],
        *[(None, {"redis_version": version}) for version in ("8.9.0", "x")],
        *[("W110", {"redis_version": version}) for version in ("9.0.0", "255.255.255")],
        # Each program by its own number: what it is compatible with is none.
        *[(None, {"redis_version": "7.2.4", "valkey_version": its}) for its in ("8.1.3", "9.1.0")],
        ("W110", {"redis_version": "7.2.4", "valkey_version": "10.1"}),
        (None, {"redis_version": "6.0.11", "dragonfly_version": "df-v1.39.0"}),
        (None, {"redis_version": "6.0.11", "upstash_version": "1.10.5"}),
        ("E102", {"redis_version": "6.0.16", "mvcc_depth": "0"}),
        (None, {"redis_version": "255.255.255", "mvcc_depth": "0"}),
    ],
)
def test_versions(told: str | None, info: dict[str, str]) -> None:
    """E102: too old. W110: a Redis, or Valkey, that is too new to be known. A version that can't
    be read is no reason."""
    vendor = vendors.vendor_of([], info)
    assert judged(info=info, vendor=vendor).keys() & {"E102", "W110"} == (
        {told} if told else set()
    )


def test_e103_a_replica(serve: Callable[..., RedisServer], settings: Any) -> None:
    """E103: the hint leads to the primary."""
    primary = serve(tcp_port=0)
    serve(*replica_of(primary))
    report = doctor()
    assert report.code == 1
    hint = report.findings["E103"]["hint"]
    assert f"redis://127.0.0.1:{primary.tcp_port}/0" in hint
    paste(hint, settings)
    assert "E103" not in doctor().wrong
    # What else the URL has stays; a password is not shown.
    settings.CACHES = caches("rediss://:s3cret@replica:6380/3")
    hint = entries.at("default", "primary:6379")
    assert "s3cret" not in hint
    assert eval(hint, {"CACHES": settings.CACHES}) == "rediss://:s3cret@primary:6379/3"


CLERK = ("clerk", "reset", "on", ">secret")
OURS = ("~redislock:*", "&redislock:*", "&__redis__:invalidate")
ELSEWHERE = frozenset(
    {"asking", "cluster|slots", "select", "spublish", "ssubscribe", "sunsubscribe"}
)
"""Commands that locks send to a cluster, or for a database other than 0."""


def documented(user: str) -> list[str]:
    """The words of the rule that docs/security.md has for a user."""
    text = (ROOT / "docs" / "security.md").read_text()
    found = re.search(rf"^ACL SETUSER {user} [^`]*", text, re.MULTILINE)
    return found[0].split()


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisServer]:
    if find_server().url is not None:
        pytest.skip("needs a server of its own")
    with RedisServer() as server:
        yield server


class TestE105:
    """A user who may not do what locks do."""

    @pytest.fixture
    def clerk(self, shared: RedisServer, settings: Any) -> Iterator[Callable[..., Redis]]:
        """Give the user these rules; locks come as that user."""
        with Redis.from_url(shared.url) as client:
            client.flushall()
            settings.CACHES = caches(shared.url.replace("unix://", "unix://clerk:secret@"))

            def give(*given: str) -> Redis:
                # Redis 6.2 gives all channels to begin with, and no single ones beside them.
                some = any(rule.startswith("&") for rule in given)
                channels = ("resetchannels",) if some else ()
                client.execute_command("ACL", "SETUSER", *CLERK, *channels, *given)
                return client

            yield give

    def test_the_rule_that_is_printed(self, clerk: Callable[..., Redis]) -> None:
        """The printed rule can be pasted. It suffices for locks and the doctor, and allows no
        more."""
        admin = clerk("+info")  # by which the doctor knows the version
        report = doctor()
        assert report.code == 1
        rule = report.findings["E105"]["hint"]
        old = admin.info("server")["redis_version"].startswith("6.")
        channels = "" if old else "&redislock:* &__redis__:invalidate "
        assert rule.startswith(f"ACL SETUSER clerk ~redislock:* {channels}+")
        assert "+@" not in rule
        admin.execute_command(*rule.split())
        assert "E105" not in doctor().findings
        with redis_lock("a"):
            pass
        assert not {"I101", "I102"} - doctor().findings.keys()

    @pytest.mark.parametrize("rule", scripts.permissions(ELSEWHERE).split())
    def test_a_command_is_missing(
        self, rule: str, clerk: Callable[..., Redis], settings: Any
    ) -> None:
        """The missing command is named, and no other."""
        settings.REDISLOCK = {"REPLICAS": 1}
        clerk(*OURS, "+@all", rule.replace("+", "-"))
        optional = rule[1:] in scripts.OPTIONAL
        message = doctor().findings["I105" if optional else "E105"]["message"]
        assert message.endswith(f"Missing: {rule}")

    def test_a_channel_is_missing(self, clerk: Callable[..., Redis]) -> None:
        """Without the channel of invalidations, a loss is noticed at the next renewal."""
        clerk(*OURS[:2], "+@all")
        report = doctor()
        assert "E105" not in report.findings
        assert report.findings["I105"]["message"].endswith("Missing: &__redis__:invalidate")

    def test_what_locks_do_not_send(self, clerk: Callable[..., Redis]) -> None:
        """WAIT is not required without REPLICAS, nor are the commands for clusters. Looking
        changes nothing."""
        admin = clerk(*OURS, "+@all", "-wait", *(f"-{command}" for command in ELSEWHERE))

        def counts() -> tuple[Any, Any]:
            changes = admin.info("persistence")["rdb_changes_since_last_save"]
            return admin.info("errorstats").get("errorstat_NOPERM"), changes

        before = counts()
        assert "E105" not in doctor().findings
        assert counts() == before

    def test_a_user_who_locks(self, clerk: Callable[..., Redis], settings: Any) -> None:
        """The rule in the documentation suffices, and allows no more."""
        rule = documented("locks")
        assert set(rule[5:]) == {"resetchannels", *OURS, *scripts.permissions().split()}
        admin = clerk()
        admin.execute_command(*rule)
        url = str(settings.CACHES["default"]["LOCATION"])
        settings.CACHES = caches(
            url.replace("clerk:secret", "locks:SECRET").replace("db=0", "db=1")
        )
        assert "E105" not in doctor().findings
        with redis_lock("a") as lease, Semaphore("b", 2), ReadWriteLock("c").read():
            lease.extend()
            waiting = threading.Thread(target=redis_lock("a").acquire)
            waiting.start()
            eventually(lambda: Inspector().waiters("a"))
        waiting.join(PATIENCE)
        with MultiLock(["d", "e"]), TimestampLock("redislock:old"):
            pass
        assert once("f", ttl=60)(lambda: 1)() == 1
        seen = Inspector().get("a")
        assert seen is not None
        assert Inspector().clear(seen, by="Ada", reason="a test")

    def test_a_user_who_looks(self, clerk: Callable[..., Redis], settings: Any) -> None:
        """With the documented rule for reading, everything can be seen and nothing changed."""
        admin = clerk(*OURS, "+@all")
        admin.execute_command(*documented("looker"))
        clerks = str(settings.CACHES["default"]["LOCATION"])
        held = redis_lock("a", label="here", ttl=60).acquire()
        assert redis_lock("gone", ttl=0.1, renew=False).acquire()
        eventually(lambda: not admin.exists("redislock:{gone}"))
        unique("sync:{pk}")(task(lambda pk: None)).enqueue(7)
        write_down()  # our own lease; otherwise each look of this process tries to
        before = admin.info("persistence")["rdb_changes_since_last_save"]
        settings.CACHES = caches(clerks.replace("clerk:secret", "looker:SECRET"))
        for words, expected in [
            (("list",), "1 lock"),
            (("list", "--foreign"), "1 lock"),
            (("show", "a"), "here"),
            (("watch", "--count", "1"), "1 lock"),
            (("jobs",), ""),
            (("tasks",), "task:sync:7"),
            (("tasks", "sync:7"), "1 queued"),
        ]:
            out = StringIO()
            call_command("redislock", *words, stdout=out)
            assert expected in out.getvalue(), words
        with pytest.raises(LockUnavailable, match="locks need"):
            redis_lock("c", wait=0).acquire()
        assert admin.info("persistence")["rdb_changes_since_last_save"] == before
        assert held is not None

    @pytest.mark.parametrize("missing", OURS[:2])
    def test_a_pattern_is_missing(self, missing: str, clerk: Callable[..., Redis]) -> None:
        """A missing pattern of keys or channels is named; another prefix does not help."""
        others = [rule for rule in OURS if rule != missing]
        clerk(*others, f"{missing[0]}elsewhere:*", "+@all")
        message = doctor().findings["E105"]["message"]
        assert message.endswith(f"Missing: {missing}")

    def test_another_prefix(self, clerk: Callable[..., Redis]) -> None:
        """Special characters of patterns are escaped."""
        admin = clerk("+@all")
        with override_settings(REDISLOCK={"PREFIX": "redislock[1]"}):
            rule = doctor().findings["E105"]["hint"]
            assert r"~redislock\[1\]:*" in rule
            admin.execute_command(*rule.split())
            assert "E105" not in doctor().findings
            with redis_lock("a"):
                pass

    def test_each_command_has_a_harmless_form(self) -> None:
        """Every command that a script sends has one, or is tried in a script that may not write; a
        form that is not needed does no harm."""
        rules = scripts.permissions(frozenset({"select"})).split()
        needed = {rule.removeprefix("+") for rule in rules}
        assert needed <= asking.HARMLESS.keys() | asking.WRITING.keys()


class TestI102:
    """I102: what could not be seen."""

    def test_a_managed_server(self, serve: Callable[..., RedisServer]) -> None:
        """Without CONFIG, I102 says what is unknown, and nothing is guessed."""
        serve("--appendonly", "no", "--rename-command", "CONFIG", "")
        report = doctor()
        assert report.wrong == set()
        assert "whether it saves its data (unknown command" in report.findings["I102"]["message"]

    def test_a_user_who_may_only_lock(self, serve: Callable[..., RedisServer]) -> None:
        """The hint says what to allow; with it, the rest is seen."""
        rules = scripts.permissions().split()
        words = *CLERK, "resetchannels", *OURS, *rules
        server = serve("--appendonly", "no", "--user", *words, user="clerk:secret@")
        report = doctor()
        assert (report.code, report.wrong) == (0, set())
        with Redis.from_url(server.url) as admin:
            admin.execute_command(*report.findings["I102"]["hint"].split())
        report = doctor()
        assert "I102" not in report.findings
        assert report.wrong == {"W102"}

    def test_many_keys(self, good: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a large database, only some keys are looked at, and I102 says so."""
        good.mset({f"key:{number}": "" for number in range(3000)})
        assert "I102" not in doctor().findings
        monkeypatch.setattr(asking, "MOST_KEYS", 2000)
        assert "the first 2000 were looked at" in doctor().findings["I102"]["message"]
        monkeypatch.setattr(asking, "MOST_KEYS", 100_000)
        monkeypatch.setattr(asking, "WITHIN", 0)
        assert "the first 1000 were looked at" in doctor().findings["I102"]["message"]


def test_e106_a_command_is_missing(serve: Callable[..., RedisServer]) -> None:
    """E106: a command was renamed."""
    serve("--rename-command", "PUBLISH", "", "--rename-command", "HGET", "SECRET")
    report = doctor()
    assert report.code == 1
    assert "does not know HGET, PUBLISH" in report.findings["E106"]["message"]
    assert "E105" not in report.findings


GUARD = "CONFIG SET min-replicas-to-write 1"


class TestReplicas:
    """E107, W103, W104: replicas."""

    @pytest.fixture
    def primary(self, serve: Callable[..., RedisServer]) -> RedisServer:
        """A primary with one replica."""
        primary = serve("--repl-diskless-sync-delay", "0", tcp_port=0)
        serve(*replica_of(primary))
        with Redis.from_url(primary.url) as client:
            eventually(
                lambda: client.info("replication").get("slave0", {}).get("state") == "online"
            )
        return primary

    @pytest.mark.parametrize(
        ("asked", "guarded", "told"),
        [
            (0, False, {"W103", "W104"}),
            (1, False, {"W104"}),
            (0, True, {"W103"}),
            (1, True, set()),
            (2, True, {"E107"}),
        ],
    )
    def test_one_replica(
        self, asked: int, guarded: bool, told: set[str], primary: RedisServer, settings: Any
    ) -> None:
        """The findings depend on REPLICAS and on min-replicas-to-write; the hint for the latter
        can be pasted."""
        settings.CACHES = caches(primary.url)
        settings.REDISLOCK = {"LOCKS": {"x": {"REPLICAS": asked}}}
        with Redis.from_url(primary.url) as client:
            if guarded:
                client.execute_command(*GUARD.split())
            assert doctor().wrong == told
        with Redis.from_url(primary.url) as client:
            for finding in doctor().findings.values():
                if finding["id"] == "redislock.W104":
                    client.execute_command(*finding["hint"].split())
                elif finding["id"] != "redislock.I101":
                    paste(finding["hint"], settings)
            assert doctor().wrong == set()

    def test_none(self, good: Redis) -> None:
        """E107: REPLICAS asks for more replicas than there are."""
        with override_settings(REDISLOCK={"REPLICAS": 1}):
            assert doctor().wrong == {"E107"}


class TestW101:
    """An eviction policy that may drop locks."""

    @pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "volatile-lfu"])
    def test_with_a_limit(self, policy: str, serve: Callable[..., RedisServer]) -> None:
        """Policies for keys with a TTL count as well: all locks have one."""
        server = serve(*memory("100mb", policy))
        report = doctor()
        assert (report.code, report.wrong) == (0, {"W101"})
        assert (
            f"100 MiB is full, the server drops keys ({policy})"
            in (report.findings["W101"]["message"])
        )
        with Redis.from_url(server.url) as client:
            client.execute_command(*report.findings["W101"]["hint"].split())
        assert doctor().wrong == set()


class TestW105:
    """Clocks that differ."""

    @pytest.mark.parametrize(("ahead", "says"), [(-30, "ahead of"), (30, "behind")])
    def test_our_clock(
        self, ahead: float, says: str, good: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A difference of half a minute is reported, either way."""
        right = time.time
        monkeypatch.setattr(asking.time, "time", lambda: right() + ahead)
        message = doctor().findings["W105"]["message"]
        assert f"{says} that of this host" in message
        assert re.search(r"at least (29\.\d|30\.0) s", message)

    @pytest.mark.parametrize("ahead", [-0.5, 0.5])
    def test_a_little(self, ahead: float, good: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        """A difference of less than a second is not reported."""
        right = time.time
        monkeypatch.setattr(asking.time, "time", lambda: right() + ahead)
        assert doctor().wrong == set()

    @pytest.mark.parametrize("back", [True, False], ids=["on the way back", "on the way there"])
    def test_a_slow_network(self, back: bool) -> None:
        """The uncertainty of a round trip does not count, and the quickest answer decides."""
        delays = iter([0.4, 0.2, 0.4])

        def answer() -> tuple[int, int]:
            if not back:
                time.sleep(next(delays))
            now = time.time()
            if back:
                time.sleep(next(delays))
            return divmod(int(now * 1e6), 1_000_000)

        round_trip, skew = asking._clock(answer, tries=3)
        assert 0.2 <= round_trip < 0.4
        assert skew == pytest.approx(0, abs=0.02)


def test_w106_clients(serve: Callable[..., RedisServer]) -> None:
    """W106: nearly as many clients as the server takes."""
    server = serve("--maxclients", "20")
    with Redis.from_url(server.url) as client:
        if "maxclients" not in client.info("clients"):
            pytest.skip("the server does not tell")
        assert doctor().wrong == set()
        others = [Redis.from_url(server.url, single_connection_client=True) for _ in range(16)]
        for other in others:
            other.ping()
        try:
            assert doctor().wrong == {"W106"}
            client.execute_command(*doctor().findings["W106"]["hint"].split())
            assert doctor().wrong == set()
        finally:
            for other in others:
                other.close()


class TestTheIndex:
    """W107, W108: the index and the locks differ."""

    def test_w107_a_lock_that_is_gone(self, good: Redis) -> None:
        """W107: the key of a lock was deleted, and the index still has the lock."""
        with pytest.raises(LeaseLost), redis_lock("a"):
            write_down()
            good.delete("redislock:{a}")
            report = doctor()
        assert report.wrong == {"W107"}
        assert "should still be held: 'a'." in report.findings["W107"]["message"]

    def test_w107_not_one_that_has_expired(self, good: Redis) -> None:
        """W107: a crash leaves a name in the index until the next lock is granted. That is no
        harm."""
        lease = redis_lock("a", ttl=0.1, renew=False).acquire()
        write_down()
        eventually(lambda: not good.exists("redislock:{a}"))
        assert lease.state == LeaseState.LOST
        assert good.zscore("redislock:index", "redislock:{a}")
        assert doctor().wrong == set()

    def test_w108_a_lock_that_is_not_listed(self, good: Redis) -> None:
        """W108: the index was deleted; the next renewal enters it again."""
        with redis_lock("a") as lease, Semaphore("b", 2) as place:
            assert doctor().wrong == set(), "young locks are in no list"
            write_down()
            good.delete("redislock:index")
            report = doctor()
            assert report.wrong == {"W108"}
            assert "which are held: 'a', 'b'." in report.findings["W108"]["message"]
            lease.extend()
            place.extend()
            assert doctor().wrong == set()

    def test_values_of_others(self, good: Redis) -> None:
        """W108: values of other programs need not be in the index."""
        good.set("redislock:{a}", "a stranger's", px=60_000)
        good.hset("redislock:{b}", "c", "d")
        good.pexpire("redislock:{b}", 60_000)
        assert list(doctor().findings) == ["I101"]

    def test_while_locks_come_and_go(self, good: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        """W107, W108: a lock that is released between two looks is not reported."""
        ask = asking._Looking._ask
        lease = redis_lock("a").acquire()
        looks = []

        def meanwhile(self: Any, commands: Any) -> Any:
            looks.append(commands)
            answers = ask(self, commands)
            if len(looks) == 1:
                # As if the lock had been released between the two commands of this look.
                lease.release()
                return [*answers[:1], 0]
            return answers

        monkeypatch.setattr(asking._Looking, "_ask", meanwhile)
        assert doctor().wrong == set()
        assert len(looks) > 1


class TestW109:
    """W109: keys without a TTL."""

    def test_what_was_done_for_good(self, good: Redis) -> None:
        """Records without a TTL that a program asked for are not reported."""
        with once("job"):
            pass
        initialise("salt", 1)
        assert doctor().wrong == set()

    def test_without_a_ttl(self, good: Redis) -> None:
        """Every such key below our prefix is named, and the hint deletes them."""
        good.set("redislock:{a}", "a stranger's")
        good.lpush("redislock:{b}:history", "x")
        good.zadd("redislock:{c}:queue", {"token": 1})
        good.set("somebody:else", "")
        good.set("redislocked", "")
        report = doctor()
        assert report.wrong == {"W109"}
        program, *arguments = shlex.split(report.findings["W109"]["hint"])
        assert (program, arguments[:2]) == ("redis-cli", ["-n", "0"])
        good.execute_command(*arguments[2:])
        assert doctor().wrong == set()

    def test_many(self, good: Redis) -> None:
        """Some keys are named and the others counted; keys may be any bytes."""
        good.mset({f"redislock:{{{number}}}": "" for number in range(1500)})
        good.set(b"redislock:{\xff}", "")
        message = doctor().findings["W109"]["message"]
        assert " and 1498 more." in message
        good.flushall()
        good.set(b"redislock:{\xff}", "")
        good.set(b"redislock:{\x1b[31m}", "")
        (told,) = [one for one in check_deployment() if str(one.id).endswith("W109")]
        assert f"{told.msg}{told.hint}".isprintable()
        assert str(told.hint).endswith("redis-cli -n 0 DEL KEY")


# The rules, on what can't be set up.


def judged(**seen: Any) -> dict[str, Any]:
    """What the rules find in these facts, by id."""
    plain = asking.ServerFacts(
        alias="default",
        prefix="redislock",
        user="default",
        db=0,
        replicas=0,
        round_trip=0.001,
        skew=0.0,
    )
    found = rules.judge(replace(plain, **seen))
    return {one.id.removeprefix("redislock."): one for one in found}


class TestW114:
    """W114: tasks wait, and neither a call nor a sweep lets them go on."""

    @pytest.fixture
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without the time that `runperiodic` has."""
        monkeypatch.setattr(asking, "SWEPT_WITHIN", 0.0)

    @pytest.fixture
    def sync(self, good: Redis) -> Task:
        made: Task = limited("sync:{pk}", 2)(task(lambda pk: None))
        return made

    @pytest.mark.usefixtures("at_once")
    def test_parked(self, good: Redis, sync: Task) -> None:
        park(sync, 3)
        assert doctor().wrong == set(), "some run, and will end"
        lose_leases(good)
        report = doctor()
        assert report.wrong == {"W114"}
        finding = report.findings["W114"]
        assert re.match(
            r"Tasks of 'task:sync:7' wait, the first for \d\.\d s, ", finding["message"]
        )
        assert finding["hint"] == "manage.py redislock sweep --using=default"
        call_command(*shlex.split(finding["hint"])[1:], stdout=StringIO())
        assert [one.id for one in sync.backlog.messages] == ["m3"]
        assert doctor().wrong == set()

    def test_runperiodic_may_be_about_to_sweep(self, good: Redis, sync: Task) -> None:
        park(sync, 1)
        lose_leases(good)
        assert doctor().wrong == set()

    @pytest.mark.parametrize("recover", [False, True])
    def test_one_that_was_killed(self, good: Redis, recover: bool) -> None:
        """It waits, too, if it is sent again."""
        die(limited("sync:{pk}", 2, recover=recover)(task(lambda pk: None)))
        lose_leases(good)
        assert doctor().wrong == ({"W114"} if recover else set())


def test_nothing_was_seen() -> None:
    """Without any facts, nothing is reported."""
    assert [*judged()] == ["I101"]


class TestMessages:
    """W111, W112: scripts that can't send messages, or can't ask who listens."""

    @pytest.fixture
    def without(self, shared: RedisServer, settings: Any) -> Iterator[Callable[..., Redis]]:
        """Locks come as a user who may do all but these commands."""
        with Redis.from_url(shared.url) as client:
            client.flushall()
            if client.info("server")["redis_version"].startswith("6."):
                pytest.skip("needs Redis 7")
            settings.CACHES = caches(shared.url.replace("unix://", "unix://clerk:secret@"))
            settings.SILENCED_SYSTEM_CHECKS = ["redislock.W002"]

            def without(*commands: str) -> Redis:
                rules = "resetchannels", *OURS, "+@all", *(f"-{each}" for each in commands)
                client.execute_command("ACL", "SETUSER", *CLERK, *rules)
                return client

            yield without

    def test_w111_no_messages(self, without: Callable[..., Redis]) -> None:
        """W111 says what that costs, and how often it did."""
        admin = without("publish", "spublish")
        found = doctor().findings
        assert "up to 0.9 s, instead of a few ms. The server says" in found["W111"]["message"]
        assert "+publish" in found["E105"]["hint"]
        assert found["W111"]["hint"] == "See redislock.E105"
        admin.set("redislock:missed_wakeups", 12)
        assert "were late so far: 12. The" in doctor().findings["W111"]["message"]

    def test_w112_nobody_can_be_counted(self, without: Callable[..., Redis]) -> None:
        """W112 says what a killed waiter costs then."""
        without("pubsub")
        found = doctor().findings
        assert "for up to a second" in found["W112"]["message"]
        assert "W111" not in found

    @pytest.mark.parametrize("commands", [("config",), ("info",), ("config", "info")])
    def test_what_the_doctor_alone_asks(
        self, commands: tuple[str, ...], without: Callable[..., Redis]
    ) -> None:
        """I102: neither is a permission that locks need."""
        without(*commands)
        report = doctor()
        assert (report.code, report.wrong) == (0, set())
        assert report.findings["I102"]["hint"] == "ACL SETUSER clerk +info +config|get"

    @pytest.mark.parametrize(
        ("node", "refused", "told"),
        [
            ("", {"publish"}, {"W111"}),
            ("", {"numsub"}, {"W112"}),
            ("", {"spublish", "shardnumsub"}, set()),  # as Redis 6.2
            ("", {"spublish", "shardnumsub", "numsub"}, {"W112"}),
            ("", {"publish", "spublish"}, {"W111"}),
            ("", {"publish", "spublish", "numsub", "shardnumsub"}, {"W111"}),
            ("10.0.0.1:6379", {"publish", "numsub"}, set()),
            ("10.0.0.1:6379", {"shardnumsub"}, {"W112"}),
            ("10.0.0.1:6379", {"spublish", "shardnumsub"}, {"W111"}),
        ],
    )
    def test_in_a_script(self, node: str, refused: set[str], told: set[str]) -> None:
        """W111, W112: also where only scripts can't, as at some vendors."""
        messages = dict.fromkeys(refused, "not from scripts")
        found = judged(node=node, sharded=bool(node), messages=messages)
        assert found.keys() - {"I101"} == told
        for one in told:
            assert found[one].hint.startswith("Give locks a server whose scripts may run PUB")
            assert found[one].message.endswith("The server says: not from scripts")

    def test_a_cluster_without_sharded_messages(self) -> None:
        """Locks send plain messages there, and W111 is about these."""
        unknown = "Unknown Redis command called from script"
        messages = {"spublish": unknown, "shardnumsub": unknown, "numsub": "no"}
        assert judged(node="10.0.0.1:6379", sharded=True, messages=messages).keys() == {"I101"}
        refused = asking.Refused(optional=("+ssubscribe", "+spublish"))
        messages = {"spublish": "refused"}
        found = judged(sharded=True, messages=messages, refused=refused)
        assert found.keys() == {"I101", "I105"}

    def test_how_many_were_not_announced(self, good: Redis) -> None:
        """I101 says the number, if it is one. The counters have no TTL, rightly."""
        assert "announced" not in doctor().findings["I101"]["message"]
        good.mset({"redislock:missed_wakeups": 3, "redislock:clearings": 1})
        report = doctor()
        assert not report.wrong
        assert "handovers that no message announced: 3" in report.findings["I101"]["message"]
        good.set("redislock:missed_wakeups", "x")
        assert "announced" not in doctor().findings["I101"]["message"]


AWS_CLUSTER = {
    "redis_version": "7.2.4",
    "server_name": "valkey",
    "valkey_version": "8.0.1",
    "redis_mode": "cluster",
    "os": "Amazon ElastiCache",
    "executable": "-",
}
KEYDB = {"redis_version": "6.3.4", "executable": "/data/keydb-server", "mvcc_depth": 0}
DRAGONFLY = {
    "redis_version": "7.4.0",
    "dragonfly_version": "df-v1.39.0",
    "os": "Linux 5.14.0-570.49.1.el9_6.x86_64 x86_64",
    "executable": "dragonfly",
    "maxmemory": 419430400,
    "maxmemory_policy": "eviction",
}
FULL = {"maxmemory": 2**20, "maxmemory_policy": "volatile-lru"}


class TestVendors:
    """Whose server it is, by answers to INFO that users have published, and by the host name; and
    hints that are of use there."""

    @pytest.mark.parametrize(
        ("host", "info", "says"),
        [
            ("localhost", {"redis_version": "8.2.1", "os": "Linux"}, "Redis 8.2.1"),
            ("localhost", {"redis_version": "7.2.4", "valkey_version": "9.1.0"}, "Valkey 9.1.0"),
            ("localhost", AWS_CLUSTER, "ElastiCache, Valkey 8.0.1"),
            (
                "localhost",
                {"redis_version": "6.2.6", "os": "Amazon MemoryDB"},
                "MemoryDB, Redis 6",
            ),
            ("localhost", DRAGONFLY, "Dragonfly df-v1.39.0"),
            ("localhost", KEYDB, "KeyDB 6.3.4"),
            ("localhost", {**KEYDB, "executable": "-"}, "KeyDB 6.3.4"),
            (
                "localhost",
                {"redis_version": "7.2", "rlec_version": "x"},
                "Redis Enterprise, Redis",
            ),
            ("localhost", {"redis_version": "6", "upstash_version": "1.1"}, "Upstash 1.1"),
            ("localhost", {}, "A round trip"),
            ("x.abc.serverless.use1.cache.amazonaws.com", {}, "ElastiCache Serverless, a round"),
            ("x.abc.0001.use1.cache.amazonaws.com", {}, "ElastiCache, a round"),
            ("clustercfg.x.abc.memorydb.us-east-1.amazonaws.com", {}, "MemoryDB, a round"),
            ("x.northeurope.redis.azure.net", {"redis_version": "7.4"}, "Azure Managed Redis, R"),
            ("X.redis.cache.windows.net", {}, "Azure Cache for Redis, a round"),
            ("redis-1.c1.us-east-1-2.ec2.redns.redis-cloud.com", {}, "Redis Cloud, a round"),
            ("eu1-x.upstash.io", {}, "Upstash, a round"),
            ("r-bp1.redis.rds.aliyuncs.com", {}, "Tair, a round"),
            ("cache.amazonaws.com.example", {}, "A round trip"),
        ],
    )
    def test_its_name(self, host: str, info: dict[str, Any], says: str) -> None:
        """I101 begins with it."""
        found = judged(info=info, vendor=vendors.vendor_of([host], info))
        assert found["I101"].message.startswith(says)

    @pytest.mark.parametrize(
        ("host", "info", "hint"),
        [
            ("localhost", {}, "CONFIG SET maxmemory-policy noeviction"),
            ("localhost", KEYDB, "CONFIG SET maxmemory-policy noeviction"),
            ("localhost", DRAGONFLY, "Start it without --cache_mode"),
            (
                "localhost",
                AWS_CLUSTER,
                "aws elasticache modify-cache-parameter-group --cache-parameter-group-name GROUP",
            ),
            ("x.serverless.use1.cache.amazonaws.com", {}, "maxmemory-policy can't be set there"),
            ("x.memorydb.us-east-1.amazonaws.com", {}, "aws memorydb update-parameter-group"),
            ("x.redis.azure.net", {}, "Update-AzRedisEnterpriseCacheDatabase"),
            ("x.redis.cache.windows.net", {}, "Set-AzRedisCache -Name NAME -ResourceGroupName G"),
            (
                "x.redis-cloud.com",
                {},
                "In the console of Redis Cloud: set maxmemory-policy to noe",
            ),
            ("x.upstash.io", {}, "In the console of Upstash: switch Eviction off"),
        ],
    )
    def test_w101_where_it_is_set(self, host: str, info: dict[str, Any], hint: str) -> None:
        """W101: CONFIG SET only where that is of use."""
        vendor = vendors.vendor_of([host], info)
        found = judged(info={**FULL, **info, "maxmemory": 2**20}, vendor=vendor)
        assert found["W101"].hint.startswith(hint)

    @pytest.mark.parametrize("vendor", [*vendors.VENDORS, vendors.MANAGED, vendors.SOMEBODY])
    def test_each_hint_can_be_made(self, vendor: vendors.Vendor) -> None:
        """No hint has a gap, and all that rules ask for has one."""
        for option in ("maxmemory-policy", "appendonly", "min-replicas-to-write", "maxclients"):
            assert "{" not in vendor.sets(option, 1).replace("@{", "")
        assert "+wait" in vendor.allows("clerk", "+wait")

    def test_no_config(self, serve: Callable[..., RedisServer]) -> None:
        """W101, I102: nothing is named that nobody can run."""
        serve(*memory("100mb", "allkeys-lru"), "--rename-command", "CONFIG", "")
        found = doctor().findings
        assert found["W101"]["hint"].startswith(
            "Set maxmemory-policy to noeviction where your pro"
        )
        assert found["I102"]["hint"] == ""

    def test_a_log_that_keeps_all(self) -> None:
        """W103, W104: no lease of MemoryDB is lost in a failover."""
        info = {"connected_slaves": 1}
        host = "x.memorydb.eu-west-1.amazonaws.com"
        assert judged(info=info).keys() >= {"W103", "W104"}
        assert [*judged(info=info, vendor=vendors.vendor_of([host], info))] == ["I101"]

    def test_e106_what_a_vendor_has_not(self) -> None:
        """E106: without rename-command, where nobody can change that."""
        cloud = vendors.vendor_of(["x.redis-cloud.com"], {})
        refused = asking.Refused(unknown=("WAIT",))
        with override_settings(REDISLOCK={"REPLICAS": 1}):
            hint = judged(refused=refused, vendor=cloud)["E106"].hint
        assert hint == 'REDISLOCK |= {"REPLICAS": 0}'
        refused = asking.Refused(unknown=("EVAL", "SCAN"))
        assert judged(refused=refused, vendor=cloud)["E106"].hint.startswith("Ask Redis Cloud")

    def test_w109_on_a_cluster(self) -> None:
        """W109: one key at a time, and no number of a database."""
        keys = asking.KeyFacts(endless=("redislock:{a}", "redislock:{b}"))
        hint = judged(node="10.0.0.1:6379", keys=keys)["W109"].hint
        assert hint.endswith("redis-cli -c DEL 'redislock:{a}'; redis-cli -c DEL 'redislock:{b}'")


class Vendor:
    """A client that answers as the server of a vendor."""

    def __init__(self, crdt: dict[str, Any], config: dict[str, str] | None) -> None:
        self.crdt, self.config = crdt, config

    def info(self, section: str) -> dict[str, Any]:
        assert section == "crdt"
        return self.crdt

    def config_get(self, option: str) -> dict[str, str]:
        assert option == "active-replica"
        if self.config is None:
            raise redis.ResponseError("unknown command CONFIG")
        return self.config


class TestE108:
    """E108: two servers accept writes and merge them later."""

    @pytest.mark.parametrize(
        ("info", "crdt", "config", "seen"),
        [
            ({"role": "master", "redis_version": "7.4"}, {}, {}, False),
            ({"role": "master", "rlec_version": "1"}, {"crdt_config_version": 1}, {}, True),
            ({"role": "active-replica", **KEYDB}, {}, None, True),
            ({"role": "master", **KEYDB}, {}, {"active-replica": "yes"}, True),
            ({"role": "master", **KEYDB}, {}, {"active-replica": "no"}, False),
            ({"role": "master", **KEYDB}, {}, None, False),
            ({}, {"crdt_config_version": 1}, {}, False),
        ],
    )
    def test_how_it_is_seen(
        self, info: dict[str, Any], crdt: dict[str, Any], config: Any, seen: bool
    ) -> None:
        """KeyDB says it as its role, or in its configuration; Redis Enterprise in INFO."""
        client: Any = Vendor(crdt, config)
        vendor = vendors.vendor_of([], info)
        assert asking._Asking(client, "default")._active_active(vendor, info) is seen

    def test_what_is_said(self) -> None:
        """The reason, and it is no replica."""
        found = judged(active_active=True, info={"role": "active-replica"}, vendor=vendors.KEYDB)
        assert "two callers can hold one lock" in found["E108"].message
        assert found["E108"].hint.startswith("CONFIG SET active-replica no")
        assert "E103" not in found
        assert "Active-Active" in judged(active_active=True)["E108"].hint


# The command.


class TestExitCode:
    """The exit code is 0, 1 or 69."""

    @pytest.mark.parametrize(
        ("saves", "level", "code"),
        [
            ("no", None, 0),
            ("no", "ERROR", 0),
            ("no", "WARNING", 1),
            ("no", "INFO", 1),
            ("yes", "WARNING", 0),
            ("yes", "INFO", 1),
        ],
    )
    def test_a_warning_or_none(
        self, saves: str, level: str | None, code: int, serve: Callable[..., RedisServer]
    ) -> None:
        """--fail-level decides."""
        serve("--appendonly", saves)
        report = doctor(*(["--fail-level", level] if level else []))
        assert report.code == code
        last = "0 errors, 1 warning." if saves == "no" else "Nothing is wrong."
        assert report.last == (last if code else "")

    def test_an_error(self, good: Redis) -> None:
        """An error fails by default, and the worst finding comes first."""
        with override_settings(REDISLOCK={"REPLICAS": 1}):
            report = doctor()
        assert report.code == 1
        assert report.last == "1 error, 0 warnings."
        assert list(report.findings) == ["E107", "I101"]

    def test_usage(self) -> None:
        """The exit code is 2, as for all commands."""
        assert run("doctor", "--fail-level", "SOON").code == 2


class TestSettings:
    """The doctor also reports wrong settings."""

    def test_wrong_settings(self) -> None:
        """E001: no server is asked, since the settings don't say which one."""
        with override_settings(REDISLOCK={"TTL": 0}, CACHES=caches(AWAY)):
            report = doctor()
        assert (report.code, list(report.findings)) == (1, ["E001"])
        assert report.findings["E001"]["alias"] is None

    def test_an_alias_that_is_not_there(self, good: Redis) -> None:
        """E002: the other servers are looked at."""
        report = doctor("--using=nowhere", "--using=default")
        assert report.code == 1
        assert list(report.findings) == ["E002", "I101"]
        assert report.findings["E002"]["alias"] == "nowhere"

    def test_silenced(self, settings: Any) -> None:
        """SILENCED_SYSTEM_CHECKS counts here, too."""
        assert "W102" in doctor().findings
        settings.SILENCED_SYSTEM_CHECKS = ["redislock.W102", "redislock.W002"]
        assert not {"W102", "W002"} & doctor().findings.keys()

    def test_advice(self) -> None:
        """W002: what `check --deploy` says of CACHES is said here, too."""
        assert "W002" in doctor().findings


class TestUsage:
    """I103, I104: the entries of LOCKS beside the templates in the code."""

    LOCKS = {"reprot:*": {"TTL": 60}, "nightly": {}, "sync:*": {}}

    @pytest.fixture(autouse=True)
    def _templates(self, good: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(naming, "patterns", ())

    def told(self, locks: Any, *templates: str) -> dict[str, Finding]:
        for template in templates:
            redis_lock(template)(lambda a, b=0: None)
        with override_settings(REDISLOCK={"LOCKS": locks}):
            findings = doctor().findings
            assert not [message for message in check_settings() if message.id]
        return {name: one for name, one in findings.items() if name in ("I103", "I104")}

    def test_redis_away(self, settings: Any) -> None:
        """If Redis can't be reached, these findings are left out."""
        settings.CACHES = caches(AWAY)
        out = StringIO()
        with (
            override_settings(REDISLOCK={"LOCKS": self.LOCKS}),
            pytest.raises(CommandError, match="could not be reached"),
        ):
            call_command("redislock", "doctor", stdout=out)
        assert out.getvalue() == ""

    def test_both(self) -> None:
        """A typing error is found from both sides; an exact name is never doubted."""
        told = self.told(self.LOCKS, "report:{a}", "sync:{a}:{b}")
        assert "'reprot:*'. Literal names" in told["I103"]["message"]
        renamed = 'REDISLOCK["LOCKS"]["report:*"] = REDISLOCK["LOCKS"].pop("reprot:*")'
        assert told["I103"]["hint"].startswith(renamed)
        assert "the code makes: 'report:*'. They" in told["I104"]["message"]
        assert '["report:*"] = {' in told["I104"]["hint"]
        unlike_anything = self.told({"zzz": {}, "zzz:*": {}})
        assert "config NAME" in unlike_anything["I103"]["hint"]

    @pytest.mark.parametrize("locks", [{}, {"sync:*": {}, "sync:eu:*": {}}])
    def test_all_are_used(self, locks: Any) -> None:
        """If all entries are used, or there are none, nothing is reported."""
        assert self.told(locks, "sync:{a}:{b}") == {}

    def test_views_are_imported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The views of the URLconf are imported first, even if it is broken."""
        (tmp_path / "urls_with_a_lock.py").write_text(
            "from django_redislock import redis_lock\n"
            "@redis_lock('reprot:{a}')\n"
            "def view(a): ...\n"
            "raise ValueError\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        assert self.told({"reprot:*": {}}).keys() == {"I103"}
        with override_settings(ROOT_URLCONF="urls_with_a_lock"):
            assert self.told({"reprot:*": {}}) == {}


ALPHABET = ["a", "b", "*", "?", "[ab]", "[*]"]
PATTERNS = ["".join(some) for size in range(4) for some in product(ALPHABET, repeat=size)]
NAMES = ["".join(some) for size in range(5) for some in product("ab*", repeat=size)]


def test_overlap() -> None:
    """Two patterns overlap if a name matches both, checked with all short names. Brackets with
    several characters may be taken for more than they match."""
    matched = {
        pattern: {name for name in NAMES if fnmatchcase(name, pattern)} for pattern in PATTERNS
    }
    for one in PATTERNS[::3]:
        for other in PATTERNS:
            common = bool(matched[one] & matched[other])
            if "[ab]" in one + other:
                assert overlap(one, other) >= common, (one, other)
            else:
                assert overlap(one, other) == common, (one, other)


class TestWords:
    """The output for people."""

    def test_in_words(self) -> None:
        """Each finding has a line, with its hint below, and the count is at the end. There are no
        colours in a pipe."""
        done = run("doctor")
        assert (done.code, done.err) == (0, "")
        lines = done.out.splitlines()
        assert lines[0].startswith("redislock.W002 [default] Locks share")
        assert lines[1].startswith("    HINT: CACHES[")
        assert re.fullmatch(r"0 errors, \d warnings?\.", lines[-1])
        assert "\x1b" not in done.out

    def test_colours(self) -> None:
        """Django's colours are used."""
        assert "\x1b[33;1mredislock.W002" in run("doctor", "--force-color").out

    def test_nothing_is_wrong(self, good: Redis) -> None:
        """The command says that nothing is wrong."""
        out = StringIO()
        call_command("redislock", "doctor", stdout=out)
        assert out.getvalue().endswith("Nothing is wrong.\n")

    def test_in_a_broken_project(self, tmp_path: Path) -> None:
        """It needs neither a database nor a project without errors."""
        done = run("doctor", *broken_project(tmp_path))
        assert (done.code, done.err) == (0, "")


def test_the_documented_json(good: Redis) -> None:
    """docs/checks.md has a row for each key, and its type."""
    page = (ROOT / "docs" / "checks.md").read_text("utf-8").partition("### JSON")[2]
    documented = re.findall(r"^\| `(\w+)` \| (.+?) \|", page, re.MULTILINE)
    for finding in doctor().findings.values():
        assert list(finding) == [key for key, _ in documented]
        for key, kind in documented:
            types = {"string": str, "string or null": str | None}
            assert isinstance(finding[key], types[kind])
