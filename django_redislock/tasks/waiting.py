"""Claims of tasks that wait for the end of a database transaction.

They live until it commits or is rolled back, however long that takes, and not longer than 30
seconds after a kill.
"""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

from ..base import background, process
from ..base.exceptions import LockError
from ..primitives import work
from ..primitives.contract import run
from ..primitives.keys import Keys
from ..transport.ports import SyncPort
from ..transport.server import Server

logger = logging.getLogger("django_redislock")


class _Claim(NamedTuple):
    server: Server
    keys: Keys


_open: dict[str, _Claim] = {}
_dropped: dict[str, _Claim] = {}
"""Claims of transactions that were rolled back."""
_wake = threading.Event()
"""Set when there is something to undo."""
_thread: list[threading.Thread] = []


def until_commit(server: Server, keys: Keys, id: str) -> None:
    """Renew the claim `id` until `committed` or `undo`."""
    process.notice_fork()
    _open[id] = _Claim(server, keys)
    if not any(one.is_alive() for one in _thread):
        _thread[:] = filter(None, [background.start(_renew, "redislock-claims")])


def committed(id: str) -> None:
    """Renew the claim no longer."""
    _open.pop(id, None)


def undo(id: str) -> None:
    """Undo the claim in the background. A finalizer may call this, in the middle of anything."""
    if (claim := _open.pop(id, None)) is not None:
        _dropped[id] = claim
        _wake.set()


def undo_dropped() -> None:
    """Undo the claims of transactions that were rolled back, unless that was done."""
    while _dropped:
        id, (server, keys) = _dropped.popitem()
        try:
            run(work.confirm(SyncPort(server), keys, id, "", work.SHORT))
        except LockError as error:
            logger.info("A claim of a transaction that was rolled back ends by itself: %s", error)


def _renew() -> None:
    while _open or _dropped:
        undo_dropped()
        for id, (server, keys) in [*_open.items()]:
            try:
                run(work.confirm(SyncPort(server), keys, id, id, work.SHORT))
            except LockError as error:
                logger.warning("The claim of a task could not be renewed: %s", error)
        _wake.wait(work.SHORT / 3)
        _wake.clear()
        if not (_open or _dropped):
            # Whoever comes from now on starts another thread.
            _thread.clear()


def _after_fork() -> None:
    _open.clear()
    _dropped.clear()
    _thread.clear()


process.in_child(_after_fork)
