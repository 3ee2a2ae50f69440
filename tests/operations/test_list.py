"""`redislock list`: which locks, in which order, in which columns."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import ExitStack
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from redis import Redis

from devtools.redis_server import RedisServer, find_server
from django_redislock import LeaseRevoked, redis_lock
from django_redislock.client import Lock
from django_redislock.inspection.inspector import LOCKS_AT_ONCE
from django_redislock.inspection.listing import ORDERS
from tests.caches import caches
from tests.operations.calling import call, cut_off, granted, run, strangers, write_down

UTF_8 = {**os.environ, "LC_ALL": "C.UTF-8"}


def names(*arguments: str) -> list[str]:
    return [item["name"] for item in call("list", *arguments, "--json").json["items"]]


@pytest.fixture
def locks(redis: Redis) -> Any:
    """Two locks of ours, one whose process died long ago, and one whose process may come back."""
    with redis_lock("a:1", ttl=50), redis_lock("a:2", ttl=40):
        granted(redis, "b:dead", owner="web3:7:x")
        granted(redis, "b:silent", silent=25, owner="web4:7:x")
        yield


def test_a_replica(settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody can lock on a replica: the command says so, and names the primary."""
    found = find_server()
    if found.binary is None:
        pytest.skip("needs servers of its own")
    with RedisServer(found, tcp_port=0) as primary:
        link = ["--replicaof", "127.0.0.1", str(primary.tcp_port)]
        with RedisServer(found, args=link) as replica:
            settings.CACHES = caches(replica.url)
            done = call("list")
    assert done.code == 1
    assert done.out.startswith("0 locks.\n")
    said = capsys.readouterr().err
    assert f"The server is a replica of 127.0.0.1:{primary.tcp_port}" in said


class TestWhich:
    @pytest.mark.parametrize(
        ("arguments", "found"),
        [
            ([], {"a:1", "a:2", "b:dead", "b:silent"}),
            (["--pattern", "a:*"], {"a:1", "a:2"}),
            (["--pattern", "a:1"], {"a:1"}),
            (["--state", "stale"], {"b:dead"}),
            (["--state", "unknown", "--state", "stale"], {"b:dead", "b:silent"}),
            (["--state", "held"], {"a:1", "a:2"}),
            (["--host", "web3:"], {"b:dead"}),
            (["--host", "web"], {"b:dead", "b:silent"}),
            (["--host", "web3:", "--state", "held"], set()),
        ],
    )
    @pytest.mark.usefixtures("locks")
    def test_filters(self, arguments: list[str], found: set[str]) -> None:
        """A lock has to match all filters."""
        assert set(names(*arguments)) == found

    @pytest.mark.usefixtures("locks")
    def test_of_others(self, redis: Redis) -> None:
        """Values of others are listed only with --foreign, under the same filters."""
        strangers(redis)
        assert not {"legacy", "old"} & set(names())
        assert {"a:1", "legacy", "old"} <= set(names("--foreign"))
        assert names("--foreign", "--pattern", "ol*") == ["old"]
        assert "legacy" not in names("--foreign", "--state", "stale")

    @pytest.mark.parametrize(
        ("order", "found"),
        [
            ("remaining", ["a:2", "a:1", "b:dead", "b:silent"]),
            ("name", ["a:1", "a:2", "b:dead", "b:silent"]),
            ("held", ["b:dead", "b:silent", "a:1", "a:2"]),
            ("state", ["b:dead", "b:silent", "a:1", "a:2"]),
            ("urgency", ["b:dead", "b:silent", "a:1", "a:2"]),
        ],
    )
    @pytest.mark.usefixtures("locks")
    def test_order(self, order: str, found: list[str]) -> None:
        """--sort decides."""
        assert names("--sort", order) == found

    @pytest.mark.parametrize("order", ORDERS)
    def test_all_orders(self, order: str) -> None:
        """--sort takes each order of the inspection."""
        assert names("--sort", order) == []

    @pytest.mark.usefixtures("locks")
    def test_limit(self) -> None:
        """Only so many are shown, and all are counted."""
        assert len(names("--limit", "3")) == 3
        assert len(names("--limit", "0")) == 4
        assert "The first 3 of 4 locks: " in call("list", "--limit", "3").out

    def test_more_than_a_request_holds(self, redis: Redis) -> None:
        """Locks are read in batches, and none is missing."""
        expected = [f"n{number}" for number in range(LOCKS_AT_ONCE + 10)]
        for name in expected:
            granted(redis, name)
        assert sorted(names("--limit", "0")) == sorted(expected)
        assert len(names()) == 100


class TestTable:
    @pytest.mark.usefixtures("locks")
    def test_columns(self) -> None:
        """Texts are aligned at their beginning and numbers at their end; the last line counts."""
        head, *rows, last = call("list").out.splitlines()
        assert head.split("  ")[0] == "NAME"
        assert len(rows) == 4
        for row in rows:
            assert row[head.index("STATE")] != " "
            assert row[head.index("STATE") - 1] == " "
            assert row[head.index("HOLDER") - 1] == " "
            for title in ("WAITERS", "HELD FOR", "REMAINING"):
                end = head.index(title) + len(title)
                assert row[end - 1] != " "
                assert row[end : end + 1] in ("", " ")
        assert last == "4 locks: 1 stale, 1 unknown, 2 held; 0 waiters."

    def test_nothing(self) -> None:
        """Without locks, there is no table, and no failure, but an example."""
        done = call("list")
        assert (done.code, done.err) == (0, "")
        assert re.fullmatch(r"0 locks\.\nTo see one here: with redis_lock\(.*\n", done.out)
        assert call("list", "--state", "stale").out == "0 locks.\n"

    def test_names_of_strangers(self, redis: Redis) -> None:
        """Control characters of a name don't reach the terminal; in JSON they are escaped."""
        strangers(redis)
        out = call("list", "--foreign").out
        assert "odd?[2J" in out
        assert all(char.isprintable() or char == "\n" for char in out)
        assert call("list", "--foreign", "--json").out.rstrip("\n").isprintable()

    def test_names_that_can_t_be_seen(self) -> None:
        """What can't be seen is escaped, in commands to paste as well; in JSON nothing is lost."""
        name = "a\u200cb\xa0c'"
        lease = redis_lock(name, label="here\xa0or there").acquire()
        out = call("list", "-o", "wide").out
        assert r"a\u200cb\xa0c'" in out
        assert r"here\xa0or there" in out
        assert call("list", "--json").json["items"][0]["name"] == name
        _, _, words = call("clear", name).out.splitlines()[-1].partition(" clear ")
        shell = ["bash", "-c", f"printf '%s\\0' {words}"]
        pasted = subprocess.run(shell, capture_output=True, check=True, text=True, env=UTF_8)
        assert name in pasted.stdout.split("\0")
        call("clear", name, "--yes", "--reason", "it\u200chung")
        with pytest.raises(LeaseRevoked, match=r"it\\u200chung"):
            lease.extend()

    def test_long_names(self) -> None:
        """Long names are not shortened if there is no terminal."""
        name = "n" * 400
        with redis_lock(name):
            assert name in call("list").out

    def test_other_alphabets(self) -> None:
        """Columns are aligned; in a locale without these letters, they are escaped."""
        with ExitStack() as stack:
            for name in ("注文", "äö", "e\u0301"):
                stack.enter_context(redis_lock(name))
            head, *rows, _ = call("list", "--sort", "name").out.splitlines()
            at = head.index("STATE")
            assert [row.index("held") for row in rows] == [at + 1, at, at - 2]
            done = run("list", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
        assert (done.code, done.err) == (0, "")
        assert "\\u6ce8" in done.out


class TestColors:
    def test_piped(self) -> None:
        """Output to a pipe has no colours, unless --force-color is given."""
        with redis_lock("job"):
            write_down()
            coloured, listed = run("list", "--force-color").out, run("list").out
        assert "\x1b[32;1mheld\x1b[0m" in coloured
        assert "held" in listed
        assert "\x1b" not in listed

    def test_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A command called on a terminal writes no colours to something else."""
        monkeypatch.setattr("django.core.management.color.supports_color", lambda: True)
        out = StringIO()
        with redis_lock("job"):
            call_command("redislock", "list", stdout=out)
        assert "\x1b" not in out.getvalue()


def test_nobody_reads_it(redis: Redis) -> None:
    """`| head` ends the command without an error message."""
    for number in range(1000):
        granted(redis, f"{'n' * 400}{number}")
    done = cut_off("list", "--limit", "0")
    assert done.out.startswith("NAME ")
    assert (done.code, done.err) == (141, "")


def test_those_of_the_cache(redis: Redis) -> None:
    """Locks of the cache are listed with the others, and cleared by their keys."""
    lock = Lock(redis, ":1:import", timeout=60)
    assert lock.acquire()
    with redis_lock("ours"):
        assert sorted(names()) == [":1:import", "ours"]
        assert names("--cache-locks") == [":1:import"]
        assert re.search("^:1:import +cache.lock +held ", call("list").out, re.MULTILINE)
        assert call("show", ":1:import").out.startswith(":1:import on 'default'\nHeld by ")
        assert call("show", "ours", "--cache-locks").code == 3
        assert "--cache-locks" in call("clear", ":1:import", "--cache-locks").out.splitlines()[-1]
        assert call("clear", ":1:import", "--yes", "--reason=stuck").code == 0
    assert not lock.locked()
