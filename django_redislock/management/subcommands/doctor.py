"""`manage.py redislock doctor`: find what is wrong, or will be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from ...commands import UNAVAILABLE
from ...doctor.finding import Finding, Level
from ...doctor.rules import UNREACHABLE, all_findings
from ...inspection.words import clean, count
from ..arguments import WRONG, Parser
from ..output import Printer

_ORDER = list(Level)
"""The worst first."""


class Doctor:
    help = "Look for present and future problems in the settings and the servers of locks."

    def add_arguments(self, parser: Parser) -> None:
        parser.add_argument(
            "--using",
            action="append",
            metavar="ALIAS",
            help="An alias of CACHES; may be repeated. By default all that REDISLOCK names.",
        )
        parser.add_argument(
            "--fail-level",
            choices=[level.name for level in Level],
            default=Level.ERROR.name,
            help=f"The lowest level for which the exit code is {WRONG}; by default ERROR.",
        )
        parser.json()

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        # UNREACHABLE can't be silenced: nothing is known about a server that can't be reached.
        silenced = set(settings.SILENCED_SYSTEM_CHECKS) - {UNREACHABLE}
        findings = sorted(
            (one for one in all_findings(options["using"]) if one.id not in silenced),
            key=lambda finding: _ORDER.index(finding.level),
        )
        away = [finding for finding in findings if finding.id == UNREACHABLE]
        gone = {finding.alias for finding in away}
        shown = [
            finding
            for finding in findings
            # About a server that is away, only the error below matters.
            if finding.alias not in gone
            and not (away and finding.alias is None and finding.level == Level.INFO)
        ]
        lines = chain.from_iterable(_lines(finding, printer) for finding in shown)
        printer.write(
            [{"id": one.id, "level": one.level, **asdict(one)} for one in findings], lines
        )
        if away:
            raise CommandError(
                "\n".join(clean(finding.message) for finding in away), returncode=UNAVAILABLE
            )
        bad = _ORDER.index(Level[options["fail_level"]])
        if any(_ORDER.index(finding.level) <= bad for finding in findings):
            raise CommandError(_counted(findings), returncode=WRONG)
        printer.line(printer.style.SUCCESS(_counted(findings)))
        return 0


def _lines(finding: Finding, printer: Printer) -> Iterator[str]:
    styles = {Level.ERROR: printer.style.ERROR, Level.WARNING: printer.style.WARNING}
    place = f" [{finding.alias}]" if finding.alias else ""
    text = clean(f"{finding.id}{place} {finding.message}")
    yield styles.get(finding.level, str)(text)
    if finding.hint:
        yield f"    HINT: {clean(finding.hint)}"


def _counted(findings: list[Finding]) -> str:
    """The last line of the report."""
    counts = Counter(finding.level for finding in findings)
    errors, warnings = counts[Level.ERROR], counts[Level.WARNING]
    if not errors and not warnings:
        return "Nothing is wrong."
    return f"{count(errors, 'error')}, {count(warnings, 'warning')}."
