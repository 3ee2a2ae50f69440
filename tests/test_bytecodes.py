"""A free lock costs no more bytecodes than this, counted and not timed."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

from devtools.redis_server import RedisServer

LIMITS = {
    "with": 4_900,
    "with arguments": 5_250,
    "decorated": 5_050,
    "drop-in": 5_500,
    "Semaphore": 5_250,
    "read": 5_250,
    "MultiLock of 2": 7_250,
    "once": 9_850,
    "single_flight": 10_300,
    "lock_view": 6_800,
    "task": 7_700,
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
