"""A worker of the demo. To run it by hand, press Enter to let it begin."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import asdict
from itertools import chain, repeat
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_redislock import LeaseLost
from shop.services import Sale, moment, sell, sell_locked


class Command(BaseCommand):
    help = "Says ready, waits for a line, and sells a product until it is sold out."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("product", type=int, help="primary key of what to sell")
        parser.add_argument("worker", help="name to write into the orders")
        parser.add_argument("--locked", action="store_true", help="sell under the lock")
        parser.add_argument(
            "--announce",
            action="store_true",
            help="tell the first sale on standard output, and wait for a line before writing it",
        )

    def handle(self, *, product: int, worker: str, **options: Any) -> None:
        self.say("ready")
        if not sys.stdin.readline():
            return  # The parent process is gone, perhaps before it could notice this one.

        sell_one = sell_locked if options["locked"] else sell
        for think in chain([self.announce] if options["announce"] else [], repeat(moment)):
            # Continue: the fencing token has decided whether this sale counts.
            with suppress(LeaseLost):
                if sell_one(product, worker, think) is None:
                    break
        self.say("sold out")

    def announce(self, sale: Sale) -> None:
        """Print what will be written, and wait for a line before writing it."""
        self.say(json.dumps(asdict(sale)))
        sys.stdin.readline()

    def say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
