"""What a type checker makes of locks as context managers, of their leases, and of errors."""

from __future__ import annotations

from datetime import datetime
from typing import assert_type

from django_redislock import (
    ComputationFailed,
    Holder,
    Lease,
    LeaseLost,
    LeaseRevoked,
    LeaseState,
    LockError,
    LockNotAcquired,
    LockReentered,
    LockUnavailable,
    MultiLock,
    ReadWriteLock,
    Redlock,
    Semaphore,
    TimestampLock,
    ainitialise,
    current_lease,
    initialise,
    once,
    redis_lock,
)


def blocks() -> int:
    with redis_lock("invoice:42") as lease:
        assert_type(lease, Lease)
    with Semaphore("exports", 3) as lease:
        assert_type(lease, Lease)
    catalogue = ReadWriteLock("catalogue")
    with catalogue.read() as lease:
        assert_type(lease, Lease)
    with catalogue.write() as lease:
        assert_type(lease.downgrade(), None)
    with MultiLock(["a", "b"]) as lease:
        assert_type(lease.fencing_tokens, dict[str, int])
    with Redlock("export", using=["a", "b", "c"]) as lease:
        assert_type(lease, Lease)
    with TimestampLock("lock.import") as lease:
        assert_type(lease, Lease)
    with once("warm-cache", ttl=3600) as first:
        assert_type(first, bool)
    with redis_lock("it returns"):
        # A block that may swallow exceptions would want a `return` behind it.
        return 1


async def ablocks() -> int:
    async with redis_lock("invoice:42", wait=5) as lease:
        assert_type(lease, Lease)
    async with Semaphore("exports", 3) as lease:
        assert_type(lease, Lease)
    async with once("warm-cache") as first:
        assert_type(first, bool)
    assert_type(await redis_lock("a").aacquire(wait=0), Lease | None)
    assert_type(await redis_lock("a").aholder(), Holder | None)
    assert_type(await redis_lock("a").aholders(), list[Holder])
    assert_type(await redis_lock("a").aclear(reason="it hung"), Holder | None)
    async with redis_lock("it returns"):
        return 1


def leases() -> None:
    lease = redis_lock("import").acquire(wait=0)
    assert_type(lease, Lease | None)
    if lease is None:
        return
    with lease as same:
        assert_type(same, Lease)
    assert_type(lease.name, str)
    assert_type(lease.owner, str)
    assert_type(lease.label, str)
    assert_type(lease.token, str)
    assert_type(lease.fencing_token, int)
    assert_type(lease.acquired_at, datetime)
    assert_type(lease.ttl, float)
    assert_type(lease.remaining(), float)
    assert_type(lease.state, LeaseState)
    assert_type(lease.export(), str)
    assert_type(Lease.restore("…"), Lease)
    assert_type(current_lease(), Lease)
    lease.on_lost(lambda lost: lost.check())
    lease.check()
    lease.extend(5)
    lease.release()


async def aleases(lease: Lease) -> None:
    async with lease as same:
        assert_type(same, Lease)
    await lease.aextend()
    await lease.arelease()


def options() -> None:
    redis_lock("a", ttl=60, wait=None, on_conflict="skip", release="commit", reentrant=True)
    redis_lock("a", on_conflict=lambda conflict: conflict.holder.owner)
    redis_lock("a", ttl="60")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    redis_lock("a", timeout=60)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    redis_lock("a", on_conflict="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def errors() -> None:
    try:
        blocks()
    except LockNotAcquired as conflict:
        assert_type(conflict.holder, Holder)
        assert_type(conflict.name, str | None)
        assert_type(conflict.lasted, float | None)
    except LeaseRevoked as revoked:
        assert_type(revoked.by, str)
        assert_type(revoked.reason, str)
    except LeaseLost as lost:
        assert_type(lost.why, str)
    except (LockReentered, LockUnavailable, ComputationFailed) as error:
        _: LockError = error


async def values() -> None:
    assert_type(initialise("salt", lambda: "salt"), str)
    assert_type(initialise("rates", {"EUR": 1.0}), dict[str, float])
    assert_type(initialise("owner", holder_or_none), str | None)
    assert_type(await ainitialise("salt", "salt", ttl=60), str)
    assert_type(await ainitialise("salt", lambda: "salt"), str)
    assert_type(await ainitialise("salt", arandom), bytes)
    initialise("salt", "salt", timeout=60)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def holder_or_none() -> str | None: ...


async def arandom() -> bytes: ...
