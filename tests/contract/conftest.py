"""The fixture through which every contract is run twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_redislock.renewal import watchdog
from tests.contract.ports import AsyncPort, Port, SyncPort


@pytest.fixture(params=[SyncPort, AsyncPort], ids=["sync", "async"])
def port(request: pytest.FixtureRequest) -> Iterator[Port]:
    """A synchronous and an asynchronous way to call a lock."""
    port = request.param()
    yield port
    port.close()


@pytest.fixture
def no_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that count round trips: the process of a lease shows every now and then that it
    lives, and that is one, too."""
    monkeypatch.setattr(watchdog("default"), "_show_at", float("inf"))
