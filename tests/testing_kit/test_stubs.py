"""Locks that are always free, always busy, or out of reach: no server is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import pytest
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.management import BaseCommand, CommandError, call_command
from django.http import HttpResponse
from django.test import RequestFactory, TestCase
from redis import ConnectionError as RedisConnectionError
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import (
    Lease,
    LeaseLost,
    LockError,
    LockNotAcquired,
    LockReentered,
    LockUnavailable,
    MultiLock,
    ReadWriteLock,
    Redlock,
    Semaphore,
    TimestampLock,
    initialise,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.base.clock import now
from django_redislock.commands import LockedCommand
from django_redislock.inspection import Inspector
from django_redislock.lease.watchdog import watchdog
from django_redislock.tasks import limited, unique
from django_redislock.testing import (
    assert_locked,
    locks_always_busy,
    locks_always_free,
    locks_held_elsewhere,
    locks_in_memory,
    redis_unavailable,
)
from django_redislock.testing.stubs import GRANTS, _grant
from django_redislock.transport import ports
from django_redislock.transport.server import server_of
from django_redislock.views import lock_view
from tests.calling import watch
from tests.contract.api import Api
from tests.tasks.by_hand import task
from tests.waiting import PATIENCE, eventually

NEEDS_FAKEREDIS = pytest.mark.skipif(
    "not __import__('importlib.util').util.find_spec('fakeredis')"
)
AT_ONCE = 3.0
"""Seconds; whoever waited, did so for more than ten."""


@pytest.fixture(autouse=True)
def _no_server(settings: Any) -> None:
    """The caches that a project's test settings have."""
    cache = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    settings.CACHES = dict.fromkeys(("default", "x", "y", "z"), cache)


@pytest.fixture
def at_once() -> Iterator[None]:
    began = now()
    yield
    assert now() - began < AT_ONCE


LOCKS = {
    "mutex": lambda: redis_lock("invoice:42", wait=20),
    "for ever": lambda: redis_lock("invoice:42", wait=None),
    "guarded": lambda: redis_lock("invoice:42", wait=20, after_loss="wait"),
    "semaphore": lambda: Semaphore("invoice:42", 2, wait=20),
    "read": lambda: ReadWriteLock("invoice:42", wait=20).read(),
    "write": lambda: ReadWriteLock("invoice:42", wait=20).write(),
    "multi": lambda: MultiLock(["account:1", "invoice:42"], wait=20),
    "timestamp": lambda: TimestampLock("invoice:42", wait=20),
    "redlock": lambda: Redlock("invoice:42", using=["x", "y", "z"], wait=20),
}


def form(answer: Any) -> Any:
    """Whether an answer is made of numbers, texts or lists; numbers may be texts in Redis."""
    if isinstance(answer, list):
        return [form(one) for one in answer]
    if answer == b"OK":
        return "number"
    number = isinstance(answer, int) or (isinstance(answer, bytes) and answer.isdigit())
    return "number" if number else type(answer)


every_lock = pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS)


class TestFree:
    @every_lock
    def test_it_is_granted(self, api: Api, redis: Redis, make: Any) -> None:
        """Each kind is granted, renewed and released without any server."""

        def body(lease: Lease) -> None:
            lease.extend(60)
            lease.check()
            assert lease._claim.primitive.unfenced or lease.fencing_tokens

        with locks_always_free():
            api.enter(make(), body)
            api.release(api.acquire(make()))
        assert redis.keys("redislock*") == []

    def test_nobody_is_kept_out(self, api: Api) -> None:
        """Another thread or task has it at the same time, with a larger fencing token."""
        with locks_always_free():
            first = api.acquire(redis_lock("invoice:42"))
            second = api.start(lambda: api.acquire(redis_lock("invoice:42"))).result(PATIENCE)
            assert second.fencing_token > first.fencing_token

    def test_it_is_renewed(self) -> None:
        """The watchdog renews the lease."""
        with locks_always_free(), redis_lock("invoice:42", ttl=3) as lease:
            due = lease._lifetime.due
            eventually(lambda: lease._lifetime.due > due)
            lease.check()

    def test_it_ends_with_the_test(self) -> None:
        """A lease that a test leaves asks no server afterwards."""
        with locks_always_free():
            outer = redis_lock("invoice:42").acquire()
            with locks_always_free():
                inner = redis_lock("order:7").acquire()
            assert (outer.state, inner.state) == ("held", "released")
        assert outer.state == "released"

    def test_whoever_waits_for_itself_is_told(self) -> None:
        """LockReentered, which needs no server, is still raised."""
        with locks_always_free(), redis_lock("invoice:42"), pytest.raises(LockReentered):
            redis_lock("invoice:42").acquire()

    def test_it_travels(self, api: Api) -> None:
        """A lease can be exported, restored and downgraded."""
        with locks_always_free():
            for lock in (redis_lock("invoice:42"), TimestampLock("import")):
                api.release(api.restore(api.acquire(lock).export()))
            lease = api.acquire(ReadWriteLock("catalogue").write())
            api.downgrade(lease)
            assert api.holders(redis_lock("invoice:42")) == []

    def test_each_time_is_the_first(self, api: Api) -> None:
        """Records are not kept."""
        with locks_always_free():
            for _ in range(2):
                assert api.enter(once("import"), lambda first: first) is True
            assert api.initialise("salt", "abc") == "abc"
            function = single_flight("rates", ttl=60)(api.function(lambda: 7))
            assert api.call(function) == 7

    def test_it_answers_as_a_server_does(
        self, api: Api, settings: Any, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each script is answered in the form of a real server without any data."""
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_server.url}
        settings.CACHES = {"default": cache}
        asked: list[str] = []
        real = ports.BasePort.script

        async def compare(self: Any, script: str, keys: Any, args: Any) -> Any:
            answer = await real(self, script, keys, args)
            asked.append(script)
            granted = await _grant(self, script, keys, args)
            said = (
                answer[:1] if script.endswith("_release") else answer
            )  # and who has it now: nobody
            # A restored lease was written down, so that its release is asked for at length.
            # The server has the note of a task, which a stub forgets.
            unknown = script == "record_get" or (script.endswith("_drop") and said is None)
            assert form(granted) == form(said) or unknown
            return answer

        watch(monkeypatch, compare)
        for lock in (redis_lock, TimestampLock, partial(Semaphore, limit=2)):
            assert api.holder(lock("invoice:42")) is None
            lease = api.restore(api.acquire(lock("invoice:42")).export())
            api.extend(lease)
            api.release(lease)
        lease = api.acquire(redis_lock("export:7"))
        lease.checkpoint(cursor=1)
        api.release(lease)
        lease = api.acquire(ReadWriteLock("catalogue").write())
        api.downgrade(lease)
        api.release(lease)
        api.enter(MultiLock(["account:1", "account:2"]), lambda lease: lease.extend())
        api.enter(once("import", on_failure="lose"), lambda first: first)
        api.forget(once("report"))
        api.initialise("salt", lambda: "abc")
        sync = limited("sync", 1)(task(lambda pk: None))
        sync.enqueue(7)
        sync.backlog.work()
        unique("reindex:{pk}")(task(lambda pk: None)).enqueue(7)
        granted = {*GRANTS, "record_first"}
        # Signs of life are shown by a thread, now and then. With replicas, locks are asked for at
        # length.
        # Only what is always busy is cleared, by a thief.
        besides = {"record_set", "record_release", "mutex_clear"}
        besides |= {name for name in granted if name.endswith("_acquire")}
        assert granted - besides == set(asked) - besides

    def test_what_it_can_not_answer(self) -> None:
        """The error says which condition to use."""
        with locks_always_free(), pytest.raises(LockError, match=r"locks_in_memory\(\)"):
            Inspector().page()

    def test_an_alias_that_is_not_there(self) -> None:
        """A wrong alias is still an error."""
        with locks_always_free(), pytest.raises(ImproperlyConfigured, match="'defualt'"):
            redis_lock("invoice:42", using="defualt").acquire()


@pytest.mark.usefixtures("at_once")
class TestBusy:
    @every_lock
    def test_it_is_refused(self, api: Api, make: Any) -> None:
        """A lock is refused at once, and has a holder."""
        with locks_always_busy("invoice:*", holder="worker-7"):
            with pytest.raises(LockNotAcquired, match="'invoice:42' is held by worker-7"):
                api.enter(make(), lambda _: pytest.fail("it ran"))
            assert api.acquire(make()) is None
        with locks_always_busy(holder="worker-7"):
            assert api.holder(redis_lock("invoice:42")).owner == "worker-7"

    def test_others_are_free(self, api: Api) -> None:
        """Names that don't match are free."""
        with locks_always_busy("invoice:*"):
            api.release(api.acquire(redis_lock("order:7")))

    def test_a_name_with_brackets(self, api: Api) -> None:
        """A name with brackets matches itself."""
        with locks_always_busy("order[7]"):
            assert api.acquire(redis_lock("order[7]")) is None

    def test_work_is_done_elsewhere(self, api: Api) -> None:
        """`once` finds that another process is working."""
        with locks_always_busy():
            assert api.enter(once("import"), lambda first: first) is False

    def test_the_inner_one_counts(self) -> None:
        """Free within busy is free; afterwards the lock is busy again."""
        with locks_always_busy():
            with locks_always_free(), redis_lock("invoice:42"):
                pass
            assert redis_lock("invoice:42").acquire() is None

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [({"name": 42}, "name must be a str"), ({"holder": 42}, "holder must be")],
    )
    def test_wrong_arguments(self, arguments: dict[str, Any], says: str) -> None:
        """The error is raised where the arguments are written."""
        with pytest.raises(TypeError, match=says):
            locks_always_busy(**arguments)


@pytest.mark.usefixtures("at_once")
class TestUnavailable:
    @every_lock
    def test_nobody_can_ask(self, api: Api, make: Any) -> None:
        """The error comes without waiting for Redis."""
        with redis_unavailable():
            for ask in (api.acquire, api.holder):
                with pytest.raises(LockUnavailable):
                    ask(make())

    @every_lock
    def test_unavailable(self, api: Api, settings: Any, make: Any) -> None:
        """A lock does at once what its `UNAVAILABLE` says. A Redlock is never run without."""
        with redis_unavailable():
            settings.REDISLOCK = {"UNAVAILABLE": "run"}
            if isinstance(make(), Redlock):
                with pytest.raises(LockUnavailable):
                    api.enter(make(), lambda _: pytest.fail("it ran"))
                return
            assert api.enter(make(), lambda lease: lease.state) == "unlocked"
            settings.REDISLOCK = {"UNAVAILABLE": "skip"}
            assert api.acquire(make()) is None

    def test_records(self, api: Api) -> None:
        """Without the lock, the work is not done."""
        with redis_unavailable():
            with pytest.raises(LockUnavailable):
                api.enter(once("import"), lambda _: pytest.fail("it ran"))
            with pytest.raises(LockUnavailable):
                initialise("salt", "abc")

    def test_what_was_held(self) -> None:
        """An earlier lease is unknown; its block ends without an error, as in production."""
        with locks_always_free(), redis_lock("invoice:42") as lease:
            with redis_unavailable():
                with pytest.raises(LockUnavailable):
                    lease.extend()
                assert lease.state == "unknown"
            lease.extend()
            assert lease.state == "held"

    def test_a_real_server(self, settings: Any, redis_server: Any) -> None:
        """A lock held at a real server is released later."""
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_server.url}
        settings.CACHES = {"default": cache}
        with redis_unavailable():
            with pytest.raises(LockUnavailable):
                redis_lock("invoice:42").acquire()
        lock = redis_lock("invoice:42")
        lease = lock.acquire()
        with redis_unavailable():
            with lease:
                pass
            watchdog(server_of("default")).settle(0.2)  # it tries in vain
        other = lock.acquire(wait=PATIENCE)
        other.release()

    @pytest.mark.parametrize("which", ["lock", "of the client", "redlock"])
    def test_connections_that_are_there(self, settings: Any, which: str) -> None:
        """No request goes out, over whichever connection an earlier one has left."""
        with ExitStack() as stack:
            number = 3 if which == "redlock" else 1
            urls = [stack.enter_context(RedisServer()).url for _ in range(number)]
            settings.CACHES = {
                "default" if at == 0 else f"other {at}": {
                    "BACKEND": "django_redislock.cache.RedisCache",
                    "LOCATION": url,
                }
                for at, url in enumerate(urls)
            }
            lock: Any
            if which == "redlock":
                lock = Redlock("invoice:42", using=[*settings.CACHES])
            else:
                lock = redis_lock("invoice:42") if which == "lock" else caches["default"].lock("a")
            for _ in range(2):
                with lock:
                    pass
            raised = RedisConnectionError if which == "of the client" else LockUnavailable
            with redis_unavailable(), pytest.raises(raised), lock:
                pass


class TestViews:
    @pytest.mark.parametrize(
        ("condition", "status"),
        [(locks_always_free, 200), (locks_always_busy, 409), (redis_unavailable, 503)],
    )
    def test_a_view(self, rf: Any, condition: Any, status: int) -> None:
        """The view answers as in production."""
        view = lock_view("checkout")(lambda request: HttpResponse("ok"))
        with condition():
            assert view(rf.get("/")).status_code == status

    def test_a_command(self) -> None:
        """The exit code says that somebody else holds the lock."""

        class Import(LockedCommand, BaseCommand):
            def handle(self, *args: Any, **options: Any) -> None: ...

        with locks_always_free():
            call_command(Import())
        with locks_always_busy(), pytest.raises(CommandError) as error:
            call_command(Import())
        assert error.value.returncode == 75


class TestHeldElsewhere:
    @pytest.fixture
    def real(self, settings: Any, redis_server: RedisServer) -> None:
        backend = "django_redis.cache.RedisCache"
        settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": redis_server.url}}

    @pytest.fixture(
        params=["no server", "free", pytest.param("memory", marks=NEEDS_FAKEREDIS), "real"]
    )
    def where(self, request: pytest.FixtureRequest) -> Iterator[str]:
        conditions = {"free": locks_always_free, "memory": locks_in_memory}
        if request.param == "real":
            request.getfixturevalue("real")
        with conditions.get(request.param, nullcontext)():
            yield request.param

    def test_a_view(self, where: str, rf: Any) -> None:
        """The client runs the view in the thread of the test, and the request gets 409 there,
        however it is decorated."""
        view = lock_view("order:{pk}")(lambda request, pk: HttpResponse("ok"))
        with locks_held_elsewhere("order:7", "order:8"):
            assert [view(rf.post("/"), pk).status_code for pk in (7, 8)] == [409, 409]
            with pytest.raises(LockNotAcquired, match="order:7"), redis_lock("order:7", wait=0):
                pass
        if where != "no server":
            assert view(rf.post("/"), 7).status_code == 200

    async def test_in_an_event_loop(self, where: str) -> None:
        """A test may be a coroutine, and so may the code under test."""
        with locks_held_elsewhere("order:7"), pytest.raises(LockNotAcquired):
            async with redis_lock("order:7", wait=0):
                pass

    @pytest.mark.parametrize(
        "lock",
        [Semaphore("job", 1), ReadWriteLock("job").write(), MultiLock(["job", "other"])],
        ids=lambda lock: type(lock).__name__,
    )
    def test_other_kinds(self, where: str, lock: Any) -> None:
        """They are given as locks."""
        with locks_held_elsewhere(lock):
            assert lock.acquire(wait=0) is None

    def test_it_is_waited_for(self, real: None) -> None:
        """They are really held, and free again when the block has ended."""
        with ThreadPoolExecutor(1) as thread:
            with locks_held_elsewhere("job"):
                assert redis_lock("job").holder().label == "locks_held_elsewhere()"
                waiter = thread.submit(redis_lock("job", wait=PATIENCE).acquire)
                eventually(lambda: Inspector().get("job").waiters == 1)
            waiter.result(PATIENCE).release()

    def test_it_is_cleared(self, real: None) -> None:
        """The test may take it away from its holder."""
        with locks_held_elsewhere("job"):
            redis_lock("job").clear(reason="the test")

    def test_it_is_held_already(self, real: None) -> None:
        """Nobody else can have it then."""
        with redis_lock("job"):
            with pytest.raises(LockNotAcquired), locks_held_elsewhere("job"):
                pass

    @pytest.mark.parametrize("locks", [(), (7,), (["order:7"],)])
    def test_wrong_arguments(self, locks: Any) -> None:
        """The error says what to write."""
        with pytest.raises(TypeError, match="write names of locks, such as 'invoice:42'"):
            locks_held_elsewhere(*locks)


class TestBusyInTestCase(TestCase):
    """In a TestCase, a transaction holds the lock of a request until the end of the test."""

    def in_turn(self, busy: Any, *names: str) -> None:
        """The first request gets the lock, the second one does not, and the third one does."""
        view = lock_view("order:{pk}")(lambda request, pk: HttpResponse("ok"))
        request = RequestFactory().post("/")
        assert view(request, 7).status_code == 200
        with busy(*names):
            assert view(request, 7).status_code == 409
        assert view(request, 7).status_code == 200

    def test_free_before(self) -> None:
        """The locks were free before."""
        for busy in locks_always_busy, locks_held_elsewhere:
            with locks_always_free():
                self.in_turn(busy, "order:7")

    @NEEDS_FAKEREDIS
    def test_in_memory(self) -> None:
        """They were in memory."""
        with locks_in_memory():
            self.in_turn(locks_always_busy, "order:*")

    async def test_a_coroutine(self) -> None:
        """A coroutine asks the thread that has the transaction."""
        with locks_always_free():
            for condition, held in [(nullcontext(), True), (locks_always_busy(), False)]:
                with condition:
                    lease = await redis_lock("job", release="commit").aacquire(wait=0)
                    assert (lease is not None) is held
                    if lease is not None:
                        async with lease:
                            pass

    def test_a_block_around_it(self) -> None:
        """A lock that the code itself has taken may be taken again, if that is allowed."""
        with locks_always_free(), redis_lock("tree"), locks_always_busy():
            with redis_lock("tree", reentrant=True):
                pass


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: assert_locked("invoice:42"), "assert_locked"),
        (lambda: locks_always_busy("invoice:42"), "locks_always_busy"),
        (locks_in_memory, "locks_in_memory"),
    ],
)
def test_forgotten_with(make: Callable[[], Any], name: str) -> None:
    """What is called like a function does nothing, and says so. The line is named."""
    with pytest.warns(RuntimeWarning, match=rf"{name}\(\) was never used") as caught:
        make()
    assert caught[0].filename == __file__


class TestDecorators(TestCase):
    def test_a_coroutine(self) -> None:
        """The condition lasts until the coroutine has ended."""

        @locks_always_busy()
        async def work() -> Lease | None:
            await asyncio.sleep(0)
            return await redis_lock("invoice:42").aacquire()

        assert asyncio.run(work()) is None

    @locks_always_busy()
    async def test_an_async_test(self) -> None:
        """Django's asynchronous tests can be decorated."""
        with pytest.raises(LockNotAcquired):
            async with redis_lock("invoice:42"):
                pass

    @locks_always_free()
    def test_a_method(self) -> None:
        """Methods can be decorated."""
        with redis_lock("invoice:42"), pytest.raises(LeaseLost):
            lease = redis_lock("order:7").acquire()
            lease.release()
            lease.check()

    def test_a_class(self) -> None:
        """A class can't be decorated; the error says what to write."""
        with pytest.raises(TypeError, match=r"self.enterContext"):

            @locks_always_free()
            class Tests: ...

    def test_a_fixture_that_yields(self) -> None:
        """A generator would run after the condition; the error says what to write."""

        def fixture() -> Iterator[None]:
            yield

        async def afixture() -> AsyncIterator[None]:
            yield

        for function in (fixture, afixture):
            with pytest.raises(TypeError, match=f"generator {function.__name__}, which runs"):
                locks_always_free()(function)

    def test_an_exception(self) -> None:
        """An exception ends the condition and comes out."""
        condition = locks_always_free()
        with pytest.raises(ValueError, match="why"), condition, redis_lock("invoice:42"):
            raise ValueError("why")
        with pytest.raises(ImproperlyConfigured):
            redis_lock("invoice:42").acquire()
