"""`redislock show`: all that is known of one lock."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable

from django.conf import settings
from django.test import override_settings
from redis import Redis

from django_redislock import redis_lock
from django_redislock.inspection.words import process_name
from tests.contract.api import InThreads
from tests.operations.calling import call, granted, strangers, write_down
from tests.processes import Worker
from tests.waiting import PATIENCE, eventually


def test_held(redis: Redis, start: Callable[..., Worker]) -> None:
    """The output has the holder, its place and times, and the waiters in order."""
    lease = redis_lock("job", ttl=60, label="here").acquire()
    first = start("wait")
    eventually(lambda: redis.zcard("redislock:{job}:queue") == 1)
    second = start("wait")
    eventually(lambda: redis.zcard("redislock:{job}:queue") == 2)
    done = call("show", "job")
    assert done.code == 0
    for text in (lease.owner, "here", str(lease.fencing_token), "TTL:             1 min 00 s"):
        assert text in done.out
    assert "LAST HOLDER" not in done.out, "it has no past"
    table = done.out.partition("WAITER")[2]
    waiting = [f" · {worker.process.pid} " for worker in (first, second)]
    places = [table.index(text) for text in waiting]
    assert places == sorted(places)
    document = call("show", "job", "--json").json
    assert [waiter["position"] for waiter in document["waiters"]] == [0, 1]
    assert f":{first.process.pid}:" in document["waiters"][0]["owner"]
    shortened = call("show", "job", "--limit", "1").out
    assert waiting[1] not in shortened
    assert "These are the first 1 of 2 waiters." in shortened
    lease.release()


def test_free() -> None:
    """A free lock has an exit code of its own; its last holder is shown."""
    assert call("show", "job").code == 3
    with redis_lock("job") as lease:
        write_down()
    done = call("show", "job")
    assert done.code == 3
    assert done.out.startswith("job on 'default'\nNobody holds it now.\nLast held by ")
    assert re.search(r" UTC +0\.\d s  released  operations/test_show\.py:\d+ in", done.out)
    assert f"{lease.fencing_token}, of the last holder" in done.out


def test_its_past(redis: Redis) -> None:
    """The last holders are shown with what became of them, the last one first."""
    leases = []
    for end in ("released", "cleared", "expired", "held"):
        lock = redis_lock("job", label=f"was {end}", renew=False)
        lease = InThreads().start(lock.acquire).result(PATIENCE)
        leases.append(lease)
        write_down()
        if end == "released":
            lease.release()
        elif end == "cleared":
            call("clear", "job", "--yes", "--by", "eva", "--reason", "it hangs")
        elif end == "expired":
            redis.delete("redislock:{job}")
    done = call("show", "job")
    table = done.out.partition("LAST HOLDER")[2].partition("\n\n")[0]
    rows = [re.split(r"  +", line) for line in table.splitlines()[1:]]
    assert [row[0] for row in rows] == [process_name(lease.owner) for lease in leases[2::-1]]
    assert [row[2:] for row in rows] == [
        ["-", "expired", "was expired"],
        [rows[1][2], "cleared by eva (it hangs)", "was cleared"],
        [rows[2][2], "released", "was released"],
    ]
    leases[3].release()


def test_stale(redis: Redis) -> None:
    """The output says why the lock is stale."""
    granted(redis, "job")
    assert "stale: its process has shown no sign of life for 900 s" in call("show", "job").out


def test_what_others_wrote(redis: Redis) -> None:
    """The output says that the value is not ours."""
    strangers(redis)
    assert "another program" in call("show", "legacy").out
    assert "stale: its time was over at" in call("show", "old").out
    assert "no TTL: it stays until" in call("show", "old").out


def test_where_it_is() -> None:
    """The lock is looked for at the alias of its settings, unless another one is given."""
    caches = {"default": "unix:///nowhere", "locks": "unix:///nowhere/else"}
    with override_settings(
        CACHES={
            alias: {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
            for alias, url in caches.items()
        },
        REDISLOCK={"LOCKS": {"job": {"USING": "locks"}}},
    ):
        assert "/nowhere/else" in call("show", "job").err
        assert "/nowhere/else" not in call("show", "job", "--using", "default").err
        assert "/nowhere/else" not in call("show", "other").err
        assert "/nowhere/else" in call("clear", "job").err


def test_a_waiter_that_was_killed(redis: Redis, start: Callable[..., Worker]) -> None:
    """It is shown as such, alone and in groups, and is not named as the next one."""
    with redis_lock("job"):
        killed = start("wait")
        eventually(lambda: redis.zcard("redislock:{job}:queue") == 1)
        killed.kill()
        silent_since(redis, seconds=60)
        out = call("show", "job").out
        assert "waits, and shows no sign of life." in out
        assert "no sign of life for 1 min 0" in out.partition("WAITER")[2]
        alive = start("wait")
        eventually(lambda: redis.zcard("redislock:{job}:queue") == 2)
        out = call("show", "job").out
        assert re.search(rf"Next: \S+ · {alive.process.pid},", out)
        assert out.count("no sign of life") == 1
        token, says = redis.hgetall("redislock:{job}:waiters").popitem()
        for number in range(11):
            redis.zadd(
                "redislock:{job}:queue", {token + b"%d" % number: time.time() * 1e6 + number}
            )
            redis.hset("redislock:{job}:waiters", token + b"%d" % number, says)
        out = call("show", "job").out
        assert sum("; no sign of life for" in line for line in out.splitlines()) == 1


def silent_since(redis: Redis, seconds: float) -> None:
    """Let the waiters have shown no sign of life for so long."""
    for token, says in redis.hgetall("redislock:{job}:waiters").items():
        seen, _, rest = says.partition(b"|")
        then = int(seen) - int(seconds * 1e6)
        redis.hset("redislock:{job}:waiters", token, b"%d|%s" % (then, rest))


def test_a_stale_one_can_be_cleared(redis: Redis) -> None:
    """The output ends its story with the command that clears it."""
    granted(redis, "it's")
    out = call("show", "it's").out
    line = next(line for line in out.splitlines() if line.startswith("To clear it: "))
    assert shlex.split(line.removeprefix("To clear it: "))[2:] == ["clear", "it's"]


def test_what_clears_it_finds_the_same_lock(redis: Redis) -> None:
    """The command passes on how the lock was found; a Redlock's servers are in the settings."""

    def clears(*options: str) -> list[str]:
        _, text = call("show", "job", *options).out.split("To clear it: ")
        return shlex.split(text.partition("\n")[0])[2:]

    granted(redis, "job")
    servers = ["default", "locks", "third"]
    with override_settings(
        CACHES=dict.fromkeys(servers, settings.CACHES["default"]),
        REDISLOCK={"LOCKS": {"job": {"KIND": "redlock", "USING": servers}}},
    ):
        assert clears() == ["clear", "job"]
        assert clears("--using", "locks") == ["clear", "--using=locks", "job"]


def test_did_you_mean(redis: Redis) -> None:
    """For a free name, held locks with nearly the same name are named."""
    for name in ("report:daily", "report:weekly", "export"):
        granted(redis, name)
    assert "Held are: 'report:daily'" in call("show", "report:dayli").out
    assert "Held are" not in call("show", "billing").out


def test_settings_that_differ() -> None:
    """Only the settings that are not the default are shown; the others with -o wide."""
    with override_settings(REDISLOCK={"LOCKS": {"job": {"TTL": 60}}}):
        out = call("show", "job").out
        assert re.search(r"^TTL +60 +REDISLOCK\['LOCKS'\]\['job'\]\['TTL'\]$", out, re.MULTILINE)
        assert "WAIT " not in out
        assert "WAIT " in call("show", "job", "-o", "wide").out
    assert "Settings: the defaults. See manage.py redislock config job" in call("show", "job").out


def test_many_waiters(redis: Redis) -> None:
    """Waiters at one place on one host are one line."""
    granted(redis, "job")
    now = time.time()
    for number in range(12):
        place = "a.py:1 in f" if number else "b.py:2 in g"
        arrived = int((now - 500 + number) * 1e6)
        redis.zadd("redislock:{job}:queue", {f"{number:032}": arrived})
        says = f"{arrived}|10000||web{number % 2}:{number}:MainThread|{place}"
        redis.hset("redislock:{job}:waiters", f"{number:032}", says)
    lines = call("show", "job").out.splitlines()
    groups = [line for line in lines if " × " in line]
    assert [line.partition(";")[0] for line in groups] == [
        "1 × web0, b.py:2 in g",
        "6 × web1, a.py:1 in f",
        "5 × web0, a.py:1 in f",
    ]
    assert "oldest 8 min 19 s" in groups[1]
    wide = call("show", "job", "-o", "wide").out
    assert wide.count("a.py:1 in f") == 11
