"""Which kinds of locks there are, by the names that `LOCKS` in the settings has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .primitives import mutex, places
from .primitives.primitive import Primitive

if TYPE_CHECKING:
    from .conf import Policy

KINDS: dict[str, Callable[[Policy], Primitive]] = {
    "mutex": lambda _: mutex,
    "semaphore": lambda policy: places.semaphore(policy.limit),
    "read": lambda _: places.READ,
    "write": lambda _: places.WRITE,
}
"""What makes the primitive of a policy. Raises `ValueError` where the policy lacks something."""
