"""The demo: what goes wrong without a lock and not with it. On a terminal, the tour follows."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from devtools.redis_server import RedisServerError
from shop.demo import interrupts, report, rounds
from shop.demo.progress import Progress
from shop.demo.sandbox import sandbox

CRASH_UNITS = 10


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ArgumentTypeError("must be at least 1")
    return number


class Command(BaseCommand):
    help = "Sells the same stock without the lock, with it, and with its holder killed."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--units", type=positive, default=100, help="units in stock")
        parser.add_argument("--workers", type=positive, default=8, help="processes that sell")

    def handle(self, *, units: int, workers: int, **_options: Any) -> None:
        interrupts.end_as_ctrl_c_does()
        try:
            self.play(units, workers)
        except RedisServerError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("Interrupted.", returncode=130) from None
        if sys.stdin.isatty() and self.stdout.isatty():
            self.stdout.write(self.heading("\nAnd now in a browser"))
            call_command("tour")

    def play(self, units: int, workers: int) -> None:
        progress = Progress(self.stdout)
        crowd = f"{workers} workers sell {units} units"
        with sandbox() as server:
            progress.keep(f"Redis: {server.description}")

            progress.keep(self.heading(f"1. Without the lock, {crowd}"))
            unlocked = rounds.race(progress, "without the lock", units, workers)
            if unlocked.oversold:
                progress.keep(self.style.WARNING(f"  {unlocked.oversold} orders too many"))
            else:
                progress.keep("  nothing oversold this time: luck, which no shop should need")

            progress.keep(self.heading(f"2. With the lock, {crowd}"))
            locked = rounds.race(progress, "with the lock", units, workers, "--locked")
            progress.keep(f"  {locked.oversold} orders too many")

            progress.keep(self.heading("3. With the lock, and its holder killed at work"))
            crash = rounds.crash(progress, "holder killed (SIGKILL)", CRASH_UNITS)
            progress.keep(f"  the next one held the lock after {crash.takeover:.1f} s")

            outages: list[bool] = []
            if not server.external:  # otherwise there is one Redis, and not three
                progress.keep(self.heading("4. A Redlock on three servers, which go one by one"))
                outages = rounds.outages(progress)

        progress.keep("\n" + report.table(unlocked, locked, crash) + "\n")
        report.verdict(locked, crash, outages)
        progress.keep(self.style.SUCCESS("Every promise was kept."))

    def heading(self, text: str) -> str:
        return self.style.MIGRATE_HEADING(text)
