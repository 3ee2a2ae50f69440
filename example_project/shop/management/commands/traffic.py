"""A process of the tour: a customer, an office, a scheduler."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_redislock import LockError
from shop.tour.traffic import ROLES, open_shop


class Command(BaseCommand):
    help = "Does again and again what that role does, until standard input ends."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("role", choices=ROLES)
        parser.add_argument("--number", type=int, default=1, help="to tell those of a role apart")

    def handle(self, *, role: str, number: int, **_options: Any) -> None:
        threading.Thread(target=end_with_our_parent, daemon=True).start()
        open_shop()
        first, *others = ROLES[role]
        for letter, function in zip("bcdefg", others, strict=False):
            name = f"{function.__name__}-{number}{letter}"
            threading.Thread(target=keep_at, args=(function, name), daemon=True).start()
        # In the main thread, which a scheduler needs for its signals.
        keep_at(first, f"{first.__name__}-{number}")


def keep_at(function: Callable[[str], object], name: str) -> None:
    """Repeat it if an operator clears the lock, or a button stops the process for too long."""
    threading.current_thread().name = name  # the owner that others see
    while True:
        with suppress(LockError):
            function(name)


def end_with_our_parent() -> None:
    """Wait until the parent is gone: it has the other end of the pipe, so this returns however it
    ended."""
    sys.stdin.read()
    os._exit(0)
