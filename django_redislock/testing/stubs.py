"""Locks without a server: always free, always busy, or Redis unreachable; locks that somebody else
holds; locks in memory; and a leader on demand."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from copy import copy
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Generic, TypeVar
from unittest import mock

import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from redis import asyncio as aioredis

from ..base import clock
from ..base.exceptions import LeaseLost, LockError, LockNotAcquired, LockUnavailable
from ..base.people import Holder
from ..base.servers import MEMORY
from ..leader import Leader, _Part
from ..lease.lease import Lease
from ..lease.lock import Lock
from ..lease.plan import Plan, forget_plans
from ..lease.watchdog import Watchdog
from ..locks.decorate import acquire
from ..primitives import work
from ..primitives.contract import Claim, Grant, Port, Primitive, Sight
from ..primitives.keys import Keys, Word, name_of
from ..settings import conf, kinds
from ..settings.policy import Policy
from ..transport import command, ports
from ..transport.connections import NEEDED, Pools, PoolsInMemory, installed
from ..transport.entries import no_alias
from ..transport.inbox import Inbox
from ..transport.multiplexed import Multiplexed
from ..transport.server import elsewhere, every, leading_to, server_of
from .condition import SETTLE_WITHIN, Condition, await_receivers, matches, validate_pattern

# Stand-ins for the servers in tests: locks go to none, or to one in memory.
#
# The CACHES of the test settings stay as they are, and may be any, `LocMemCache` for example.


P = TypeVar("P", bound=Pools)

ACTUAL = Lock._primitive


class StandIns(Generic[P]):
    """Another server for each alias."""

    def __init__(self, name: str, pools: Callable[[str, str], P]) -> None:
        self._addresses = f"{name}://"
        self._make = pools
        """Makes the pools of an address and an alias."""
        self._pools: dict[str, P] = {}

    def pools_of(self, alias: str) -> P:
        if alias != MEMORY and alias not in settings.CACHES:  # so that tests find a misspelt alias
            raise no_alias(alias)
        made = self._pools.get(alias)
        return made or self._pools.setdefault(alias, self._make(self._addresses + alias, alias))

    @contextmanager
    def in_place(self, script: Callable[..., Any] | None = None) -> Iterator[None]:
        """Send locks here and let `script` run their scripts, whatever is around this. None: the
        servers run them."""
        before = self.leases
        with leading_to(self.pools_of), answering(script), finding(ACTUAL), nothing_lost():
            try:
                yield
            finally:
                self.forget(before)

    @property
    def watchdogs(self) -> list[Watchdog]:
        return [one for one in every(Watchdog) if one.server.address.startswith(self._addresses)]

    @property
    def leases(self) -> list[Lease]:
        """The leases that this process holds here."""
        return [lease for watchdog in self.watchdogs for lease in watchdog.register.leases()]

    def forget(self, besides: Sequence[Lease] = ()) -> None:
        """Forget the leases that the test did not release: the server is gone after the test."""
        for watchdog in self.watchdogs:
            watchdog._to_release.clear()
            for lease in watchdog.register.leases():
                if lease not in besides:
                    lease._lifetime.end()
                    watchdog.forget(lease._claim)


def answering(script: Callable[..., Any] | None) -> Any:
    """Let ports run their scripts by this function."""
    return mock.patch.object(ports, "stand_in", script)


def finding(primitive: Callable[[Lock, Plan], Primitive]) -> Any:
    """Let locks find their primitives by this function."""
    return mock.patch.object(Lock, "_primitive", primitive)


@contextmanager
def nothing_lost() -> Iterator[None]:
    """Let locks with `AFTER_LOSS = "wait"` behave as on a server that has forgotten nothing. A
    server that is new for each test looks like one that has lost its data."""
    guarded = kinds.guarded

    def never(policy: Policy, clustered: Callable[[str], bool]) -> bool:
        guarded(policy, clustered)  # raises where it can't be kept
        return False

    try:
        with mock.patch.object(kinds, "guarded", never):
            forget_plans()
            yield
    finally:
        forget_plans()


def configured() -> bool:
    """Whether the settings have a server for locks."""
    try:
        server_of(conf.policy("a test", {}).using)
    except ImproperlyConfigured:
        return False
    return True


class _Nowhere:
    """Pools that nothing uses: there is an answer for each script."""

    clustered = False

    def __init__(self, address: str, alias: str) -> None:
        self.address = address
        self.where = f"no server, {alias}"

    def shared(self) -> redis.ConnectionPool:
        return redis.ConnectionPool(host="nowhere.invalid")

    background = shared

    def for_loop(self) -> Multiplexed:
        return Multiplexed(aioredis.ConnectionPool(host="nowhere.invalid"))


NOWHERE = StandIns("nowhere", _Nowhere)


def locks_always_free() -> Condition[None]:
    """Grant every lock at once, without a server.

    Locks do not exclude each other, and nothing is remembered: a `once` block runs each time, and
    each call of a unique task is queued.
    """
    return Condition(_free)


def locks_always_busy(name: str = "*", *, holder: Holder | str = "") -> Condition[None]:
    """Refuse the locks of this name or pattern at once, as if somebody else held them.

    `holder` appears in messages. Names of tasks begin with "task:": a call of a unique one is a
    conflict, and a task that a worker begins is parked. Other locks are free, as with
    `locks_always_free()`; inside of `locks_in_memory()` they work as there.
    """
    validate_pattern(name)
    if not isinstance(holder, Holder | str):
        raise TypeError(f"holder must be a Holder or a str that names one, not {holder!r}")
    who = holder if isinstance(holder, Holder) else _holder_of(holder)
    return Condition(lambda: _busy(name, who))


def locks_held_elsewhere(*locks: str | Lock) -> Condition[None]:
    """Hold these locks as another process would, so that the code under test finds them busy.

    A test that held them itself would get `LockReentered`, in a request of Django's `Client`, too:
    the client runs the view in the thread of the test. Each lock is a name or, of another kind, a
    lock such as `Semaphore("export", 1)`.

    Callers wait for as long as they do elsewhere, and get the lock when the block has ended. Where
    locks are always free, or no server is configured, they are refused at once.

    Raises `LockNotAcquired` if a lock is held already.
    """
    wrong = [lock for lock in locks if not isinstance(lock, str | Lock)]
    if wrong or not locks:
        raise TypeError(f"write names of locks, such as 'invoice:42', or locks, not {wrong!r}")
    return Condition(lambda: _elsewhere(locks))


def redis_unavailable() -> Condition[None]:
    """Let Redis be away: each request to the server raises `LockUnavailable` at once, whatever
    `wait` is. Locks do what their `unavailable` says."""
    return Condition(_unavailable)


@contextmanager
def _free() -> Iterator[None]:
    with NOWHERE.in_place(_grant):
        yield


_fences = itertools.count(time.time_ns() // 1000)


_NOW, _FENCE = object(), object()
_EMPTY: dict[str, Any] = {
    "mutex_take permits_take": [1, _FENCE],
    "mutex_drop permits_drop": [1, 1],
    "mutex_acquire permits_acquire": [1, _NOW, _FENCE],
    "record_acquire": [1, _NOW, _FENCE, None],
    "mutex_adopt permits_adopt": [1, _FENCE, _NOW],
    "timestamp_acquire": [1, _NOW],
    "timestamp_adopt": [1, None, _NOW],
    "mutex_holder timestamp_holder record_get": None,
    "permits_holders": [_NOW],
    "record_set record_delete": 0,
    "work_claim": [1, [], 0],
    "work_begin": [1, _NOW, _FENCE, None, None, [], 0],
    "work_end": [1, 0, [], 0],
    "mutex_clear work_confirm": 1,
    "mutex_note permits_downgrade record_write timestamp_extend timestamp_release": [1],
    "mutex_extend mutex_release permits_extend permits_release record_release": [1],
}
GRANTS = {script: answer for scripts, answer in _EMPTY.items() for script in scripts.split()}
"""The answers of scripts on an empty server, in the form that their headers document."""


async def _grant(port: Port, script: str, keys: Sequence[str], args: Sequence[Word]) -> Any:  # noqa: ARG001
    if script == "record_first":
        return args[1] if isinstance(args[1], bytes) else str(args[1]).encode()
    if script in GRANTS:
        now = str(time.time_ns() // 1000).encode()
        said = GRANTS[script]
        if not isinstance(said, list):
            return said
        return [now if it is _NOW else next(_fences) if it is _FENCE else it for it in said]
    raise LockError(
        f"locks_always_free() only grants locks, and has no answer for {script!r}. Use "
        f"locks_in_memory(), which runs every script.",
        name_of(keys[0]) if keys else None,
    )


@contextmanager
def _unavailable() -> Iterator[None]:
    async def refuse(port: Port, script: str, keys: Sequence[str], args: object) -> Any:  # noqa: ARG001
        error = LockUnavailable(
            "Redis could not be reached: the test uses redis_unavailable()",
            name_of(keys[0]) if keys else None,
            # An acquire would repeat a passing failure while it waits.
            passing=not script.endswith(("_acquire", "_take")),
        )
        error.away = True
        raise error from redis.ConnectionError("redis_unavailable()")

    place = nullcontext() if configured() else NOWHERE.in_place()
    with place, answering(refuse), nothing_lost():
        yield


def _holder_of(owner: str) -> Holder:
    began = datetime.now(UTC) - timedelta(seconds=5)
    return Holder(
        owner=owner or "another-host:1:MainThread",
        label="locks_always_busy()",
        fencing_token=next(_fences),
        acquired_at=began,
        held=5.0,
        remaining=25.0,
    )


@contextmanager
def _busy(pattern: str, holder: Holder) -> Iterator[None]:
    around = Lock._primitive

    def primitive(lock: Lock, plan: Plan) -> Primitive:
        actual = around(lock, plan)
        for name in _names(lock):
            if matches(name, pattern):
                return _Busy(actual, name, holder)
        return actual

    hold_again = Lock._hold_again

    def again(lock: Lock, lease: Lease, *args: Any) -> bool:
        # The transaction of a TestCase holds leases that production has released by now.
        busy = not lease._holds.blocks and any(matches(name, pattern) for name in _names(lock))
        return not busy and hold_again(lock, lease, *args)

    held = mock.patch.object(Lock, "_hold_again", again)
    place = nullcontext() if elsewhere() else _free()
    with place, finding(primitive), held, _tasks_busy(pattern, holder):
        yield


@contextmanager
def _tasks_busy(pattern: str, holder: Holder) -> Iterator[None]:
    """Let tasks of these names conflict with one that runs, and be parked when they begin."""
    claim, acquire = work.Work.claim, work.Work.acquire

    async def claimed(its: Any, port: Any, keys: Keys, *args: Any, **options: Any) -> Any:
        if matches(keys.name, pattern):
            return work.TaskConflict(keys.unscoped or keys.name, holder, "", True)
        return await claim(its, port, keys, *args, **options)

    async def begun(its: Any, port: Port, asked: Claim, wait: float | None) -> Grant:
        if matches(asked.keys.name, pattern):
            raise work.NotBegun(asked.keys.name, "parked")
        return await acquire(its, port, asked, wait)

    with mock.patch.multiple(work.Work, claim=claimed, acquire=begun):
        yield


@contextmanager
def _elsewhere(locks: Sequence[str | Lock]) -> Iterator[None]:
    taken = [Lock(lock) if isinstance(lock, str) else lock for lock in locks]
    with ExitStack() as stack:
        if not configured() or ports.stand_in is not None:
            for lock in taken:
                for name in _names(lock):
                    stack.enter_context(_busy(name, _holder_of("")))
        else:
            for lock in taken:
                stack.enter_context(_of_another_thread(lock))
        yield


@contextmanager
def _of_another_thread(lock: Lock) -> Iterator[None]:
    its = copy(lock)
    its._label = its._label or "locks_held_elsewhere()"
    with ThreadPoolExecutor(1, "elsewhere") as thread:
        lease = thread.submit(acquire, its, 0).result()
    try:
        yield
    finally:
        with suppress(LeaseLost):  # the test has cleared it, perhaps
            lease.release()


def _names(lock: Lock) -> Sequence[str]:
    names: Sequence[str] = getattr(lock, "names", (lock.name,))
    return names


class _Busy:
    """A stand-in for the primitive of a lock that somebody else holds."""

    def __init__(self, primitive: Primitive, name: str, holder: Holder) -> None:
        self._primitive = primitive
        self._name = name
        self._holder = holder

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._primitive, attribute)

    def taking(self, claim: Claim) -> None:
        """Return no short request, so that `acquire` is asked."""

    async def acquire(self, port: Port, claim: Claim, wait: float | None) -> LockNotAcquired:  # noqa: ARG002
        return LockNotAcquired(self._name, self._holder, wait or 0.0)

    async def holders(self, port: Port, keys: Keys) -> list[Sight]:  # noqa: ARG002
        return [Sight(b"", self._holder)]

    async def clear(self, port: Port, keys: Keys, seen: Sequence[bytes], *by: str) -> list[bool]:  # noqa: ARG002
        return [False for _ in seen]


# A prefix per process, for tests on a real Redis that several processes share.


def names_apart() -> Condition[None]:
    """On a real Redis, keep the locks of this process apart from those of other processes.

    The prefix of their keys contains the process id, so each worker of pytest-xdist and of
    `manage.py test --parallel` has locks of its own. Keys without the prefix stay as they are:
    those of `cache.lock()` and of a `TimestampLock`.
    """
    return Condition(_apart)


@contextmanager
def _apart() -> Iterator[None]:
    read = conf.current

    def apart() -> conf._Settings:
        its = read()
        prefix = its.given.get("prefix", Policy().prefix)
        given = {**its.given, "prefix": f"{prefix}-test-{os.getpid()}"}
        return its._replace(given=given, policies={})

    with mock.patch.object(conf, "current", apart), nothing_lost():
        yield


# Locks in memory: the Lua scripts of the package run in this process, in fakeredis.
#
# No rule of a lock is written a second time here, and the code above the connections is the code
# of production.
#
# fakeredis and the leases (base/clock.py) share one clock, which a test can move. The clock never
# goes back, also not between two tests, since fencing tokens are made from it.


class _Time:
    """A stand-in for the module `time`."""

    def __init__(self) -> None:
        self.ahead = 0.0
        # Read once: a test may stop the clock of the module `time` for its own purposes.
        self._epoch = time.time() - self._real()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def _real() -> float:
        return time.perf_counter() if clock._CLOCK is None else time.clock_gettime(clock._CLOCK)

    def clock_gettime(self, which: int) -> float:
        return time.clock_gettime(which) + self.ahead

    def perf_counter(self) -> float:
        return time.perf_counter() + self.ahead

    def time(self) -> float:
        return self._epoch + self._real() + self.ahead


class _InMemory(StandIns[PoolsInMemory]):
    def __init__(self) -> None:
        super().__init__("memory", PoolsInMemory)

    def clear(self) -> None:
        for pools in self._pools.values():
            with pools.server.lock:
                for database in pools.server.dbs.values():
                    database.clear()

    def wake(self) -> None:
        """Wake all waiting threads and tasks, so that they read the clock."""
        for watchdog in self.watchdogs:
            watchdog.wake()
        for inbox in every(Inbox):
            inbox.wake_all()


_time = _Time()
_memory = _InMemory()


class Memory:
    """The clock of locks in memory."""

    def advance(self, seconds: float) -> None:
        """Let seconds pass at once, for the server and for this process.

        The effect is that of a process that was stopped for this time. Leases that have ended are
        lost. When this returns, waiters were woken, `on_lost` was called, and the other leases
        were renewed.
        """
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise ValueError(f"seconds must be a number from 0 on, not {seconds!r}")
        _time.ahead += seconds
        for lease in _memory.leases:
            lease._lifetime.expire()
        _memory.wake()
        give_up = time.monotonic() + SETTLE_WITHIN
        while any(map(_is_due, _memory.leases)) and time.monotonic() < give_up:
            time.sleep(0.001)
        await_receivers()


def _is_due(lease: Lease) -> bool:
    lifetime = lease._lifetime
    return lifetime.lost is None and not lifetime.closing and lifetime.due <= clock.now()


def locks_in_memory() -> Condition[Memory]:
    """Locks exclude each other, wait, expire and are handed over in this process, as on a real
    server. All locks and records are gone afterwards.

    Needs fakeredis: `pip install "django-redislock[testing]"`.
    """
    if not installed():
        raise ImportError(f"locks_in_memory() needs {NEEDED}")
    return Condition(_in_memory)


@contextmanager
def _in_memory() -> Iterator[Memory]:
    import_module("fakeredis")  # all of it, so that its clock is moved
    with ExitStack() as stack:

        def replace(module: Any, **others: Any) -> None:
            stack.enter_context(mock.patch.multiple(module, **others))

        stack.enter_context(_memory.in_place())
        # Without replicas, every WAIT is confirmed.
        replace(command, _wait=lambda *_: ("PING",))
        replace(command, _confirm=lambda replicas, terms: None)  # noqa: ARG005
        replace(clock, time=_time)
        for name, module in list(sys.modules.items()):
            # All modules of fakeredis read the same clock.
            if name.startswith("fakeredis") and getattr(module, "time", None) is time:
                replace(module, time=_time)
        try:
            yield Memory()
        finally:
            _memory.forget()
            _memory.clear()
            _memory.wake()


# A leader on demand.


def leading(leader: Leader) -> Condition[Leader]:
    """Let `leader` lead at once, without a server and without a thread.

    `on_gain` is called when the block begins, and `on_loss` when it ends; what they raise is
    raised. After `step_down()` it leads no more.
    """
    if not isinstance(leader, Leader):
        raise TypeError(f"leader must be a Leader, not {leader!r}")
    return Condition(lambda: _leading(leader))


@contextmanager
def _leading(leader: Leader) -> Iterator[Leader]:
    part = _Part(leader, None)
    lease: Any = SimpleNamespace(remaining=lambda: 1.0, fencing_token=next(_fences))
    part.lease = lease
    with mock.patch.object(leader, "_part", part):
        _call(leader._on_gain)
        try:
            yield leader
        finally:
            part.end()
            _call(leader._on_loss)


def _call(callback: Callable[[], object] | None) -> None:
    result: Any = callback() if callback is not None else None
    if asyncio.iscoroutine(result):  # the test may run in an event loop
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, result).result()
