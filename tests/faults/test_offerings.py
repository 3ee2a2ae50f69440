"""Servers as they can be rented: commands are missing, or a proxy in front of them refuses some.

What they refuse is in docs/offerings.md. The services themselves were not tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from redis import Redis

from devtools.luacheck import SCRIPTS
from devtools.redis_server import RedisServer, find_server
from django_redislock import LeaseState, LockUnavailable, MultiLock, Semaphore, redis_lock
from django_redislock.doctor.rules import server_findings
from django_redislock.inspection import Inspector
from django_redislock.primitives import scripts
from tests.caches import caches
from tests.contract.api import Api
from tests.faults.conftest import load_scripts
from tests.faults.proxy import Matcher, Proxy, command, script
from tests.faults.waiters import renew_now
from tests.waiting import PATIENCE, eventually

AROUND = ["acl", "client", "cluster", "command", "config", "debug", "info", "keys", "monitor"]
"""Commands of operators. Offerings refuse some of them, and no lock sends one."""
MESSAGES = ["publish", "pubsub", "subscribe", "psubscribe", "ssubscribe", "spublish"]
REFUSED = {
    "for operators": AROUND,
    "messages": MESSAGES,
    "messages, and for operators": [*AROUND, *MESSAGES],
    "one database": ["select", *AROUND],
    "replicas": ["wait", *AROUND],
}


def used_in_every_way(api: Api) -> None:
    """Taken, refused, waited for, renewed, handed on, listed, cleared and released."""
    lease = api.acquire(redis_lock("job", ttl=20))
    assert api.start(lambda: api.acquire(redis_lock("job"), wait=0)).result(PATIENCE) is None
    waiter = api.start(lambda: api.acquire(redis_lock("job"), wait=PATIENCE))
    eventually(lambda: Inspector().waiters("job"))
    api.extend(lease)
    renew_now(lease)
    eventually(lambda: lease.state == LeaseState.HELD)
    api.release(lease)
    following = waiter.result(PATIENCE)
    assert following.fencing_token > lease.fencing_token
    [lock] = [lock for lock in Inspector().all() if lock.name == "job"]
    assert Inspector().clear(lock, by="eva", reason="x")
    both = api.acquire(MultiLock(["a", "b"]))
    api.release(both)
    place = api.acquire(Semaphore("exports", 2))
    api.release(place)


@pytest.fixture
def user(own_server: RedisServer, settings: Any) -> Redis:
    """A plain client of the administrator's; locks come as another user, who may do everything."""
    client = Redis.from_url(own_server.url)
    client.execute_command("ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all")
    settings.CACHES = caches(own_server.url.replace("unix://", "unix://shop:secret@"))
    return client


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_user_without(api: Api, user: Redis, settings: Any, refused: list[str]) -> None:
    """All of it works, and waiters that no message reaches look by themselves."""
    settings.REDISLOCK = {
        "PREFIX": f"redislock-{len(refused)}-{type(api).__name__}"
    }  # a new inbox
    known = {name.lower() for name in user.command()}
    rules = [f"-{name}" for name in refused if name in known]
    user.execute_command("ACL", "SETUSER", "shop", *rules)
    used_in_every_way(api)


def test_replicas_without_wait(api: Api, user: Redis) -> None:
    """Asked for nevertheless, they are an error that is raised at once."""
    user.execute_command("ACL", "SETUSER", "shop", "-wait")
    with pytest.raises(LockUnavailable, match="wait") as caught:
        api.acquire(redis_lock("job", replicas=1), wait=PATIENCE)
    assert not caught.value.passing


@pytest.fixture
def renamed(settings: Any) -> Iterator[RedisServer]:
    """A server that does not know the commands of operators: hosting services start such."""
    if find_server().url is not None:
        pytest.skip("needs a server that is started with other options")
    missing = [name for name in AROUND if name != "command"]
    args = [word for name in missing for word in ("--rename-command", name.upper(), "")]
    with RedisServer(args=args) as server:
        with Redis.from_url(server.url) as redis:
            load_scripts(redis)
        settings.CACHES = caches(server.url)
        yield server


def test_commands_that_are_renamed(api: Api, renamed: RedisServer) -> None:
    """Locks don't need them, and the doctor finishes its look."""
    used_in_every_way(api)
    with suppress(CommandError):  # it has found something
        call_command("redislock", "doctor")


# No Lua.


def no_lua(api: Api, says: str, finding: str) -> None:
    """The error says at once what locks need, and shows no token; so does the doctor. The lock is
    not gone without."""
    with pytest.raises(LockUnavailable, match=says) as caught:
        api.acquire(redis_lock("job", unavailable="run"), wait=PATIENCE)
    assert f"({scripts.NEEDED}: allow both" in str(caught.value)
    assert "args" not in str(caught.value)
    assert not caught.value.passing
    assert not caught.value.doubtful, "nothing has to be withdrawn"
    found = {one.id: one.message for one in server_findings("default")}
    assert scripts.NEEDED in found[f"redislock.{finding}"]
    assert not found.keys() & {"redislock.W111", "redislock.W112"}


@pytest.mark.parametrize("rule", ["-evalsha", "-@scripting"])
def test_a_user_who_may_run_no_scripts(api: Api, user: Redis, rule: str) -> None:
    user.execute_command("ACL", "SETUSER", "shop", rule)
    no_lua(api, "no permissions to run the 'evalsha' command", "E105")
    user.execute_command("ACL", "SETUSER", "shop", "+evalsha", "+eval")
    api.release(api.acquire(redis_lock("job")))


@pytest.mark.parametrize("names", [["EVAL"], ["EVAL", "EVALSHA"]], ids=" ".join)
def test_scripts_that_are_renamed(api: Api, settings: Any, names: list[str]) -> None:
    if find_server().url is not None:
        pytest.skip("needs a server that is started with other options")
    args = [word for name in names for word in ("--rename-command", name, "")]
    with RedisServer(args=args) as server:
        settings.CACHES = caches(server.url)
        no_lua(api, f"unknown command .{names[-1]}", "E106")


@pytest.mark.parametrize(
    "answer",
    [
        "ERR unsupported command",
        "ERR unknown command 'evalsha', with args beginning with: 'da39' '1' ",
        "ERR command eval not support for normal user",
        "ERR 'EVALSHA' command is not allowed",
    ],
)
def test_a_proxy_without_scripts(api: Api, proxy: Proxy, answer: str) -> None:
    proxy.refuse(one_of("EVAL", "EVALSHA"), answer)
    with pytest.raises(LockUnavailable, match=scripts.NEEDED) as caught:
        api.acquire(redis_lock("job"), wait=PATIENCE)
    assert not caught.value.passing


def test_the_doctor_behind_such_a_proxy(proxy: Proxy) -> None:
    proxy.refuse(one_of("EVAL", "EVALSHA"), "ERR unsupported command")
    found = {one.id: one.message for one in server_findings("default")}
    assert scripts.NEEDED in found["redislock.E106"]
    assert "redislock.W111" not in found


# Proxies.


def without_keys(words: list[bytes]) -> bool:
    """Matches a script without a key."""
    return words[0].upper() in (b"EVAL", b"EVALSHA") and words[2] == b"0"


def one_of(*names: str) -> Matcher:
    matchers = [command(name) for name in names]
    return lambda words: any(matches(words) for matches in matchers)


@pytest.mark.parametrize(
    "refused",
    [
        one_of("CONFIG", "KEYS", "SELECT", "WAIT", "MIGRATE"),
        one_of("CLIENT", "CONFIG", "ACL", "RESET"),
    ],
    ids=["ElastiCache Serverless", "Tair"],
)
def test_behind_a_proxy(api: Api, proxy: Proxy, refused: Matcher) -> None:
    """It has its own errors for commands that no lock needs."""
    proxy.refuse(refused, "ERR unknown command")
    used_in_every_way(api)


def test_each_script_of_a_lock_has_a_key(api: Api, proxy: Proxy) -> None:
    """Proxies need it to find the server. Without an index, only a look at all keys has none."""
    rule = proxy.refuse(without_keys, "ERR Lua scripts without any input keys are not supported")
    used_in_every_way(api)
    assert rule.count == 0
    with pytest.raises(LockUnavailable, match="without any input keys"):
        Inspector().discover()


KEYS_OF_CALLS = re.compile(r"\bp?call\('(?!TIME|PUBLISH|PUBSUB|SCAN)\w+', (?!KEYS\[\d+\])")


def test_a_proxy_that_reads_scripts(api: Api, proxy: Proxy) -> None:
    """Tair's may insist on KEYS[1], written so, in each call. No script of ours is written so; the
    error says what to change there, and is raised at once."""
    refused = [name for name in SCRIPTS if KEYS_OF_CALLS.search(scripts.load(name).source)]
    assert "mutex_acquire" in refused
    proxy.refuse(
        script(*refused),
        "ERR bad lua script for redis cluster, all the keys that the script uses should be passed "
        "using the KEYS array, and KEYS should not be in expression",
    )
    with pytest.raises(LockUnavailable, match="script_check_enable to 0") as caught:
        api.acquire(redis_lock("job"), wait=PATIENCE)
    assert not caught.value.passing


def test_one_database(api: Api, proxy: Proxy, settings: Any) -> None:
    """Upstash has one; the error says so, and is raised at once."""
    proxy.refuse(command("SELECT"), "ERR Only 0th database is supported! Selected DB: 3")
    settings.CACHES = caches(proxy.url.replace("/0#", "/3#"))
    with pytest.raises(LockUnavailable, match="that the server does not have") as caught:
        api.acquire(redis_lock("job"), wait=PATIENCE)
    assert not caught.value.passing
