"""The plan of a lock: all that its settings and arguments decide, made once.

Locks that follow the same entry of `LOCKS`, and have the same arguments, share a plan. It holds
for as long as neither `REDISLOCK` nor what an alias of `CACHES` means has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..primitives.contract import Primitive
from ..primitives.keys import Index, Keys
from ..settings import conf, kinds
from ..settings.policy import Policy
from ..transport.server import Server, clustered, known_servers, server_of
from .register import register
from .watchdog import watchdog

LEAST_YOUNG = 4.0
"""Seconds that a lease lives at least, if nobody looks at it for a second."""
MOST = 512
"""Plans that are kept: a bound for code that passes another argument each time."""


class Plan:
    """What locks with the same settings have in common. Times are seconds."""

    __slots__ = (
        *("_index", "guarded", "policy", "primitive", "register", "renewed", "server"),
        *("straight", "terms", "ttl", "watchdog", "young"),
    )

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.server: Server = server_of(policy.using)
        self.primitive: Primitive = kinds.primitive(policy)
        self.guarded = kinds.guarded(policy, clustered)
        """Whether nobody new gets the lock for a while after lost data."""
        self.renewed = policy.renew and policy.timestamp_key is None
        """Whether its lease may be short at first, as one that was handed over is."""
        self.terms = policy.terms()
        self.ttl = policy.ttl if policy.max_hold is None else min(policy.ttl, policy.max_hold)
        self.register = register(self.server)
        self.watchdog = watchdog(self.server)
        plain = policy.timestamp_key is None and policy.kind != "timestamp"
        self._index = Index.at(policy.prefix) if plain and policy.scope is None else None
        self.straight = plain and not (self.guarded or policy.replicas or self.server.clustered)
        """Whether a free lock may be taken straight."""
        self.young = self.straight and self.ttl >= LEAST_YOUNG
        """Whether its lease may be young at first."""

    def keys(self, name: str) -> Keys:
        """Return the keys of a lock, as `kinds.keys`."""
        if self._index is None:
            return kinds.keys(self.policy, name, clustered)
        return Keys(name, f"{self.policy.prefix}:{{{name}}}", self._index)


_plans: dict[Any, Plan] = {}
_of_settings: object = None
_of_servers: object = None
"""The settings and the servers for which they were made."""


def plan_of(name: str, explicit: Mapping[str, Any]) -> Plan:
    """Return the plan of the lock `name` with these `explicit` arguments.

    Raises `ImproperlyConfigured` for wrong settings, and `ValueError` for settings that contradict
    each other.
    """
    global _of_settings, _of_servers
    current, servers = conf.current(), known_servers()
    if _of_settings is not current or _of_servers is not servers:
        _plans.clear()
        _of_settings, _of_servers = current, servers
    entry = current.locks.key(name)
    key: Any = (entry, *explicit.items()) if explicit else entry
    try:
        found = _plans.get(key)
    except TypeError:  # an argument that can't be hashed
        return Plan(conf.policy(name, explicit))
    if found is None:
        if len(_plans) >= MOST:
            _plans.clear()
        found = _plans[key] = Plan(conf.policy(name, explicit))
    return found


forget_plans = _plans.clear
