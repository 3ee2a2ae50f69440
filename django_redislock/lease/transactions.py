"""Release when the surrounding database transactions have ended, or warn of an earlier release.

Django calls an `on_commit` function after COMMIT, and drops it when its transaction, or its
savepoint, is rolled back. Both the call and the drop end the hold of a transaction. So Django's
own bookkeeping of savepoints decides, and there is no second copy of it here.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic, TransactionManagementError

from ..base.exceptions import EarlyReleaseWarning, LockError
from ..base.people import holder
from .holds import Hold

logger = logging.getLogger("django_redislock")


def open_transactions() -> list[BaseDatabaseWrapper]:
    """Return the connections of this thread that are inside an `atomic` block.

    Raises `TransactionManagementError` if one of them manages transactions by hand: then their end
    can't be seen.
    """
    found = []
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            found.append(connection)
        elif connection.connection is not None and not connection.autocommit:
            raise TransactionManagementError(
                f"release='commit' can't see the end of a transaction that is managed by hand "
                f"on {connection.alias!r} (AUTOCOMMIT is off). Use transaction.atomic(), or "
                f"release='exit'."
            )
    return found


def may_go_on() -> bool:
    """Return whether a transaction of this thread may go on that decides about the end of a
    block."""
    try:
        return bool(open_transactions())
    except TransactionManagementError:
        return True


def after_commit(call: Callable[[], object]) -> bool:
    """Call it when the transactions of the project that are open in this thread have been
    committed, and never if one of them is rolled back. Return whether it was called at once."""
    for connection in connections.all(initialized_only=True):
        if blocks_of_the_project(connection):
            connection.on_commit(lambda: after_commit(call), robust=True)
            return False
    call()
    return True


def warn_if_open(label: str) -> None:
    """Warn if a transaction of this thread is open while a lock is released that was taken at
    `label`."""
    for connection in connections.all(initialized_only=True):
        by_hand = connection.connection is not None and not connection.autocommit
        if blocks_of_the_project(connection) or (by_hand and not connection.in_atomic_block):
            # The text has no name of a lock: Python keeps each text, and shows it once.
            warnings.warn(
                f"The lock that was taken at {label} is released while a transaction is open on "
                f"the database {connection.alias!r}: the next holder does not see what it writes. "
                f"Write release='commit', or take the lock around transaction.atomic(); if "
                f"nothing is written, release='exit'.",
                EarlyReleaseWarning,
                stacklevel=2,
            )


def blocks_of_the_project(connection: BaseDatabaseWrapper) -> list[Atomic]:
    """Return the atomic blocks that are open, besides those of a `TestCase` around each test."""
    return [one for one in connection.atomic_blocks if not getattr(one, "_from_testcase", False)]


def defer(lease: Any, error: BaseException | None) -> None:
    """Let each open transaction hold a lease from now on, besides the block that ends with this
    error."""
    pending = open_transactions()
    if pending and error is None:
        lease.check()  # before the commit, while it can still be rolled back
    for connection in pending:
        later = Hold(holder(), outlives=True)  # this thread, also for a task
        # A finalizer calls `dropped`, which therefore sends no request.
        at_end(
            connection,
            committed=partial(lease._settle, later),
            dropped=partial(lease._release_later, later),
        )
        lease._holds.append(later)


def at_end(
    connection: BaseDatabaseWrapper,
    *,
    committed: Callable[[], object],
    dropped: Callable[[], object],
) -> None:
    """Call `committed` after the commit of `connection`, `dropped` after its rollback.

    A finalizer calls `dropped`, so it must not do any I/O.
    """

    def end() -> None:  # only Django may keep a reference to it
        when_dropped.detach()
        try:
            committed()
        except LockError:  # the project's own callbacks must still be called
            logger.exception("A lock could not be released after a commit")

    when_dropped = weakref.finalize(end, dropped)
    when_dropped.atexit = False
    # Not robust: Django would log a task's time limit that is raised in it, and go on.
    connection.on_commit(end)
