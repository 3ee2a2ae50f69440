"""Locks of threads that an exception from outside can't leave locked.

Before and after CPython 3.14, `with lock:` takes a lock and begins its block in one step. In 3.14,
the handler of a signal may raise in between (https://github.com/python/cpython/issues/148874), and
the lock then stays locked for as long as the process lives.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

ONCE = (True,)
"""`took += map(lock.acquire, ONCE)` takes a lock and remembers that in one step: CPython looks for
signals after a call, and to go through an iterator is none."""


def rlock() -> Any:
    """Return a `threading.RLock`."""
    return threading.RLock()


if sys.version_info[:2] == (3, 14):
    from _thread import RLock

    class _Whole(RLock):
        # Its `__exit__` stays that of C. One in Python would begin with a look for signals.
        def __enter__(self) -> bool:
            took: list[bool] = []
            took += map(self.acquire, ONCE)
            return True

    def rlock() -> Any:
        lock = threading.RLock()
        return _Whole() if type(lock) is RLock else lock  # gevent has others
