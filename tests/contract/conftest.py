"""For the tests of contracts, each of which runs sync and async."""

from __future__ import annotations

import pytest

from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.server import server_of


@pytest.fixture
def no_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that count round trips: the process of a lease shows every now and then that it
    lives, and that is one, too."""
    monkeypatch.setattr(watchdog(server_of("default")), "_show_at", float("inf"))
