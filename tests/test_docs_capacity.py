"""docs/capacity.md: locks are spread over several servers as it says."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from django_redislock.primitives.keys import Keys
from django_redislock.settings import conf

PAGE = Path(__file__).parent.parent / "docs" / "capacity.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def aliases(settings: Any, *names: str) -> None:
    """CACHES has them; each is a database of its own."""
    default = settings.CACHES["default"]
    where = default["LOCATION"].partition("?")[0]
    shards = {
        name: {**default, "LOCATION": f"{where}?db={number}"}
        for number, name in enumerate(names, 1)
    }
    settings.CACHES = {**settings.CACHES, **shards}


def executed(number: int) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(BLOCKS[number], str(PAGE), "exec"), namespace)
    return namespace


@pytest.mark.parametrize(
    ("name", "using"),
    [("invoice:42", "locks-billing"), ("sync:7", "locks-sync"), ("report", "locks")],
)
def test_a_pattern_names_the_server(settings: Any, name: str, using: str) -> None:
    settings.REDISLOCK = executed(0)["REDISLOCK"]
    assert conf.policy(name, {}).using == using


def test_the_name_picks_the_server(settings: Any) -> None:
    """Which remembers it, and no other one does; all of them have some."""
    page = executed(1)
    aliases(settings, *page["SHARDS"])
    with ExitStack() as stack:
        shards = {
            alias: stack.enter_context(Redis.from_url(settings.CACHES[alias]["LOCATION"]))
            for alias in page["SHARDS"]
        }
        used = {customer: page["visit"](customer) for customer in range(30)}
        assert set(used.values()) == set(shards)
        for customer, using in used.items():
            tail = Keys.of("redislock", f"customer:{customer}").tail
            assert [alias for alias, redis in shards.items() if redis.exists(tail)] == [using]
        for redis in shards.values():
            redis.flushdb()
