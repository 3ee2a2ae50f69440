"""To run one of our scripts past the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis

from django_redislock.primitives import scripts


def call(redis: Redis, name: str, keys: Sequence[str], *args: Any) -> Any:
    """What lua/<name>.lua answers."""
    source = scripts.load(name).source
    answer = redis.eval(source, len(keys), *keys, *args)  # type: ignore[no-untyped-call]
    if isinstance(answer, bytes):  # the short form of a list that begins with 1
        return [1, *map(int, answer.split(b"|")[1:])]
    return answer[1] if len(answer) > 1 else None
