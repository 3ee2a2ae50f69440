"""All findings, for the system checks and for `manage.py redislock doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..base.servers import MEMORY
from ..settings.conf import aliases
from .caches import advice, alias_findings, in_memory
from .finding import Finding, Level
from .rules import judge
from .server import Unreachable, ask
from .settings import job_findings, settings_findings, usage_findings

UNREACHABLE = "redislock.E101"


def all_findings(using: Iterable[str] | None = None) -> Iterator[Finding]:
    """Return the findings about the settings, the jobs and the servers of these aliases; by
    default, of all that locks use."""
    found = list(settings_findings())
    yield from found
    if None not in _broken(found):
        yield from job_findings()
        yield from usage_findings()
    yield from deployment_findings(using)


def deployment_findings(using: Iterable[str] | None = None) -> Iterator[Finding]:
    """Return the findings that need a deployed project: each server is asked."""
    broken = _broken(settings_findings())
    if None in broken:
        return  # with wrong settings it is unclear which servers to ask
    used = aliases()
    for alias in dict.fromkeys(using or used):
        wrong = [] if alias in used else [*alias_findings(alias)]
        yield from wrong
        if alias == MEMORY and not wrong and alias not in broken:
            yield in_memory()
        elif not wrong and alias not in broken:
            yield from advice(alias)
            yield from server_findings(alias)


def server_findings(alias: str, *, thorough: bool = True) -> Iterator[Finding]:
    """Return the findings about the servers of an alias, after asking them as `ask` does."""
    try:
        servers = ask(alias, thorough=thorough)
    except Unreachable as error:
        hint = f'Check that it runs, and the address, user and password in CACHES["{alias}"].'
        yield Finding(UNREACHABLE, str(error), hint, alias)
    else:
        for server in servers:
            yield from judge(server)


def _broken(findings: Iterable[Finding]) -> set[str | None]:
    """Return the aliases that can't be used. None stands for the settings."""
    return {finding.alias for finding in findings if finding.level == Level.ERROR}
