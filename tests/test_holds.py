"""How the holds of a lease are counted, in cases that no block of code shows."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest

from django_redislock.lease.holds import Counts, Holds, innermost


class Lease:
    """All that holds know of a lease."""

    def __init__(self) -> None:
        self._holds = Holds(threading.current_thread())


@pytest.fixture
def lease() -> Iterator[Lease]:
    outer = innermost.get()
    yield Lease()
    assert innermost.get() is outer


@pytest.fixture
def holds(lease: Lease) -> Holds:
    return lease._holds


def test_it_is_never_held_again(holds: Holds) -> None:
    """After the last hold has ended, nobody gets another one."""
    assert holds.drop()
    assert not holds.again()
    assert holds.counts.total == 0
    assert holds.drop(), "the watchdog tries again until Redis answers"


def test_a_release_inside_of_a_block(lease: Lease, holds: Holds) -> None:
    """The end of the block is not counted again."""
    holds.enter(weakref.ref(lease))
    assert holds.again()
    holds.enter(weakref.ref(lease))
    holds.give_back()
    assert not holds.drop()
    assert (holds.counts, holds.unentered) == (Counts(1, 1, 1), 0)
    assert not holds.leave(entered=True), "the outer block holds it"
    assert holds.counts == Counts(1, 1, 0)
    holds.give_back()
    assert holds.drop()
    assert holds.leave(entered=True), "nobody holds it: the error of a lost lease is to be seen"


def test_a_release_of_what_was_not_entered(lease: Lease, holds: Holds) -> None:
    """The hold of the acquire ends, and not that of the outer block."""
    holds.enter(weakref.ref(lease))
    assert holds.again()
    holds.give_back()
    assert not holds.drop()
    assert (holds.counts, holds.unentered) == (Counts(1, 1, 0), 0)
    holds.leave(entered=True)


def test_a_generator(lease: Lease, holds: Holds) -> None:
    """Its lease is no `with` block. What it has released itself is not released again."""
    holds.enter(weakref.ref(lease))
    assert holds.again()
    holds.give_back()
    assert not holds.drop()
    assert not holds.leave(entered=False), "the outer block holds it"
    assert holds.counts == Counts(1, 1, 0)
    holds.leave(entered=True)


@pytest.mark.parametrize("done", range(3))
def test_an_interrupted_end(lease: Lease, holds: Holds, done: int) -> None:
    """Wherever an exception comes while a block is left, one hold less is left."""
    holds.again()
    before = holds.counts
    if done > 0:
        holds.leave(entered=False)
    if done > 1:
        holds.drop()
    assert not holds.abandon(before, 1)
    assert holds.counts == Counts(1, 1, 0)
    assert not holds.abandon(before, 1), "it may be said twice"
    assert holds.counts == Counts(1, 1, 0)
    assert holds.abandon(None, 1)


def test_an_interrupted_beginning(holds: Holds) -> None:
    """A block that was added and not entered takes nothing away from the outer one."""
    before = holds.counts
    holds.again()
    assert not holds.abandon(before, 0)
    assert holds.counts == before
