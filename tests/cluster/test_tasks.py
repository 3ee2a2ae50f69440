"""What `unique` and `limited` owe where each name has a slot of its own: on a Redis Cluster, and
on a server that is sharded behind one address."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.test_contract import place, redis
from tests.tasks.test_rules import *  # noqa: F403

__all__ = ["place", "redis"]


@pytest.fixture
def own_server() -> Any:
    pytest.skip("it would be no cluster")


@pytest.fixture(autouse=True)
def _plain(request: pytest.FixtureRequest) -> None:
    if "backlog" in request.node.name:
        pytest.skip("asks a single server for its time")
    if "takes_too_long" in request.node.name:
        pytest.skip("there is one proxy, of a single server")
