"""Assertions about the locks and tasks of the code under test, and `lose_lease`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

from .. import signals
from ..base.exceptions import LeaseLost, LockError
from ..inspection.inspector import servers
from ..inspection.tasks import Stage, TasksInfo, names
from ..lease import notes, order
from ..lease.lease import Lease
from ..lease.order import held_here, names_of
from ..lease.register import Register
from ..primitives.contract import run
from ..primitives.work import PREFIX
from ..settings import conf
from ..settings.validators import validate_whole
from ..signals import LockEvent
from ..tasks.rules import TaskEvent, task_event
from ..transport.ports import SyncPort
from ..transport.server import every
from .condition import Condition, await_receivers, matches, validate_pattern


def assert_locked(name: str) -> Condition[list[LockEvent]]:
    """Fail unless the block, or code that it called, took a lock of this name or pattern.

    As a context manager, returns the list of lock events in the block, as receivers of signals get
    them.
    """
    validate_pattern(name)
    return Condition(lambda: _locked(name))


def assert_held(name: str) -> None:
    """Fail unless this thread or task holds a lock of this name or pattern now."""
    validate_pattern(name)
    held = sorted({its for lease in held_here() for its in names_of(lease)})
    if not _any(held, name):
        raise AssertionError(f"{name!r} is not held here; held here: {_listed(held)}")


def assert_noted(name: str) -> Condition[list[dict[str, Any]]]:
    """Fail unless the block, or code that it called, noted something under a lock of this name or
    pattern. As a context manager, returns the list of the notes in the block."""
    validate_pattern(name)
    return Condition(lambda: _noted(name))


def lose_lease(what: Lease | str) -> None:
    """Lose a lease now: this one, or all that this process holds on a name or pattern.

    The lock is then free, on the server too, and `on_lost` has been called.
    """
    if isinstance(what, Lease):
        leases = [what]
    else:
        known = (lease for one in every(Register) for lease in one.leases())
        there = [lease for lease in known if lease._lifetime.alive]
        leases = [lease for lease in there if _any(names_of(lease), validate_pattern(what))]
        held = sorted(its for lease in there for its in names_of(lease))
        if not leases:
            raise LookupError(f"{what!r} is not held by this process; held by it: {_listed(held)}")
    for lease in leases:
        lease.check()
        lease._lifetime.lose(LeaseLost(lease.name, "the test has called lose_lease()"))
        with suppress(LockError):
            run(lease._claim.primitive.release(SyncPort(lease._server), lease._claim))
    await_receivers()


def check_lock_order() -> Condition[None]:
    """Raise `LockOrderError` if locks are taken in two orders, anywhere in this process.

    Locks that were taken before do not count. Used around all tests, it finds orders that differ
    between two tests.
    """
    return Condition(_in_order)


def tasks_coalesced(name: str) -> Condition[list[TaskEvent]]:
    """Fail unless a call in the block, or in code that it called, was one with another task of
    this name or pattern.

    As a context manager, returns a list, which has the events of such tasks after the block.
    """
    validate_pattern(name)
    return Condition(lambda: _coalesced(name))


def assert_claimed(name: str, number: int = 1) -> None:
    """Fail unless so many tasks of this name or pattern have claimed their names: they are queued,
    promoted or parked, and a call is one with them."""
    _check(name, number, "have a claim", lambda one: one.claim is not None)


def assert_parked(name: str, number: int = 1) -> None:
    """Fail unless so many tasks of this name or pattern are parked."""
    _check(name, number, "are parked", lambda one: one.counts[Stage.PARKED])


@contextmanager
def _in_order() -> Iterator[None]:
    with mock.patch.object(order, "testing", order.Order()):
        yield


@contextmanager
def _locked(name: str) -> Iterator[list[LockEvent]]:
    events: list[LockEvent] = []
    signals.observe(events.append)
    try:
        yield events
    finally:
        signals.unobserve(events.append)
    taken = [event.name for event in events if event.outcome == "acquired"]
    # The name of a MultiLock lists its names.
    if not _any((one for its in taken for one in (its, *its.split(", "))), name):
        raise AssertionError(f"{name!r} was not locked here; locked here: {_listed(taken)}")


@contextmanager
def _noted(name: str) -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    others: set[str] = set()
    outer = notes.testing

    def noted(its: str, content: dict[str, Any]) -> None:
        if matches(its, name):
            found.append(content)
        others.add(its)
        if outer is not None:
            outer(its, content)

    with mock.patch.object(notes, "testing", noted):
        yield found
    if not found:
        raise AssertionError(f"nothing was noted of {name!r}; noted was: {_listed(others)}")


@contextmanager
def _coalesced(name: str) -> Iterator[list[TaskEvent]]:
    events: list[TaskEvent] = []

    def note(event: TaskEvent, **_more: Any) -> None:
        events.append(event)

    await_receivers()
    task_event.connect(note)
    try:
        yield events
    finally:
        await_receivers()
        task_event.disconnect(note)
    ones = [event.name for event in events if event.what == "coalesced"]
    if not any(_of(one, name) for one in ones):
        raise AssertionError(f"no call of {name!r} was coalesced; coalesced: {_listed(ones)}")
    events[:] = [event for event in events if _of(event.name, name)]


def _check(name: str, number: int, what: str, count: Callable[[TasksInfo], int]) -> None:
    validate_pattern(name)
    validate_whole(number, "number", "tasks", 0, 1_000_000, "2")
    found = [one for using in servers() for one in names(using) if _of(one.name, name)]
    if (seen := sum(map(count, found))) != number:
        there = _listed(f"{one.name} {it}" for one in found for it in one.counts.elements())
        raise AssertionError(f"{seen} of {name!r} {what}, not {number}; there are: {there}")


def _of(task: str, pattern: str) -> bool:
    """Whether the name of a task is this one or matches it, also without its prefix."""
    return _any((task, conf.written(task).removeprefix(PREFIX)), pattern)


def _any(names: Iterable[str], pattern: str) -> bool:
    return any(matches(name, pattern) for name in names)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, dict.fromkeys(names))) or "nothing"
