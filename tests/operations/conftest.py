from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written to a pipe waits in a buffer, as it does for most people."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
