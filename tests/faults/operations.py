"""One example of each thing that can be done to a lock, for the tests that interrupt them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory
from redis import Redis

from django_redislock import (
    Lease,
    LeaseLost,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    TimestampLock,
    deduplicate,
    initialise,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.client import Lock as DropIn
from django_redislock.commands import LockedCommand
from django_redislock.periodic.execution import JobRun, perform
from django_redislock.periodic.job import Every, Job
from django_redislock.primitives.ledger import RunOutcome, Wanted
from django_redislock.views import idempotent_view, lock_view
from tests.models import Product
from tests.settings import CACHES
from tests.waiting import PATIENCE

Operation = Callable[[str], object]
"""Does it once, with the lock of that name."""

# A lock as a block.


def temporary(name: str) -> None:
    """A lock that is made for its block."""
    with redis_lock(name):
        pass


kept_locks: dict[str, redis_lock] = {}


def kept(name: str) -> None:
    """A lock that lives longer than its block, as one of a module does."""
    kept_locks[name] = redis_lock(name)
    with kept_locks[name]:
        pass


@redis_lock("{name}")
def function(name: str) -> None:
    """A decorated function."""


@redis_lock("{name}")
def _steps(name: str) -> Iterator[str]:
    for _ in range(4):
        yield name


def generator(name: str) -> None:
    """A decorated generator, whose places are most of all those of its steps."""
    assert list(_steps(name)) == [name] * 4


def nested(name: str) -> None:
    """A lock that is entered twice."""
    lock = redis_lock(name, reentrant=True)
    with lock, lock:
        pass


def view(name: str) -> None:
    """A locked view, whose response streams."""

    def body(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(iter([b"one"]))

    response = lock_view(lambda request: name)(body)(RequestFactory().get("/"))
    for closer in response._resource_closers:
        closer()


def several(name: str) -> None:
    with MultiLock([name, f"{name} too"]):
        pass


BLOCKS: list[Operation] = [temporary, kept, function, generator, nested, several, view]

# All else.


def by_hand(name: str) -> None:
    """Acquired and released, without a block."""
    lease = redis_lock(name).acquire(wait=0)
    assert lease is not None
    lease.release()


def extended(name: str) -> None:
    with redis_lock(name) as lease:
        lease.extend(60)


def looked_at(name: str) -> None:
    """Who holds it?"""
    redis_lock(name).holder()


def cleared(name: str) -> None:
    """By somebody else than holds it."""
    holding, over = threading.Event(), threading.Event()

    def hold() -> None:
        lease = redis_lock(name).acquire(wait=0)
        holding.set()
        over.wait(PATIENCE)
        assert lease is not None
        lease._lifetime.end()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert holding.wait(PATIENCE)
        redis_lock(name).clear(reason="a test")
    finally:
        over.set()
        holder.join()
        redis_lock(name).clear(reason="it was not cleared")


def semaphore(name: str) -> None:
    with Semaphore(name, 2):
        pass


def reading(name: str) -> None:
    with ReadWriteLock(name).read():
        pass


def writing(name: str) -> None:
    """And reading only, from the middle of it on."""
    with ReadWriteLock(name).write() as lease:
        lease.downgrade()


def timestamp(name: str) -> None:
    with TimestampLock(f"redislock-timestamp:{name}"):
        pass


def migrating(name: str) -> None:
    """A lock with the key of old clients beside it."""
    with redis_lock(name, timestamp_key="redislock-timestamp:{name}"):
        pass


def only_once(name: str) -> None:
    with once(name):
        pass


def deduplicated(name: str) -> None:
    with deduplicate(name):
        pass


def initialised(name: str) -> None:
    initialise(name, lambda: {"a": 1})


@single_flight("{name}", ttl=60)
def flown(name: str) -> dict[str, int]:
    return {"a": 1}


@cache
def _client() -> Redis:
    client: Redis = Redis.from_url(CACHES["default"]["LOCATION"])
    return client


def drop_in(name: str) -> None:
    """As `cache.lock()`."""
    with _client().lock(f"redislock:{{{name}}}", timeout=30, lock_class=DropIn):
        pass


class _Command(LockedCommand, BaseCommand):
    def handle(self, *args: Any, **options: Any) -> None:
        pass


def command(name: str) -> None:
    class Named(_Command):
        lock_name = name

    call_command(Named())


def exported(name: str) -> None:
    """Held by one process, and then by another one, which may be told so once more."""
    lease = redis_lock(name).acquire(wait=0)
    assert lease is not None
    try:
        text = lease.export()
    except BaseException:
        lease.release()
        raise
    try:
        with Lease.restore(text):
            pass
    except BaseException:
        with suppress(LeaseLost), Lease.restore(text):
            pass
        raise


def idempotent(name: str) -> None:
    """A request with a key, and the same request once more."""

    def body(request: HttpRequest) -> HttpResponse:
        return HttpResponse("done")

    once_only = idempotent_view(scope=lambda request: "")(body)
    for _ in range(2):
        once_only(RequestFactory().post("/", headers={"idempotency-key": f'"{name}"'}))


class Entered(Exception):
    """A job has failed with that, which is written down and logged: its worker goes on."""


def run_of_a_job(name: str) -> None:
    """As a scheduler and its worker do it."""
    nothing = partial(str)
    job = Job(name=name, function=nothing, where="here", schedule=Every(3600))
    job_run = JobRun(job, Wanted(tick=None))
    try:
        assert job_run.ask().grant is not None
    except BaseException:
        job_run.undo()
        raise
    ended = perform(job_run)
    if ended is not None and ended.outcome == RunOutcome.FAILED:
        raise Entered(ended.why)


OPERATIONS: list[Operation] = [
    by_hand,
    drop_in,
    deduplicated,
    flown,
    extended,
    looked_at,
    cleared,
    semaphore,
    reading,
    writing,
    timestamp,
    migrating,
    only_once,
    initialised,
    command,
    exported,
    idempotent,
    run_of_a_job,
]

# What writes to a database as well.


def fenced(name: str) -> None:
    """A row that is made, read and written under a lock."""
    assert not connection.in_atomic_block, "a transaction was left open"
    with redis_lock(name) as lease:
        product = Product.objects.fenced(lease).create(name=name)
        Product.objects.fenced(lease).filter(name=name).update(price=1)
        product.refresh_from_db()
        product.stock = 1
        product.save(lease=lease)


def until_commit(name: str) -> None:
    """A lock that is held until a transaction is committed."""
    assert not connection.in_atomic_block, "a transaction was left open"
    with transaction.atomic(), redis_lock(name, release="commit"):
        Product.objects.create(name=name)


WRITES: list[Operation] = [fenced, until_commit]


def lock_of(operation: Operation, name: str) -> str:
    """What the lock is called that the operation takes, when it is told that name."""
    if operation is idempotent:
        whole = f"\0{name}".encode()
        return f"idempotency:{hashlib.sha256(whole).hexdigest()[:40]}"
    return f"periodic:{name}" if operation is run_of_a_job else name
