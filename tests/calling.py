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


def watch(monkeypatch: pytest.MonkeyPatch, script: Any) -> None:
    """Let every script be run by this function, in place of `BasePort.script`."""
    monkeypatch.setattr(BasePort, "script", script)
    _by_ports(monkeypatch)


def at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no lock be taken or released by a short request."""
    monkeypatch.setattr(BasePort, "plain", lambda *_: False)
    _by_ports(monkeypatch)


def _by_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        claims, "straight", lambda server, terms, *_: SyncPort(server, terms=terms)
    )
