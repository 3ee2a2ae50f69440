"""`redis_lock` around blocks and around every kind of function."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import inspect
import itertools
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import date
from functools import lru_cache, partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core import mail
from django.core.exceptions import SynchronousOnlyOperation
from redis import Redis

from django_redislock import (
    Lease,
    LeaseLost,
    LeaseState,
    LockError,
    LockNotAcquired,
    LockReentered,
    ReadWriteLock,
    Redlock,
    Semaphore,
    TimestampLock,
    current_lease,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.primitives.contract import run
from django_redislock.testing import locks_held_elsewhere
from tests.contract.api import Api
from tests.waiting import PATIENCE

ROOT = Path(__file__).parent.parent
KEY = "redislock:{job}"
QUEUE = f"{KEY}:queue"

Body = Callable[..., Any]


# The ways to hold a lock while a body runs. Each can be called from a test that knows nothing
# of event loops, and returns what the body has returned.


def plain(body: Body) -> Body:
    def work(*args: Any, **kwargs: Any) -> Any:
        """Do the work."""
        return body(*args, **kwargs)

    return work


def coroutine(body: Body) -> Body:
    async def work(*args: Any, **kwargs: Any) -> Any:
        """Do the work."""
        return body(*args, **kwargs)

    return work


def generator(body: Body) -> Body:
    def work(*args: Any, **kwargs: Any) -> Iterator[Any]:
        """Do the work."""
        yield body(*args, **kwargs)

    return work


def async_generator(body: Body) -> Body:
    async def work(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Do the work."""
        yield body(*args, **kwargs)

    return work


def the_only(items: Iterable[Any]) -> Any:
    return next(iter([*items]), None)


async def collect(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def asynchronously(value: Any) -> Any:
    return value


async def asynchronous_items(*items: Any) -> AsyncIterator[Any]:
    for item in items:
        yield item


@dataclass(frozen=True)
class Kind:
    """A kind of function."""

    name: str
    of: Callable[[Body], Body]
    """Make a function of this kind that runs a body."""
    finish: Callable[[Any], Any]
    """Run a call of it to its end, and return what the body has returned; None: nothing."""
    instead: Callable[[Any], Any]
    """What its `on_conflict` returns to put a value in place of the body's."""

    def run(self, lock: redis_lock, body: Body) -> Any:
        return self.finish(lock(self.of(body))())


KINDS = [
    Kind("function", plain, lambda result: result, lambda value: value),
    Kind("coroutine", coroutine, asyncio.run, asynchronously),
    Kind("generator", generator, the_only, lambda value: [value]),
    Kind(
        "async generator",
        async_generator,
        lambda items: the_only(asyncio.run(collect(items))),
        asynchronous_items,
    ),
]


class With:
    name = "with"

    def run(self, lock: redis_lock, body: Body) -> Any:
        with lock:
            return body()


class AsyncWith:
    name = "async with"

    def run(self, lock: redis_lock, body: Body) -> Any:
        async def block() -> Any:
            async with lock:
                return body()

        return asyncio.run(block())


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of function that can be decorated."""
    return request.param


@pytest.fixture(params=[With(), AsyncWith(), *KINDS], ids=lambda form: form.name)
def form(request: pytest.FixtureRequest) -> Any:
    """Each way to hold a lock while a body runs."""
    return request.param


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Other threads."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        yield pool


@pytest.fixture
def elsewhere(threads: ThreadPoolExecutor) -> Callable[[Callable[[], Any]], Any]:
    """Call something in another thread, and return its result."""
    return lambda call: threads.submit(call).result(PATIENCE)


@contextmanager
def held_elsewhere(name: str = "job") -> Iterator[Lease]:
    """Another thread holds the lock."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        lease = thread.submit(redis_lock(name).acquire, wait=0).result(PATIENCE)
        try:
            yield lease
        finally:
            lease.release()


def is_held(redis: Redis, name: str = "job") -> bool:
    return bool(redis.exists(f"redislock:{{{name}}}"))


def nothing_is_held() -> bool:
    """No lease is the current one here."""
    try:
        current_lease()
    except LockError:
        return True
    return False


class TestHolding:
    def test_the_body_runs_under_the_lock(self, form: Any, redis: Redis) -> None:
        """The lock is held, with its lease the current one, while the body runs and no longer."""

        def body() -> tuple[bool, str, LeaseState]:
            return is_held(redis), current_lease().name, current_lease().state

        assert form.run(redis_lock("job"), body) == (True, "job", LeaseState.HELD)
        assert not is_held(redis)
        assert nothing_is_held()

    def test_a_failing_body_releases(self, form: Any, redis: Redis) -> None:
        """The exception of the body comes out as it is, and the lock is free."""
        failure = ValueError("of the body")

        def body() -> None:
            raise failure

        with pytest.raises(ValueError, match="of the body") as caught:
            form.run(redis_lock("job"), body)
        assert caught.value is failure
        assert not hasattr(failure, "__notes__")
        assert not is_held(redis)

    def test_a_conflict_is_raised(self, form: Any) -> None:
        """Without the lock the body is not run, and the error knows the holder."""
        ran = threading.Event()
        with held_elsewhere() as lease, pytest.raises(LockNotAcquired) as caught:
            form.run(redis_lock("job", wait=0), ran.set)
        assert caught.value.holder.fencing_token == lease.fencing_token
        assert not ran.is_set()
        assert nothing_is_held()

    def test_one_at_a_time(self, form: Any, redis: Redis, threads: ThreadPoolExecutor) -> None:
        """One lock object, shared by many threads and tasks: never two are inside at once."""
        lock = redis_lock("job", wait=PATIENCE)
        inside = 0
        tokens = set()

        def body() -> None:
            nonlocal inside
            inside += 1
            redis.ping()  # lets the others run, if they could
            assert inside == 1
            inside -= 1
            tokens.add(current_lease().token)

        for future in [threads.submit(form.run, lock, body) for _ in range(24)]:
            future.result(PATIENCE)
        assert len(tokens) == 24
        assert not is_held(redis)


class TestNames:
    @pytest.mark.parametrize(
        ("template", "args", "kwargs", "name"),
        [
            pytest.param("a:{first}", (1,), {}, "a:1", id="positional only"),
            pytest.param("a:{second}", (1, 2), {}, "a:2", id="positional"),
            pytest.param("a:{second}", (1,), {"second": 2}, "a:2", id="by keyword"),
            pytest.param("a:{second}", (1,), {}, "a:two", id="default"),
            pytest.param("a:{third}", (1,), {"third": "x"}, "a:x", id="keyword only"),
            pytest.param("a:{third}", (1,), {}, "a:3", id="keyword only, default"),
            pytest.param("a:{args[0]}", (1, 2, "x", "y"), {}, "a:x", id="item of *args"),
            pytest.param("a:{kwargs[shop]}", (1,), {"shop": 7}, "a:7", id="item of **kwargs"),
            pytest.param("a:{first.pk}", (SimpleNamespace(pk=7),), {}, "a:7", id="attribute"),
            pytest.param("a:{first[pk]}", ({"pk": 7},), {}, "a:7", id="item"),
            pytest.param("a:{first:05d}", (42,), {}, "a:00042", id="format"),
            pytest.param(
                "a:{first:%Y-%m}", (date(2024, 2, 29),), {}, "a:2024-02", id="its own format"
            ),
            pytest.param("a:{first!r}", ("x",), {}, "a:'x'", id="conversion"),
            pytest.param("{first}:{second}:{first}", (1, 2), {}, "1:2:1", id="several"),
            pytest.param("plain", (1,), {}, "plain", id="no template"),
            pytest.param(lambda first, *_, **__: f"a:{first}", (1, 2), {}, "a:1", id="function"),
        ],
    )
    def test_made_from_the_arguments(
        self, template: Any, args: Any, kwargs: Any, name: str
    ) -> None:
        """A template sees what the function sees; a function of the arguments may replace it."""

        @redis_lock(template)
        def work(first, /, second="two", *args, third=3, **kwargs) -> str:  # type: ignore[no-untyped-def]
            return current_lease().name

        assert work(*args, **kwargs) == name

    @pytest.mark.parametrize(
        ("template", "value", "says"),
        [
            pytest.param("a:{value}", None, "value has no value", id="None"),
            pytest.param("a:{value.pk}", User(), r"value\.pk has no value", id="not saved"),
            pytest.param(
                "a:{value.pk}", AnonymousUser(), r"value\.pk has no value", id="anonymous"
            ),
            pytest.param("a:{value}", AnonymousUser(), "value has no value", id="as a text"),
            pytest.param(
                "a:{value[0]}:{value[1]}", (1, None), r"value\[1\] has no", id="one of two"
            ),
            pytest.param("a:{value!s}", None, None, id="meant"),
            pytest.param("a:{value.pk}", User(pk=7), None, id="saved"),
            pytest.param("a:{value}", "None", None, id="text"),
            pytest.param("a:{value}", 0, None, id="number"),
        ],
    )
    @pytest.mark.parametrize("debug", [True, False])
    def test_made_from_nothing(
        self,
        template: str,
        value: Any,
        says: str | None,
        debug: bool,
        settings: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Calls without a value would share one lock. With DEBUG, a warning says what to write."""
        if not debug:
            monkeypatch.delattr(mail, "outbox")
        settings.DEBUG = debug
        work = redis_lock(template)(lambda value: current_lease().name)
        if says is None or not debug:
            assert work(value)
            return
        with pytest.warns(RuntimeWarning, match=f"{says}.* @login_required .*!s}}") as caught:
            assert work(value)
        assert [warning.filename for warning in caught] == [__file__]

    def test_of_every_kind(self, kind: Kind) -> None:
        """Each kind of function makes the name of each of its calls, and so excludes by it."""

        def body(number: int) -> str:
            return current_lease().name

        work = redis_lock("job:{args[0]}", wait=0)(kind.of(body))
        with held_elsewhere("job:1"):
            assert kind.finish(work(2)) == "job:2"
            with pytest.raises(LockNotAcquired):
                kind.finish(work(1))

    def test_the_dotted_path_without_a_name(self) -> None:
        """The name is where the function is defined."""
        assert dotted() == f"{__name__}.dotted"
        assert Shop(7).unnamed() == f"{__name__}.Shop.unnamed"

        @redis_lock()
        def inner() -> str:
            return current_lease().name

        assert inner() == f"{__name__}.{type(self).__name__}.{self.path()}.locals.inner"

    def path(self) -> str:
        return "test_the_dotted_path_without_a_name"

    def test_wrong_arguments_fail_as_ever(self, redis: Redis) -> None:
        """A call that the function would refuse is refused, and locks nothing."""
        work = redis_lock("a:{number}")(lambda number: number)
        with pytest.raises(TypeError, match="missing a required argument: 'number'"):
            work()
        assert not redis.keys("redislock*")


@redis_lock()
def dotted() -> str:
    return current_lease().name


class Shop:
    """Methods of every sort, decorated inside and outside."""

    def __init__(self, pk: int) -> None:
        self.pk = pk

    @redis_lock()
    def unnamed(self) -> str:
        return current_lease().name

    @redis_lock("shop:{self.pk}:{number}")
    def method(self, number: int = 1) -> str:
        return current_lease().name

    @redis_lock("shop:{self.pk}:{number}")
    async def coroutine(self, number: int = 1) -> str:
        return current_lease().name

    @redis_lock("{cls.__name__}:{number}")
    @classmethod
    def outside_of_classmethod(cls, number: int = 1) -> str:
        return current_lease().name

    @classmethod
    @redis_lock("{cls.__name__}:{number}")
    def inside_of_classmethod(cls, number: int = 1) -> str:
        return current_lease().name

    @redis_lock("{cls.__name__}:{number}")
    @classmethod
    async def coroutine_of_the_class(cls, number: int = 1) -> str:
        return current_lease().name

    @redis_lock("static:{number}")
    @staticmethod
    def outside_of_staticmethod(number: int = 1) -> str:
        return current_lease().name

    @staticmethod
    @redis_lock("static:{number}")
    def inside_of_staticmethod(number: int = 1) -> str:
        return current_lease().name


class Branch(Shop):
    """Inherits them."""


class TestMethods:
    @pytest.mark.parametrize(
        ("method", "name"),
        [
            ("method", "shop:7:2"),
            ("coroutine", "shop:7:2"),
            ("outside_of_classmethod", "Branch:2"),
            ("inside_of_classmethod", "Branch:2"),
            ("coroutine_of_the_class", "Branch:2"),
            ("outside_of_staticmethod", "static:2"),
            ("inside_of_staticmethod", "static:2"),
        ],
    )
    def test_of_an_instance(self, method: str, name: str) -> None:
        """Methods bind as ever, and the template sees self or cls."""
        result = getattr(Branch(7), method)(2)
        assert (asyncio.run(result) if inspect.isawaitable(result) else result) == name

    @pytest.mark.parametrize("where", ["outside", "inside"])
    def test_of_the_class(self, where: str) -> None:
        """Class and static methods need no instance, in both orders of the decorators."""
        assert getattr(Shop, f"{where}_of_classmethod")() == "Shop:1"
        assert getattr(Shop, f"{where}_of_staticmethod")() == "static:1"


def celery_task(function: Any) -> Any:
    """As `@shared_task` makes it: an object that is called, delayed, and sent by beat."""

    class Task:
        def __call__(self, *args: Any) -> Any:
            return function(*args)

        def delay(self, *args: Any) -> None: ...

        def apply_async(self, args: Any = ()) -> None: ...

    return Task()


def django_task(function: Any) -> Any:
    """As `@task` of django.tasks makes it: an object that can't be called."""

    class Task:
        func = staticmethod(function)

        def enqueue(self, *args: Any) -> None: ...

    return Task()


def rq_job(function: Any) -> Any:
    """As RQ's `@job` makes it: the function itself, with an attribute."""
    function.delay = lambda *args: None
    return function


TASKS = [celery_task, django_task, rq_job]


class TestOtherCallables:
    def test_a_partial(self, kind: Kind) -> None:
        """A partial is decorated as what it is a partial of."""
        function = kind.of(lambda number, shop: (current_lease().name, number, shop))
        work = redis_lock("job:{kwargs[shop]}")(partial(function, 1))
        assert kind.finish(work(shop=7)) == ("job:7", 1, 7)

    def test_an_object_is_refused(self) -> None:
        """An object may have other ways to be started; the error says what to decorate."""

        class Work:
            def __call__(self) -> None: ...

        with pytest.raises(TypeError, match="the method of its class"):
            redis_lock("job")(Work())

    @pytest.mark.parametrize("sort", TASKS, ids=lambda sort: sort.__name__)
    @pytest.mark.parametrize("decorator", [redis_lock, once, single_flight])
    def test_a_task_is_refused(self, decorator: Any, sort: Callable[[Any], Any]) -> None:
        """A queue would start a task without the lock; the error says where the lock goes."""
        with pytest.raises(TypeError, match="below the decorator that makes the task"):
            decorator("job")(sort(plain(lambda: None)))

    def test_a_partial_needs_a_name(self) -> None:
        """A partial has no dotted path; the error says to write a name."""
        with pytest.raises(TypeError, match="name"):
            redis_lock()(partial(plain(lambda: None)))

    def test_the_label_of_a_partial_keeps_its_arguments_private(self) -> None:
        """The label, which everybody can read in Redis, says where and not with what."""
        function = plain(lambda password: current_lease().label)
        label = redis_lock("job")(partial(function, password="hunter2"))()
        assert "hunter2" not in label

    def test_a_plain_function_that_returns_a_coroutine(self) -> None:
        """What hides that it is asynchronous is refused, or runs under the lock."""
        hidden = lru_cache(coroutine(lambda: current_lease().name))
        try:
            name = asyncio.run(redis_lock("job")(hidden)())
        except TypeError:
            name = "job"
        assert name == "job"

    @pytest.mark.parametrize(
        "decorator", [redis_lock("job"), once("job"), single_flight("job")], ids=repr
    )
    @pytest.mark.parametrize("hide", [contextmanager, asynccontextmanager, lru_cache])
    def test_a_plain_function_that_returns_a_generator(self, hide: Any, decorator: Any) -> None:
        """What hides a generator is refused: its body would run after the call, and so without
        the lock. Below it, the generator is decorated."""

        def generator() -> Iterator[str]:
            yield current_lease().name

        async def agenerator() -> AsyncIterator[str]:
            yield current_lease().name

        body: Any = agenerator if hide is asynccontextmanager else generator
        with pytest.raises(TypeError, match="decorate the generator itself, below"):
            decorator(hide(body))()
        with contextmanager(redis_lock("job")(generator))() as name:
            assert name == "job"

    def test_a_plain_function_that_uses_up_a_generator(self) -> None:
        """Its result is there when the call ends, and so is one that is only iterated later."""
        function = plain(lambda: (number for number in (1, 2)))
        assert [*redis_lock("job")(function)()] == [1, 2]

        def generator() -> Iterator[str]:
            yield current_lease().name

        assert redis_lock("job")(wraps(generator)(lambda: [*generator()]))() == ["job"]


def held_by_another_thread(lock: Any) -> None:
    with locks_held_elsewhere(lock):
        assert redis_lock("job").holder().label == "locks_held_elsewhere()"


class TestForgotten:
    """A lock that is made and not used has locked nothing: developers are told."""

    @pytest.mark.parametrize(
        "make",
        [
            redis_lock,
            Semaphore,
            TimestampLock,
            lambda name: Redlock(name, using=["default", "other", "third"]),
        ],
    )
    def test_without_with(self, make: Callable[[str], Any]) -> None:
        """In tests, the line that made it warns."""
        with pytest.warns(RuntimeWarning, match=r"'job'.* was never used") as caught:
            make("job")
        assert caught[0].filename == __file__

    def test_in_production(self, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
        """Nothing is told there, and with DEBUG it is."""
        monkeypatch.delattr(mail, "outbox")
        redis_lock("job")
        settings.DEBUG = True
        with pytest.warns(RuntimeWarning, match="never used"):
            redis_lock("job")

    @pytest.mark.parametrize(
        "use",
        [
            lambda lock: lock.holder(),
            lambda lock: lock.acquire().release(),
            lambda lock: lock(lambda: None),
            lambda lock: lock.name,
            pickle.dumps,
            copy.copy,
            held_by_another_thread,
        ],
        ids=["holder", "acquire", "decorates", "name", "pickled", "copied", "held elsewhere"],
    )
    def test_used(self, use: Callable[[Any], Any], recwarn: pytest.WarningsRecorder) -> None:
        """Whatever is done with it counts, also to decorate what nobody calls."""
        use(redis_lock("job"))
        ReadWriteLock("job").read().holder()
        gc.collect()
        assert not recwarn.list

    def test_what_can_t_be_made(self, recwarn: pytest.WarningsRecorder) -> None:
        """It has its own error, and no warning besides."""
        for wrong in (
            lambda: redis_lock("job", ttl=0),
            lambda: Semaphore("job", limit=0),
            lambda: Redlock("job", using=[]),
        ):
            with pytest.raises(ValueError):  # noqa: PT011
                wrong()
        gc.collect()
        assert not recwarn.list


class TestMetadata:
    def test_a_decorated_function_looks_the_same(self, kind: Kind) -> None:
        """Names, docstring, signature and what inspect says of its kind are those of the body."""
        function = kind.of(lambda: None)
        function.marked = True  # type: ignore[attr-defined]
        work = redis_lock("job")(function)
        assert work.__wrapped__ is function  # type: ignore[attr-defined]
        assert work.marked  # type: ignore[attr-defined]
        for what in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
            assert getattr(work, what) == getattr(function, what)
        assert inspect.signature(work) == inspect.signature(function)
        for predicate in (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        ):
            assert predicate(work) == predicate(function)

    def test_the_label_is_where_the_function_is_defined(self, kind: Kind) -> None:
        """Whoever looks at the lock sees the function, and not the place in our decorator."""
        function = kind.of(lambda: current_lease().label)
        label = kind.finish(redis_lock("job")(function)())
        line = function.__code__.co_firstlineno
        assert label == f"tests/test_decorators.py:{line} in {function.__qualname__}"

    def test_a_label_of_ones_own(self, form: Any) -> None:
        """`label=` replaces the place in the code."""
        lock = redis_lock("job", label="nightly import")
        assert form.run(lock, lambda: current_lease().label) == "nightly import"

    def test_the_label_of_a_block_is_its_line(self) -> None:
        """A block is labelled with the line at which it takes the lock."""
        with redis_lock("job") as lease:
            assert lease.label.startswith("tests/test_decorators.py:")
            assert lease.label.endswith(" in TestMetadata.test_the_label_of_a_block_is_its_line")


class TestOnConflict:
    def test_skip(self, kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
        """`skip` comes to None or to no items, and is logged with the holder at INFO."""
        caplog.set_level(logging.INFO, "django_redislock")
        ran = threading.Event()
        with held_elsewhere() as lease:
            assert kind.run(redis_lock("job", wait=0, on_conflict="skip"), ran.set) is None
        assert not ran.is_set()
        (record,) = (record for record in caplog.records if hasattr(record, "lock_outcome"))
        assert (record.name, record.levelno) == ("django_redislock", logging.INFO)
        assert record.getMessage().startswith(f"'job' not acquired: it is held by {lease.owner}")

    def test_a_function_of_the_conflict(self, kind: Kind) -> None:
        """What a function of the conflict returns is the result of the call."""
        seen = []

        def instead(conflict: LockNotAcquired) -> Any:
            seen.append(conflict)
            return kind.instead("busy")

        lock = redis_lock("job", wait=0, on_conflict=instead)
        with held_elsewhere():
            assert kind.run(lock, lambda: "worked") == "busy"
            nothing = redis_lock("job", wait=0, on_conflict=lambda _conflict: None)
            assert kind.run(nothing, lambda: "worked") is None, "skipped"
        (conflict,) = seen
        assert isinstance(conflict, LockNotAcquired)
        assert conflict.name == "job"
        assert kind.run(lock, lambda: "worked") == "worked"

    def test_a_plain_function_for_a_coroutine(self) -> None:
        """A coroutine function takes a plain `on_conflict`, too."""
        lock = redis_lock("job", wait=0, on_conflict=lambda _conflict: "busy")
        with held_elsewhere():
            assert asyncio.run(lock(coroutine(lambda: "worked"))()) == "busy"

    def test_it_may_raise(self, kind: Kind) -> None:
        """A function of the conflict may raise an error of the project's own."""

        def instead(conflict: LockNotAcquired) -> Any:
            raise ZeroDivisionError(conflict.name)

        with held_elsewhere(), pytest.raises(ZeroDivisionError, match="job"):
            kind.run(redis_lock("job", wait=0, on_conflict=instead), lambda: None)

    def test_a_conflict_of_the_body_is_its_own(self, kind: Kind) -> None:
        """`on_conflict` is for the function's own lock: one that its body misses is an error."""

        with held_elsewhere("other"), pytest.raises(LockNotAcquired) as other:
            redis_lock("other", wait=0).__enter__()

        def body() -> None:
            raise other.value

        with pytest.raises(LockNotAcquired) as caught:
            kind.run(redis_lock("job", wait=0, on_conflict="skip"), body)
        assert caught.value is other.value


class TestCurrentLease:
    def test_only_during_a_step(self) -> None:
        """While a generator is suspended its caller runs, under its own lease or none."""

        @redis_lock("job")
        def names() -> Iterator[str]:
            for _ in range(2):
                yield current_lease().name

        seen = []
        with redis_lock("caller"):
            for name in names():
                seen += name, current_lease().name
        assert nothing_is_held()
        assert seen == ["job", "caller"] * 2

    async def test_only_during_an_async_step(self) -> None:
        """So it is for an async generator."""

        @redis_lock("job")
        async def names() -> AsyncIterator[str]:
            for _ in range(2):
                yield current_lease().name

        seen = []
        async with redis_lock("caller"):
            async for name in names():
                seen += name, current_lease().name
        assert nothing_is_held()
        assert seen == ["job", "caller"] * 2

    def test_innermost(self) -> None:
        """Nested locks: the innermost is the current one, and the outer one is it again after."""
        with redis_lock("outer") as outer:
            with redis_lock("inner") as inner:
                assert current_lease() is inner
            assert current_lease() is outer
        assert nothing_is_held()

    async def test_of_each_task(self) -> None:
        """Each task has its own, however they interleave."""

        @redis_lock("job:{number}")
        async def work(number: int) -> None:
            for _ in range(3):
                await asyncio.sleep(0)
                assert current_lease().name == f"job:{number}"

        await asyncio.gather(*map(work, range(5)))

    @pytest.mark.parametrize("how", ["thread", "context"])
    def test_a_generator_that_travels(
        self, how: str, redis: Redis, elsewhere: Callable[[Callable[[], Any]], Any]
    ) -> None:
        """Resumed and closed in another thread or context, it sees its lease and leaves none."""
        seen = []

        @redis_lock("job")
        def names() -> Iterator[str]:
            try:
                while True:
                    yield current_lease().name
            finally:
                seen.append(current_lease().name)

        call = elsewhere if how == "thread" else contextvars.copy_context().run
        items = names()
        assert next(items) == "job"
        assert call(lambda: (next(items), nothing_is_held())) == ("job", True)
        assert nothing_is_held()
        assert call(lambda: (items.close(), nothing_is_held())) == (None, True)
        assert seen == ["job"]
        assert not is_held(redis)

    async def test_an_async_generator_that_travels(self, redis: Redis) -> None:
        """Resumed and closed by other tasks, it sees its lease and leaves none."""
        seen = []

        @redis_lock("job")
        async def names() -> AsyncIterator[str]:
            try:
                while True:
                    yield current_lease().name
            finally:
                seen.append(current_lease().name)

        async def step(items: Any) -> tuple[str, bool]:
            return await anext(items), nothing_is_held()

        async def close(items: Any) -> bool:
            await items.aclose()
            return nothing_is_held()

        items = names()
        assert await asyncio.create_task(step(items)) == ("job", True)
        assert await asyncio.create_task(step(items)) == ("job", True)
        assert await asyncio.create_task(close(items))
        assert seen == ["job"]
        assert not is_held(redis)

    def test_a_block_inside_of_a_generator(self) -> None:
        """A generator that was suspended in a block of its own finds that block's lease again."""

        @redis_lock("job")
        def names() -> Iterator[str]:
            with redis_lock("inner"):
                yield current_lease().name
                yield current_lease().name
            yield current_lease().name

        assert list(names()) == ["inner", "inner", "job"]


# A generator that does everything that a generator can do, in both flavours.


def echo(log: list[str]) -> Iterator[Any]:
    received: Any = "begun"
    try:
        while received != "return":
            if received == "raise":
                raise ZeroDivisionError
            try:
                received = yield received
            except KeyError as error:
                received = f"caught {error}"
        return "returned"
    finally:
        log.append("cleaned up")


async def aecho(log: list[str]) -> AsyncIterator[Any]:
    received: Any = "begun"
    try:
        while received != "return":
            if received == "raise":
                raise ZeroDivisionError
            try:
                received = yield received
            except KeyError as error:
                received = f"caught {error}"
    finally:
        log.append("cleaned up")


STEPS: list[tuple[str, Any]] = [
    ("send", None),
    ("send", "value"),
    ("send", "return"),
    ("send", "raise"),
    ("throw", KeyError("caught inside")),
    ("throw", LookupError("not caught")),
    ("throw", GeneratorExit()),
    ("close", None),
]


async def step(items: Any, method: str, *args: Any) -> Any:
    """Take a step of a generator, whichever flavour it has."""
    if hasattr(items, method):
        return getattr(items, method)(*args)
    return await getattr(items, f"a{method}")(*args)


def stubborn() -> Iterator[int]:
    try:
        yield 1
    finally:
        yield 2


async def astubborn() -> AsyncIterator[int]:
    try:
        yield 1
    finally:
        yield 2


class TestGeneratorProtocol:
    @pytest.mark.parametrize(("echo", "drive"), [(echo, run), (aecho, asyncio.run)])
    def test_every_sequence_of_steps(self, redis: Redis, echo: Any, drive: Any) -> None:
        """Any three of send, throw and close have the same outcome as without a lock.

        The lock is held from the first step to the end of the generator.
        """

        async def outcome(items: Any, method: str, value: Any) -> Any:
            try:
                return await step(items, method, *[value][: method != "close"])
            except StopIteration as stop:
                return "stopped", stop.value
            except BaseException as error:
                return type(error), str(error), error is value

        async def try_all() -> None:
            locked = redis_lock("job")(echo)
            for steps in itertools.product(STEPS, repeat=3):
                log: list[str] = []
                locked_log: list[str] = []
                expected, items = echo(log), locked(locked_log)
                begun = False
                for method, value in steps:
                    seen = await outcome(items, method, value)
                    assert seen == await outcome(expected, method, value), steps
                    assert locked_log == log
                    begun |= (method, value) == ("send", None)
                    goes_on = expected.ag_frame if echo is aecho else expected.gi_frame
                    assert is_held(redis) == (begun and goes_on is not None), steps
                await step(items, "close")

        drive(try_all())

    def test_not_begun_is_not_locked(self, redis: Redis) -> None:
        """Calling a generator function locks nothing: the first step does."""
        items: Any = redis_lock("job")(echo)([])
        aitems: Any = redis_lock("job")(aecho)([])
        assert not is_held(redis)
        items.close()
        asyncio.run(aitems.aclose())
        assert not redis.keys("redislock*")

    @pytest.mark.parametrize(("function", "drive"), [(stubborn, run), (astubborn, asyncio.run)])
    def test_one_that_does_not_stop(self, redis: Redis, function: Any, drive: Any) -> None:
        """A generator that yields where it should end gets Python's own error, and is unlocked."""

        async def close() -> None:
            items = redis_lock("job")(function)()
            await step(items, "send", None)
            with pytest.raises(RuntimeError, match="generator ignored GeneratorExit"):
                await step(items, "close")
            assert not is_held(redis)

        drive(close())

    def test_abandoned(self, redis: Redis) -> None:
        """A generator that nobody refers to any more is closed by Python, and so is unlocked."""
        items = redis_lock("job")(echo)([])
        next(items)
        assert is_held(redis)
        del items
        gc.collect()
        assert not is_held(redis)

    async def test_an_abandoned_async_one(self) -> None:
        """An async generator that a loop was left early of is closed by the event loop."""
        async for _item in redis_lock("job")(aecho)([]):
            break
        # Another task, since for this one the lock may still be its own.
        assert await asyncio.create_task(redis_lock("job").aacquire(wait=PATIENCE))

    @pytest.mark.parametrize("debug", [False, True])
    def test_an_async_one_that_outlives_its_loop(self, debug: bool) -> None:
        """When the event loop ends, it closes the generator, and so the lock is released."""
        # In a process of its own: what Python has to say at its end counts, too.
        program = f"""
            import asyncio, django
            django.setup()
            from django_redislock import redis_lock
            from tests.test_decorators import aecho

            async def main():
                # Else a busy machine is told of, on stderr.
                asyncio.get_running_loop().slow_callback_duration = {PATIENCE}
                items = redis_lock("job")(aecho)([])
                await anext(items)
                return items

            items = asyncio.run(main(), debug={debug})
            print(redis_lock("job", wait=5).acquire() is not None)
        """
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (ended.stdout, ended.stderr) == ("True\n", "")

    def test_the_same_task_and_thread(self) -> None:
        """While a generator is suspended its thread holds the lock, and is told when it asks."""
        work = redis_lock("job")(echo)
        items: Any = work([])
        next(items)
        with pytest.raises(LockReentered):
            next(work([]))
        items.close()


class TestReentry:
    """Each test says who asks while the lock is held."""

    def test_the_same_thread(self) -> None:
        """A thread that would wait for itself is told at once, where it took the lock."""
        with redis_lock("job", label="here") as lease:
            for call in (redis_lock("job").acquire, redis_lock("job")(lambda: None)):
                with pytest.raises(LockReentered, match=r"taken at here.*reentrant=True"):
                    call()
            assert lease.state == LeaseState.HELD

    async def test_the_same_task(self) -> None:
        """A task that would wait for itself is told at once."""
        async with redis_lock("job"):
            for call in (redis_lock("job").aacquire, redis_lock("job")(coroutine(id))):
                with pytest.raises(LockReentered):
                    await call()

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_another(self, api: Api, reentrant: bool) -> None:
        """For another thread, or another task of the same loop, the lock is busy."""
        lock = redis_lock("job", wait=0, reentrant=reentrant)

        def ask(_: Lease) -> None:
            assert api.start(lambda: api.acquire(lock)).result(PATIENCE) is None
            with pytest.raises(LockNotAcquired):
                api.start(lambda: api.call(lock(api.function(id)), 7)).result(PATIENCE)

        api.enter(lock, ask)

    def test_recursion(self, redis: Redis) -> None:
        """A reentrant function may call itself: one lease, released by the outermost call."""

        @redis_lock("job", reentrant=True)
        def factorial(number: int) -> int:
            tokens.add(current_lease().token)
            result = 1 if number < 2 else number * factorial(number - 1)
            assert is_held(redis)
            return result

        tokens: set[str] = set()
        assert factorial(5) == 120
        assert len(tokens) == 1
        assert not is_held(redis)

    def test_recursion_of_a_generator(self, redis: Redis) -> None:
        """A reentrant generator may run through itself."""

        @redis_lock("job", reentrant=True)
        def countdown(number: int) -> Iterator[int]:
            yield number
            if number:
                yield from countdown(number - 1)
            assert is_held(redis)

        assert list(countdown(3)) == [3, 2, 1, 0]
        assert not is_held(redis)

    def test_reentrant_is_said_by_the_inner_one(self) -> None:
        """The inner lock has to agree to be part of the outer one, and the outer one needn't."""
        with redis_lock("job", reentrant=True), pytest.raises(LockReentered):
            redis_lock("job").acquire()
        with redis_lock("job"), redis_lock("job", reentrant=True):
            pass

    def test_a_failing_inner_block_keeps_the_outer_one(self, redis: Redis) -> None:
        """An exception that is caught between two blocks leaves the outer one held."""
        lock = redis_lock("job", reentrant=True)
        with lock:
            with pytest.raises(ZeroDivisionError), lock:
                raise ZeroDivisionError
            assert is_held(redis)
        assert not is_held(redis)

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_a_lost_lease_is_no_re_entry(self, redis: Redis, reentrant: bool) -> None:
        """Who has lost the lock, and knows it, may ask for it again like everybody else."""
        lock = redis_lock("job", wait=0, reentrant=reentrant)
        first = lock.acquire()
        redis.delete(KEY)
        with pytest.raises(LeaseLost):
            first.extend()
        with lock as second:
            assert second is not first

    def test_on_lost_of_the_inner_block(self, redis: Redis) -> None:
        """An inner reentrant lock's own `on_lost` is called as well."""
        told = threading.Event()
        inner = redis_lock("job", reentrant=True, on_lost=lambda _lease: told.set())
        lease = redis_lock("job").acquire()
        with inner:
            redis.delete(KEY)
            with pytest.raises(LeaseLost):
                lease.extend()
            assert told.wait(1)

    def test_on_lost_of_an_inner_block_that_was_left(self, redis: Redis) -> None:
        """An inner block that is over is not told of a loss that comes later."""
        told: list[Lease] = []
        outer_told = threading.Event()
        inner = redis_lock("job", reentrant=True, on_lost=told.append)
        lease = redis_lock("job").acquire()
        for _ in range(3):
            with inner:
                pass
        # Callbacks are begun in their order, so this one is begun after all others.
        lease.on_lost(lambda _lease: outer_told.set())
        redis.delete(KEY)
        with pytest.raises(LeaseLost):
            lease.extend()
        assert outer_told.wait(PATIENCE)
        assert not told

    @pytest.mark.parametrize("cancel_on_lost", [False, True])
    async def test_cancel_on_lost_of_the_outer_block(
        self, redis: Redis, cancel_on_lost: bool
    ) -> None:
        """An inner block that was left leaves the outer one its cancellation."""
        inner = redis_lock("job", reentrant=True, cancel_on_lost=cancel_on_lost)
        with pytest.raises(LeaseLost):
            async with redis_lock("job", cancel_on_lost=True) as lease:
                async with inner:
                    pass
                redis.delete(KEY)
                with pytest.raises(LeaseLost):
                    await lease.aextend()
                await asyncio.sleep(1)  # which the cancellation cuts short
                pytest.fail("was not cancelled")

    async def test_cancel_on_lost_of_nested_blocks(self, redis: Redis) -> None:
        """A loss in the inner block cancels the task once, and comes out as LeaseLost."""
        lock = redis_lock("job", reentrant=True, cancel_on_lost=True)
        with pytest.raises(LeaseLost):
            async with lock, lock as lease:
                redis.delete(KEY)
                with pytest.raises(LeaseLost):
                    await lease.aextend()
                await asyncio.sleep(PATIENCE)

    async def test_cancel_on_lost_below_asynccontextmanager(self, redis: Redis) -> None:
        """The block between its two steps is cancelled, and raises LeaseLost."""

        @asynccontextmanager
        @redis_lock("job", cancel_on_lost=True)
        async def locked() -> AsyncIterator[Lease]:
            yield current_lease()

        with pytest.raises(LeaseLost):
            async with locked() as lease:
                redis.delete(KEY)
                with pytest.raises(LeaseLost):
                    await lease.aextend()
                await asyncio.sleep(PATIENCE)
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    async def test_cancel_on_lost_of_the_task_that_makes_a_step(self, redis: Redis) -> None:
        """Another one may have made the first step."""

        @redis_lock("job", cancel_on_lost=True)
        async def items() -> AsyncIterator[Lease]:
            yield current_lease()
            await asyncio.sleep(PATIENCE)

        made = items()
        lease = await anext(made)
        step = asyncio.create_task(anext(made, None))
        await asyncio.sleep(0)
        redis.delete(KEY)
        with pytest.raises(LeaseLost):
            await lease.aextend()
        await asyncio.wait([step])
        with pytest.raises(LeaseLost):
            step.result()


class TestManyAtOnce:
    async def test_tasks_in_blocks_of_one_lock_object(self, redis: Redis) -> None:
        """Tasks that share a lock object leave the lease that each of them entered."""
        lock = redis_lock("job", wait=PATIENCE)
        tokens = set()

        async def work() -> None:
            async with lock as lease:
                await asyncio.sleep(0)
                assert current_lease() is lease
                assert lease.state == LeaseState.HELD
                tokens.add(lease.token)
            assert lease.state == LeaseState.RELEASED

        await asyncio.gather(*(work() for _ in range(20)))
        assert len(tokens) == 20

    def test_who_lost_the_lock_leaves_its_own_lease(self, api: Api, redis: Redis) -> None:
        """With one lock object for all, a late loser doesn't release the lease of the next one."""
        lock = redis_lock("job", wait=0)
        entered, leave = threading.Event(), threading.Event()

        def lose(_: Lease) -> None:
            entered.set()
            assert leave.wait(PATIENCE)

        def win(lease: Lease) -> None:
            leave.set()
            with pytest.raises(LeaseLost):
                losing.result(PATIENCE)
            api.extend(lease)

        losing = api.start(lambda: api.enter(lock, lose))
        assert entered.wait(PATIENCE)
        redis.delete(KEY)
        api.enter(lock, win)

    def test_a_generator_for_each_thread(self, threads: ThreadPoolExecutor) -> None:
        """A locked generator function may be used by several threads at once."""
        work = redis_lock("job:{number}")(lambda number: number)

        @redis_lock("items:{number}")
        def items(number: int) -> Iterator[tuple[int, str]]:
            for _ in range(3):
                yield work(number), current_lease().name

        for number, found in enumerate(threads.map(lambda number: [*items(number)], range(8))):
            assert found == [(number, f"items:{number}")] * 3


class TestWith:
    def test_an_acquired_lease(self, redis: Redis) -> None:
        """`with lock.acquire(wait=0) as lease` is the same block, for those who try only."""
        lease = redis_lock("job").acquire(wait=0)
        assert nothing_is_held()
        with lease as entered:
            assert entered is lease is current_lease()
        assert not is_held(redis)
        with held_elsewhere():
            assert redis_lock("job").acquire(wait=0) is None

    async def test_an_asynchronously_acquired_lease(self, redis: Redis) -> None:
        """`async with await lock.aacquire(wait=0)` is the same block for coroutines."""
        async with await redis_lock("job").aacquire(wait=0) as lease:  # type: ignore[union-attr]
            assert current_lease() is lease
            assert is_held(redis)
            task = asyncio.create_task(redis_lock("job").aacquire(wait=0))
            assert await task is None
        assert nothing_is_held()
        assert not is_held(redis)

    def test_left_by_another_thread(
        self, redis: Redis, elsewhere: Callable[[Callable[[], Any]], Any]
    ) -> None:
        """A block in a generator may be left by another thread than entered it."""

        def items() -> Iterator[None]:
            with redis_lock("job"):
                yield

        found: Any = items()
        elsewhere(lambda: next(found))
        assert is_held(redis)
        found.close()
        assert not is_held(redis)

    @pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_whatever_ends_the_block(self, redis: Redis, failure: type[BaseException]) -> None:
        """The lock is released however the block ends."""
        with pytest.raises(failure), redis_lock("job"):
            raise failure
        assert not is_held(redis)


class TestInAnEventLoop:
    @pytest.mark.parametrize(
        "use",
        [
            pytest.param(lambda lock: lock.__enter__(), id="with"),
            pytest.param(lambda lock: lock.acquire(), id="acquire"),
            pytest.param(lambda lock: lock.acquire(wait=0), id="acquire at once"),
            pytest.param(lambda lock: lock(lambda: None)(), id="function"),
            pytest.param(lambda lock: next(lock(echo)([])), id="generator"),
        ],
    )
    def test_blocking_is_refused(self, use: Body, redis: Redis) -> None:
        """Waiting would stop the loop, and with it perhaps the holder: the twin is named."""

        async def main() -> None:
            use(redis_lock("job"))

        with pytest.raises(SynchronousOnlyOperation, match=r"async with redis_lock.*aacquire"):
            asyncio.run(main())
        assert not redis.keys("redislock*")

    def test_unless_django_is_told_otherwise(
        self, monkeypatch: pytest.MonkeyPatch, redis: Redis
    ) -> None:
        """Django's own switch for notebooks, DJANGO_ALLOW_ASYNC_UNSAFE, counts here too."""
        monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")

        async def main() -> bool:
            with redis_lock("job"):
                return is_held(redis)

        assert asyncio.run(main())


@dataclass(frozen=True)
class Loss:
    """A way to lose a lease, and what is said of it."""

    name: str
    happen: Callable[[Redis], Any]
    words: str
    left: bytes | None
    """What has to be at the key when the loser is gone."""


def become_a_hash(redis: Redis) -> None:
    redis.delete(KEY)
    redis.hset(KEY, "not", "a lock")


LOSSES = [
    Loss("deleted", lambda redis: redis.delete(KEY), "or its key was deleted", None),
    Loss(
        "overwritten",
        lambda redis: redis.set(KEY, "a stranger's token", px=60_000),
        "another program holds the lock now",
        b"a stranger's token",
    ),
    Loss(
        "cleared",
        lambda redis: redis_lock("job").clear(by="anna", reason="stuck | since noon"),
        r"cleared by anna \(stuck \| since noon\)",
        None,
    ),
    Loss("another type", become_a_hash, "holds the lock now", b"hash"),
]


def at_the_key(redis: Redis) -> bytes | None:
    """The value, or the type where that is no string."""
    kind = redis.type(KEY)
    return redis.get(KEY) if kind in (b"string", b"none") else kind


class TestLosing:
    @pytest.fixture(params=LOSSES, ids=lambda loss: loss.name)
    def loss(self, request: pytest.FixtureRequest) -> Loss:
        """Each way to lose a lease."""
        return request.param

    def test_a_good_body_raises(self, form: Any, redis: Redis, loss: Loss) -> None:
        """Who worked without the lock is told so at the end, and why; nobody else is harmed."""

        def body() -> Lease:
            leases.append(current_lease())
            loss.happen(redis)
            return leases[0]

        leases: list[Lease] = []
        with pytest.raises(LeaseLost, match=loss.words) as caught:
            form.run(redis_lock("job"), body)
        assert caught.value.name == "job"
        assert leases[0].state == LeaseState.LOST
        assert at_the_key(redis) == loss.left
        assert nothing_is_held()

    def test_the_exception_of_the_body_comes_out(
        self, form: Any, redis: Redis, loss: Loss
    ) -> None:
        """The body's own exception is never hidden: the loss is a note on it."""
        failure = ValueError("of the body")

        def body() -> None:
            loss.happen(redis)
            raise failure

        with pytest.raises(ValueError, match="of the body") as caught:
            form.run(redis_lock("job"), body)
        assert caught.value is failure
        (note,) = failure.__notes__
        assert note.startswith("The lease on 'job' is lost: ")
        assert caught.match(loss.words)  # which looks at the notes, too

    def test_check_in_the_body(self, form: Any, redis: Redis) -> None:
        """What `check()` raises in the body is what comes out, once and without a note."""
        raised = []

        def body() -> None:
            redis.delete(KEY)
            with pytest.raises(LeaseLost):
                current_lease().extend()
            try:
                current_lease().check()
            except LeaseLost as lost:
                raised.append(lost)
                raise

        with pytest.raises(LeaseLost) as caught:
            form.run(redis_lock("job"), body)
        assert [caught.value] == raised
        assert not hasattr(caught.value, "__notes__")

    def test_between_two_steps_of_a_generator(self, redis: Redis) -> None:
        """A generator whose lock is lost while it is suspended raises at its end."""

        @redis_lock("job")
        def items() -> Iterator[int]:
            yield 1
            yield 2

        found = items()
        assert next(found) == 1
        redis.delete(KEY)
        assert next(found) == 2
        with pytest.raises(LeaseLost):
            next(found)

    def test_closing_a_generator_that_lost(self, redis: Redis) -> None:
        """Closing a generator early stays silent, lost or not: nobody awaits its result."""

        @redis_lock("job")
        def items() -> Iterator[int]:
            yield 1

        found: Any = items()
        next(found)
        redis.delete(KEY)
        found.close()

    def test_an_inner_block_leaves_the_news_to_the_outer_one(self, redis: Redis) -> None:
        """With one lease for two blocks, the exit that would release it is the one that raises."""
        lock = redis_lock("job", reentrant=True)
        outer = lock.acquire()
        with lock:
            redis.delete(KEY)
        with pytest.raises(LeaseLost):
            outer.release()


async def test_decorated_coroutines_are_cancelled_cleanly(redis: Redis) -> None:
    """A cancelled call releases its lock, and the cancellation goes on."""
    entered = asyncio.Event()

    @redis_lock("job")
    async def work() -> None:
        entered.set()
        await asyncio.Event().wait()

    call: Coroutine[Any, Any, None] = work()
    task = asyncio.create_task(call)
    await asyncio.wait_for(entered.wait(), PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_held(redis)
