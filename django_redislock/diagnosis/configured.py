"""The settings as a whole: what all locks may be, and all that is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from .. import conf
from ..servers import aliases_of


class Problem(NamedTuple):
    """Something that is wrong with the settings."""

    path: tuple[str, ...]
    """Its keys in `REDISLOCK`, from the outside in."""
    message: str
    incomplete: bool = False
    """Each setting of the entry is right, and something is missing."""


_FIELD = ("LOCKS", "name", "field")
"""What the path of a single field of an entry looks like."""


def problems() -> list[Problem]:
    """All that is wrong; who takes a lock is told of the first one only."""
    found: dict[str, Problem] = {}
    for path, part in _parts(_source()):
        try:
            conf._parse(part)
        except ImproperlyConfigured as error:
            incomplete = isinstance(error, conf.Incomplete)
            if not incomplete or len(path) < len(_FIELD):  # else others may complete it
                problem = Problem(tuple(map(str, path)), str(error), incomplete)
                found.setdefault(str(error), problem)
    return list(found.values())


def entries() -> list[str]:
    """The names and patterns in `LOCKS`. Nothing is wrong with the settings."""
    return list(_source().get("LOCKS", ()))


def job_entries() -> list[str]:
    """The names and patterns in `JOBS`. Nothing is wrong with the settings."""
    return list(_source().get("JOBS", ()))


def policies() -> list[conf.Policy]:
    """What locks may be, as far as the settings say. Nothing is wrong with them."""
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


def _source() -> Any:
    return getattr(settings, "REDISLOCK", {})


def _parts(source: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each single setting as a `REDISLOCK` of its own, so that one rule reads them all."""
    if not isinstance(source, Mapping):
        yield (), source
        return
    for key, value in source.items():
        if key not in ("LOCKS", "JOBS") or not isinstance(value, Mapping):
            yield (key,), {key: value}
            continue
        for name, entry in value.items():
            if not isinstance(entry, Mapping):
                yield (key, name), {key: {name: entry}}
                continue
            yield (key, name), {key: {name: {}}}
            for field, its in entry.items():
                yield (key, name, field), {key: {name: {field: its}}}
            yield (key, name), {key: {name: entry}}
