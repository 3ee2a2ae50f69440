from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.operations.terminal import Terminal


@pytest.fixture(autouse=True)
def _buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written to a pipe waits in a buffer, as it does for most people."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    terminals: list[Terminal] = []

    def start(*arguments: str, **options: Any) -> Terminal:
        terminals.append(Terminal(*arguments, **options))
        return terminals[-1]

    yield start
    for each in terminals:
        each.close()
