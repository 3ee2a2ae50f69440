"""`manage.py runperiodic`: runs the project's periodic jobs, on as many hosts as you like."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...management import scheduling


class Command(BaseCommand):
    help = "Runs the periodic jobs of this project; each tick once in the whole fleet."

    def add_arguments(self, parser: CommandParser) -> None:
        scheduling.add_arguments(parser)

    def handle(self, *_args: Any, **options: Any) -> None:
        scheduling.handle(self, options)
