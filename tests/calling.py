"""To run one of our scripts past the package, or without the short ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from redis import Redis

from django_redislock.lease import claims
from django_redislock.primitives import scripts
from django_redislock.transport.ports import BasePort, SyncPort


def call(redis: Redis, name: str, keys: Sequence[str], *args: Any) -> Any:
    """What lua/<name>.lua answers."""
    source = scripts.load(name).source
    answer = redis.eval(source, len(keys), *keys, *args)  # type: ignore[no-untyped-call]
    if isinstance(answer, bytes):  # the short form of a list that begins with 1
        return [1, *map(int, answer.split(b"|")[1:])]
    return answer[1] if len(answer) > 1 else None


def at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no lock be taken or released by a short request."""
    monkeypatch.setattr(BasePort, "plain", lambda *_: False)
    monkeypatch.setattr(
        claims, "straight", lambda server, terms, *_: SyncPort(server, terms=terms)
    )
