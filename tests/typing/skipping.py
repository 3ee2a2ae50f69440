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


# A function returns None without its lock, and takes what it took.


@redis_lock("report:{pk}", wait=0, on_conflict="skip")
def report(pk: int, *, quietly: bool = False) -> str: ...


assert_type(report(1, quietly=True), str | None)
report("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
report(1, True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
report(1).upper()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


@redis_lock("tidy-up", on_conflict="skip")
def tidy_up() -> None: ...


assert_type(tidy_up(), None)


@redis_lock("report", on_conflict="skip")
def maybe(pk: int) -> str | None: ...


assert_type(maybe(1), str | None)


# A function of the conflict gives the result instead.


@redis_lock("report", on_conflict=busy)
def or_busy(pk: int) -> str: ...


@redis_lock("report", on_conflict=lambda conflict: conflict.waited)
def or_waited(pk: int) -> str: ...


@redis_lock("report", on_conflict=lambda conflict: "busy")
def or_text(pk: int) -> str: ...


assert_type(or_busy(1), str | Busy)
assert_type(or_waited(1), str | float)
assert_type(or_text(1), str)


# Coroutines.


@redis_lock("sync:{shop}", on_conflict="skip")
async def sync(shop: str) -> bytes: ...


@redis_lock("sync:{shop}", on_conflict=busy)
async def sync_or_busy(shop: str) -> bytes: ...


@redis_lock("sync:{shop}", on_conflict=abusy)
async def sync_or_abusy(shop: str) -> bytes: ...


@once("sync:{shop}")
async def sync_once(shop: str) -> bytes: ...


async def coroutines() -> None:
    assert_type(await sync("a"), bytes | None)
    assert_type(await sync_or_busy("a"), bytes | Busy)
    assert_type(await sync_or_abusy("a"), bytes | Busy)
    assert_type(await sync_once("a"), bytes | None)
    await sync(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
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


@Semaphore("exports", 3, on_conflict="skip")
def export(pk: int) -> str: ...


@MultiLock(["account:{source}", "account:{target}"], on_conflict="skip")
def transfer(source: int, target: int) -> int: ...


@Redlock("export", ["a", "b", "c"], on_conflict="skip")
def redlocked(pk: int) -> str: ...


@TimestampLock("lock.import", on_conflict="skip")
def stamped(pk: int) -> str: ...


catalogue = ReadWriteLock("catalogue", on_conflict="skip")


@catalogue.read()
def show(page: int) -> str: ...


@once("warm:{pk}", ttl=3600)
def warm(pk: int) -> str: ...


@deduplicate("order:{message[id]}")
def consume(message: dict[str, str]) -> int: ...


assert_type(export(1), str | None)
assert_type(transfer(1, 2), int | None)
assert_type(redlocked(1), str | None)
assert_type(stamped(1), str | None)
assert_type(show(1), str | None)
assert_type(warm(1), str | None)
assert_type(consume({}), int | None)


# What is only known at run time.


def configured(
    mode: Literal["raise", "skip"], either: Literal["skip"] | Callable[[LockNotAcquired], Any]
) -> None:
    @redis_lock("report", on_conflict=mode)
    def one(pk: int) -> str: ...

    @redis_lock("report", on_conflict=either)
    def other(pk: int) -> str: ...

    one(1)
    other(1)


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


@Locks("a")
def with_own_class(pk: int) -> str: ...


assert_type(with_own_class(1), str)

# What is wrong.
Redlock("a", replicas=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Redlock("a", ttl="60")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
redis_lock("a", on_conflict="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
redis_lock("a", on_conflict=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
redis_lock("a", on_conflict=lambda: None)  # type: ignore[arg-type,misc]  # pyright: ignore[reportArgumentType]
once("a", on_conflict="raised")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
redis_lock("a", on_conflict="skip")(3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


# Redis may be away as well.


@redis_lock("report", unavailable="skip")
def unless_away(pk: int) -> str: ...


@Semaphore("report", 2, unavailable="skip")
async def unless_away_either(pk: int) -> str: ...


@redis_lock("report", unavailable="skip", on_conflict="skip")
def unless_away_or_busy(pk: int) -> str: ...


@redis_lock("report", unavailable="run")
def without_the_lock(pk: int) -> str: ...


@redis_lock("report", unavailable="run", on_conflict="skip")
def without_the_lock_or_not(pk: int) -> str: ...


@redis_lock("report", unavailable="run", on_conflict=busy)
def without_the_lock_or_busy(pk: int) -> str: ...


assert_type(unless_away(1), str | None)
assert_type(unless_away_or_busy(1), str | None)
assert_type(without_the_lock(1), str)
assert_type(without_the_lock_or_not(1), str | None)
assert_type(without_the_lock_or_busy(1), str | Busy)
redis_lock("report", unavailable="ran")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def coroutines_unless_away() -> None:
    assert_type(await unless_away_either(1), str | None)
