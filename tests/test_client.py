"""The drop-in for `cache.lock()`.

What is kept of redis-py's `Lock` is tested with one body for both: "theirs" through django-redis'
own client, "ours" through `LockingClient`, and "lock_class" through a plain redis-py client. What
is changed on purpose has tests of its own, which docs/drop-in.md names.
"""

from __future__ import annotations

import gc
import inspect
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio
from django.core.cache import caches
from django.test import override_settings
from django_redis.client import DefaultClient
from redis import BlockingConnectionPool, Redis
from redis import exceptions as errors
from redis.cluster import RedisCluster
from redis.exceptions import LockError, LockNotOwnedError
from redis.lock import Lock as TheirLock
from redis.utils import HIREDIS_AVAILABLE

from devtools.redis_sentinel import RedisSentinels
from devtools.redis_server import RedisServer
from django_redislock import redis_lock, signals
from django_redislock.client import Lock, LockingClient
from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.inbox import Inbox
from django_redislock.transport.server import every, server_of_client
from tests.contract.api import InThreads
from tests.docs.world import examples
from tests.faults.proxy import Fault, Proxy, script
from tests.processes import Start
from tests.test_connections import lock_and_wait, server
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

PREFIX = "redislock-drop-in"
"""Of the cache's keys, so that tests/conftest.py clears them, too."""
KEY = f"{PREFIX}:1:job"
STEM = f"redislock:key:{{{KEY}}}"

CLIENTS = {
    "theirs": "django_redis.client.DefaultClient",
    "ours": "django_redislock.client.LockingClient",
}

Make = Callable[..., Any]


def entries(url: str, **options: Any) -> dict[str, Any]:
    """CACHES: one entry for each client, to the same server, with the same keys."""
    return {
        alias: {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": url,
            "KEY_PREFIX": PREFIX,
            "OPTIONS": {"CLIENT_CLASS": client, **options},
        }
        for alias, client in {**CLIENTS, "default": CLIENTS["ours"]}.items()
    }


def lock_of(kind: str, name: str = "job", **options: Any) -> Any:
    """A lock by one of the implementations, on the same key whichever it is."""
    if kind in CLIENTS:
        return caches[kind].lock(name, **options)
    client = caches["theirs"].client
    plain = client.get_client(write=True)
    return plain.lock(client.make_key(name), lock_class=Lock, **options)


@pytest.fixture(autouse=True)
def _caches() -> Iterator[None]:
    with override_settings(CACHES=entries(os.environ["REDISLOCK_TEST_URL"])):
        yield


@pytest.fixture(params=["theirs", "ours", "lock_class"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a lock of the implementation under test."""
    return partial(lock_of, request.param)


@pytest.fixture
def ours() -> Make:
    return partial(lock_of, "ours")


@pytest.fixture
def theirs() -> Make:
    return partial(lock_of, "theirs")


begin = InThreads().start
"""Begins something in another thread."""


def elsewhere(call: Callable[[], Any]) -> Any:
    """What it returns in another thread."""
    return begin(call).result(PATIENCE)


# In processes of their own: `start("tests.test_client:hold", …)`.


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def hold(kind: str, timeout: str = "") -> None:
    """Hold the lock until told to go on; for ever, without a timeout."""
    with override_settings(
        CACHES=entries(os.environ["REDISLOCK_TEST_URL"]), REDISLOCK={"TTL": 0.6}
    ):
        with lock_of(kind, timeout=float(timeout) if timeout else None):
            say("holding")
            input()
        say("released")
        input()


def fork(timeout: str = "") -> None:
    """Fork while holding the lock, and leave the block in both processes."""
    with override_settings(CACHES=entries(os.environ["REDISLOCK_TEST_URL"])):
        with lock_of("ours", timeout=float(timeout) if timeout else None) as lock:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                say("parent", lock.owned())
            else:
                token = lock.local.token
                say("child", lock.owned(), lock.fencing_token)
                for attempt in (partial(lock.extend, 5), lock.reacquire, lock.release):
                    try:
                        attempt()
                    except LockError as error:
                        say("child", type(error).__name__)
                lock.local.token = token
        say("parent" if child else "child", "left")
        if not child:
            say("child", lock.acquire(blocking_timeout=0.2))
            os._exit(0)


def contend(kind: str, path: str, rounds: str) -> None:
    """Enter the section many times; write down when it began and ended, on a common clock."""
    journal = os.open(path, os.O_WRONLY | os.O_APPEND)
    with override_settings(CACHES=entries(os.environ["REDISLOCK_TEST_URL"])):
        say("ready")
        input()
        for _ in range(int(rounds)):
            with lock_of(kind, timeout=60, sleep=0.001):
                begin = time.monotonic_ns()
                os.sched_yield()
                end = time.monotonic_ns()
                os.write(journal, f"{begin} {end} {kind}\n".encode())


class TestKept:
    """As in redis-py's documentation, and as redis-py does it: one body for both."""

    def test_locked_and_owned(self, make: Make) -> None:
        """By anybody, and by this one, which may be acquired again."""
        lock, other = make(), make()
        for _ in range(2):
            assert (lock.locked(), lock.owned()) == (False, False)
            assert lock.acquire() is True
            assert (lock.locked(), lock.owned()) == (True, True)
            assert (other.locked(), other.owned()) == (True, False)
            assert lock.release() is None
            assert (other.locked(), lock.owned()) == (False, False)

    def test_the_key(self, make: Make, redis: Redis) -> None:
        """The cache's: its prefix and version included."""
        with make("other"):
            assert redis.exists(f"{PREFIX}:1:other")

    @pytest.mark.parametrize("kind", CLIENTS)
    def test_version_and_client(self, kind: str, redis: Redis) -> None:
        """What django-redis adds to the signature."""
        other_url = os.environ["REDISLOCK_TEST_URL"].replace("db=0", "db=1")
        with Redis.from_url(other_url) as client:
            lock = caches[kind].lock("job", version=7, client=client, timeout=10)
            with lock:
                assert client.exists(f"{PREFIX}:7:job")
                assert not redis.exists(f"{PREFIX}:7:job")
            assert lock.redis is client

    def test_attributes(self, make: Make) -> None:
        """What was passed can be read."""
        lock = make(timeout=5, sleep=0.2, blocking=False, blocking_timeout=3, thread_local=False)
        assert str(lock.name) == KEY
        assert (lock.timeout, lock.sleep) == (5, 0.2)
        assert (lock.blocking, lock.blocking_timeout) == (False, 3)
        assert lock.thread_local is False
        assert isinstance(lock, TheirLock)

    # Waiting.

    def test_not_blocking(self, make: Make) -> None:
        """False at once, as said to the lock or to acquire."""
        with make():
            assert make(blocking=False).acquire() is False
            assert make().acquire(blocking=False) is False
            # It means nothing then.
            assert make(blocking_timeout=60).acquire(blocking=False) is False

    def test_blocking_timeout(self, make: Make) -> None:
        """False when it is over; what acquire is told counts for more."""
        with make():
            for late, wait in [
                (make(blocking_timeout=0.3), {}),
                (make(blocking_timeout=60), {"blocking_timeout": 0.3}),
                (make(blocking=False), {"blocking": True, "blocking_timeout": 0.3}),
            ]:
                began = time.monotonic()
                assert late.acquire(**wait) is False
                assert 0.15 <= time.monotonic() - began < 5

    @pytest.mark.parametrize("wait", [0, -1])
    def test_no_blocking_timeout_to_speak_of(self, make: Make, wait: float) -> None:
        """It is tried once."""
        lock = make(blocking_timeout=wait)
        assert lock.acquire() is True
        assert make(blocking_timeout=wait).acquire() is False
        lock.release()

    def test_blocking(self, make: Make) -> None:
        """Without a limit, until it is released."""
        lock, other = make(), make()
        lock.acquire()
        waiter = begin(other.acquire)
        with pytest.raises(TimeoutError):
            waiter.result(0.3)
        lock.release()
        assert waiter.result(PATIENCE) is True

    def test_it_is_not_reentrant(self, make: Make) -> None:
        """The thread that holds it waits like everybody else, also with the same object."""
        lock = make()
        lock.acquire()
        assert make().acquire(blocking_timeout=0.2) is False
        assert lock.acquire(blocking_timeout=0.2) is False
        assert lock.owned()
        lock.release()

    def test_a_stranger_at_the_key(self, make: Make, redis: Redis) -> None:
        """Any string at the key means locked."""
        redis.set(KEY, "something")
        assert make().locked()
        assert make().acquire(blocking=False) is False
        assert redis.get(KEY) == b"something"

    # As a context manager.

    def test_a_block(self, make: Make) -> None:
        """It gives the lock, and releases it whatever comes."""
        lock = make()
        with lock as inside:
            assert inside is lock
            assert lock.owned()
        assert not lock.locked()
        with pytest.raises(ZeroDivisionError), lock:
            raise ZeroDivisionError
        assert not lock.locked()

    def test_a_block_without_its_lock(self, make: Make) -> None:
        """LockError, and the body does not run."""
        with make():
            with pytest.raises(LockError, match="Unable to acquire lock within the time"):
                with make(blocking_timeout=0.1):
                    pytest.fail("ran without the lock")

    def test_a_block_that_lost_its_lock(self, make: Make, redis: Redis) -> None:
        """LockNotOwnedError."""
        with pytest.raises(LockNotOwnedError), make():
            redis.delete(KEY)

    def test_a_block_that_need_not_raise(self, redis: Redis) -> None:
        """`raise_on_release_error`, where redis-py has it."""
        if "raise_on_release_error" not in inspect.signature(TheirLock).parameters:
            pytest.skip("not in this redis-py")
        for kind in (TheirLock, Lock):
            with redis.lock(KEY, lock_class=kind, raise_on_release_error=False):
                redis.delete(KEY)
            assert not redis.exists(KEY)

    # Errors of release.

    def test_releasing_what_is_not_locked(self, make: Make) -> None:
        """LockError, with the lock's name; also the second time."""
        lock = make()
        for _ in range(2):
            with pytest.raises(LockError, match="Cannot release") as caught:
                lock.release()
            assert not isinstance(caught.value, LockNotOwnedError)
            assert str(caught.value.lock_name) == KEY
            lock.acquire()
            lock.release()

    def test_releasing_what_was_lost(self, make: Make, redis: Redis) -> None:
        """LockNotOwnedError, once; whoever has it now keeps it."""
        lock = make()
        lock.acquire()
        redis.set(KEY, "a stranger")
        assert not lock.owned()
        with pytest.raises(LockNotOwnedError, match="no longer owned") as caught:
            lock.release()
        assert str(caught.value.lock_name) == KEY
        assert redis.get(KEY) == b"a stranger"
        with pytest.raises(LockError, match="Cannot release"):
            lock.release()

    @pytest.mark.parametrize("kind", CLIENTS)
    def test_deleting_the_key_frees_it(self, kind: str) -> None:
        """With cache.delete(), as some do by hand."""
        lock = caches[kind].lock("job")
        lock.acquire()
        caches[kind].delete("job")
        with caches[kind].lock("job", blocking_timeout=PATIENCE):
            assert not lock.owned()
        with pytest.raises(LockNotOwnedError):
            lock.release()

    # Its time to live.

    def test_timeout(self, make: Make, redis: Redis) -> None:
        """Seconds, also as a float; nobody renews it."""
        with make(timeout=10):
            assert 9_000 < redis.pttl(KEY) <= 10_000
        lock = make(timeout=0.2)
        lock.acquire()
        assert 0 < redis.pttl(KEY) <= 200
        assert make(timeout=1).acquire(blocking_timeout=PATIENCE) is True, "who waits gets it then"
        assert not lock.owned()
        redis.delete(KEY)
        with make(timeout=10) as other:
            with pytest.raises(LockNotOwnedError):
                lock.release()
            assert other.owned()

    def test_as_long_as_the_server_has_it(self, make: Make, redis: Redis) -> None:
        """It is ours, whatever our own clock says."""
        lock = make(timeout=0.2)
        lock.acquire()
        over = time.monotonic() + 0.25
        redis.pexpire(KEY, 60_000)
        eventually(lambda: time.monotonic() > over)
        assert lock.owned()
        lock.release()
        assert not redis.exists(KEY)

    def test_a_lock_that_is_dropped(
        self, make: Make, redis: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With a timeout, it stays to its end: so it can limit how often something is done."""
        make("mail", timeout=1000).acquire()
        gc.collect()
        assert make("mail", timeout=1000).acquire(blocking=False) is False
        assert redis.pttl(f"{PREFIX}:1:mail") > 500_000
        assert "mail" not in caplog.text

    def test_extend(self, make: Make, redis: Redis) -> None:
        """Time is added to what there is; with replace_ttl it may become shorter."""
        with make(timeout=10) as lock:
            assert lock.extend(20) is True
            assert 29_000 < redis.pttl(KEY) <= 30_000
            assert lock.extend(0.5) is True
            assert 29_500 < redis.pttl(KEY) <= 30_500
            assert lock.extend(50, replace_ttl=True) is True
            assert 49_000 < redis.pttl(KEY) <= 50_000
            assert lock.extend(5, replace_ttl=True) is True
            assert 4_000 < redis.pttl(KEY) <= 5_000

    def test_reacquire(self, make: Make, redis: Redis) -> None:
        """Its timeout begins anew, whatever it was extended to; a lock that somebody has robbed
        of its end gets one again, which extend() refuses."""
        with make(timeout=10) as lock:
            for milliseconds in (5_000, 50_000):
                redis.pexpire(KEY, milliseconds)
                assert lock.reacquire() is True
                assert 9_000 < redis.pttl(KEY) <= 10_000
            redis.persist(KEY)
            with pytest.raises(LockNotOwnedError):
                lock.extend(5)
            assert redis.pttl(KEY) == -1
            assert lock.reacquire() is True
            assert 9_000 < redis.pttl(KEY) <= 10_000

    @pytest.mark.parametrize("method", ["extend", "reacquire"])
    def test_extending_what_can_not_be(self, make: Make, redis: Redis, method: str) -> None:
        """Not locked, without a timeout, lost: LockError, or LockNotOwnedError."""

        def extend(lock: TheirLock) -> object:
            return lock.extend(10) if method == "extend" else lock.reacquire()

        lock = make(timeout=10)
        with pytest.raises(LockError, match=f"Cannot {method} an unlocked lock"):
            extend(lock)
        with make() as endless:
            with pytest.raises(LockError, match=f"Cannot {method} a lock with no timeout"):
                extend(endless)
        lock.acquire()
        redis.set(KEY, "a stranger", px=10_000)
        with pytest.raises(LockNotOwnedError, match=f"Cannot {method} a lock that's no longer"):
            extend(lock)
        assert redis.get(KEY) == b"a stranger"
        redis.delete(KEY)
        with pytest.raises(LockNotOwnedError):
            extend(lock)

    # Threads and tokens.

    def test_thread_local(self, make: Make) -> None:
        """Another thread does not see the token, unless thread_local=False."""
        lock = make()
        lock.acquire()
        # redis-py stumbles over the missing attribute, and so do we.
        with pytest.raises((LockError, AttributeError)):
            elsewhere(lock.release)
        assert lock.owned()
        lock.release()
        shared = make(thread_local=False)
        shared.acquire()
        assert elsewhere(shared.owned)
        elsewhere(shared.release)
        assert not shared.locked()
        with pytest.raises(LockError):
            shared.release()

    def test_the_timeline_of_the_documentation(self, make: Make, redis: Redis) -> None:
        """Who finishes late does not release what another thread got meanwhile, by the same
        object."""
        lock = make(timeout=60)
        lock.acquire()
        redis.delete(KEY)  # its time is over
        acquired, go_on = threading.Event(), threading.Event()

        def other() -> None:
            with lock:
                acquired.set()
                go_on.wait(PATIENCE)

        thread = begin(other)
        assert acquired.wait(PATIENCE)
        with pytest.raises(LockNotOwnedError):
            lock.release()
        assert lock.locked()
        go_on.set()
        thread.result(PATIENCE)  # it has released what was its own

    def test_the_token(self, make: Make) -> None:
        """In bytes, in `local.token`: ours, or a random one; None when it is not held."""
        lock = make()
        assert lock.local.token is None
        for given in ("abc", b"abc", "x" * 100):
            lock.acquire(token=given)
            assert lock.local.token == (given if isinstance(given, bytes) else given.encode())
            lock.release()
            assert lock.local.token is None
        tokens = set()
        for _ in range(10):
            with lock:
                tokens.add(lock.local.token)
        assert len(tokens) == 10
        assert all(isinstance(token, bytes) for token in tokens)

    def test_a_token_is_no_key_for_two(self, make: Make) -> None:
        """Of two acquires with the same token, one succeeds."""
        lock = make()
        lock.acquire(token="worker")
        assert lock.acquire(blocking=False, token="worker") is False
        assert make().acquire(blocking=False, token="worker") is False
        lock.release()

    @pytest.mark.parametrize("given", [None, "abc", b"\xff\x00"])
    def test_a_lock_that_is_continued(self, make: Make, redis: Redis, given: Any) -> None:
        """By another object, perhaps in another process, which is told the token."""
        lock = make(timeout=10)
        lock.acquire(token=given)
        other = make(timeout=10)
        other.local.token = lock.local.token
        assert other.owned()
        assert other.extend(20) is True
        assert redis.pttl(KEY) > 20_000
        assert other.reacquire() is True
        assert redis.pttl(KEY) <= 10_000
        other.release()
        assert not redis.exists(KEY)
        assert not lock.owned()
        with pytest.raises(LockNotOwnedError):
            lock.release()

    def test_a_wrong_token(self, make: Make, redis: Redis) -> None:
        """It opens nothing."""
        with make(timeout=10) as lock:
            other = make(timeout=10)
            other.local.token = b"wrong"
            assert not other.owned()
            for attempt in (partial(other.extend, 5), other.reacquire, other.release):
                with pytest.raises(LockNotOwnedError):
                    attempt()
            assert lock.owned()

    def test_names_of_all_kinds(self, redis: Redis) -> None:
        """Bytes, also such that are no text; and the encoding is the client's, which hiredis does
        not ask for."""
        for kind in (TheirLock, Lock):
            for name in (b"redislock-drop-in-\xff", "redislock-drop-in-{tag}x", b"redislock}-{"):
                with redis.lock(name, lock_class=kind, timeout=10):
                    assert redis.exists(name)
            with Redis.from_url(os.environ["REDISLOCK_TEST_URL"], encoding="latin-1") as latin:
                with latin.lock("redislock-drop-in-é", lock_class=kind):
                    encoding = "utf-8" if HIREDIS_AVAILABLE else "latin-1"
                    assert redis.exists("redislock-drop-in-é".encode(encoding))

    def test_a_client_that_decodes(self) -> None:
        """Its answers are str; the token is bytes nevertheless."""
        url = os.environ["REDISLOCK_TEST_URL"]
        with Redis.from_url(url, decode_responses=True) as client:
            for kind in (TheirLock, Lock):
                lock = client.lock(KEY, lock_class=kind, timeout=10)
                with lock:
                    assert lock.owned()
                    assert isinstance(lock.local.token, bytes)
                    lock.extend(5)

    async def test_in_an_event_loop(self, make: Make) -> None:
        """It blocks the loop, and works."""
        with make():
            assert make().acquire(blocking_timeout=0.2) is False


class TestTogether:
    """redis-py's own lock and ours exclude each other on the same key."""

    PAIRS = [("theirs", "ours"), ("ours", "theirs"), ("theirs", "lock_class")]

    @pytest.mark.parametrize(("first", "second"), PAIRS)
    def test_in_one_process(self, first: str, second: str) -> None:
        """Either sees that the other holds it, and can do nothing to it."""
        lock, other = lock_of(first, timeout=10), lock_of(second, timeout=10)
        lock.acquire()
        assert other.locked()
        assert not other.owned()
        assert other.acquire(blocking=False) is False
        assert other.acquire(blocking_timeout=0.3) is False
        lock.extend(10)
        lock.release()
        assert other.acquire(blocking=False) is True
        other.release()

    @pytest.mark.parametrize(("first", "second"), PAIRS)
    def test_a_continued_lock(self, first: str, second: str) -> None:
        """Either can continue what the other acquired, when it is told the token."""
        lock, other = lock_of(first, timeout=10), lock_of(second, timeout=10)
        lock.acquire()
        other.local.token = lock.local.token
        if first == "theirs":
            assert other.owned()
            assert other.extend(10) is True
            assert other.reacquire() is True
            other.release()
            assert not lock.locked()
        else:  # redis-py compares all of the value with the token, and ours is longer
            with pytest.raises(LockNotOwnedError):
                other.release()
            lock.release()

    @pytest.mark.slow
    @pytest.mark.parametrize(("first", "second"), PAIRS)
    def test_in_processes(self, first: str, second: str, start: Start) -> None:
        """Who waits has it soon after the other process has released it."""
        holder = start("tests.test_client:hold", first)
        assert holder.says() == "holding"
        lock = lock_of(second)
        assert lock.acquire(blocking=False) is False
        waiter = begin(partial(lock.acquire, blocking_timeout=PATIENCE))
        with pytest.raises(TimeoutError):
            waiter.result(1.5)  # longer than the ttl that ours renews
        holder.go_on()
        assert holder.says() == "released"
        released = time.monotonic()
        assert waiter.result(PATIENCE) is True
        # Nobody wakes whom; ours looks about every 0.8 s, theirs every 0.1 s.
        assert time.monotonic() - released < 1.5

    def test_contention(self, start: Start, tmp_path: Path) -> None:
        """Processes with either, all on one key, never overlap."""
        journal = tmp_path / "journal"
        journal.touch()
        workers = [
            start("tests.test_client:contend", kind, str(journal), "25")
            for kind in ("theirs", "ours", "theirs", "ours")
        ]
        for worker in workers:
            assert worker.says() == "ready"
        for worker in workers:
            worker.go_on()
        for worker in workers:
            assert worker.ends() == 0
        sections = sorted(
            (int(begin), int(end))
            for begin, end, _ in map(str.split, journal.read_text().splitlines())
        )
        assert len(sections) == 100
        for (_, end), (begin, _) in pairwise(sections):
            assert end <= begin

    def test_beside_redis_lock(self, ours: Make, redis: Redis) -> None:
        """A cache key and a lock of ours may have the same name: they are different locks, with
        different queues."""
        lock, waiting = ours(timeout=60), ours(timeout=60, thread_local=False)
        with redis_lock("job", wait=0):
            with lock:
                waiter = begin(waiting.acquire)
                eventually(lambda: redis.zcard(f"{STEM}:queue") == 1)
                with redis_lock(KEY, wait=0):
                    pass
            assert waiter.result(PATIENCE)
            waiting.release()

    def test_beside_the_cache(self, ours: Make) -> None:
        """What is kept beside the lock is no key of the cache."""
        cache = caches["ours"]
        lock, waiting = ours(), ours()
        with lock:
            waiter = begin(partial(waiting.acquire, blocking_timeout=PATIENCE))
            with Redis.from_url(os.environ["REDISLOCK_TEST_URL"]) as client:
                eventually(lambda: client.zcard(f"{STEM}:queue") == 1)
            assert cache.keys("*") == ["job"]
        assert waiter.result(PATIENCE)
        waiting.local = SimpleNamespace(token=None)
        cache.delete("job")


class TestChanged:
    """What is not as in redis-py, on purpose; docs/drop-in.md names each of these tests."""

    def test_without_a_timeout_it_is_renewed(self, redis: Redis) -> None:
        """It has a time to live, the settings' one, and is renewed for as long as it is held."""
        with override_settings(REDISLOCK={"TTL": 0.5, "RENEW": False}), lock_of("ours") as lock:
            assert 0 < redis.pttl(KEY) <= 500
            over = time.monotonic() + 1.2
            eventually(lambda: time.monotonic() > over)
            assert lock.owned()
        assert not redis.exists(KEY)

    def test_released_it_is_not_renewed(
        self, ours: Make, redis: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nor missed: the watchdog has forgotten it, and goes on."""
        with override_settings(REDISLOCK={"TTL": 0.5}):
            with ours("short"):
                pass
            gc.collect()
            with ours("next"):
                index, key = "redislock:key:index", f"{PREFIX}:1:next"
                first = eventually(lambda: redis.zscore(index, key))  # it is a second old
                eventually(lambda: redis.zscore(index, key) > first)
        assert "short" not in caplog.text

    @pytest.mark.parametrize("kind", ["ours", "lock_class"])
    def test_a_crash_frees_it(self, kind: str, start: Start) -> None:
        """Within the ttl; redis-py's would stay for ever."""
        holder = start("tests.test_client:hold", kind)
        assert holder.says() == "holding"
        waiter = begin(partial(lock_of(kind).acquire, blocking_timeout=PATIENCE))
        with pytest.raises(TimeoutError):
            waiter.result(1.0)
        holder.signal(signal.SIGKILL)
        killed = time.monotonic()
        assert waiter.result(PATIENCE) is True
        assert time.monotonic() - killed < 2.0

    def test_the_ttl_comes_from_the_settings(self, redis: Redis) -> None:
        """LOCKS may name the Redis key, or a pattern for it."""
        with override_settings(REDISLOCK={"LOCKS": {"*:1:j?b": {"TTL": 300}}}):
            with lock_of("ours"):
                assert redis.pttl(KEY) > 290_000
            with lock_of("ours", timeout=10):
                assert redis.pttl(KEY) <= 10_000

    def test_renewal_ends_with_max_hold(self, redis: Redis) -> None:
        """Where the settings have one; a timeout counts for more."""
        with override_settings(REDISLOCK={"TTL": 300, "MAX_HOLD": 60}):
            with lock_of("ours"):
                assert 59_000 < redis.pttl(KEY) <= 60_000
            with lock_of("ours", timeout=100):
                assert redis.pttl(KEY) > 60_000

    def test_replicas_have_to_confirm_it(self, redis: Redis) -> None:
        """As many as the settings say; else it is given back, and the error is one of Redis."""
        with override_settings(REDISLOCK={"REPLICAS": 1}):
            with pytest.raises(errors.RedisError, match="0 of 1 replicas confirmed"):
                lock_of("ours").acquire()
        assert not redis.exists(KEY)

    @pytest.mark.parametrize("timeout", ["", "10"])
    def test_a_forked_child(self, start: Start, redis: Redis, timeout: str) -> None:
        """It has no part in its parent's lock: it can't extend or release it, and leaves the
        block without it. redis-py's child releases it."""
        parent = start("tests.test_client:fork", timeout)
        assert parent.says() == "child False None"
        endless = "LockError"  # as in the parent: there is no timeout to extend
        assert parent.says() == f"child {'LockNotOwnedError' if timeout else endless}"
        assert parent.says() == f"child {'LockNotOwnedError' if timeout else endless}"
        assert parent.says() == "child LockNotOwnedError"
        assert parent.says() == "child left"
        assert parent.says() == "child False"
        assert parent.says() == "parent True"
        assert parent.says() == "parent left"
        assert parent.ends() == 0
        assert not redis.exists(KEY)

    def test_dropped_without_a_timeout(
        self, ours: Make, redis: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It ends with its ttl, with a warning, since nobody could release it any more."""
        with override_settings(REDISLOCK={"TTL": 0.5}):
            assert ours().acquire()
            gc.collect()
            eventually(lambda: not redis.exists(KEY), within=5)
        assert "was dropped without being released" in caplog.text

    def test_waiters_are_woken(self, ours: Make) -> None:
        """In the order in which they came; `sleep` does nothing."""
        order: list[int] = []

        def wait(number: int) -> None:
            with ours(sleep=600):
                order.append(number)

        with Redis.from_url(os.environ["REDISLOCK_TEST_URL"]) as client, ours():
            waiters = []
            for number in range(5):
                waiters.append(begin(partial(wait, number)))
                eventually(lambda: client.zcard(f"{STEM}:queue") == len(waiters))
        for waiter in waiters:
            waiter.result(PATIENCE)
        assert order == list(range(5))

    def test_the_whole_blocking_timeout(self, ours: Make, theirs: Make) -> None:
        """It is waited for; redis-py gives up when it can't sleep once more before the end."""
        with ours():
            for make, least in ((ours, 0.3), (theirs, 0)):
                began = time.monotonic()
                assert make(sleep=0.5).acquire(blocking_timeout=0.3) is False
                assert least <= time.monotonic() - began < least + 0.25

    def test_it_is_handed_over(self, ours: Make, redis: Redis) -> None:
        """Released while somebody waits, it is that one's at once: the key is never away."""
        lock = ours(timeout=60)
        lock.acquire()
        waiting = ours(timeout=60, thread_local=False)
        waiter = begin(waiting.acquire)
        eventually(lambda: redis.zcard(f"{STEM}:queue") == 1)
        lock.release()
        assert lock.locked()
        assert waiter.result(PATIENCE)
        waiting.release()

    def test_what_is_at_the_key(self, ours: Make, redis: Redis) -> None:
        """Not only the token, but who holds it, and where from: for people."""
        with ours(timeout=10) as lock:
            value = redis.get(KEY)
            assert value.startswith(lock._held(lock.local.token).claim.token.encode())
            assert str(os.getpid()).encode() in value
            assert b"test_client.py" in value
            assert lock.local.token not in value

    def test_why_it_is_not_owned(self, ours: Make, redis: Redis) -> None:
        """The cause of LockNotOwnedError says it."""
        lock = ours(timeout=10)
        lock.acquire()
        redis.delete(KEY)
        with ours(timeout=10), pytest.raises(LockNotOwnedError) as caught:
            lock.release()
        assert "MainThread holds the lock now" in str(caught.value.__cause__)

    def test_a_key_of_another_type(self, ours: Make, redis: Redis) -> None:
        """An error at once, and not a lock that nobody will ever release."""
        redis.sadd(KEY, "x")
        says = "a type that such a lock does not use.*needs it, lock another name"
        with pytest.raises(LockError, match=says) as caught:  # its key has no PREFIX
            ours().acquire()
        assert redis.smembers(KEY) == {b"x"}
        # A client has no alias, so the command names none.
        assert str(caught.value).endswith(f"manage.py redislock clear --cache-locks {KEY}")

    def test_no_numbers(self, ours: Make) -> None:
        with pytest.raises(TypeError, match=r"timeout must be .* seconds or more, or None.*'5'"):
            ours(timeout="5").acquire()
        with pytest.raises(TypeError, match=r"blocking_timeout must be a number of seconds.*'5'"):
            ours(blocking_timeout="5").acquire()

    @pytest.mark.parametrize("timeout", [0.001, -1, float("nan")])
    def test_a_timeout_that_is_over_at_once(
        self, ours: Make, redis: Redis, timeout: float
    ) -> None:
        """ValueError."""
        with pytest.raises(ValueError, match=r"timeout must be .* seconds or more, or None"):
            ours(timeout=timeout).acquire()
        assert not redis.exists(KEY)

    def test_zero_is_none(self, ours: Make, redis: Redis) -> None:
        """A lock without an end in redis-py, too; ours is renewed."""
        with ours(timeout=0):
            assert 0 < redis.pttl(KEY) <= 30_000

    def test_clients_that_it_does_not_take(self) -> None:
        """TypeError: asynchronous ones, and those of a cluster."""
        lock = redis.asyncio.Redis().lock("job", lock_class=Lock)
        with pytest.raises(TypeError, match=r"one primary, not .*asyncio"):
            lock.acquire()
        cluster = object.__new__(RedisCluster)
        lock = object.__new__(Lock)
        lock.redis = cluster
        with pytest.raises(TypeError, match=r"one primary, not .*RedisCluster"):
            lock._port()

    def test_signals(self, ours: Make, redis: Redis) -> None:
        """What happens to it is told, like that of any lock of ours; a listener breaks nothing."""
        events: list[signals.LockEvent] = []

        def listen(event: signals.LockEvent, **_: object) -> None:
            events.append(event)
            raise ZeroDivisionError

        told = [signals.lock_acquired, signals.lock_not_acquired, signals.lock_released]
        for one in [*told, signals.lock_lost]:
            one.connect(listen)
        try:
            with ours(timeout=10) as lock:
                fence = lock.fencing_token
                assert ours().acquire(blocking=False) is False
            for timeout in (10, None):
                lock = ours(timeout=timeout)
                lock.acquire()
                redis.delete(KEY)
                with pytest.raises(LockNotOwnedError):
                    lock.release()
            eventually(lambda: [event.outcome for event in events].count("lost") == 2)
        finally:
            for one in [*told, signals.lock_lost]:
                one.disconnect(listen)
        first, second, third = events[:3]
        assert (first.outcome, first.name, first.fencing_token) == ("acquired", KEY, fence)
        assert first.using in os.environ["REDISLOCK_TEST_URL"].replace("?db=", "/")
        assert (second.outcome, second.holder.owner) == ("not acquired", first.owner)
        assert (third.outcome, third.fencing_token) == ("released", fence)
        assert third.held is not None
        assert {event.why for event in events if event.outcome == "lost"} == {
            "it expired before it was renewed, or its key was deleted"
        }

    def test_a_fencing_token(self, ours: Make) -> None:
        """There is one, as long as it is held; it only grows."""
        lock = ours()
        assert lock.fencing_token is None
        fence = 0
        for _ in range(3):
            with lock:
                assert lock.fencing_token > fence
                fence = lock.fencing_token
                assert elsewhere(lambda: lock.fencing_token) is None
        assert lock.fencing_token is None


@pytest.fixture
def gone() -> Iterator[RedisServer]:
    """A server of its own, to be stopped."""
    with server() as running, override_settings(CACHES=entries(running.url, SOCKET_TIMEOUT=5)):
        yield running


class TestRedisAway:
    """Whoever has an `except` for redis-py's errors around `cache.lock()` keeps it."""

    def test_at_acquire(self, make: Make, gone: RedisServer) -> None:
        """ConnectionError at once, which is no LockError, however long the wait."""
        lock = make()
        gone.stop()
        for wait in ({}, {"blocking": False}, {"blocking_timeout": 600}):
            with pytest.raises(errors.ConnectionError) as caught:
                elsewhere(partial(lock.acquire, **wait))
            assert not isinstance(caught.value, LockError)
        with pytest.raises(errors.ConnectionError):
            with lock:
                pytest.fail("ran without the lock")
        gone.start()
        with lock:
            pass

    def test_while_it_is_waited_for(self, make: Make, gone: RedisServer) -> None:
        """ConnectionError for who waits."""
        make().acquire()
        waiter = begin(make().acquire)
        with pytest.raises(TimeoutError):
            waiter.result(0.3)
        gone.stop()
        with pytest.raises(errors.ConnectionError):
            waiter.result(PATIENCE)

    def test_while_it_is_held(self, make: Make, gone: RedisServer) -> None:
        """ConnectionError, as of any method; the token is forgotten nevertheless."""
        lock = make(timeout=60)
        lock.acquire()
        gone.stop()
        for call in (partial(lock.extend, 10), lock.reacquire, lock.owned, lock.locked):
            with pytest.raises(errors.ConnectionError):
                call()
        with pytest.raises(errors.ConnectionError):
            lock.release()
        with pytest.raises(LockError, match="Cannot release"):
            lock.release()

    def test_a_server_that_stalls(self, make: Make, gone: RedisServer) -> None:
        """TimeoutError, redis-py's, after SOCKET_TIMEOUT."""
        url = gone.url.replace("db=0", "db=1")  # django-redis keeps one pool for each URL
        assert gone.pid is not None
        with override_settings(CACHES=entries(url, SOCKET_TIMEOUT=0.2)):
            with make("warm up"):
                pass
            os.kill(gone.pid, signal.SIGSTOP)
            try:
                with pytest.raises(errors.TimeoutError):
                    make(timeout=10).acquire()
            finally:
                os.kill(gone.pid, signal.SIGCONT)

    def test_a_wrong_password(self, make: Make) -> None:
        """AuthenticationError, also for who would wait."""
        with (
            server(args=["--requirepass", "right"]) as running,
            override_settings(CACHES=entries(f"{running.url}&password=wrong")),
        ):
            with pytest.raises(errors.AuthenticationError):
                make().acquire()

    def test_a_replica(self, make: Make, gone: RedisServer) -> None:
        """ReadOnlyError."""
        with Redis.from_url(gone.url) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(errors.ReadOnlyError):
            make().acquire()


class TestLost:
    """Requests and answers that are lost: better than redis-py, and so listed as changed, too."""

    @pytest.fixture
    def proxy(self, gone: RedisServer) -> Iterator[Proxy]:
        with Proxy(gone) as proxy, override_settings(CACHES=entries(proxy.url)):
            with lock_of("ours", "warm up"):  # so that the server knows the scripts
                pass
            yield proxy

    @pytest.fixture
    def hasty(self, gone: RedisServer) -> Iterator[Proxy]:
        """Whose clients don't wait for long."""
        with Proxy(gone) as proxy:
            with override_settings(CACHES=entries(proxy.url, SOCKET_TIMEOUT=0.3)):
                with lock_of("ours", "warm up"):
                    pass
                yield proxy

    @pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.RESET_AFTER])
    @pytest.mark.parametrize("verb", ["acquire", "release"])
    def test_a_connection_that_broke(
        self, ours: Make, proxy: Proxy, verb: str, fault: Fault
    ) -> None:
        """Nobody notices: both may be repeated."""
        rule = proxy.on(script(f"mutex_{verb}"), fault)
        lock = ours(timeout=60)
        assert lock.acquire(blocking=False) is True
        lock.release()
        assert rule.count == 1
        assert not lock.locked()

    def test_an_acquire_without_an_answer(self, ours: Make, hasty: Proxy) -> None:
        """It raises, and does not keep the lock for nobody."""
        lock = ours(timeout=600)
        rule = hasty.on(script("mutex_acquire"), Fault.LOSE_REPLY)
        with pytest.raises(errors.TimeoutError):
            lock.acquire()
        rule.happened()
        eventually(lambda: not lock.locked())
        assert lock.local.token is None

    @pytest.mark.parametrize("timeout", [None, 600])
    def test_a_release_without_an_answer(
        self, ours: Make, hasty: Proxy, timeout: float | None
    ) -> None:
        """It raises, and is repeated in the background."""
        lock = ours(timeout=timeout)
        lock.acquire()
        hasty.on(script("mutex_release"), Fault.LOSE_REQUEST)
        with pytest.raises(errors.TimeoutError):
            lock.release()
        eventually(lambda: not lock.locked())

    @pytest.mark.parametrize("timeout", [None, 600])
    @pytest.mark.parametrize(
        "where", [(Lock, "_hold"), (signals, "send")], ids=["before", "after"]
    )
    def test_an_interrupted_acquire(
        self, ours: Make, monkeypatch: pytest.MonkeyPatch, where: Any, timeout: float | None
    ) -> None:
        """An exception from outside, after the server has given the lock: it is given back."""

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        lock = ours(timeout=timeout)
        with monkeypatch.context() as patch:
            patch.setattr(signals, "wanted", lambda _: True)
            patch.setattr(*where, interrupted)
            with pytest.raises(KeyboardInterrupt):
                lock.acquire()
        eventually(lambda: not lock.locked())
        assert lock.local.token is None
        with pytest.raises(LockError, match="Cannot release"):
            lock.release()


class TestSignatures:
    """Those of the redis-py and the django-redis that are installed."""

    def test_lock(self) -> None:
        """What makes one, and all that it can do."""
        assert inspect.signature(Lock) == inspect.signature(TheirLock)
        for name, theirs in inspect.getmembers(TheirLock, inspect.isfunction):
            ours = getattr(Lock, name)
            if not name.startswith("do_"):
                assert shape(ours) == shape(theirs), name

    def test_client(self) -> None:
        """`cache.lock()`."""
        assert shape(LockingClient.lock) == shape(DefaultClient.lock)


def shape(function: Callable[..., object]) -> list[tuple[str, object]]:
    """The arguments, and their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.default) for parameter in parameters]


class TestServers:
    """One watchdog and one inbox for all clients that lead to one server as one user."""

    def test_clients_of_one_server_share_them(self) -> None:
        """However many clients a project makes."""
        url = os.environ["REDISLOCK_TEST_URL"]
        threads = set()
        for _ in range(3):
            with Redis.from_url(url) as client, client.lock(KEY, lock_class=Lock):
                threads.add(watchdog(server_of_client(client)))
        assert len(threads) == 1

    def test_another_database_or_user_is_another_server(self) -> None:
        """So a client with a wrong password spoils nothing for one with the right one."""

        def address(**options: Any) -> str:
            with Redis(**options) as client:
                return server_of_client(client).address

        different = [{}, {"db": 1}, {"host": "a"}, {"password": "b"}, {"username": "c"}]
        assert len({address(**options) for options in different}) == len(different)
        assert address(password="b") == address(password="b")
        assert "secret" not in address(password="secret")

    def test_a_pool_of_any_kind(self) -> None:
        """What goes on in the background has a pool of its own, which does not block."""
        url = os.environ["REDISLOCK_TEST_URL"]
        pool = BlockingConnectionPool.from_url(url, max_connections=1, timeout=7)
        with Redis(connection_pool=pool) as client, override_settings(REDISLOCK={"TTL": 0.5}):
            lock = client.lock(KEY, lock_class=Lock)
            with lock:
                busy = pool.get_connection()
                over = time.monotonic() + 0.8
                eventually(lambda: time.monotonic() > over)
                pool.release(busy)
                assert lock.owned()

    def test_what_listens_ends_with_its_client(self, gone: RedisServer) -> None:
        """When the server has gone, too: nobody asks for it for ever."""
        client = Redis.from_url(gone.url.replace("db=0", "db=2"))
        address = server_of_client(client).address
        with client.lock(KEY, lock_class=Lock):
            waiting = client.lock(KEY, lock_class=Lock, blocking_timeout=0.2)
            assert waiting.acquire() is False
        (box,) = [box for box in every(Inbox) if box.started and box._server.address == address]
        assert box.listening.wait(PATIENCE)
        client.close()
        del client, waiting
        gc.collect()
        gone.stop()
        eventually(lambda: box not in every(Inbox))

    def test_redis_lock_with_this_client(self) -> None:
        """An alias that LockingClient serves is as good as any."""
        assert lock_and_wait() == ["sync", "async"]

    def test_sentinel(self) -> None:
        """The client, its renewal and its waiters find the primary; a plain one excludes it."""
        with (
            server(tcp_port=0) as primary,
            RedisSentinels(primary, number=1, replicas=0) as sentinels,
        ):
            both = entries(
                f"redis://{sentinels.service}/0",
                CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
                SENTINELS=sentinels.addresses,
            )
            both["theirs"]["OPTIONS"]["CLIENT_CLASS"] = "django_redis.client.SentinelClient"
            twin = "django_redislock.client.SentinelLockingClient"
            both["ours"]["OPTIONS"]["CLIENT_CLASS"] = twin
            both["default"] = both["ours"]
            with override_settings(CACHES=both, REDISLOCK={"TTL": 0.5}):
                assert lock_and_wait() == ["sync", "async"]
                with lock_of("theirs"):
                    assert lock_of("ours").acquire(blocking_timeout=0.2) is False
                with lock_of("ours") as lock:
                    waiting = lock_of("ours", timeout=10, thread_local=False)
                    waiter = begin(waiting.acquire)
                    with pytest.raises(TimeoutError):
                        waiter.result(0.8)
                    assert lock_of("theirs").acquire(blocking=False) is False
                    assert lock.owned()
                assert waiter.result(PATIENCE) is True
                waiting.release()


@pytest.mark.parametrize("package", ["redis", "redis.asyncio"])
def test_a_client_of_several_databases(package: str) -> None:
    """TypeError: after its failover, a lock would have two holders."""
    pytest.importorskip("redis.multidb")  # from redis-py 7 on
    multidb = import_module(f"{package}.multidb.client")
    databases = [multidb.DatabaseConfig(from_url="redis://h", weight=1.0)]
    lock = object.__new__(Lock)
    with pytest.warns(UserWarning, match="experimental"):
        lock.redis = multidb.MultiDBClient(multidb.MultiDbConfig(databases_config=databases))
    with pytest.raises(TypeError, match=r"a MultiDBClient: it may fail over .* a Redlock"):
        lock._port()


class TestPage:
    """docs/drop-in.md says what is there."""

    PAGE = (Path(__file__).parent.parent / "docs" / "drop-in.md").read_text(encoding="utf-8")
    BLOCKS = examples("docs/drop-in.md")

    def test_every_change_is_named(self) -> None:
        """In the table, which has a test for each row, and a row for each test."""
        table = self.PAGE.partition("## What is changed on purpose")[2].partition("\n## ")[0]
        rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
        assert len(rows) > 10
        named = [re.findall(r"`tests/test_client\.py::(\w+)`", row) for row in rows]
        assert all(named), "a row without a test"
        tests = {name for group in (TestChanged, TestLost) for name in vars(group)}
        assert {test for row in named for test in row} == {
            name for name in tests if name.startswith("test_")
        }

    def test_the_settings(self, redis: Redis) -> None:
        """The CACHES entry, and the code that it is for."""
        entry, use, *_ = self.BLOCKS
        settings: dict[str, Any] = {}
        exec(entry, settings)
        settings["CACHES"]["default"]["LOCATION"] = os.environ["REDISLOCK_TEST_URL"]
        settings["CACHES"]["default"]["KEY_PREFIX"] = PREFIX
        values = []
        with override_settings(CACHES=settings["CACHES"]):
            look = lambda: values.append(redis.get(f"{PREFIX}:1:import"))  # noqa: E731
            exec(use.replace("...", "look()"), {"look": look})
        assert b"|" in values[0]  # ours, and not only a token
        assert not redis.exists(f"{PREFIX}:1:import")

    def test_other_ways(self, redis: Redis) -> None:
        """A client class of one's own, and redis-py alone."""
        _, _, mixin, lock_class = self.BLOCKS
        names: dict[str, Any] = {"__name__": __name__}
        exec(mixin, names)
        assert shape(names["Client"].lock) == shape(DefaultClient.lock)
        exec(lock_class.replace('"import"', "KEY"), {"redis": redis, "KEY": KEY})
