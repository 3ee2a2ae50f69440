"""To run one of our scripts past the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis

from django_redislock.primitives import scripts


def call(redis: Redis, name: str, keys: Sequence[str], *args: Any) -> Any:
    """What lua/<name>.lua answers."""
    source = scripts.load(name).source
    _, answer = redis.eval(source, len(keys), *keys, *args, "a nonce")  # type: ignore[no-untyped-call]
    return answer
