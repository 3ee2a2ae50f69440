"""Completion shows what the reference documents, and nothing else."""

from __future__ import annotations

import pytest

import django_redislock
from django_redislock import (
    Lease,
    MultiLock,
    ReadWriteLock,
    Redlock,
    Semaphore,
    TimestampLock,
    deduplicate,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.signals import LockEvent

LEASE = """
    acheckpoint acquired_at adowngrade aextend arelease arestore check checkpoint downgrade export
    extend fencing_token fencing_tokens inherited label name note on_lost on_unknown owner release
    remaining restore resumptions state token ttl using
"""
LOCK = "aacquire aclear acquire aholder aholders alocked clear holder holders locked name"
NAMES = {
    Lease: LEASE,
    redis_lock: LOCK,
    Semaphore: LOCK,
    ReadWriteLock: "read write",
    MultiLock: f"{LOCK} names",
    Redlock: LOCK,
    TimestampLock: LOCK,
    once: "aforget forget",
    deduplicate: "aforget forget",
    single_flight: "",
    LockEvent: (
        "by fencing_token held holder key label name outcome owner using waited wakeup why"
    ),
}


def public(of: object) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.__name__)
def test_names(kind: type) -> None:
    """Each of them has its sentence, which the reference shows."""
    assert public(kind) == set(NAMES[kind].split())
    if kind is not LockEvent:  # whose fields are documented in the class
        assert kind.__name__ in django_redislock.__all__
        assert all(getattr(kind, name).__doc__ for name in public(kind))


@pytest.mark.parametrize(
    ("kind", "lock"),
    [
        (redis_lock, redis_lock("job")),
        (redis_lock, ReadWriteLock("job").read()),
        (redis_lock, ReadWriteLock("job").write()),
        (Semaphore, Semaphore("job", 2)),
        (ReadWriteLock, ReadWriteLock("job")),
        (MultiLock, MultiLock(["one", "two"])),
        (Redlock, Redlock("job", using=["a", "b", "c"])),
        (TimestampLock, TimestampLock("job")),
        (once, once("job")),
        (deduplicate, deduplicate("job")),
        (single_flight, single_flight("job")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_names_of_objects(kind: type, lock: object) -> None:
    """An object shows no more than its class."""
    assert public(lock) == set(NAMES[kind].split())


@pytest.mark.usefixtures("redis")
def test_names_of_a_lease() -> None:
    """Attributes included."""
    with redis_lock("job") as lease:
        assert public(lease) == set(LEASE.split())
