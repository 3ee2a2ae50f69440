"""Which kinds of locks there are, by the names that `LOCKS` in the settings has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .primitives import mutex, places
from .primitives.primitive import Primitive
from .primitives.redlock import Redlock
from .servers import EXAMPLE, Servers

if TYPE_CHECKING:
    from .conf import Policy


def _redlock(policy: Policy) -> Primitive:
    if not isinstance(policy.using, Servers):
        raise ValueError(f"a Redlock needs several servers in using, {EXAMPLE}")
    return Redlock(policy.using)


KINDS: dict[str, Callable[[Policy], Primitive]] = {
    "mutex": lambda _: mutex,
    "redlock": _redlock,
    "semaphore": lambda policy: places.semaphore(policy.limit),
    "read": lambda _: places.READ,
    "write": lambda _: places.WRITE,
}
"""What makes the primitive of a policy. Raises `ValueError` where the policy lacks something."""
