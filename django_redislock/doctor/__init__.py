"""What is wrong, or will be: of the settings, and of the servers. The system checks and `doctor`
both tell what is found here."""

from __future__ import annotations

from collections.abc import Iterator

from ..settings.configured import aliases
from .facts import Away, look
from .finding import Finding, Level
from .in_caches import advice, alias_findings
from .in_jobs import job_findings
from .in_settings import settings_findings
from .rules import judge
from .usage import usage_findings

__all__ = [
    "AWAY",
    "Away",
    "Finding",
    "Level",
    "advice",
    "alias_findings",
    "aliases",
    "job_findings",
    "judge",
    "look",
    "server_findings",
    "settings_findings",
    "usage_findings",
]

AWAY = "redislock.E101"


def server_findings(alias: str) -> Iterator[Finding]:
    """What its server tells; this one connects to it."""
    try:
        servers = look(alias)
    except Away as away:
        yield Finding(
            id=AWAY,
            message=str(away),
            hint=f'See that it runs, and that CACHES["{alias}"] has its address, user and '
            f"password.",
            alias=alias,
        )
    else:
        for server in servers:
            yield from judge(server)
