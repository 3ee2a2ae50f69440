"""Who holds a lease in this process, and how often.

A lease is held by blocks of code, and by what outlives its block: database transactions, and a
response that is being sent. It is released when its last hold has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from typing import Any, NamedTuple

from ..base import fork
from ..base.label import Holding
from ..base.rlocks import rlock

# The lease of the innermost block. It is a context variable, so that each task has its own. It is
# set and not reset by token, since a generator may be closed in another context than the one in
# which it began. The reference is weak: a block that was left in disorder must not keep its lease
# alive.
innermost: contextvars.ContextVar[weakref.ref[Any] | None] = contextvars.ContextVar(
    "django_redislock_current", default=None
)

# Reentrant, since the garbage collector may close a locked generator while the lock is held.
# No `return` below calls anything while the lock is held: after such a call, a signal's exception
# would leave it locked.
changing = rlock()
"""Held for a moment while the holds or the end of any lease change."""


class Counts(NamedTuple):
    """How often a lease is held. See `Holds`."""

    total: int
    blocks: int
    released_early: int


class Holds:
    """The holds of one lease.

    * `counts.blocks` is the number of blocks that hold the lease: `with` blocks, and acquires
      that no `with` block has entered (yet).
    * `counts.released_early` is the number of `with` blocks that have released the lease and have
      not been left.
    * `outer` has an entry for each `with` block that was entered and not left: the lease that was
      the current one before it. So `unentered`, the number of acquires without a `with` block, is
      `blocks + released_early - len(outer)`.
    * `counts.total` is `blocks` plus what outlives a block. A block that ends is taken from
      `blocks` first and from `total` later, by `drop()`, when it is known whether transactions
      hold the lease in its stead.
    * Nothing falls below zero, and a lease whose `total` is zero is never held again.

    `counts` is replaced as a whole: reading it calls nothing, so that no signal's exception can
    come between reading it and the `try` statement that needs it.
    """

    __slots__ = ("counts", "holder", "outer")

    def __init__(self, holder: Holding | None) -> None:
        self.counts = Counts(1, 1, 0)
        self.holder = holder
        """The thread or task that uses the lease. None: a response that is being sent."""
        self.outer: list[weakref.ref[Any] | None] = []

    @property
    def unentered(self) -> int:
        """The number of acquires that no `with` block has entered."""
        _, blocks, released_early = self.counts
        return blocks + released_early - len(self.outer)

    @property
    def orphaned(self) -> bool:
        """Whether the lease is held by a block of a task that never goes on, since its event
        loop was closed."""
        task = self.holder
        if not self.outer or not isinstance(task, asyncio.Task):
            return False
        return not task.done() and task.get_loop().is_closed()

    def again(self) -> bool:
        """Add a block. Return False if the last hold has ended already."""
        with changing:
            total, blocks, released_early = self.counts
            if total:
                self.counts = Counts(total + 1, blocks + 1, released_early)
        return total > 0

    def enter(self, lease: weakref.ref[Any]) -> None:
        """Enter the `with` block of an acquire, and make `lease` the current one."""
        self.outer.append(innermost.get())
        innermost.set(lease)

    def leave(self, *, entered: bool) -> bool:
        """Leave a block. Return False if it has released the lease before, and others hold it."""
        with changing:
            total, blocks, released_early = self.counts
            if entered:
                innermost.set(self.outer.pop())
                if released_early:
                    self.counts = Counts(total, blocks, released_early - 1)
                    return not total
            elif self.unentered <= 0:
                return not total
            self.counts = Counts(total, max(blocks - 1, 0), released_early)
            return True

    def forget_block(self) -> None:
        """Drop the entry of a `with` block that is left in another context, perhaps."""
        outer, current = self.outer.pop(), innermost.get()
        lease = None if current is None else current()
        if lease is not None and lease._holds is self:
            innermost.set(outer)

    def give_back(self) -> None:
        """End a block before it is left."""
        with changing:
            total, blocks, released_early = self.counts
            if blocks:
                early = self.unentered <= 0
                self.counts = Counts(total, blocks - 1, released_early + early)

    def defer(self, transactions: int) -> None:
        """Let this number of database transactions hold the lease instead of the block that was
        left."""
        with changing:
            self.counts = self.counts._replace(total=self.counts.total + transactions - 1)

    def outlive(self) -> None:
        """Add a hold that is no thread's or task's."""
        with changing:
            self.counts = self.counts._replace(total=self.counts.total + 1)
            self.holder = None

    def drop(self) -> bool:
        """End a hold. Return whether it was the last one, or had ended before."""
        with changing:
            total, blocks, released_early = self.counts
            total = max(total - 1, 0)
            self.counts = Counts(total, blocks, released_early)
            return not total

    def abandon(self, before: Counts | None, less: int) -> bool:
        """End `less` holds of blocks at once, unless this was done since `counts` were `before`.

        Return whether no hold is left.
        """
        with changing:
            total, blocks, released_early = self.counts
            then = before or self.counts
            total = min(total, max(then.total - less, 0))
            blocks = min(blocks, max(then.blocks - less, 0))
            self.counts = Counts(total, blocks, released_early)
            return not total


def _after_fork() -> None:
    global changing
    changing = rlock()  # another thread of the parent may have held it


fork.in_child(_after_fork)
