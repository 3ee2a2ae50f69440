"""What all tests of views need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.signals import request_finished
from django.db import close_old_connections


@pytest.fixture(autouse=True)
def _hosts(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["*"]


@pytest.fixture(autouse=True)
def _keep_connections() -> Iterator[None]:
    """A response that is closed closes database connections, which most tests don't have."""
    request_finished.disconnect(close_old_connections)
    yield
    request_finished.connect(close_old_connections)
