"""The settings that docs/kinds.md shows make what it says."""

from __future__ import annotations

from typing import Any

from django_redislock import redis_lock
from django_redislock.primitives import mutex_and_timestamp, permits
from django_redislock.primitives.redlock import Redlock
from tests.blocks import blocks

[BLOCK] = blocks("kinds.md")


def test_kinds_by_settings(settings: Any) -> None:
    """`redis_lock` of these names is what their entries say."""
    says: dict[str, Any] = {}
    exec(compile(BLOCK, "docs", "exec"), says)
    settings.REDISLOCK = says["REDISLOCK"]

    def primitive(name: str) -> Any:
        lock = redis_lock(name)
        return lock._primitive(lock._policy())

    assert primitive("export") == permits.semaphore(3)
    assert primitive("catalogue") == permits.READ
    assert primitive("import") is mutex_and_timestamp
    ledger = primitive("ledger")
    assert isinstance(ledger, Redlock)
    assert ledger.servers.aliases == ("redis-a", "redis-b", "redis-c")
