"""The running blocks of one lock.

The lease of a block can't be looked up elsewhere: it may be lost by now, so that the watchdog has
forgotten it, and the context may be another one than that in which the block began.
"""

from __future__ import annotations

from typing import NamedTuple

from ..base.label import Holding, holder
from .lease import Lease


class Block(NamedTuple):
    """A block of a lock that was entered, by whom, and with which lease."""

    by: Holding
    lease: Lease


class Blocks:
    """The blocks of one lock that were entered and not left.

    A lock may be shared by threads and tasks, and a thread that has lost its lease may leave its
    block later than another one enters. So each thread or task has its own blocks. They are
    replaced as a whole, so a signal's exception leaves no change half done.
    """

    def __init__(self) -> None:
        self._running: dict[Holding, tuple[Block, ...]] = {}

    def enter(self, block: Block) -> None:
        self._running[block.by] = *self._running.get(block.by, ()), block

    def innermost(self) -> Block:
        """Return the block that this thread or task is about to leave."""
        me = holder()
        mine = self._running.get(me)
        if mine:
            return mine[-1]
        # A block may be left by another thread or task than the one that entered it. A block whose
        # lease has moved here comes first, and then one whose lease is lost, since nobody else
        # needs that.
        everybody = [one for blocks in self._running.copy().values() for one in blocks]
        moved = [one for one in everybody if one.lease._holds.holder is me]
        lost = [one for one in everybody if one.lease._lifetime.lost is not None]
        return moved[-1] if moved else (lost or everybody)[0]

    def leave(self, block: Block) -> None:
        rest = tuple(one for one in self._running.get(block.by, ()) if one is not block)
        if rest:
            self._running[block.by] = rest
        else:
            self._running.pop(block.by, None)
