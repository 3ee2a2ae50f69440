"""Hints are pasted at the end of the settings."""

from __future__ import annotations

import copy
from typing import Any

from django_redis.pool import ConnectionFactory

SETTINGS = ("CACHES", "REDISLOCK", "REDIS_LOCK")
"""What hints read and write; the last one is misspelt."""


def paste(hint: str, settings: Any) -> None:
    """Run a hint as the last line of the settings; `settings` is the fixture."""
    there = {name for name in SETTINGS if hasattr(settings, name)}
    module = {name: copy.deepcopy(getattr(settings, name)) for name in there}
    exec(hint, module)
    for name in SETTINGS:
        if name in module:
            setattr(settings, name, module[name])
        elif name in there:
            delattr(settings, name)
    ConnectionFactory._pools.clear()  # as in a process that starts with these settings
