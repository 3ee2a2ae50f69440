"""Holds a lock, so that there is something to see in the admin."""

from __future__ import annotations

import sys
from contextlib import suppress
from select import select
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_redislock import LeaseLost, redis_lock


class Command(BaseCommand):
    help = "Says ready, and holds a lock for a while, again and again, until standard input ends."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("lock", help="its name")
        parser.add_argument("--label", help="what it is held for")
        parser.add_argument("--seconds", type=float, default=5.0, help="for how long at a time")
        parser.add_argument("--ttl", type=float, help="for how long it stays when we are killed")

    def handle(self, *, lock: str, seconds: float, **options: Any) -> None:
        self.stdout.write("ready")
        self.stdout.flush()
        wanted = {name: options[name] for name in ("label", "ttl") if options[name]}
        over = False
        while not over:
            # An operator may clear it, and then it is simply the next one's turn.
            with suppress(LeaseLost), redis_lock(lock, wait=None, **wanted):
                over = bool(select([sys.stdin], [], [], seconds)[0])
