"""What the settings say of all locks and jobs, when nothing is wrong with them."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from ..base.servers import aliases_of
from . import conf


def source() -> Any:
    """`REDISLOCK`, whatever is wrong with it."""
    return getattr(settings, "REDISLOCK", {})


def entries() -> list[str]:
    """The names and patterns in `LOCKS`."""
    return list(source().get("LOCKS", ()))


def job_entries() -> list[str]:
    """The names and patterns in `JOBS`."""
    return list(source().get("JOBS", ()))


def policies() -> list[conf.Policy]:
    """What locks may be, as far as the settings say."""
    # A name as an entry has it follows that entry; "" stands for all that no entry names.
    return [conf.policy(name, {}) for name in ("", *entries())]


def aliases() -> list[str]:
    """The aliases of CACHES that locks use."""
    used = (aliases_of(policy.using) for policy in policies())
    return list(dict.fromkeys(alias for those in used for alias in those))


def replicas(alias: str) -> int:
    """How many replicas have to confirm a lock on an alias, at most."""
    return max((policy.replicas for policy in policies() if policy.using == alias), default=0)


def replicas_timeout(alias: str) -> float | None:
    """How long they have for it, at most; None: none has to."""
    those = (one for one in policies() if one.using == alias and one.replicas)
    return max((policy.replicas_timeout for policy in those), default=None)
