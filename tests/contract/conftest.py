"""The fixture through which every contract is run twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.ports import AsyncPort, Port, SyncPort


@pytest.fixture(params=[SyncPort, AsyncPort], ids=["sync", "async"])
def port(request: pytest.FixtureRequest) -> Iterator[Port]:
    """A synchronous and an asynchronous way to call a lock."""
    port = request.param()
    yield port
    port.close()
