"""The primitive and the keys of a lock, by the `kind` of its policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..base.servers import EXAMPLE, MEMORY, Servers
from ..primitives import mutex, permits, timestamp
from ..primitives.contract import Primitive
from ..primitives.keys import Keys, refuse_untagged, validate_name
from ..primitives.redlock import Redlock
from .policy import Policy
from .validators import Function, function_of

SEPARATOR = "/"
"""Stands between a scope and the name behind it."""


def _redlock(policy: Policy) -> Primitive:
    if not isinstance(policy.using, Servers):
        raise ValueError(f"a Redlock needs several servers in using, {EXAMPLE}")
    return Redlock(policy.using)


KINDS: dict[str, Callable[[Policy], Primitive]] = {
    "mutex": lambda policy: timestamp.TOGETHER if policy.timestamp_key else mutex,
    "redlock": _redlock,
    "semaphore": lambda policy: permits.semaphore(policy.limit),
    "read": lambda _: permits.READ,
    "write": lambda _: permits.WRITE,
    "timestamp": lambda policy: timestamp.FRACTIONS if policy.fractions else timestamp.WHOLE,
}
"""Each of these returns the primitive of a policy, or raises `ValueError` if a setting that its
kind needs is missing."""


def primitive(policy: Policy) -> Primitive:
    """Return the primitive of a policy. Raises `ValueError` for settings that contradict each
    other."""
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


def guarded(policy: Policy, clustered: Callable[[str], bool]) -> bool:
    """Return whether nobody new gets the lock for a while after lost data. Raises `ValueError` if
    `after_loss` asks for that where it can't be kept."""
    if policy.after_loss == "go":
        return False
    what = "a mutex with a timestamp_key" if policy.timestamp_key else f"a {policy.kind}"
    if policy.timestamp_key or policy.kind != "mutex":
        raise ValueError(
            f"after_loss='wait' is for a mutex, not for {what}. Give it 'AFTER_LOSS': 'go' in "
            f"LOCKS, or after_loss='go'"
        )
    if clustered(policy.using):
        raise ValueError(
            f"after_loss='wait' can't be kept on a Redis Cluster or another sharded server, as "
            f"{policy.using!r} is: each slot has data of its own. Use one primary for such locks, "
            f"or 'AFTER_LOSS': 'go'"
        )
    return policy.using != MEMORY  # what it had is gone with the process that forgot it


def keys(policy: Policy, name: str, clustered: Callable[[str], bool]) -> Keys:
    """Return the keys of a lock, with the present scope in its name.

    Raises `ValueError` for a timestamp key that can't be locked where `policy.using` is
    `clustered`; and what `in_scope` raises.
    """
    key = (policy.timestamp_key or "").replace("{name}", name)
    if policy.kind == "timestamp":
        # Old clients know the key as it is written, so there is no scope in it.
        keys = of_timestamp = Keys.verbatim(policy.prefix, (key or name).encode())
    else:
        keys = Keys.of(policy.prefix, name)
        if policy.scope is not None:
            keys = Keys.of(policy.prefix, in_scope(policy.scope, name))
            keys.unscoped = name
        if policy.timestamp_key is None:
            return keys
        keys = replace(keys, timestamp_key=key)
        of_timestamp = keys.of_timestamp()
    if clustered(policy.using):
        refuse_untagged(of_timestamp)
    return keys


def in_scope(scope: Function, name: str) -> str:
    """Return a name with the present scope in front of it.

    Raises `ImproperlyConfigured`; and `TypeError` or `ValueError` if that makes no name.
    """
    function = function_of(scope, "REDISLOCK['SCOPE']")
    try:
        text = function()
    except Exception as error:
        error.add_note(f"This happened while REDISLOCK['SCOPE'] was asked for {name!r}.")
        raise
    if text is None:
        return name
    if not isinstance(text, str):
        raise TypeError(f"REDISLOCK['SCOPE'] must return a str, or None (no scope), not {text!r}")
    if not text or SEPARATOR in text:
        raise ValueError(
            f"REDISLOCK['SCOPE'] must return a text without {SEPARATOR!r}, or None (no scope), "
            f"not {text!r}"
        )
    return validate_name(f"{text}{SEPARATOR}{name}")
