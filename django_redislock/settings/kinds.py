"""Which kinds of locks there are, by the names that `LOCKS` in the settings has for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..base.servers import EXAMPLE, Servers
from ..primitives import mutex, permits, timestamp
from ..primitives import mutex_and_timestamp as migration
from ..primitives.contract import Primitive
from ..primitives.keys import Keys, refuse_untagged
from ..primitives.redlock import Redlock
from ..transport import server as connections

if TYPE_CHECKING:
    from .conf import Policy


def _redlock(policy: Policy) -> Primitive:
    if not isinstance(policy.using, Servers):
        raise ValueError(f"a Redlock needs several servers in using, {EXAMPLE}")
    return Redlock(policy.using)


KINDS: dict[str, Callable[[Policy], Primitive]] = {
    "mutex": lambda policy: migration if policy.timestamp_key else mutex,
    "redlock": _redlock,
    "semaphore": lambda policy: permits.semaphore(policy.limit),
    "read": lambda _: permits.READ,
    "write": lambda _: permits.WRITE,
    "timestamp": lambda policy: timestamp.FRACTIONS if policy.fractions else timestamp.WHOLE,
}
"""What makes the primitive of a policy. Raises `ValueError` where the policy lacks something."""


def primitive(policy: Policy) -> Primitive:
    """The primitive of a policy. Raises `ValueError` where that makes no lock."""
    if isinstance(policy.using, Servers) and policy.kind != "redlock":
        raise ValueError("several servers in USING need 'KIND': 'redlock' beside them")
    if policy.timestamp_key and policy.kind not in ("mutex", "timestamp"):
        raise ValueError(f"timestamp_key is for a mutex, or a timestamp lock, not a {policy.kind}")
    if policy.timestamp_key and policy.fractions and policy.kind == "mutex":
        raise ValueError(
            "fractions are for 'KIND': 'timestamp'; beside a mutex whole seconds are written, "
            "which all old clients can read"
        )
    return KINDS[policy.kind](policy)


def keys(policy: Policy, name: str) -> Keys:
    """The keys of a lock. Raises `ValueError` for a key of others that a cluster can't lock."""
    if policy.timestamp_key is None and policy.kind != "timestamp":
        return Keys.of(policy.prefix, name)
    also = (policy.timestamp_key or "").replace("{name}", name)
    if policy.kind == "timestamp":
        its = theirs = Keys.verbatim(policy.prefix, (also or name).encode())
    else:
        its = replace(Keys.of(policy.prefix, name), also=also)
        theirs = its.beside()
    if connections.clustered(policy.using):
        refuse_untagged(theirs)
    return its
