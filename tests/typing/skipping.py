"""What a type checker makes of functions that are not called without their lock."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any, Literal, assert_type

from django_redislock import (
    LockNotAcquired,
    MultiLock,
    ReadWriteLock,
    Redlock,
    Semaphore,
    TimestampLock,
    deduplicate,
    once,
    redis_lock,
)


class Busy:
    """What is returned without the lock."""


def busy(conflict: LockNotAcquired) -> Busy: ...


async def abusy(conflict: LockNotAcquired) -> Busy: ...


# What is decorated below.


def f(pk: int, *, quietly: bool = False) -> str: ...


async def g(pk: int) -> str: ...


def nothing() -> None: ...


def maybe(pk: int) -> str | None: ...


# A function returns None without its lock, and takes what it took.


@redis_lock("report:{pk}", wait=0, on_conflict="skip")
def report(pk: int, *, quietly: bool = False) -> str: ...


assert_type(report(1, quietly=True), str | None)
report("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
report(1, True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
report(1).upper()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
assert_type(redis_lock("a", on_conflict="skip")(nothing)(), None)
assert_type(redis_lock("a", on_conflict="skip")(maybe)(1), str | None)

# A function of the conflict gives the result instead.
assert_type(redis_lock("a", on_conflict=busy)(f)(1), str | Busy)
assert_type(redis_lock("a", on_conflict=lambda conflict: conflict.waited)(f)(1), str | float)
assert_type(redis_lock("a", on_conflict=lambda conflict: "busy")(f)(1), str)


async def coroutines() -> None:
    skipped = redis_lock("a", on_conflict="skip")(g)
    assert_type(await skipped(1), str | None)
    await skipped("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await redis_lock("a", on_conflict=busy)(g)(1), str | Busy)
    assert_type(await redis_lock("a", on_conflict=abusy)(g)(1), str | Busy)
    assert_type(await once("a")(g)(1), str | None)
    assert_type(await Semaphore("a", 2, unavailable="skip")(g)(1), str | None)
    async for item in feed():
        assert_type(item, int)
    async for item in feed_steps():
        assert_type(item, int)


# A generator has nothing to yield without its lock, and stays a generator.


@redis_lock("lines", on_conflict="skip")
def lines(count: int) -> Iterator[str]:
    yield str(count)


@redis_lock("steps", on_conflict="skip")
def steps() -> Generator[int, str, bytes]:
    yield 1
    return b""


@redis_lock("feed", on_conflict="skip")
async def feed() -> AsyncIterator[int]:
    yield 1


@redis_lock("feed", on_conflict="skip")
async def feed_steps() -> AsyncGenerator[int, None]:
    yield 1


assert_type(lines(1), Iterator[str])
assert_type(steps(), Generator[int, str, bytes])


# Methods.


class Importer:
    @redis_lock("import", on_conflict="skip")
    def run(self, limit: int = 0) -> list[str]: ...

    @redis_lock("import", on_conflict="skip")
    async def arun(self) -> list[str]: ...

    @classmethod
    @redis_lock("import", on_conflict="skip")
    def all(cls, limit: int) -> Importer: ...

    @staticmethod
    @redis_lock("count", on_conflict="skip")
    def count(of: str) -> int: ...

    @redis_lock("one", on_conflict="skip")
    @classmethod
    def one(cls, limit: int) -> Importer: ...


assert_type(Importer().run(3), list[str] | None)
assert_type(Importer.all(1), Importer | None)
assert_type(Importer.count("a"), int | None)
assert_type(Importer.one(1), Importer | None)
Importer().run("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

# The other kinds.
assert_type(Semaphore("a", 3, on_conflict="skip")(f)(1), str | None)
assert_type(MultiLock(["a:{pk}", "b:{pk}"], on_conflict="skip")(f)(1), str | None)
assert_type(Redlock("a", ["a", "b", "c"], on_conflict="skip")(f)(1), str | None)
assert_type(TimestampLock("lock.a", on_conflict="skip")(f)(1), str | None)
assert_type(ReadWriteLock("a", on_conflict="skip").read()(f)(1), str | None)
assert_type(once("a:{pk}", ttl=3600)(f)(1), str | None)
assert_type(deduplicate("a:{pk}")(f)(1), str | None)


# What is only known at run time.


def configured(
    mode: Literal["raise", "skip"], either: Literal["skip"] | Callable[[LockNotAcquired], Any]
) -> None:
    redis_lock("a", on_conflict=mode)(f)(1)
    redis_lock("a", on_conflict=either)(f)(1)


# An annotation needs no arguments.


def take(lock: redis_lock, shared: ReadWriteLock) -> redis_lock:
    with lock, shared.write():
        return redis_lock("other", ttl=60)


def take_any(lock: redis_lock[Any]) -> None: ...


take(redis_lock("a"), ReadWriteLock("b"))
take_any(redis_lock("a"))
take_any(redis_lock("a", on_conflict="skip"))
take_any(Semaphore("a", 3, on_conflict=busy))


class Locks(redis_lock):
    """A class of the project."""


assert_type(Locks("a")(f)(1), str)

# What is wrong.
Redlock("a", replicas=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Redlock("a", ttl="60")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
redis_lock("a", on_conflict="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
redis_lock("a", on_conflict=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
redis_lock("a", on_conflict=lambda: None)  # type: ignore[arg-type,misc]  # pyright: ignore[reportArgumentType]
once("a", on_conflict="raised")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
redis_lock("a", on_conflict="skip")(3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]

# Redis may be away as well.
assert_type(redis_lock("a", unavailable="skip")(f)(1), str | None)
assert_type(redis_lock("a", unavailable="skip", on_conflict="skip")(f)(1), str | None)
assert_type(redis_lock("a", unavailable="run")(f)(1), str)
assert_type(redis_lock("a", unavailable="run", on_conflict="skip")(f)(1), str | None)
assert_type(redis_lock("a", unavailable="run", on_conflict=busy)(f)(1), str | Busy)
redis_lock("a", unavailable="ran")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
