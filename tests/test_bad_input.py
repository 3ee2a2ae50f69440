"""What is wrong gets an error at once that says what to write, and locks nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.core import signing
from django.core.exceptions import ImproperlyConfigured
from redis import Redis

import django_redislock
from django_redislock import (
    Lease,
    LeaseLost,
    LockError,
    LockNotAcquired,
    MultiLock,
    Semaphore,
    current_lease,
    redis_lock,
)
from django_redislock.lease.export import ADDED, SALT
from django_redislock.lease.lifetime import LeaseState
from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.server import server_of
from tests.processes import ROOT
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"
OURS = re.compile(rb"[0-9a-f]{32}\|\d+\|")
"""What the value of a held lock begins with."""

Use = Callable[..., Any]


# Each of these uses a lock, and leaves none held.


def acquire(lock: redis_lock, **arguments: Any) -> Any:
    lease = lock.acquire(**arguments)
    if lease:
        lease.release()
    return lease


def aacquire(lock: redis_lock, **arguments: Any) -> Any:
    async def use() -> Lease | None:
        lease = await lock.aacquire(**arguments)
        if lease:
            await lease.arelease()
        return lease

    return asyncio.run(use())


def enter(lock: redis_lock) -> Any:
    with lock as lease:
        return lease


def aenter(lock: redis_lock) -> Any:
    async def block() -> Lease:
        async with lock as lease:
            return lease

    return asyncio.run(block())


def call(lock: redis_lock) -> Any:
    return lock(work)()


def acall(lock: redis_lock) -> Any:
    return asyncio.run(lock(awork)())


def call_work_on(lock: redis_lock, value: str) -> Any:
    return lock(work_on)(value)


def acall_work_on(lock: redis_lock, value: str) -> Any:
    return asyncio.run(lock(awork_on)(value))


def work() -> None: ...
async def awork() -> None: ...
def work_on(value: str) -> None: ...
async def awork_on(value: str) -> None: ...


BLOCKS = [enter, aenter, acquire, aacquire]
CALLS = [call, acall]


@pytest.fixture(params=BLOCKS, ids=lambda use: use.__name__)
def block(request: pytest.FixtureRequest) -> Use:
    """Each way to use a lock without decorating a function."""
    return request.param


@pytest.fixture(params=[*BLOCKS, *CALLS], ids=lambda use: use.__name__)
def use(request: pytest.FixtureRequest) -> Use:
    """Each way to use a lock."""
    return request.param


@pytest.fixture(autouse=True)
def _nothing_is_locked(redis: Redis, _no_locks_left: None) -> Iterator[None]:
    """Whatever is refused, no lease of ours is left on the server."""
    yield
    for key in redis.keys("redislock:{*"):
        if redis.type(key) == b"string":
            assert not OURS.match(redis.get(key) or b"")  # but perhaps a stranger's


def names_elsewhere() -> Iterator[tuple[str, str]]:
    """The public names that a module below the package has, by the pages of the reference."""
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        text = page.read_text("utf-8")
        if title := re.match(r"# `(django_redislock\.(?!contrib)\w+)`", text):
            for name in re.findall(r"^- `(\w+)`$", text, re.MULTILINE):
                if name != "periodic":  # the module has this name, and is imported
                    yield title[1], name


class TestImports:
    """Names of the package are found, or the error says which module has them."""

    @pytest.mark.parametrize(("module", "name"), list(names_elsewhere()))
    def test_from_the_wrong_module(self, module: str, name: str) -> None:
        """The error says the line to write, and that line works."""
        with pytest.raises(ImportError, match=rf"'{name}' is in {module}: write") as caught:
            exec(f"from django_redislock import {name}")
        exec(str(caught.value).partition(": write ")[2], names := {})
        assert name in names

    def test_of_a_name_that_nothing_has(self) -> None:
        """Python says so, and programs that only look get no error."""
        with pytest.raises(ImportError, match="cannot import name 'redislok'"):
            exec("from django_redislock import redislok")
        assert not hasattr(django_redislock, "redislok")

    @pytest.mark.parametrize("use", ["periodic(every=60)", "periodic(print)"])
    def test_a_module_as_a_decorator(self, use: str) -> None:
        """The module has the name of the decorator in it."""
        with pytest.raises(TypeError, match=r"a module .*write from django_redislock\.periodic "):
            exec(f"from django_redislock import periodic; {use}")


class TestNames:
    WRONG = [
        pytest.param("", ValueError, "name is empty; write what is to be locked", id="empty"),
        pytest.param("x" * 513, ValueError, "513 characters, and 512 .* a digest", id="too long"),
        pytest.param("a\nb", ValueError, "can't be printed", id="line feed"),
        pytest.param("a\0b", ValueError, "can't be printed", id="NUL"),
        pytest.param("a\ud800b", ValueError, "can't be printed", id="lone surrogate"),
        pytest.param("a\x7fb", ValueError, "can't be printed", id="DEL"),
        pytest.param("a\x85b", ValueError, "can't be printed", id="next line"),
        pytest.param("a\u2029b", ValueError, "can't be printed", id="end of a paragraph"),
        pytest.param("a\u202eb", ValueError, "turn text round", id="right to left"),
        pytest.param("a\u2069b", ValueError, "turn text round", id="end of an isolate"),
        pytest.param(f"job:{object()}", ValueError, r"address .* such as {self\.pk}", id="object"),
        pytest.param(f"job:{len.__call__}", ValueError, "the address of an object", id="method"),
        pytest.param(f"job:{enter}", ValueError, "the address of an object", id="function"),
        *(
            pytest.param(
                name, TypeError, "name must be a str such as 'invoice:42', not", id=repr(name)
            )
            for name in (42, b"job", ("job",), 4.2, True)
        ),
    ]
    ODD = [
        pytest.param("\u0645\u06cc\u200c\u0634\u0648\u062f", id="Persian, with a non-joiner"),
        pytest.param("\u0915\u094d\u200d\u0937", id="Hindi, with a joiner"),
        pytest.param("\U0001f468\u200d\U0001f469\u200d\U0001f467", id="emoji of a family"),
        pytest.param("1\u202f000\xa0\u20ac", id="French number"),
        pytest.param("\u6771\u4eac\u3000\u672c\u5e97", id="ideographic space"),
        pytest.param("Waren\xadlager", id="soft hyphen"),
        pytest.param("\u200f\u05d0", id="right-to-left mark"),
        pytest.param("\U0001fae9 \U0001fadc", id="emoji that Python does not know yet"),
    ]

    @pytest.mark.parametrize(("name", "error", "words"), WRONG)
    def test_wrong_names(self, use: Use, name: Any, error: type, words: str) -> None:
        """A name is a str: one line of bounded length, and the same text in each process."""
        with pytest.raises(error, match=words):
            use(redis_lock(name))

    @pytest.mark.parametrize("name", ODD)
    def test_names_that_look_odd_but_are_right(self, use: Use, name: str) -> None:
        """People write names in all languages."""
        use(redis_lock(name))

    @pytest.mark.parametrize("name", [None, str.upper], ids=["None", "function"])
    def test_a_block_without_a_name(self, block: Use, name: Any) -> None:
        """Only a decorated function has a path or arguments to be named after."""
        with pytest.raises(TypeError, match=r"decorating functions; elsewhere write redis_lock\("):
            block(redis_lock(name))

    @pytest.mark.parametrize("name", ["invoice:{pk}", "invoice:{", "invoice:}"])
    def test_a_forgotten_f(self, block: Use, name: str) -> None:
        """Braces in a block's name are a forgotten f, which would lock one name for all."""
        with pytest.raises(ValueError, match=r"brace.*are for decorators.*f-string"):
            block(redis_lock(name))

    @pytest.mark.parametrize(
        ("value", "error", "words"),
        [
            ("", ValueError, "name is empty"),
            ("x" * 513, ValueError, "513 characters"),
            ("a\tb", ValueError, "can't be printed"),
            ("a{b", ValueError, "contains a brace"),
            (object(), ValueError, "the address of an object"),
        ],
        ids=["empty", "too long", "control character", "brace", "address"],
    )
    @pytest.mark.parametrize("work_on", [call_work_on, acall_work_on], ids=["sync", "async"])
    def test_names_made_from_arguments(
        self, work_on: Use, value: Any, error: type, words: str, redis: Redis
    ) -> None:
        """What a template makes of the arguments has to be a name, too."""
        with pytest.raises(error, match=words):
            work_on(redis_lock("{value}"), value)
        assert not keys(redis)

    @pytest.mark.parametrize("name", [None, 42, b"job"], ids=repr)
    def test_a_function_that_makes_no_name(self, name: Any) -> None:
        """A function of the arguments has to return a str."""
        with pytest.raises(TypeError, match="name must be a str"):
            redis_lock(lambda: name)(work)()


class TestTemplates:
    """A template that can't work fails when the function is decorated: at import."""

    @pytest.mark.parametrize(
        ("template", "missing"),
        [
            ("invoice:{invoce.pk}", "the argument 'invoce'"),
            ("invoice:{invoice.pk}:{number}", "the argument 'number'"),
            ("invoice:{0}", "the argument '0'"),
            ("invoice:{}", "an argument without a name"),
            ("invoice:{[0]}", "an argument without a name"),
        ],
    )
    def test_an_argument_that_is_not_there(self, template: str, missing: str) -> None:
        """It names what is missing and lists what the function has."""

        def charge(invoice: Any, *, shop: str = "main") -> None: ...

        with pytest.raises(ValueError, match="It has: invoice, shop") as caught:
            redis_lock(template)(charge)
        assert f"The lock name {template!r} needs {missing}, which" in str(caught.value)

    def test_methods(self) -> None:
        """self and cls count; the class around the method doesn't."""
        with pytest.raises(ValueError, match="It has: self, number"):

            class _Shop:
                @redis_lock("shop:{pk}")
                def charge(self, number: int) -> None: ...

    @pytest.mark.parametrize(
        ("template", "function", "words"),
        [
            ("job:{number}", work, r"work\(\).* does not have\. It has: none\."),
            ("job:{value:{width}}", work_on, "'width'.*It has: value"),
            ("job:{value", work_on, re.escape("job:{value")),
            ("job:value}", work_on, re.escape("job:value}")),
            ("job:{{value}}", work_on, "contains a brace"),
        ],
    )
    def test_others(self, template: str, function: Any, words: str) -> None:
        """An argument in a format counts; an escaped brace is a brace, which no name may have."""
        with pytest.raises(ValueError, match=words):
            redis_lock(template)(function)

    @pytest.mark.parametrize(
        ("template", "error"),
        [("job:{value.pk}", AttributeError), ("job:{value[a]}", TypeError)],
    )
    def test_an_argument_that_does_not_fit(self, template: str, error: type) -> None:
        """The exception of the call is what it was, and says which template it comes from."""
        with pytest.raises(error) as caught:
            redis_lock(template)(work_on)(7)
        assert any(f"the lock name {template!r} of work_on" in n for n in caught.value.__notes__)


NAN, INF, HUGE = math.nan, math.inf, 10**400


BOOL = "must be True or False"
RELEASES = "'exit' .*'warn' .* or 'commit'"
OF_OTHERS = ["timeout", "expire", "blocking_timeout", "blocking"]
"""What means different things elsewhere."""

WRONG: list[tuple[str, list[Any], type[Exception], str]] = [
    (
        "ttl",
        ["30", True, None, timedelta(seconds=30), b"30"],
        TypeError,
        "ttl must be a number of seconds, such as 30, not",
    ),
    (
        "ttl",
        [0, -1, 0.099, NAN, INF, -INF, 1e9, HUGE],
        ValueError,
        r"between 0\.1 and 31536000 seconds.*30 is a good",
    ),
    ("wait", ["5", True, False, timedelta(seconds=5)], TypeError, r"wait must be .*None"),
    ("wait", [-1, -0.001, NAN, -INF], ValueError, r"wait must be .*None"),
    *((its, [5], TypeError, rf"^{its}= is refused.*ttl=.*wait=") for its in OF_OTHERS),
    # What other libraries' locks take besides.
    ("auto_renewal", [5], TypeError, r"no argument 'auto_renewal'\. .*Write renew="),
    ("auto_release_time", [5], TypeError, r"no argument 'auto_release_time'\. .*Write ttl="),
    ("sleep", [5], TypeError, r"no argument 'sleep'\. .*waiters are woken"),
    ("thread_local", [5], TypeError, r"no argument 'thread_local'\. .*acquire"),
    ("token", [5], TypeError, r"no argument 'token'\. .*lease.export"),
    ("masters", [5], TypeError, r"no argument 'masters'\. .*Redlock"),
    ("redis", [5], TypeError, r"no argument 'redis'\. .*using="),
    ("tll", [30], TypeError, r"redis_lock\(\) has no argument 'tll'"),
    ("on_conflict", ["ignore", None], ValueError, "'raise', 'skip' or a function"),
    ("unavailable", ["ignore", None, True, ["run"]], ValueError, "'raise' or 'run' or 'skip'"),
    ("release", ["never", True, ["exit"]], ValueError, RELEASES),
    ("renew", ["yes", 1], TypeError, f"renew {BOOL}"),
    ("reentrant", ["yes", None], TypeError, f"reentrant {BOOL}"),
    ("cancel_on_lost", [1], TypeError, f"cancel_on_lost {BOOL}"),
    ("max_hold", [0], ValueError, "max_hold must be between"),
    ("max_hold", ["60"], TypeError, "max_hold must be a number of seconds"),
    ("using", ["", None], TypeError, "using must be an alias of CACHES"),
    ("label", [None, b"here"], TypeError, "label must be a str that says where"),
    ("on_lost", ["stop"], TypeError, "on_lost must be a function of the lease"),
    ("on_lost", [awork], TypeError, "plain function.*cancel_on_lost=True"),
    ("on_lost", [partial(awork)], TypeError, "plain function"),
]
"""For each argument, values that are refused, and the words that say so."""


class TestArguments:
    @pytest.mark.parametrize(
        ("argument", "value", "error", "words"),
        [(its, value, error, words) for its, values, error, words in WRONG for value in values],
        ids=lambda it: type(it).__name__ if callable(it) else repr(it)[:30],
    )
    def test_wrong_values(self, argument: str, value: Any, error: type, words: str) -> None:
        """Each is refused where it is written, with what to write; a wait, and what means
        different things elsewhere, as an argument of `acquire()`, too."""
        with pytest.raises(error, match=words):
            redis_lock("job", **{argument: value})  # type: ignore[misc]
        if argument in ("wait", *OF_OTHERS):
            for use in (acquire, aacquire):
                with pytest.raises(error, match="wait"):
                    use(redis_lock("job"), **{argument: value})

    @pytest.mark.parametrize("ttl", [0, -1, "30", NAN, timedelta(seconds=30)], ids=repr)
    def test_extending_by_a_wrong_ttl(self, ttl: Any, redis: Redis) -> None:
        """`extend()` knows the same ttl, and leaves the lease as it was."""
        with redis_lock("job", ttl=20) as lease:
            with pytest.raises((TypeError, ValueError), match="ttl must be"):
                lease.extend(ttl)
            with pytest.raises((TypeError, ValueError), match="ttl must be"):
                asyncio.run(lease.aextend(ttl))
            assert lease.ttl == 20

    @pytest.mark.parametrize("value", [0, INF, HUGE, None], ids=["0", "inf", "huge", "None"])
    def test_waits_that_look_odd_but_are_right(self, use: Use, value: Any) -> None:
        """0 tries once; None, infinity and what is beyond all floats wait for ever, which is short
        for a free lock."""
        use(redis_lock("job", wait=value))

    @pytest.mark.parametrize(
        "lock", [redis_lock("job"), Semaphore("job", 1), MultiLock(["job"])], ids=repr
    )
    def test_the_methods_of_other_libraries(self, lock: Any) -> None:
        """What their locks can do and our leases can is said, and nothing else is guessed."""
        kind = type(lock).__name__
        for name in ("release", "extend"):
            with pytest.raises(AttributeError, match=rf"no {name}: its lease has.*acquire\(\)"):
                getattr(lock, name)
        for name, words in (
            ("owned", r"lease\.state.*locked\(\)"),
            ("is_held", r"lease\.state"),
            ("reacquire", r"lease\.extend\(\)"),
            ("reset", r"clear\(reason="),
            ("get_owner_id", r"holder\(\)"),
        ):
            with pytest.raises(AttributeError, match=rf"^{kind} has no {name}\. .*{words}"):
                getattr(lock, name)
        with pytest.raises(AttributeError, match="has no attribute 'lockd'"):
            _ = lock.lockd

    def test_a_wrong_callback_added_later(self) -> None:
        """`lease.on_lost()` takes what `on_lost=` takes."""
        with redis_lock("job") as lease:
            with pytest.raises(TypeError, match="on_lost must be a function of the lease"):
                lease.on_lost(None)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="on_lost must be a plain function"):
                lease.on_lost(awork)

    @pytest.mark.parametrize("on_conflict", ["skip", print], ids=["skip", "function"])
    @pytest.mark.parametrize("enter", [enter, aenter], ids=["with", "async with"])
    def test_on_conflict_of_a_block(self, enter: Use, on_conflict: Any) -> None:
        """Python can't skip the body of a block: the error says what to write instead."""
        with pytest.raises(TypeError, match=r"can't be skipped. Write: lease = redis_lock\(…\)"):
            enter(redis_lock("job", on_conflict=on_conflict))

    @pytest.mark.parametrize("use", [enter, acquire, call], ids=lambda use: use.__name__)
    def test_cancel_on_lost_in_a_thread(self, use: Use) -> None:
        """Where there is no task to cancel, the alternatives are named."""
        with pytest.raises(TypeError, match=r"needs an asyncio task.*on_lost= .*lease\.check\(\)"):
            use(redis_lock("job", cancel_on_lost=True))

    def test_clear_without_a_reason(self) -> None:
        """An operator has to say why."""
        with pytest.raises(TypeError, match="reason"):
            redis_lock("job").clear()  # type: ignore[call-arg]


class TestDecorating:
    @pytest.mark.parametrize("arguments", [(), (1,), (1, 2)], ids=repr)
    def test_without_parentheses(self, arguments: Any) -> None:
        """`@redis_lock` alone is noticed at the first call, whatever its arguments."""

        @redis_lock  # type: ignore[arg-type]
        def job(*args: Any) -> None: ...

        with pytest.raises(TypeError, match=r"needs its parentheses: @redis_lock\(\)"):
            job(*arguments)

    @pytest.mark.parametrize("decorator", [redis_lock("job"), redis_lock])
    def test_a_class(self, decorator: Any) -> None:
        """A class is called once and lives long: its methods are meant. That is said at once."""
        with pytest.raises(TypeError, match=r"decorates the methods of .*Job.*, not the class"):

            @decorator
            class _Job: ...

    def test_a_class_that_makes_names(self) -> None:
        """`str` is a function of the argument, too."""
        names: list[str] = []
        redis_lock(str)(lambda value: names.append(current_lease().name))(7)
        assert names == ["7"]

    def test_below_a_property(self) -> None:
        """A property is decorated on its function: below @property, not above."""

        class Job:
            @property
            @redis_lock("job")
            def state(self) -> str:
                return current_lease().name

        assert Job().state == "job"

    @pytest.mark.parametrize(
        "thing", [property(work), "job", None], ids=["a property", "a name", "None"]
    )
    def test_what_is_no_function(self, thing: Any) -> None:
        """What can't be called is not confused with forgotten parentheses."""
        with pytest.raises(TypeError, match=r"(?i)^(?!.*parentheses).*function"):
            redis_lock("job")(thing)

    @pytest.mark.parametrize("name", [None, "job:{number}", str.upper, "", 42], ids=repr)
    def test_repr_never_raises(self, name: Any) -> None:
        """A decorator may be looked at in a debugger and in a traceback."""
        assert "redis_lock" in repr(redis_lock(name))

    def test_on_conflict_of_a_generator_that_gives_no_items(self, redis: Redis) -> None:
        """In place of a generator's items there have to be items."""
        redis.set(KEY, "a stranger's", px=60_000)

        @redis_lock("job", wait=0, on_conflict=lambda _conflict: 42)
        def items() -> Iterator[int]:
            yield 1

        @redis_lock("job", wait=0, on_conflict=lambda _conflict: 42)
        async def aitems() -> AsyncIterator[int]:
            yield 1

        async def collect() -> list[int]:
            return [item async for item in aitems()]

        with pytest.raises(TypeError, match="not iterable"):
            list(items())
        with pytest.raises(TypeError, match="__aiter__"):
            asyncio.run(collect())


class TestLeases:
    def test_current_lease_outside(self) -> None:
        """There has to be one; the error says where."""
        with pytest.raises(LockError, match=r"outside of a `with redis_lock\(…\)` block"):
            current_lease()

    def test_current_lease_in_another_thread(self) -> None:
        """A thread that is started in a block is outside of it."""
        with redis_lock("job"), ThreadPoolExecutor(1) as thread:
            with pytest.raises(LockError):
                thread.submit(current_lease).result(PATIENCE)

    @pytest.mark.parametrize("end", ["released", "lost"])
    def test_entering_a_lease_that_has_ended(self, end: str, redis: Redis) -> None:
        """`with lease:` of a lease that is not held fails before the body, not after or never."""
        lease = redis_lock("job").acquire()
        if end == "released":
            lease.release()
        else:
            redis.delete(KEY)
            with pytest.raises(LeaseLost):
                lease.extend()
        ran = []
        with contextlib.suppress(LeaseLost), lease:
            ran.append(True)
        assert not ran


FORGED = r"^text must be what Lease\.export\(\) returned, .*: its signature is wrong$"
UNREADABLE = r"^text must be what Lease\.export\(\) returned, of the same version of "


class TestRestoring:
    """Only a text that `export` has signed is a lease, and then it is read with care."""

    @pytest.fixture
    def restore(self, redis: Redis) -> Use:
        """Try it in both ways: an error, and nothing is done at the server."""

        def both(text: Any, words: str) -> None:
            before = {key: redis.dump(key) for key in redis.keys("redislock*")}
            with pytest.raises(ValueError, match=words):
                Lease.restore(text)
            with pytest.raises(ValueError, match=words):
                asyncio.run(Lease.arestore(text))
            assert {key: redis.dump(key) for key in redis.keys("redislock*")} == before

        return both

    @pytest.fixture
    def text(self, redis: Redis) -> Iterator[str]:
        lease = redis_lock("job", ttl=20).acquire()
        yield lease.export()
        redis.delete(KEY)

    RUBBISH = [
        "",
        "{}",
        '{"kind": "teapot"}',
        "[" * 100_000,
        "job",
        ":",
        "::::",
        "\ud800:a:b",
        "é",
    ]

    @pytest.mark.parametrize("rubbish", [*RUBBISH, None, 42, b"\xff", float("nan")], ids=repr)
    def test_rubbish(self, rubbish: Any, restore: Use) -> None:
        """The error says what to write."""
        restore(rubbish, FORGED)

    def test_another_name(self, text: str, restore: Use) -> None:
        """A text in which somebody has changed something has no signature."""
        said, stamp, signature = text.split(":")
        fields = json.loads(signing.b64_decode(said.encode()))
        for field in fields:
            changed = json.dumps({**fields, field: "elsewhere"}).encode()
            restore(f"{signing.b64_encode(changed).decode()}:{stamp}:{signature}", FORGED)
        restore(json.dumps(fields), FORGED)
        restore(signing.dumps(fields), FORGED)  # signed by the project for something else
        restore(signing.dumps(fields, key="another", salt=SALT), FORGED)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("name", ""),
            ("name", "job}:index"),
            ("name", "x" * 600),
            ("name", ["job"]),
            ("token", "short"),
            ("token", None),
            ("token", "{" * 32),
            ("label", None),
            ("kind", "teapot"),
            ("kind", []),
            ("kind", "semaphore"),
            ("kind", "redlock"),
            ("limit", 0),
            ("timestamp_key", ""),
            ("fractions", 1),
            ("using", ""),
            ("using", ["default", "b", "c"]),
            ("ttl", float("nan")),
            ("ttl", 1e300),
            ("ttl", 10**400),
            ("ttl", "30"),
            ("renew", None),
            ("replicas", -1),
            ("replicas_timeout", float("inf")),
            ("max_hold", float("nan")),
            ("release", "never"),
            ("release", []),
        ],
    )
    def test_what_export_never_says(self, field: str, value: Any, text: str, restore: Use) -> None:
        """Also where it is signed: by another version, perhaps."""
        said = {**signing.loads(text, salt=SALT), field: value}
        restore(signing.dumps(said, salt=SALT), UNREADABLE)

    def test_half_of_it(self, text: str, restore: Use) -> None:
        """Each part is needed, but for those that earlier versions have not written."""
        said = signing.loads(text, salt=SALT)
        for field in said.keys() - ADDED:
            rest = {key: value for key, value in said.items() if key != field}
            restore(signing.dumps(rest, salt=SALT), UNREADABLE)
        for other in (None, [], "job", 42):
            restore(signing.dumps(other, salt=SALT), UNREADABLE)
        deep = signing.b64_encode(b"[" * 100_000).decode()
        restore(signing.TimestampSigner(salt=SALT).sign(deep), FORGED)

    def test_another_secret(self, text: str, restore: Use, settings: Any) -> None:
        """A process with another SECRET_KEY can't restore it; one that has changed it can."""
        old = settings.SECRET_KEY
        settings.SECRET_KEY = "another"
        restore(text, FORGED)
        settings.SECRET_KEY_FALLBACKS = [old]
        text = Lease.restore(text).export()
        settings.SECRET_KEY_FALLBACKS = []
        lease = Lease.restore(text)
        lease.release()

    def test_another_prefix(self, text: str, restore: Use, settings: Any) -> None:
        """It is told which one each side has: its keys would be others."""
        settings.REDISLOCK = {"PREFIX": "redislock-shop"}
        words = r"REDISLOCK\['PREFIX'\] was 'redislock' there, and here it is 'redislock-shop'"
        restore(text, words)

    def test_another_alias(self, text: str) -> None:
        """It is told as for every lock."""
        said = {**signing.loads(text, salt=SALT), "using": "redsi"}
        with pytest.raises(ImproperlyConfigured, match="no alias 'redsi'"):
            Lease.restore(signing.dumps(said, salt=SALT))

    def test_at_the_end_of_max_hold(self, redis: Redis) -> None:
        """A lease that may be held for hardly any time more can travel, and does not last."""
        lease = redis_lock("job", max_hold=0.2, ttl=20).acquire()
        for _ in range(3):
            lease = Lease.restore(lease.export())
        assert lease.ttl <= 0.2
        eventually(lambda: not redis.exists(KEY))


class TestCaches:
    @pytest.fixture(autouse=True)
    def _caches(self, settings: Any) -> None:
        local = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
        django = {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": settings.CACHES["default"]["LOCATION"],
        }
        settings.CACHES = {**settings.CACHES, "local": local, "django": django}

    SERVED = r"'local'\] is served by django\.core\.cache\.backends\.locmem\.LocMemCache; "

    @pytest.mark.parametrize(
        ("options", "configured", "words"),
        [
            (
                {"using": "redsi"},
                {},
                r"no alias 'redsi'.*'default', 'local', 'django'\..*using= .*REDISLOCK\['USING'\]",
            ),
            ({"using": "local"}, {}, rf"{SERVED}.*'django_redis\.cache\.RedisCache'"),
            ({}, {"USING": "local"}, SERVED),
        ],
        ids=["not there", "another backend", "from the settings"],
    )
    def test_a_wrong_alias(
        self, use: Use, options: Any, configured: Any, words: str, settings: Any
    ) -> None:
        """It names those that are there, and the two places where to write one; or what serves the
        alias, and what has to."""
        settings.REDISLOCK = configured
        with pytest.raises(ImproperlyConfigured, match=words):
            use(redis_lock("job", **options))

    @pytest.mark.parametrize("ask", ["holder", "clear"])
    def test_who_only_asks(self, ask: str) -> None:
        """Asking for the holder, and clearing, say the same."""
        lock = redis_lock("job", using="local")
        arguments = {"reason": "test"} if ask == "clear" else {}
        with pytest.raises(ImproperlyConfigured, match="is served by"):
            getattr(lock, ask)(**arguments)
        with pytest.raises(ImproperlyConfigured, match="is served by"):
            asyncio.run(getattr(lock, f"a{ask}")(**arguments))


FOREIGN: dict[str, Callable[[Redis, str], Any]] = {
    "string": lambda redis, key: redis.set(key, "foreign"),
    "hash": lambda redis, key: redis.hset(key, "a", "1"),
    "list": lambda redis, key: redis.rpush(key, "a"),
    "set": lambda redis, key: redis.sadd(key, "a"),
    "zset": lambda redis, key: redis.zadd(key, {"a": 1}),
    "stream": lambda redis, key: redis.xadd(key, {"a": "1"}),
}


def keys(redis: Redis) -> set[str]:
    return {key.decode() for key in redis.keys("redislock*")}


def foreign(redis: Redis, kind: str, key: str) -> bytes:
    """Put something at a key that we did not write. Returns it, as the server dumps it."""
    FOREIGN[kind](redis, key)
    return redis.dump(key)  # type: ignore[return-value]


class TestForeignKeys:
    """Keys that are named like ours, and aren't."""

    @pytest.mark.parametrize("kind", [kind for kind in FOREIGN if kind != "string"])
    def test_another_type_at_the_lock(self, use: Use, kind: str, redis: Redis) -> None:
        """An error at once, also for those who would wait; the key stays as it is, and lists
        have the lock."""
        dump = foreign(redis, kind, KEY)
        with pytest.raises(LockError, match="a type that such a lock does not use") as caught:
            use(redis_lock("job", wait=PATIENCE))
        assert not isinstance(caught.value, LockNotAcquired)
        assert f"'{KEY}'" in str(caught.value)
        assert "REDISLOCK['PREFIX']" in str(caught.value)
        assert str(caught.value).endswith("To delete it: manage.py redislock clear job")
        assert redis.dump(KEY) == dump
        assert keys(redis) == {KEY, "redislock:index"}

    @pytest.mark.parametrize("beside", ["", ":queue"])
    def test_another_type_is_no_lock_of_ours(
        self, beside: str, redis: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nothing was acquired, so there is nothing to warn of."""
        foreign(redis, "list", KEY + beside)
        with pytest.raises(LockError):
            redis_lock("job").acquire(wait=0)
        assert not caplog.records

    @pytest.mark.parametrize("ask", ["holder", "clear"])
    def test_asking_for_another_type(self, ask: str, redis: Redis) -> None:
        """Looking and clearing say the same, and leave the key alone."""
        dump = foreign(redis, "hash", KEY)
        arguments = {"reason": "test"} if ask == "clear" else {}
        with pytest.raises(LockError, match="a type that such a lock does not use"):
            getattr(redis_lock("job"), ask)(**arguments)
        assert redis.dump(KEY) == dump

    @pytest.mark.parametrize(
        "value",
        [
            b"3f2504e04f8911d39a0c0305e82c3301",  # the token of a redis-py lock
            b"short",
            b"",
            b"\xff\xfe\x00binary",
            b"a|b|c|d|e|f",
            b"0123456789abcdef0123456789abcdef|nonsense|||",
        ],
        ids=repr,
    )
    def test_a_strangers_string(self, use: Use, value: bytes, redis: Redis) -> None:
        """It is held by a stranger: not acquired, said so, and left alone."""
        redis.set(KEY, value, px=60_000)
        if use in (acquire, aacquire):
            assert use(redis_lock("job", wait=0)) is None
        else:
            with pytest.raises(LockNotAcquired) as caught:
                use(redis_lock("job", wait=0))
            assert caught.match("'job' is held by a value that this package did not write; ")
            assert caught.match(r"the lease ends in (59\.\d|60\.0) s unless it is renewed")
            holder = caught.value.holder
            assert (holder.owner, holder.fencing_token, holder.acquired_at) == (None, None, None)
        assert redis.get(KEY) == value
        assert 0 < redis.pttl(KEY) <= 60_000

    def test_a_strangers_string_without_a_ttl(self, redis: Redis) -> None:
        """One that nobody will free by itself is said to be so."""
        redis.set(KEY, "foreign")
        with pytest.raises(LockNotAcquired, match="no TTL and stays until somebody deletes it"):
            enter(redis_lock("job", wait=0))
        assert redis.get(KEY) == b"foreign"

    def test_a_strangers_string_that_goes(self, use: Use, redis: Redis) -> None:
        """Once the stranger is gone, who waits gets the lock."""
        redis.set(KEY, "foreign", px=50)
        held = use(redis_lock("job", wait=PATIENCE))
        assert held is not None or use in CALLS
        assert not redis.exists(KEY)

    @pytest.mark.parametrize("beside", ["queue"])
    @pytest.mark.parametrize("wait", [0, PATIENCE], ids=["try", "wait"])
    def test_another_type_beside_the_lock(
        self, use: Use, beside: str, wait: float, redis: Redis
    ) -> None:
        """A foreign key in the place of one of our helpers is an error, and not overwritten."""
        key = f"{KEY}:{beside}"
        dump = foreign(redis, "list", key)
        with pytest.raises(LockError, match="a type that such a lock does not use") as caught:
            use(redis_lock("job", wait=wait))
        assert not isinstance(caught.value, LockNotAcquired)
        assert redis.dump(key) == dump
        assert not keys(redis) & ({KEY, f"{KEY}:queue", f"{KEY}:waiters"} - {key})

    def test_another_type_at_a_helper_that_is_not_needed(self, use: Use, redis: Redis) -> None:
        """Who need not wait doesn't look at the waiters; the foreign key stays as it is."""
        dump = foreign(redis, "list", f"{KEY}:waiters")
        use(redis_lock("job"))
        assert redis.dump(f"{KEY}:waiters") == dump

    @pytest.mark.parametrize("beside", ["queue", "waiters"])
    def test_waiting_beside_another_type(self, beside: str, redis: Redis) -> None:
        """Who would have to queue there fails at once, and the holder is not harmed."""
        redis.set(KEY, "a holder's", px=60_000)
        key = f"{KEY}:{beside}"
        dump = foreign(redis, "string", key)
        with pytest.raises(LockError, match="a type that such a lock does not use"):
            acquire(redis_lock("job", wait=PATIENCE))
        assert redis.dump(key) == dump
        assert keys(redis) == {KEY, key, "redislock:index"}

    @pytest.mark.parametrize("kind", ["hash", "list"])
    def test_another_type_at_the_clock(
        self, block: Use, kind: str, redis: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        """All locks share it, so it is mended, with a warning."""
        foreign(redis, kind, "redislock:clock")
        block(redis_lock("job", wait=0))
        assert redis.type("redislock:clock") == b"string"
        assert "had no fencing token that can be read" in caplog.text

    @pytest.mark.parametrize("kind", ["string", "hash", "list"])
    def test_another_type_at_the_index(
        self, kind: str, redis: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The lock can't be listed; it is held and released all the same."""
        caplog.set_level(logging.DEBUG, "django_redislock")
        dump = foreign(redis, kind, "redislock:index")
        with redis_lock("job", wait=0) as lease:
            watchdog(server_of("default")).write_down()
            assert lease.state == LeaseState.HELD
        assert redis.dump("redislock:index") == dump
        assert not redis.exists(KEY)
        assert "a type that such a lock does not use" in caplog.text
