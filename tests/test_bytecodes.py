"""A free lock costs no more bytecodes than this, counted and not timed."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

from devtools.redis_server import RedisServer

LIMITS = {
    "with": 2_300,
    "with arguments": 2_600,
    "decorated": 2_500,
    "drop-in": 2_800,
    "Semaphore": 2_450,
    "read": 2_500,
    "MultiLock of 2": 3_200,
    "once": 4_200,
    "single_flight": 4_400,
    "lock_view": 4_400,
    "task": 6_200,
    "with, listening": 2_300,
    "task, listening": 6_200,
}
"""Python 3.11 to 3.14, redis-py 8, with hiredis and without."""


@cache
def costs(url: str) -> dict[str, list[int]]:
    command = [sys.executable, "-m", "devtools.bytecodes", url, "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return dict(json.loads(found.stdout))


@pytest.mark.parametrize("form", LIMITS)
def test_a_free_lock(form: str, redis_server: RedisServer) -> None:
    """Each form of a lock that is free keeps to its limit."""
    bytecodes, *_ = costs(redis_server.url)[form]
    assert bytecodes <= LIMITS[form]
