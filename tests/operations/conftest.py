from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.operations.terminal import Terminal
from tests.processes import all_closed


@pytest.fixture(autouse=True)
def _buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written to a pipe waits in a buffer, as it does for most people."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    with all_closed(Terminal) as start:
        yield start
