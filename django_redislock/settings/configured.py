"""The contents of all settings together: entries, aliases, replicas. All functions but `source`
and the entries expect settings without an error."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from ..base.servers import aliases_of
from . import conf
from .policy import Policy


def source() -> Any:
    """Return `REDISLOCK` as it is written, right or wrong."""
    return getattr(settings, "REDISLOCK", {})


def entries() -> list[str]:
    """Return the keys of `LOCKS`: names and patterns."""
    return list(source().get("LOCKS", ()))


def job_entries() -> list[str]:
    """Return the keys of `JOBS`: names and patterns."""
    return list(source().get("JOBS", ()))


def policies() -> list[Policy]:
    """Return each policy that a lock without arguments can have."""
    # A pattern, taken as a name, follows its own entry. "" follows none.
    return [conf.policy(name, {}) for name in ("", *entries())]


def aliases() -> list[str]:
    """Return the aliases of CACHES that locks use."""
    names = (alias for policy in policies() for alias in aliases_of(policy.using))
    return list(dict.fromkeys(names))


def replicas(alias: str) -> int:
    """Return the largest `replicas` of a lock on an alias."""
    return max((policy.replicas for policy in policies() if policy.using == alias), default=0)


def after_loss(alias: str) -> str:
    """Return "wait" if a lock on an alias waits after lost data."""
    its = [policy.after_loss for policy in policies() if alias in aliases_of(policy.using)]
    return "wait" if "wait" in its else "go"


def replicas_timeout(alias: str) -> float | None:
    """Return the longest `replicas_timeout` of a lock on an alias. None: no lock asks replicas."""
    asking = (policy for policy in policies() if policy.using == alias and policy.replicas)
    return max((policy.replicas_timeout for policy in asking), default=None)
