"""Which kinds of locks there are, by the names that `LOCKS` in the settings has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .primitives import migration, mutex, timestamp
from .primitives.primitive import Primitive

if TYPE_CHECKING:
    from .conf import Policy

KINDS: dict[str, Callable[[Policy], Primitive]] = {
    "mutex": lambda policy: migration if policy.timestamp_key else mutex,
    "timestamp": lambda _: timestamp.WHOLE,
}
"""What makes the primitive of a policy. Raises `ValueError` where the policy lacks something."""

WITH_TIMESTAMP = ("mutex", "timestamp")


def primitive(policy: Policy) -> Primitive:
    """The primitive of a policy. Raises `ValueError` where that makes no lock."""
    if policy.timestamp_key and policy.kind not in WITH_TIMESTAMP:
        raise ValueError(f"timestamp_key is for a mutex, or a timestamp lock, not a {policy.kind}")
    return KINDS[policy.kind](policy)
