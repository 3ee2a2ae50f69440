"""To wait for what happens elsewhere, in another process or on the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds after which a test gives up: generous, since it only bounds how long a failure takes."""


def eventually(look: Callable[[], T], *, within: float = PATIENCE) -> T:
    """Look until there is something to see, and return it; fail after `within` seconds."""
    give_up = time.monotonic() + within
    while not (seen := look()):
        assert time.monotonic() < give_up, f"did not happen within {within} s"
        time.sleep(0.002)
    return seen
