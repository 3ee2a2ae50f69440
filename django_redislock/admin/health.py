"""What the doctor says of a server, for a page: the quick part of it, and not each time anew."""

from __future__ import annotations

from typing import NamedTuple

from .. import doctor as diagnosis
from ..base.clock import now
from ..doctor import Finding, Level

GOOD_FOR = 60.0
"""Seconds."""


class Health(NamedTuple):
    server: str
    """Its name and version; "": not seen."""
    primary: bool
    findings: list[Finding]
    """What is wrong, or will be."""


_NOTHING = Health("", False, [])
_known: dict[str, tuple[float, Health]] = {}


def health(alias: str) -> Health:
    """What is known of the server of an alias, for a minute."""
    seen, known = _known.get(alias, (float("-inf"), _NOTHING))
    if now() - seen > GOOD_FOR:
        known = _look(alias)
        _known[alias] = now(), known
    return known


def _look(alias: str) -> Health:
    try:
        servers = diagnosis.look(alias, thorough=False)
    except diagnosis.Away:
        return _NOTHING  # the page says so itself
    server = servers[0]  # or more than one, of a cluster: they are of one version
    found = [*diagnosis.advice(alias), *(one for its in servers for one in diagnosis.judge(its))]
    bad = [one for one in found if one.level != Level.INFO]
    valkey, redis = (server.info.get(f"{name}_version") for name in ("valkey", "redis"))
    name = f"Valkey {valkey}" if valkey else f"Redis {redis}" if redis else ""
    return Health(name, server.info.get("role") == "master", bad)
