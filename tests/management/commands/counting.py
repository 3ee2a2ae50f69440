"""A command that notes how far it is, and ends when it is told to."""

from __future__ import annotations

import sys
from typing import Any

from django_redislock import current_lease
from django_redislock.commands import LockedCommand


class Command(LockedCommand):
    def handle(self, *args: Any, **options: Any) -> None:
        current_lease().note(done=41, total=900)
        sys.stdin.readline()
        current_lease().note(done=82, total=900)
        sys.stdin.readline()
