"""Which kinds of locks there are, by the names that `LOCKS` in the settings has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .primitives import mutex, timestamp
from .primitives.primitive import Primitive

if TYPE_CHECKING:
    from .conf import Policy

KINDS: dict[str, Callable[[Policy], Primitive]] = {
    "mutex": lambda _: mutex,
    "timestamp": lambda _: timestamp.WHOLE,
}
"""What makes the primitive of a policy. Raises `ValueError` where the policy lacks something."""
