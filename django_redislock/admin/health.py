"""The quick part of the doctor's findings about a server, kept for a minute, for the list."""

from __future__ import annotations

from typing import NamedTuple

from ..base.clock import now
from ..doctor import rules, vendors
from ..doctor.facts import Unreachable, ask
from ..doctor.finding import Finding, Level
from ..doctor.in_caches import advice

GOOD_FOR = 60.0
"""Seconds."""


class Health(NamedTuple):
    server: str
    """The server's vendor, name and version; "": it was not reached."""
    primary: bool
    findings: list[Finding]
    """The warnings and errors."""


_NOTHING = Health("", False, [])
_known: dict[str, tuple[float, Health]] = {}


def health(alias: str) -> Health:
    """Return the health of an alias's server, at most a minute old."""
    seen, known = _known.get(alias, (float("-inf"), _NOTHING))
    if now() - seen > GOOD_FOR:
        known = _ask(alias)
        _known[alias] = now(), known
    return known


def _ask(alias: str) -> Health:
    try:
        servers = ask(alias, thorough=False)
    except Unreachable:
        return _NOTHING  # the list reports it
    server = servers[0]  # the nodes of a cluster are of one version
    found = [*advice(alias), *(one for its in servers for one in rules.judge(its))]
    bad = [one for one in found if one.level != Level.INFO]
    name = vendors.described(server.vendor, server.info)
    return Health(name, server.info.get("role") == "master", bad)
