"""Redis answers, and the answer is "not now" or "not you"; or there is no connection to be had.

What may go over by itself is waited through, and told when the time to wait is over. What can't
is told at once. A holder keeps its lease meanwhile, and nothing is left afterwards.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from redis import Redis
from redis.exceptions import MaxConnectionsError, RedisError, ResponseError

from devtools.redis_server import RedisServer, find_server
from django_redislock import LeaseLost, LeaseState, LockUnavailable, ReadWriteLock, redis_lock
from django_redislock.lease.watchdog import watchdog
from django_redislock.primitives import queued, waiting
from django_redislock.primitives.waiting import DEAF
from django_redislock.transport.ports import BasePort
from django_redislock.transport.server import server_of
from tests.caches import caches
from tests.calling import watch
from tests.contract.api import Api, SyncApi
from tests.faults.conftest import load_scripts
from tests.faults.waiters import renew_now
from tests.waiting import PATIENCE, eventually

CLERK = ("clerk", "reset", "on", ">secret", "~redislock*", "&redislock*", "+@all")
"""As whom the locks come, and what that user may do. Tests take from it."""
DUMP = "dump.rdb"
"""Where the server saves its data, in its own directory."""


class Harmed:
    """A server to harm, and a plain client on it that may do everything."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server = RedisServer(
            args=[
                *("--dir", str(directory), "--dbfilename", DUMP),
                # So many µs for each key that it loads, and it answers meanwhile after each;
                # Redis' own tests do so.
                *("--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024"),
                *("--user", *CLERK),
            ]
        )
        self.server.start()
        self.redis = Redis.from_url(self.server.url)
        self.round = 0

    def name(self, what: str) -> str:
        """Another one for each test: what a failed one has left must not be in the way."""
        return f"{what} {self.round}"

    def lock(self, what: str, **options: Any) -> redis_lock:
        return redis_lock(self.name(what), **options)

    def queued(self, what: str) -> int:
        """How many wait for a lock."""
        waiting: int = self.redis.zcard(f"redislock:{{{self.name(what)}}}:queue")
        return waiting

    def listening(self, what: str) -> int:
        """How many wait for a lock, and can be woken. A release by their own process hands it to
        them for a whole ttl, so that they miss no claim window on a busy machine."""
        says = self.redis.hvals(f"redislock:{{{self.name(what)}}}:waiters")
        return sum(said.split(b"|")[2] != DEAF.encode() for said in says)

    def left(self) -> set[str]:
        """The keys of this test's locks, but for those that outlive a lock for a minute."""
        keys = {key.decode() for key in self.redis.scan_iter(f"*{self.name('')}}}*", count=1000)}
        return {key for key in keys if not (key.endswith(":history") or ":gone:" in key)}

    def close(self) -> None:
        self.redis.close()
        self.server.stop()


@pytest.fixture(scope="module")
def shared_harmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harmed]:
    if find_server().url is not None:
        pytest.skip("needs a server of its own to harm")
    harmed = Harmed(tmp_path_factory.mktemp("redis"))
    yield harmed
    harmed.close()


@pytest.fixture
def harmed(shared_harmed: Harmed, settings: Any) -> Harmed:
    """The server, free of keys; the locks come to it as the clerk."""
    shared_harmed.redis.flushall()
    shared_harmed.redis.execute_command("ACL", "SETUSER", *CLERK)
    load_scripts(shared_harmed.redis)
    settings.CACHES = caches(as_clerk(shared_harmed.server))
    shared_harmed.round += 1
    return shared_harmed


def as_clerk(server: RedisServer) -> str:
    return server.url.replace("unix://", "unix://clerk:secret@")


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters look often, so that the tests take less time."""
    monkeypatch.setattr(queued, "slice_for", lambda *_: 0.05)
    monkeypatch.setattr(
        queued, "backoff", lambda *args, **more: min(0.1, waiting.backoff(*args, **more))
    )


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The names of the locks that Redis could not be reached for, one for each time."""
    names: list[str | None] = []
    script = BasePort.script

    async def spy(*args: Any) -> Any:
        try:
            return await script(*args)
        except LockUnavailable as error:
            names.append(error.name)
            raise

    watch(monkeypatch, spy)
    return names


# The states that a server may be in.


@contextmanager
def configured(harmed: Harmed, setting: str, value: object, normal: object) -> Iterator[None]:
    harmed.redis.config_set(setting, value)
    try:
        yield
    finally:
        harmed.redis.config_set(setting, normal)


@contextmanager
def readonly(harmed: Harmed) -> Iterator[None]:
    """It has become a replica, as after a failover."""
    harmed.redis.replicaof("127.0.0.1", 1)  # where nobody listens
    try:
        yield
    finally:
        harmed.redis.replicaof("NO", "ONE")


@contextmanager
def masterdown(harmed: Harmed) -> Iterator[None]:
    """It has become a replica, and must not answer from old data."""
    with configured(harmed, "replica-serve-stale-data", "no", "yes"), readonly(harmed):
        yield


def noreplicas(harmed: Harmed) -> AbstractContextManager[None]:
    """It has fewer replicas than an operator wants."""
    return configured(harmed, "min-replicas-to-write", 1, 0)


def out_of_memory(harmed: Harmed) -> AbstractContextManager[None]:
    """It is full, and evicts nothing."""
    return configured(harmed, "maxmemory", 1, 0)


@contextmanager
def misconfigured(harmed: Harmed) -> Iterator[None]:
    """It could not save its data, and takes no more until it can."""

    def save(status: str) -> None:
        harmed.redis.bgsave()
        eventually(lambda: not harmed.redis.info("persistence")["rdb_bgsave_in_progress"])
        assert harmed.redis.info("persistence")["rdb_last_bgsave_status"] == status

    in_the_way = harmed.directory / DUMP
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir()  # which no file can replace, whoever the server runs as
    harmed.redis.config_set("save", "3600 1000000")
    save("err")
    try:
        yield
    finally:
        in_the_way.rmdir()
        save("ok")
        harmed.redis.config_set("save", "")


@contextmanager
def busy(harmed: Harmed) -> Iterator[None]:
    """Somebody's script does not end."""
    harmed.redis.config_set("lua-time-limit", 1)
    endless = threading.Thread(target=_endless, args=(harmed.server.url,))
    endless.start()
    eventually(lambda: _says(harmed.redis, BUSY))
    try:
        yield
    finally:
        harmed.redis.script_kill()
        endless.join(PATIENCE)


def _endless(url: str) -> None:
    with Redis.from_url(url, socket_timeout=None) as redis, suppress(ResponseError):
        redis.eval("while true do end", 0)


@contextmanager
def loading(harmed: Harmed) -> Iterator[None]:
    """It was restarted, and has much to load."""
    harmed.redis.mset({f"much:{number}": os.urandom(1024) for number in range(1000)})
    harmed.redis.save()
    harmed.server.stop()
    start = threading.Thread(target=harmed.server.start)
    start.start()
    eventually(lambda: _says(harmed.redis, LOADING))
    try:
        yield
    finally:
        harmed.redis.config_set("key-load-delay", 0)
        start.join(PATIENCE)


BUSY, LOADING = "busy running a script", "loading the dataset"


def _says(redis: Redis, what: str) -> bool:
    try:
        redis.ping()
    except RedisError as error:
        return what in str(error)
    return False


@contextmanager
def full(harmed: Harmed) -> Iterator[None]:
    """It takes no more connections, and those that we had are gone."""
    with configured(harmed, "maxclients", 1, 10000):
        harmed.redis.client_kill_filter(_type="normal", skipme=True)
        yield


@contextmanager
def exhausted(harmed: Harmed) -> Iterator[None]:
    """The project uses all connections of its pool for other things."""
    pool = server_of("default").shared_pool()
    taken: list[Any] = []
    while len(taken) < pool.max_connections:
        with suppress(MaxConnectionsError):  # a waiter may have one at the moment
            taken.append(pool.get_connection())
    try:
        yield
    finally:
        for connection in taken:
            pool.release(connection)


@contextmanager
def changed(harmed: Harmed, rule: str, back: str) -> Iterator[None]:
    """An operator has changed what the clerk may do."""
    harmed.redis.execute_command("ACL", "SETUSER", "clerk", rule)
    try:
        yield
    finally:
        harmed.redis.execute_command("ACL", "SETUSER", "clerk", back)


def without(harmed: Harmed, command: str) -> AbstractContextManager[None]:
    return changed(harmed, f"-{command}", f"+{command}")


@contextmanager
def unknown_password(harmed: Harmed) -> Iterator[None]:
    """An operator has changed the password, and the connections that had the old one are gone."""
    with changed(harmed, "<secret", ">secret"):
        harmed.redis.client_kill_filter(_type="normal", skipme=True)
        yield


class State(NamedTuple):
    """What is wrong, and how to make it so."""

    begin: Callable[[Harmed], AbstractContextManager[None]]
    says: str
    """What the error says of it."""
    passing: bool = True
    refuses: tuple[str, ...] = ("release", "extend", "renewal")
    """What fails besides taking the lock."""
    unavailable: Literal["raise", "run"] = "run"
    """With which it fails: Redis was reached, and says no."""


STATES = {
    "READONLY": State(readonly, "read only replica"),
    "MASTERDOWN": State(masterdown, "Link with MASTER is down"),
    "NOREPLICAS": State(noreplicas, "NOREPLICAS"),
    # Who holds a lock may keep it and give it back: that needs no more memory.
    "OOM": State(out_of_memory, "maxmemory", refuses=()),
    "MISCONF": State(misconfigured, "MISCONF"),
    "BUSY": State(busy, BUSY),
    "LOADING": State(loading, LOADING),
    # It may close a connection before we have read why, as a Redis does that is away.
    "maxclients": State(full, "max number of clients|socket", unavailable="raise"),
    "NOPERM": State(lambda harmed: without(harmed, "evalsha"), "evalsha", passing=False),
    "WRONGPASS": State(unknown_password, "password", passing=False),
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_refusal(api: Api, harmed: Harmed, refused: list[str | None], state: State) -> None:
    """Waited through if it may pass, told if not; the holder goes on, and nothing is left."""
    check(api, harmed, refused, state)


def test_an_exhausted_pool(harmed: Harmed, settings: Any, refused: list[str | None]) -> None:
    """The same; and since the watchdog has connections of its own, no lease is in doubt."""
    # Pools are remembered by URL; the fragment has no other meaning.
    one = f"{as_clerk(harmed.server)}#one"
    settings.CACHES = caches(one, CONNECTION_POOL_KWARGS={"max_connections": 1})
    check(
        SyncApi(), harmed, refused, State(exhausted, "connections", refuses=("release", "extend"))
    )


def check(api: Api, harmed: Harmed, refused: list[str | None], state: State) -> None:
    """Everything that one can do with a lock, while the server is in that state."""
    kept = api.acquire(harmed.lock("kept"))
    given = api.acquire(harmed.lock("given"))
    inside, leave = threading.Event(), threading.Event()
    # Whose release is refused for good, that lease is left to its end.
    of_block = harmed.lock("block", ttl=30 if state.passing else 8)
    block = api.start(lambda: api.enter(of_block, lambda _: (inside.set(), leave.wait(PATIENCE))))
    assert inside.wait(PATIENCE)
    holder = api.acquire(harmed.lock("job"))
    waiter = api.start(lambda: api.acquire(harmed.lock("job"), wait=None))
    eventually(lambda: harmed.queued("job") == 1)

    with state.begin(harmed):
        for wait in (0, 0.2):
            began = time.monotonic()
            with pytest.raises(LockUnavailable, match=state.says) as caught:
                api.acquire(harmed.lock("free", unavailable=state.unavailable), wait=wait)
            assert isinstance(caught.value.__cause__, RedisError)
            assert caught.value.passing is state.passing
            assert not state.passing or time.monotonic() - began >= wait

        if state.passing:
            eventually(lambda: refused.count(harmed.name("job")) > 1)
            assert not waiter.done()
        else:
            with pytest.raises(LockUnavailable, match=state.says):
                waiter.result(PATIENCE)

        with expecting(state, "release"):
            api.release(given)
        leave.set()
        block.result(PATIENCE)  # the body is done, and it was done under the lock
        with expecting(state, "extend"):
            api.extend(kept)
        with expecting(state, "extend"):
            api.extend(kept, 45)
        assert kept.state == ("unknown" if "extend" in state.refuses else "held")
        failed = refused.count(harmed.name("kept"))
        renew_now(kept)
        if "renewal" in state.refuses:
            eventually(lambda: refused.count(harmed.name("kept")) > failed)
            assert kept.state == LeaseState.UNKNOWN
        else:
            eventually(lambda: kept.state == LeaseState.HELD)

    renew_now(kept)
    eventually(lambda: kept.state == LeaseState.HELD)
    api.release(kept)
    api.release(given)
    api.release(holder)
    if state.passing:
        api.release(waiter.result(PATIENCE))
    eventually(lambda: not harmed.left())


def expecting(state: State, what: str) -> AbstractContextManager[Any]:
    if what in state.refuses:
        return pytest.raises(LockUnavailable, match=state.says)
    return nullcontext()


# Permissions, one by one.

SOURCES = files("django_redislock").joinpath("primitives", "lua")
CALLED = {
    command
    for source in SOURCES.iterdir()
    if source.name.startswith(("mutex", "queue", "take"))  # the others are for looking on
    for command in re.findall(r"\bp?call\('(\w+)'", source.read_text())
}
"""What our scripts call."""


HARMLESS = {"GETRANGE", "PUBLISH", "PUBSUB", "SPUBLISH"}
"""Without them, locks only cost more."""


@pytest.mark.parametrize("command", sorted({"EVAL", "EVALSHA"} | CALLED - HARMLESS))
def test_a_missing_permission(api: Api, harmed: Harmed, command: str) -> None:
    """Whatever needs it fails at once, and names what the user may not do."""
    travels = api.acquire(harmed.lock("travels", ttl=20))
    watchdog(travels._server).write_down()  # in the history, too
    exported = travels.export()
    young = api.acquire(harmed.lock("young"))
    given = api.acquire(harmed.lock("given"))
    waiter = api.start(lambda: api.acquire(harmed.lock("given"), wait=None))
    eventually(lambda: harmed.queued("given") == 1)
    if command == "EVAL":
        harmed.redis.script_flush()  # only a script that the server doesn't know is sent
    errors = []

    def attempt(call: Callable[[], Any]) -> Any:
        try:
            return api.start(call).result(PATIENCE)
        except LockUnavailable as error:
            errors.append(error)

    with without(harmed, command):
        began = time.monotonic()
        taken = attempt(lambda: api.acquire(harmed.lock("free"), wait=PATIENCE))
        attempt(lambda: api.acquire(harmed.lock("given"), wait=0))
        attempt(lambda: api.acquire(harmed.lock("given"), wait=0.1))
        attempt(lambda: api.acquire(harmed.lock("young"), wait=0.1))
        restored = attempt(lambda: api.restore(exported))
        attempt(lambda: api.release(given))
        took = time.monotonic() - began
    assert errors
    for error in errors:
        assert not error.passing
        assert re.search(rf"\b{command}\b", str(error), re.IGNORECASE), str(error)
    assert took < PATIENCE / 3

    with suppress(LeaseLost):  # its key may be deleted, and only the rest have failed
        api.release(given)
    with suppress(LockUnavailable):
        api.release(waiter.result(PATIENCE))
    if restored is None:
        with suppress(LeaseLost):
            restored = api.restore(exported)
    for lease in (taken, restored, young):
        if lease is not None:
            api.release(lease)
    # A script that ended halfway may have left a place in the queue, of which the next one takes
    # care, and a waiter's description, which lives for a minute.
    api.release(api.acquire(harmed.lock("given"), wait=PATIENCE))
    eventually(lambda: not {key for key in harmed.left() if not key.endswith(":waiters")})


def test_a_release_at_once_may_be_denied(api: Api, harmed: Harmed) -> None:
    """The release goes the longer way."""
    with without(harmed, "GETRANGE"):
        api.release(api.acquire(harmed.lock("free")))
        assert not harmed.left()


@pytest.mark.parametrize("rule", ["-publish", "-pubsub", "-subscribe", "resetchannels"])
def test_nobody_may_be_woken(api: Api, harmed: Harmed, settings: Any, rule: str) -> None:
    """Without the permissions that only waking takes, a waiter finds the lock by looking."""
    settings.REDISLOCK = {"PREFIX": f"redislock{rule}-{type(api).__name__}"}  # a new inbox
    with changed(harmed, rule, "&redislock*" if rule == "resetchannels" else f"+{rule[1:]}"):
        holder = api.acquire(harmed.lock("job"))
        waiters = [
            api.start(lambda: api.enter(harmed.lock("job", wait=PATIENCE), lambda _: None))
            for _ in range(3)
        ]
        eventually(lambda: len(harmed.redis.keys(f"*{harmed.name('job')}}}:queue")) == 1)
        api.release(holder)
        for waiter in waiters:
            waiter.result(PATIENCE)
    eventually(lambda: not harmed.left())


def test_tasks_wait_for_a_connection(
    harmed: Harmed, settings: Any, refused: list[str | None]
) -> None:
    """A loop has a pool of its own, and one connection in it is enough for many tasks."""
    settings.CACHES = caches(
        f"{as_clerk(harmed.server)}#loop", CONNECTION_POOL_KWARGS={"max_connections": 1}
    )
    inside = []

    async def enter(number: int) -> None:
        async with harmed.lock("job", wait=PATIENCE):
            inside.append(number)

    async def crowd() -> None:
        await asyncio.gather(*(enter(number) for number in range(50)))

    asyncio.run(crowd())
    assert len(inside) == 50
    assert harmed.name("job") not in refused
    assert not harmed.left()


def test_handed_on_in_a_full_memory(api: Api, harmed: Harmed) -> None:
    """A waiter from before Redis was full still gets the lock when it is released."""
    holder = api.acquire(harmed.lock("job"))
    waiter = api.start(lambda: api.acquire(harmed.lock("job"), wait=PATIENCE))
    eventually(lambda: harmed.listening("job") == 1)
    with out_of_memory(harmed):
        api.release(holder)
        lease = waiter.result(PATIENCE)
        assert lease.fencing_token > holder.fencing_token
        api.release(lease)
    assert not harmed.left()


def test_downgraded_in_a_full_memory(api: Api, harmed: Harmed) -> None:
    """A writer that reads on needs no more memory than it had; who waited to read goes in."""
    both = ReadWriteLock(harmed.name("job"))
    writer = api.acquire(both.write())
    reader = api.start(lambda: api.acquire(both.read(), wait=PATIENCE))
    eventually(lambda: harmed.listening("job") == 1)
    with out_of_memory(harmed):
        api.downgrade(writer)
        api.release(reader.result(PATIENCE))
        api.release(writer)
    assert not harmed.left()
