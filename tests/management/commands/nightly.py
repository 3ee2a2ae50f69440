"""A command that tests run as a process of its own: `python -m tests.manage nightly`."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from django_redislock import current_lease
from django_redislock.commands import LockedCommand


class Command(LockedCommand):
    lock_options = {"wait": 0, "ttl": 0.6}

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--until-told", action="store_true")

    def handle(self, *args: Any, until_told: bool, **options: Any) -> str:
        self.stdout.write(f"holding {current_lease().fencing_token}")
        self.stdout.flush()
        if until_told:
            sys.stdin.readline()
        return "done"
