"""System checks. The checks of the settings open no connection; the check for deployment does.

The modules of the doctor are imported when a check runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.core import checks

from ..base.servers import MEMORY

if TYPE_CHECKING:
    from .finding import Finding

TAG = "redislock"


def register() -> None:
    checks.register(check_settings, TAG)
    checks.register(check_jobs, TAG)
    checks.register(check_deployment, TAG, deploy=True)


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Check the settings, and the entries of CACHES that locks use."""
    from .settings import settings_findings

    return _messages(settings_findings())


def check_jobs(**_: Any) -> list[checks.CheckMessage]:
    """Check the periodic jobs."""
    from .settings import job_findings

    return _messages(job_findings())


def check_deployment(**_: Any) -> list[checks.CheckMessage]:
    """Check what matters in production. Each server is asked."""
    from .rules import deployment_findings

    return _messages(deployment_findings())


def _messages(findings: Iterable[Finding]) -> list[checks.CheckMessage]:
    from .finding import Level

    # Findings of the level INFO are left out: they appear also when nothing is wrong.
    kinds = {Level.ERROR: checks.Error, Level.WARNING: checks.Warning}
    return [
        kinds[finding.level](
            finding.message,
            hint=finding.hint,
            obj="REDISLOCK" if finding.alias in (None, MEMORY) else f"CACHES[{finding.alias!r}]",
            id=finding.id,
        )
        for finding in findings
        if finding.level in kinds
    ]
