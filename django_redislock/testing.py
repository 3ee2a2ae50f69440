"""For the tests of projects that use locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import lock_order


@contextmanager
def check_lock_order() -> Iterator[None]:
    """Raise `LockOrderError` where locks are taken in two orders, anywhere in this process.

    What was taken before does not count. Around all tests, it finds what no single one does.
    """
    outer, lock_order.testing = lock_order.testing, lock_order.Order()
    try:
        yield
    finally:
        lock_order.testing = outer
